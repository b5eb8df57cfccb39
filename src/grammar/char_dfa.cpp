#include "grammar/char_dfa.h"

#include <algorithm>
#include <span>

#include "grammar/char_dfa_parts.h"

namespace facet::grammar {
namespace {

std::vector<Span> spans(const CharDfa::State& s) {
  std::vector<Span> out;
  for (const CharDfa::Edge& e : s.edges)
    for (const auto& [lo, hi] : e.on.ranges()) out.push_back({lo, hi, e.to});
  std::sort(out.begin(), out.end(), [](const Span& a, const Span& b) { return a.lo < b.lo; });
  return out;
}

void add_edge(CharDfa::State& s, const CharSet& on, uint32_t to) {
  if (on.empty()) return;
  for (CharDfa::Edge& e : s.edges) {
    if (e.to != to) continue;
    e.on.add(on);
    return;
  }
  s.edges.push_back({on, to});
}

}  // namespace

CharDfa CharDfa::length(uint32_t min, uint32_t max) {
  const uint32_t last = max == kUnbounded ? min : max;
  CharDfa out;
  out.states.resize(size_t(last) + 1);
  for (uint32_t i = 0; i <= last; ++i) {
    out.states[i].accepts = i >= min;
    if (i < last) out.states[i].edges.push_back({CharSet::all(), i + 1});
  }
  if (max == kUnbounded) out.states[last].edges.push_back({CharSet::all(), last});
  return out;
}

CharDfa CharDfa::texts(const std::vector<std::string>& all, CompileBudget& budget) {
  CharDfa out;
  out.states.resize(1);
  std::unordered_map<uint64_t, uint32_t> next;  // of state << 32 | character
  for (const std::string& text : all) {
    budget.spend(16 + 24 * text.size());
    std::vector<uint32_t> chars;
    decode_utf8(text, chars);
    uint32_t at = 0;
    for (const uint32_t c : chars) {
      const auto [it, fresh] = next.try_emplace(uint64_t(at) << 32 | c, uint32_t(out.states.size()));
      if (fresh) {
        out.states[at].edges.push_back({CharSet::one(c), it->second});
        out.states.emplace_back();
      }
      at = it->second;
    }
    out.states[at].accepts = true;
  }
  return out;
}

CharDfa CharDfa::not_containing(std::string_view text) {
  CharDfa out;
  out.states.resize(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    out.states[i].accepts = true;
    CharSet rest = CharSet::all();
    for (const char c : text) {
      if (!rest.contains(uint8_t(c))) continue;
      rest = rest.without(CharSet::one(uint8_t(c)));
      // The longest beginning of the text that what was read ends in.
      const std::string read = std::string(text.substr(0, i)) + c;
      size_t n = read.size();
      while (read.substr(read.size() - n) != text.substr(0, n)) --n;
      if (n < text.size()) add_edge(out.states[i], CharSet::one(uint8_t(c)), uint32_t(n));
    }
    add_edge(out.states[i], rest, 0);
  }
  return out;
}

CharDfa CharDfa::complement(CompileBudget& budget) const {
  const uint32_t sink = uint32_t(states.size());
  CharDfa out;
  for (const State& s : states) {
    std::vector<CharSet::Range> named;
    for (const Edge& e : s.edges) named.insert(named.end(), e.on.ranges().begin(), e.on.ranges().end());
    budget.spend(24 + 12 * s.edges.size() + 6 * named.size());
    out.states.push_back(s);
    out.states.back().accepts = !s.accepts;
    const CharSet rest = CharSet::of(std::move(named)).complement();
    if (!rest.empty()) out.states.back().edges.push_back({rest, sink});
  }
  out.states.push_back({{{CharSet::all(), sink}}, true});
  return out;
}

Result<CharDfa> CharDfa::intersect(const CharDfa& other, CompileBudget& budget, Size size) const {
  CharDfa out;
  Numbers<std::pair<uint32_t, uint32_t>> pairs;
  std::vector<std::vector<Span>> mine(states.size()), theirs(other.states.size());  // made when first asked for
  const auto spans_of = [&](std::vector<std::vector<Span>>& all, const CharDfa& dfa, uint32_t s) {
    if (all[s].empty() && !dfa.states[s].edges.empty()) all[s] = spans(dfa.states[s]);
    return std::span<const Span>(all[s]);
  };
  pairs.of({0, 0});
  for (size_t i = 0; i < pairs.keys.size() && i < kMaxStates; ++i) {
    if (pairs.keys.size() > kMaxStates && size == Size::kWhole) return too_large();
    const auto [x, y] = pairs.keys[i];
    State s;
    s.accepts = states[x].accepts && other.states[y].accepts;
    const auto a = spans_of(mine, *this, x), b = spans_of(theirs, other, y);
    budget.spend(24 + 6 * (a.size() + b.size()));
    Edges edges(s);
    for (size_t p = 0, q = 0; p < a.size() && q < b.size(); (a[p].hi < b[q].hi ? p : q)++) {
      const uint32_t lo = std::max(a[p].lo, b[q].lo), hi = std::min(a[p].hi, b[q].hi);
      if (lo > hi) continue;
      budget.spend(12);
      edges.add(lo, hi, pairs.of({a[p].to, b[q].to}));
    }
    out.states.push_back(std::move(s));
  }
  // Pairs are numbered by the length of the shortest text that leads to them.
  for (State& s : out.states) std::erase_if(s.edges, [&](const Edge& e) { return e.to >= out.states.size(); });
  if (!out.trim() && pairs.keys.size() > kMaxStates) return too_large();
  return out;
}

bool CharDfa::trim() {
  std::vector<std::vector<uint32_t>> from(states.size());
  for (uint32_t s = 0; s < states.size(); ++s)
    for (const Edge& e : states[s].edges) from[e.to].push_back(s);
  std::vector<bool> useful(states.size(), false);
  std::vector<uint32_t> todo;
  for (uint32_t s = 0; s < states.size(); ++s)
    if (states[s].accepts) useful[s] = true, todo.push_back(s);
  while (!todo.empty()) {
    const uint32_t s = todo.back();
    todo.pop_back();
    for (const uint32_t f : from[s])
      if (!useful[f]) useful[f] = true, todo.push_back(f);
  }
  for (State& s : states) std::erase_if(s.edges, [&](const Edge& e) { return !useful[e.to]; });
  return useful[0];
}

bool CharDfa::accepts(std::string_view text, CompileBudget& budget) const {
  std::vector<uint32_t> chars;
  if (!decode_utf8(text, chars)) return false;
  uint32_t at = 0;
  for (const uint32_t c : chars) {
    budget.spend(2 + 2 * states[at].edges.size());
    const Edge* e = edge_on(states[at], c);
    if (!e) return false;
    at = e->to;
  }
  return states[at].accepts;
}

}  // namespace facet::grammar
