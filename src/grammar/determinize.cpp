#include "grammar/determinize.h"

#include <algorithm>
#include <unordered_map>

namespace facet::grammar {
namespace {

using Set = std::vector<uint32_t>;
struct SetHash {
  size_t operator()(const Set& s) const {
    uint64_t h = s.size();
    for (const uint32_t v : s) h = (h ^ v) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
    return size_t(h);
  }
};

class Determinizer {
 public:
  Determinizer(const Nfa& nfa, uint32_t rule, RawNodes& out, CompileBudget& budget)
      : nfa_(nfa), rule_(rule), out_(out), budget_(budget), seen_(nfa.states, 0) {}

  uint32_t run() {
    const RawNodes::Node before{
        uint32_t(out_.ranges.size()), uint32_t(out_.calls.size()), uint32_t(out_.tokens.size()), 0, false, false};
    const uint32_t first = uint32_t(out_.nodes.size());
    if (subsets(first)) return first;
    out_.nodes.resize(first);
    out_.ranges.resize(before.ranges);
    out_.calls.resize(before.calls);
    out_.tokens.resize(before.tokens);
    keep_states(first);
    return first;
  }

 private:
  // The states reached without consuming; of these, those that matter.
  void close(const Set& from, Set& to) {
    to.clear();
    ++stamp_;
    todo_.clear();
    for (const uint32_t s : from) mark(s);
    size_t looked = 0;  // nodes and edges, of which the whole has at most some million
    while (!todo_.empty()) {
      const uint32_t s = todo_.back();
      todo_.pop_back();
      bool matters = s == Nfa::kAccept;
      looked += 1 + nfa_.begin[s + 1] - nfa_.begin[s];
      for (uint32_t e = nfa_.begin[s]; e < nfa_.begin[s + 1]; ++e) {
        if (nfa_.edges[e].kind == Nfa::Kind::kEpsilon)
          mark(nfa_.edges[e].to);
        else
          matters = true;
      }
      if (matters) to.push_back(s);
    }
    budget_.spend(1 + (looked + to.size()) / 4);
    std::sort(to.begin(), to.end());
  }
  void mark(uint32_t s) {
    if (seen_[s] == stamp_) return;
    seen_[s] = stamp_;
    todo_.push_back(s);
  }

  bool full() const {
    return out_.nodes.size() > 2 * Automaton::kMaxNodes ||
           out_.ranges.size() + out_.calls.size() + out_.tokens.size() > Automaton::kMaxEdges;
  }
  void begin_node(bool final) {
    budget_.spend(8);  // also what is made of it later
    out_.nodes.push_back(
        {uint32_t(out_.ranges.size()), uint32_t(out_.calls.size()), uint32_t(out_.tokens.size()), rule_, final, false});
  }

  uint32_t id_of(const Set& from) {
    close(from, closed_);
    const auto [it, fresh] = ids_.try_emplace(closed_, uint32_t(sets_.size()));
    if (fresh) {
      budget_.spend(16 + closed_.size());
      sets_.push_back(&it->first);
      weight_ += closed_.size();
    }
    return it->second;
  }

  bool subsets(uint32_t first) {
    const size_t max_sets = 4 * size_t(nfa_.states) + 2000, max_weight = 16 * size_t(nfa_.states) + 400'000;
    id_of({Nfa::kStart});
    for (size_t i = 0; i < sets_.size(); ++i) {
      if (sets_.size() > max_sets || weight_ > max_weight || full()) return false;
      const Set& set = *sets_[i];
      begin_node(std::binary_search(set.begin(), set.end(), Nfa::kAccept));
      byte_edges(set, first);
      other_edges(set, first);
    }
    return true;
  }

