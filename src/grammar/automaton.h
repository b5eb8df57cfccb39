#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "grammar/builder.h"

namespace facet::grammar {

// A grammar as a pushdown automaton. Every rule is a finite automaton; its edges are byte ranges, special tokens and
// calls of rules. A call pushes the node to return to; a final node pops.
//
// Holds of every automaton that compile() returns: from each node the rule can be completed, so that whatever is
// reached can be continued to a match; no rule calls itself, directly or through others, before it has consumed
// something; a call never consumes nothing (a rule that matches the empty text is stepped over instead).
struct Automaton {
  static constexpr uint32_t kEscape = 0;  // a node without edges, for who runs on an unknown stack
  static constexpr uint32_t kMaxNodes = 250'000, kMaxEdges = 2'000'000;
  // Nodes of one mask class take the same texts of up to so many bytes.
  static constexpr int kHorizon = 64;

  struct Range {
    uint8_t lo, hi;
    uint32_t to;
  };
  struct Call {
    uint32_t rule, to;
  };
  struct TokenEdge {
    SpecialToken token;
    uint32_t to;
  };
  enum Flag : uint8_t {
    kFinal = 1,      // the rule may end here
    kCalls = 2,      // has calls
    kTerminals = 4,  // has byte ranges or tokens
    kPureFinal = 8,  // final and without edges: nothing to return to
    kOverlaps = 16,  // byte ranges may overlap; otherwise they are ascending
  };
  struct Node {
    uint32_t ranges, calls, tokens;  // begin; they end where the next node's begin
    uint32_t need;                   // stack entries without which the rule cannot be completed from here
    uint8_t flags;
  };
  struct Rule {
    uint32_t start;
    uint32_t rank;  // of a caller's start smaller than of what it calls
  };
  using Class = std::array<uint64_t, 2>;

  std::vector<Node> nodes;  // and one more that ends the last
  std::vector<Range> ranges;
  std::vector<Call> calls;
  std::vector<TokenEdge> tokens;
  std::vector<Rule> rules;
  std::vector<bool> in_root;   // by node: of the root rule, which no rule calls
  std::vector<Class> classes;  // by node; equal also across grammars where rules call no others
  uint32_t root = 0;           // rule
  uint32_t max_depth = 256;    // stack entries

  std::span<const Range> ranges_of(uint32_t n) const {
    return {ranges.data() + nodes[n].ranges, nodes[n + 1].ranges - nodes[n].ranges};
  }
  std::span<const Call> calls_of(uint32_t n) const {
    return {calls.data() + nodes[n].calls, nodes[n + 1].calls - nodes[n].calls};
  }
  std::span<const TokenEdge> tokens_of(uint32_t n) const {
    return {tokens.data() + nodes[n].tokens, nodes[n + 1].tokens - nodes[n].tokens};
  }
  size_t bytes() const;

  // unique: a number no other grammar has. Errors: too large, a rule that calls itself first, matches nothing.
  static Result<Automaton> compile(const Builder& builder, RuleId root, uint32_t max_depth, uint64_t unique);
};

}  // namespace facet::grammar
