#pragma once
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/builder.h"
#include "grammar/regex.h"

namespace facet::grammar {

// A deterministic automaton over code points, from state 0. What no edge names leads nowhere. Constraints on one string
// (pattern, format, lengths, names that are taken) are intersected here, before it is known how characters are written.
struct CharDfa {
  struct Edge {
    CharSet on;
    uint32_t to;
  };
  struct State {
    std::vector<Edge> edges;  // disjoint
    bool accepts = false;
  };
  static constexpr size_t kMaxStates = 12'000;
  std::vector<State> states;

  static CharDfa any() { return length(0, kUnbounded); }
  static CharDfa length(uint32_t min, uint32_t max);          // max up to kMaxStates - 2, or kUnbounded
  static CharDfa texts(const std::vector<std::string>& all);  // well-formed UTF-8
  static CharDfa not_containing(std::string_view text);       // ASCII
  static Result<CharDfa> regex(const Regex& regex);           // without anchors

  CharDfa complement() const;
  Result<CharDfa> intersect(const CharDfa& other) const;
  // Without states from which nothing is accepted. False if nothing is left.
  bool trim();
};

}  // namespace facet::grammar
