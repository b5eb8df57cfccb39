#pragma once
#include <cstdint>
#include <vector>

#include "grammar/builder.h"

namespace facet::grammar {

// One rule as a nondeterministic automaton.
struct Nfa {
  enum class Kind : uint8_t { kEpsilon, kRange, kToken, kCall };
  struct Edge {
    uint32_t from, to;
    Kind kind;
    uint8_t lo, hi;  // kRange; lo is the token of kToken
    uint32_t rule;   // kCall
  };
  static constexpr uint32_t kStart = 0, kAccept = 1;
  static constexpr size_t kMaxEdges = 3'000'000;

  uint32_t states = 2;
  std::vector<Edge> edges;      // sorted by from
  std::vector<uint32_t> begin;  // by state, and one more
  bool overflow = false;

  // nullable: by rule; a call of such a rule may be stepped over.
  static Nfa make(const Builder& builder, ExprId e, const std::vector<bool>& nullable);
};

std::vector<bool> nullable_rules(const Builder& builder);

}  // namespace facet::grammar
