#pragma once
#include "grammar/grammar.h"
#include "grammar/stepper.h"

namespace facet::grammar {

// A state's words and back. Stacks are numbered in the order in which the items, by node, reach them, what lies below
// first; so equal states have equal words.
//   may_end, items, {node, set} of each, sets, {2 * entries + has_empty, {node, set below} of each} of each but set 0
void save_frame(const Frame& frame, const Stacks& stacks, std::vector<uint32_t>& words);
void load_frame(const std::vector<uint32_t>& words, Stacks& stacks, Frame& frame);

// One for each thread, ready for the automaton. Not to be held across a call of a function that uses it too.
Stepper& thread_stepper(const Automaton& a);

}  // namespace facet::grammar
