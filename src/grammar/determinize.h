#pragma once
#include "grammar/automaton.h"
#include "grammar/nfa.h"

namespace facet::grammar {

// Nodes being made; targets are indices of nodes.
struct RawNodes {
  struct Node {
    uint32_t ranges, calls, tokens;  // begin
    uint32_t rule;
    bool final, overlaps;
  };
  std::vector<Node> nodes;
  std::vector<Automaton::Range> ranges;
  std::vector<Automaton::Call> calls;
  std::vector<Automaton::TokenEdge> tokens;
  bool overflow = false;
};

// Appends the nodes of a rule and returns its start. Sets of states become nodes; a rule where that takes too many
// keeps one node a state.
uint32_t append_rule(const Nfa& nfa, uint32_t rule, RawNodes& out, CompileBudget& budget);

}  // namespace facet::grammar