  // Bytes between two neighbouring ends of ranges behave alike.
  void byte_edges(const Set& set, uint32_t first) {
    found_.clear();
    for (const uint32_t s : set)
      for (uint32_t e = nfa_.begin[s]; e < nfa_.begin[s + 1]; ++e)
        if (nfa_.edges[e].kind == Nfa::Kind::kRange) found_.push_back(nfa_.edges[e]);
    if (found_.empty()) return;
    budget_.spend(12 + 4 * found_.size());
    bool cut[257] = {};
    for (const Nfa::Edge& e : found_) cut[e.lo] = cut[e.hi + 1] = true;
    std::sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.lo < b.lo; });
    const size_t mine = out_.ranges.size();
    for (int lo = 0; lo < 256;) {
      int hi = lo;
      while (hi < 255 && !cut[hi + 1]) ++hi;
      target_.clear();
      size_t looked = 0;
      for (const Nfa::Edge& e : found_) {
        if (e.lo > lo) break;
        ++looked;
        if (e.hi >= hi) target_.push_back(e.to);
      }
      budget_.spend(2 + looked / 4);
      if (!target_.empty()) {
        const uint32_t to = first + id_of(target_);
        if (out_.ranges.size() > mine && out_.ranges.back().to == to && out_.ranges.back().hi + 1 == lo)
          out_.ranges.back().hi = uint8_t(hi);
        else
          out_.ranges.push_back({uint8_t(lo), uint8_t(hi), to});
      }
      lo = hi + 1;
    }
  }

  void other_edges(const Set& set, uint32_t first) {
    found_.clear();
    for (const uint32_t s : set)
      for (uint32_t e = nfa_.begin[s]; e < nfa_.begin[s + 1]; ++e)
        if (nfa_.edges[e].kind == Nfa::Kind::kCall || nfa_.edges[e].kind == Nfa::Kind::kToken)
          found_.push_back(nfa_.edges[e]);
    const auto key = [](const Nfa::Edge& e) { return std::tuple(e.kind, e.rule, e.lo); };
    std::sort(found_.begin(), found_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    for (size_t i = 0, k; i < found_.size(); i = k) {
      target_.clear();
      for (k = i; k < found_.size() && key(found_[k]) == key(found_[i]); ++k) target_.push_back(found_[k].to);
      budget_.spend(4);
      const uint32_t to = first + id_of(target_);
      if (found_[i].kind == Nfa::Kind::kCall)
        out_.calls.push_back({found_[i].rule, to});
      else
        out_.tokens.push_back({SpecialToken(found_[i].lo), to});
    }
  }

  // A node for each state that matters, and one for the start.
  void keep_states(uint32_t first) {
    std::vector<uint32_t> number(nfa_.states, 0);
    uint32_t next = first + 1;
    for (uint32_t s = 0; s < nfa_.states; ++s) {
      bool matters = s == Nfa::kAccept;
      for (uint32_t e = nfa_.begin[s]; e < nfa_.begin[s + 1]; ++e) matters |= nfa_.edges[e].kind != Nfa::Kind::kEpsilon;
      if (matters) number[s] = next++;
    }
    Set closed;
    close({Nfa::kStart}, closed);
    state_node(closed, number);
    for (uint32_t s = 0; s < nfa_.states && !out_.overflow; ++s)
      if (number[s]) state_node({s}, number);
  }

  void state_node(const Set& states, const std::vector<uint32_t>& number) {
    begin_node(std::find(states.begin(), states.end(), Nfa::kAccept) != states.end());
    out_.nodes.back().overlaps = true;
    for (const uint32_t s : states) {
      for (uint32_t i = nfa_.begin[s]; i < nfa_.begin[s + 1]; ++i) {
        const Nfa::Edge& e = nfa_.edges[i];
        if (e.kind == Nfa::Kind::kEpsilon) continue;
        if (full()) out_.overflow = true;
        if (out_.overflow) return;
        Set closed;
        close({e.to}, closed);
        budget_.spend(2 * closed.size());
        for (const uint32_t t : closed) {
          if (e.kind == Nfa::Kind::kRange)
            out_.ranges.push_back({e.lo, e.hi, number[t]});
          else if (e.kind == Nfa::Kind::kCall)
            out_.calls.push_back({e.rule, number[t]});
          else
            out_.tokens.push_back({SpecialToken(e.lo), number[t]});
        }
      }
    }
  }

  const Nfa& nfa_;
  const uint32_t rule_;
  RawNodes& out_;
  CompileBudget& budget_;
  std::vector<uint32_t> seen_, todo_;
  uint32_t stamp_ = 0;
  std::unordered_map<Set, uint32_t, SetHash> ids_;
  std::vector<const Set*> sets_;  // by number; keys of ids_
  size_t weight_ = 0;
  Set closed_, target_;
  std::vector<Nfa::Edge> found_;
};

}  // namespace

uint32_t append_rule(const Nfa& nfa, uint32_t rule, RawNodes& out, CompileBudget& budget) {
  return Determinizer(nfa, rule, out, budget).run();
}

}  // namespace facet::grammar
