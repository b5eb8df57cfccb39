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
  static CharDfa length(uint32_t min, uint32_t max);  // max up to kMaxStates - 2, or kUnbounded
  static CharDfa texts(const std::vector<std::string>& all, CompileBudget& budget);  // well-formed UTF-8
  static CharDfa not_containing(std::string_view text);                              // ASCII
  // ^, $ and lookahead anywhere: what has to follow runs beside what is read.
  static Result<CharDfa> regex(const Regex& regex, RegexMatch match, CompileBudget& budget);

  CharDfa complement(CompileBudget& budget) const;
  // kMayCut: where both together have too many states, only the shorter texts, as many as fit.
  enum class Size { kWhole, kMayCut };
  Result<CharDfa> intersect(const CharDfa& other, CompileBudget& budget, Size size = Size::kWhole) const;
  // Without edges to where nothing is accepted. False if nothing is left.
  bool trim();
  bool accepts(std::string_view text, CompileBudget& budget) const;
  // Every text.
  bool is_any() const {
    return states[0].accepts && states[0].edges.size() == 1 && states[0].edges[0].to == 0 &&
           states[0].edges[0].on == CharSet::all();
  }
};

}  // namespace facet::grammar
