#include "grammar/char_dfa.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"

namespace facet::grammar {
namespace {

Error too_large() {
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

void add_edge(CharDfa::State& s, const CharSet& on, uint32_t to) {
  if (on.empty()) return;
  for (CharDfa::Edge& e : s.edges) {
    if (e.to != to) continue;
    e.on.add(on);
    return;
  }
  s.edges.push_back({on, to});
}

class RegexDfa {
 public:
  Result<CharDfa> make(const Regex& r) {
    const uint32_t start = state(), accept = state();
    emit(r, start, accept);
    if (full_) return too_large();
    std::erase_if(anything_, [&](uint32_t head) {
      const std::vector<uint32_t> reached = close({head});
      return !std::binary_search(reached.begin(), reached.end(), accept);
    });
    CharDfa out;
    Numbers<std::vector<uint32_t>> sets;
    size_t weight = 0;
    sets.of(reach({start}));
    for (size_t i = 0; i < sets.keys.size(); ++i) {
      const std::vector<uint32_t> set = sets.keys[i];
      weight += set.size();
      if (sets.keys.size() > CharDfa::kMaxStates || weight > 2'000'000) return too_large();
      CharDfa::State s;
      s.accepts = std::binary_search(set.begin(), set.end(), accept);
      // Between two neighbouring bounds of sets, characters behave alike.
      std::vector<uint32_t> bounds;
      for (const uint32_t n : set)
        for (const auto& e : nfa_[n].edges)
          for (const auto& [lo, hi] : e.on.ranges()) bounds.push_back(lo), bounds.push_back(hi + 1);
      std::sort(bounds.begin(), bounds.end());
      bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
      if (bounds.size() * set.size() > 4'000'000) return too_large();
      for (size_t k = 0; k + 1 < bounds.size(); ++k) {
        std::vector<uint32_t> to;
        for (const uint32_t n : set)
          for (const auto& e : nfa_[n].edges)
            if (e.on.contains(bounds[k])) to.push_back(e.to);
        if (to.empty()) continue;
        CharSet on;
        on.add(bounds[k], bounds[k + 1] - 1);
        add_edge(s, on, sets.of(reach(std::move(to))));
      }
      out.states.push_back(std::move(s));
    }
    return out;
  }

 private:
  struct Node {
    std::vector<CharDfa::Edge> edges;
    std::vector<uint32_t> epsilon;
  };
  uint32_t state() {
    if (nfa_.size() > 60'000) full_ = true;
    if (!full_) nfa_.emplace_back();
    return uint32_t(nfa_.size() - 1);
  }
  void emit(const Regex& r, uint32_t from, uint32_t to) {
    if (full_) return;
    switch (r.kind) {
      case Regex::Kind::kSet:
        nfa_[from].edges.push_back({r.set, to});
        return;
      case Regex::Kind::kSeq:
        for (const Regex& item : r.items) {
          const uint32_t next = state();
          emit(item, from, next);
          from = next;
        }
        break;
      case Regex::Kind::kAlt:
        for (const Regex& item : r.items) emit(item, from, to);
        return;
      case Regex::Kind::kRepeat: {
        const uint32_t copies = r.max == kUnbounded ? r.min : r.max;
        for (uint32_t i = 0; i < copies && !full_; ++i) {
          if (i >= r.min) nfa_[from].epsilon.push_back(to);
          const uint32_t next = state();
          emit(r.items[0], from, next);
          from = next;
        }
        if (r.max == kUnbounded) {
          const uint32_t head = state(), tail = state();
          nfa_[from].epsilon.push_back(head);
          if (r.items[0].kind == Regex::Kind::kSet && r.items[0].set == CharSet::all()) anything_.push_back(head);
          emit(r.items[0], head, tail);
          nfa_[tail].epsilon.push_back(head);
          from = head;
        }
        break;
      }
      default:
        break;
    }
    nfa_[from].epsilon.push_back(to);
  }

  std::vector<uint32_t> close(std::vector<uint32_t> from) {
    std::vector<uint32_t> out;
    seen_.resize(nfa_.size(), 0);
    ++stamp_;
    while (!from.empty()) {
      const uint32_t s = from.back();
      from.pop_back();
      if (seen_[s] == stamp_) continue;
      seen_[s] = stamp_;
      out.push_back(s);
      from.insert(from.end(), nfa_[s].epsilon.begin(), nfa_[s].epsilon.end());
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  // The states reached by these; where one of them accepts whatever follows, it alone.
  std::vector<uint32_t> reach(std::vector<uint32_t> from) {
    std::vector<uint32_t> out = close(std::move(from));
    for (const uint32_t head : anything_)
      if (std::binary_search(out.begin(), out.end(), head)) return close({head});
    return out;
  }

  std::vector<Node> nfa_;
  std::vector<uint32_t> seen_;
  std::vector<uint32_t> anything_;  // heads of .* that nothing has to follow
  uint32_t stamp_ = 0;
  bool full_ = false;
};

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

CharDfa CharDfa::texts(const std::vector<std::string>& all) {
  CharDfa out;
  out.states.resize(1);
  for (const std::string& text : all) {
    std::vector<uint32_t> chars;
    decode_utf8(text, chars);
    uint32_t at = 0;
    for (const uint32_t c : chars) {
      uint32_t to = 0;
      for (const Edge& e : out.states[at].edges)
        if (e.on.contains(c)) to = e.to;
      if (!to) {
        to = uint32_t(out.states.size());
        out.states[at].edges.push_back({CharSet::one(c), to});
        out.states.emplace_back();
      }
      at = to;
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

Result<CharDfa> CharDfa::regex(const Regex& r) { return RegexDfa().make(r); }

CharDfa CharDfa::complement() const {
  CharDfa out = *this;
  const uint32_t sink = uint32_t(states.size());
  for (State& s : out.states) {
    s.accepts = !s.accepts;
    CharSet named;
    for (const Edge& e : s.edges) named.add(e.on);
    add_edge(s, named.complement(), sink);
  }
  out.states.push_back({{{CharSet::all(), sink}}, true});
  return out;
}

Result<CharDfa> CharDfa::intersect(const CharDfa& other) const {
  CharDfa out;
  Numbers<std::pair<uint32_t, uint32_t>> pairs;
  pairs.of({0, 0});
  for (size_t i = 0; i < pairs.keys.size(); ++i) {
    if (pairs.keys.size() > kMaxStates) return too_large();
    const auto [x, y] = pairs.keys[i];
    State s;
    s.accepts = states[x].accepts && other.states[y].accepts;
    for (const Edge& a : states[x].edges)
      for (const Edge& b : other.states[y].edges)
        if (const CharSet on = a.on.intersect(b.on); !on.empty()) add_edge(s, on, pairs.of({a.to, b.to}));
    out.states.push_back(std::move(s));
  }
  out.trim();
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

}  // namespace facet::grammar
