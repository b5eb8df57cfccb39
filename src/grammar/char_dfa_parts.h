#pragma once
#include <fmt/format.h>

#include <map>
#include <unordered_map>

#include "grammar/char_dfa.h"

// What makes automata over characters: for char_dfa.cpp and regex_dfa.cpp.
namespace facet::grammar {

inline Error too_large() {
  return Error{"regex", fmt::format("expected at most {} states, found more", CharDfa::kMaxStates),
               "use smaller repetition counts"};
}

// Numbers what is found while it is being made.
template <class Key>
struct Numbers {
  std::map<Key, uint32_t> ids;
  std::vector<Key> keys;
  uint32_t of(const Key& key) {
    const auto [it, fresh] = ids.try_emplace(key, uint32_t(keys.size()));
    if (fresh) keys.push_back(key);
    return it->second;
  }
};

// Characters lo..hi lead to a number.
struct Span {
  uint32_t lo, hi, to;
};

// Edges of a state whose characters come in ascending order.
class Edges {
 public:
  explicit Edges(CharDfa::State& s) : s_(s) {}
  void add(uint32_t lo, uint32_t hi, uint32_t to) {
    const auto [it, fresh] = place_.try_emplace(to, s_.edges.size());
    if (fresh) s_.edges.push_back({{}, to});
    s_.edges[it->second].on.add(lo, hi);
  }

 private:
  CharDfa::State& s_;
  std::unordered_map<uint32_t, size_t> place_;
};

inline const CharDfa::Edge* edge_on(const CharDfa::State& s, uint32_t c) {
  for (const CharDfa::Edge& e : s.edges)
    if (e.on.contains(c)) return &e;
  return nullptr;
}

}  // namespace facet::grammar
