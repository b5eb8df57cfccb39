#pragma once
#include <functional>

#include "grammar/char_dfa.h"

namespace facet::grammar {

// Texts of an automaton of few states that are min to max characters long (kUnbounded: any number), without a state for
// each number. The stack counts: a rule for each pair of states takes the texts of one block's length that lead from
// the one to the other, and a chain of calls counts blocks; the last few characters are another rule, which any block
// may be followed by. So 100,000 characters take some 2,000 nodes. A register in every state of a grammar would take
// fewer, but then equal texts at different numbers would share nothing of their masks, and what holds of automata (a
// way on from every node) would have to be shown anew.
//
// label: one character of a set, as it is written.
ExprId counted_text(Builder& b, const CharDfa& dfa, uint32_t min, uint32_t max,
                    const std::function<ExprId(const CharSet&)>& label);

}  // namespace facet::grammar
