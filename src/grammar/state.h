#pragma once
#include "grammar/grammar.h"
#include "grammar/stepper.h"

namespace facet::grammar {

// A state's words and back. Stacks are numbered in the order in which the items, by node, reach them, what lies below
// first; so equal states have equal words.
//   may_end, items, {node, set} of each, sets, {2 * entries + has_empty, {node, set below} of each} of each but set 0
// False, and the words are as before, once the stepper's work is over, or there would be more than kMaxStateWords.
constexpr size_t kMaxStateWords = 100'000;
bool save_frame(const Frame& frame, Stepper& stepper, std::vector<uint32_t>& words);
// An empty frame once the work is over.
void load_frame(const std::vector<uint32_t>& words, Stepper& stepper, Frame& frame);
// Of a state in which nothing was written.
bool start_state(const Automaton& a, std::vector<uint32_t>& words);

// One for each thread, ready for the automaton. Not to be held across a call of a function that uses it too. Counts in
// the thread's GrammarWorkScope, else anew with each call.
Stepper& thread_stepper(const Automaton& a);

}  // namespace facet::grammar
