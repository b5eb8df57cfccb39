#include <algorithm>
#include <optional>

#include "grammar/char_dfa_parts.h"

namespace facet::grammar {
namespace {

// Every path begins with ^ (or ends with $): what a search may put before (behind) it is nothing.
bool anchored(const Regex& r, bool at_begin) {
  switch (r.kind) {
    case Regex::Kind::kBegin:
      return at_begin;
    case Regex::Kind::kEnd:
      return !at_begin;
    case Regex::Kind::kAlt:
      return std::all_of(r.items.begin(), r.items.end(), [&](const Regex& i) { return anchored(i, at_begin); });
    case Regex::Kind::kSeq:
      for (size_t i = 0; i < r.items.size(); ++i) {
        const Regex& item = r.items[at_begin ? i : r.items.size() - 1 - i];
        if (anchored(item, at_begin)) return true;
        if (item.kind != Regex::Kind::kAhead && item.kind != Regex::Kind::kNotAhead) return false;
      }
      return false;
    default:
      return false;
  }
}

// Threads are an NFA's state and what has still to hold of the rest of the text: states of the automata of lookaheads.
// A set of threads becomes a state.
class RegexDfa {
 public:
  explicit RegexDfa(CompileBudget& budget, int depth = 0) : budget_(budget), depth_(depth) { duties_.of({}); }

  Result<CharDfa> make(const Regex& r, RegexMatch match, bool at_begin) {
    const uint32_t start = state(), body = state(), tail = state(), accept = state();
    start_ = start, accept_ = accept;
    const bool search = match == RegexMatch::kSearch;
    if (search && !anchored(r, true))
      any_text(start, body);
    else
      jump(start, body);
    emit(r, body, tail);
    if (search && !anchored(r, false))
      any_text(tail, accept);
    else
      jump(tail, accept);
    if (error_) return *error_;
    std::erase_if(anything_, [&](uint32_t head) { return !ends(close({head}, 0)); });
    CharDfa out;
    sets_.of(reach({start}, at_begin ? kAtBegin : 0));
    size_t weight = 0;
    for (size_t i = 0; i < sets_.keys.size(); ++i) {
      const std::vector<Thread> set = sets_.keys[i];
      weight += set.size();
      if (sets_.keys.size() > CharDfa::kMaxStates || weight > 2'000'000) return too_large();
      budget_.spend(40 + 8 * set.size());
      CharDfa::State s;
      s.accepts = ends(close(set, kAtEnd | (i == 0 && at_begin ? kAtBegin : 0)));
      step(set, s);
      out.states.push_back(std::move(s));
    }
    out.trim();
    return out;
  }

 private:
  using Thread = uint64_t;  // duties << 32 | node
  static constexpr uint32_t kAtBegin = 1, kAtEnd = 2, kNotAtBegin = 4;
  struct Jump {  // to a node without reading
    uint32_t to;
    uint32_t only = 0;           // at the begin, at the end
    uint32_t look = UINT32_MAX;  // what begins to have to hold
  };
  struct Node {
    std::vector<CharDfa::Edge> edges;
    std::vector<Jump> jumps;
  };
  using Duties = std::vector<std::pair<uint32_t, uint32_t>>;  // lookahead, its state

  uint32_t state() {
    budget_.spend(12);
    if (nfa_.size() > 60'000 && !error_) error_ = too_large();
    if (!error_) nfa_.emplace_back();
    return uint32_t(nfa_.size() - 1);
  }
  void jump(uint32_t from, uint32_t to) { nfa_[from].jumps.push_back({to}); }
  void any_text(uint32_t from, uint32_t to) {
    const uint32_t head = state();
    jump(from, head);
    nfa_[head].edges.push_back({CharSet::all(), head});
    anything_.push_back(head);
    jump(head, to);
  }

  void emit(const Regex& r, uint32_t from, uint32_t to) {
    if (error_) return;
    switch (r.kind) {
      case Regex::Kind::kSet:
        budget_.spend(8 + r.set.ranges().size());
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
      case Regex::Kind::kRepeat:
        return repeat(r, from, to);
      case Regex::Kind::kBegin:
      case Regex::Kind::kEnd:
        conditional_ = true;
        nfa_[from].jumps.push_back({to, r.kind == Regex::Kind::kBegin ? kAtBegin : kAtEnd});
        return;
      case Regex::Kind::kAhead:
      case Regex::Kind::kNotAhead:
        return lookahead(r, from, to);
      case Regex::Kind::kEmpty:
        break;
    }
    jump(from, to);
  }

  void repeat(const Regex& r, uint32_t from, uint32_t to) {
    const uint32_t copies = r.max == kUnbounded ? r.min : r.max;
    for (uint32_t i = 0; i < copies && !error_; ++i) {
      if (i >= r.min) jump(from, to);
      const uint32_t next = state();
      emit(r.items[0], from, next);
      from = next;
    }
    if (r.max == kUnbounded) {
      const uint32_t head = state(), tail = state();
      jump(from, head);
      if (r.items[0].kind == Regex::Kind::kSet && r.items[0].set == CharSet::all()) anything_.push_back(head);
      emit(r.items[0], head, tail);
      jump(tail, head);
      from = head;
    }
    jump(from, to);
  }

  // What follows must begin (or must not) with a match. ^ inside holds where the lookahead itself is at the begin.
  void lookahead(const Regex& r, uint32_t from, uint32_t to) {
    constexpr int kMaxNested = 8;
    conditional_ = true;
    if (depth_ >= kMaxNested) {
      error_ = Error{"regex", fmt::format("expected lookahead nested at most {} deep", kMaxNested), "simplify it"};
      return;
    }
    Regex body{.kind = Regex::Kind::kSeq};
    body.items = r.items;
    if (!anchored(r.items[0], false)) {
      Regex rest{.kind = Regex::Kind::kRepeat, .min = 0, .max = kUnbounded};
      rest.items.push_back({.kind = Regex::Kind::kSet, .set = CharSet::all()});
      body.items.push_back(std::move(rest));
    }
    for (const bool at_begin : {true, false}) {
      Result<CharDfa> dfa = RegexDfa(budget_, depth_ + 1).make(body, RegexMatch::kWhole, at_begin);
      if (!dfa) {
        error_ = dfa.error();
        return;
      }
      if (r.kind == Regex::Kind::kNotAhead) *dfa = dfa->complement(budget_);
      dfa->trim();
      looks_.push_back(std::move(*dfa));
    }
    // The begin is known where it is passed: two jumps, of which one is open.
    const uint32_t look = uint32_t(looks_.size() - 2);
    nfa_[from].jumps.push_back({to, kAtBegin, look});
    nfa_[from].jumps.push_back({to, kNotAtBegin, look + 1});
  }

  // The duties and one more; kNone if they cannot be met.
  static constexpr uint32_t kNone = UINT32_MAX;
  uint32_t with_duty(uint32_t duties, uint32_t look, uint32_t at) {
    const CharDfa& dfa = looks_[look];
    const CharDfa::State& s = dfa.states[at];
    if (s.edges.empty() && !s.accepts) return kNone;
    if (s.accepts && s.edges.size() == 1 && s.edges[0].to == at && s.edges[0].on == CharSet::all()) return duties;
    Duties all = duties_.keys[duties];
    budget_.spend(8 + all.size());
    const std::pair<uint32_t, uint32_t> one{look, at};
    const auto place = std::lower_bound(all.begin(), all.end(), one);
    if (place == all.end() || *place != one) all.insert(place, one);
    return duties_.of(all);
  }
  uint32_t after(uint32_t duties, uint32_t c) {
    uint32_t out = 0;
    for (const auto& [look, at] : Duties(duties_.keys[duties])) {
      const CharDfa::State& s = looks_[look].states[at];
      budget_.spend(4 + s.edges.size());
      const CharDfa::Edge* e = edge_on(s, c);
      if (!e || (out = with_duty(out, look, e->to)) == kNone) return kNone;
    }
    return out;
  }

  // Threads reached without reading; of these, those that matter. where: kAtBegin, kAtEnd.
  std::vector<Thread> close(std::vector<Thread> from, uint32_t where) {
    std::vector<Thread> out;
    seen_.resize(nfa_.size(), 0);
    seen_more_.clear();
    ++stamp_;
    while (!from.empty()) {
      const Thread t = from.back();
      from.pop_back();
      const uint32_t node = uint32_t(t), duties = uint32_t(t >> 32);
      if (duties == 0 ? seen_[node] == stamp_ : !seen_more_.emplace(t, 0).second) continue;
      if (duties == 0) seen_[node] = stamp_;
      budget_.spend(3 + nfa_[node].jumps.size() + (duties ? 8 : 0));
      // The begin stays a state of its own where something asks for it.
      bool matters = node == accept_ || !nfa_[node].edges.empty() || (node == start_ && conditional_);
      for (const Jump& j : nfa_[node].jumps) {
        if (j.only == kAtEnd) matters = true;
        if ((j.only == kAtBegin && !(where & kAtBegin)) || (j.only == kAtEnd && !(where & kAtEnd)) ||
            (j.only == kNotAtBegin && (where & kAtBegin)))
          continue;
        const uint32_t next = j.look == UINT32_MAX ? duties : with_duty(duties, j.look, 0);
        if (next != kNone) from.push_back(uint64_t(next) << 32 | j.to);
      }
      if (matters) out.push_back(t);
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  // Threads after a character; where one of them accepts whatever follows, it alone.
  std::vector<Thread> reach(std::vector<Thread> from, uint32_t where) {
    std::vector<Thread> out = close(std::move(from), where);
    budget_.spend(anything_.size());
    for (const uint32_t head : anything_)
      if (std::binary_search(out.begin(), out.end(), Thread(head))) return close({head}, 0);
    return out;
  }
  // A text that has led to these threads may end. They are closed, at the end.
  bool ends(const std::vector<Thread>& closed) const {
    return std::any_of(closed.begin(), closed.end(), [&](Thread t) {
      if (uint32_t(t) != accept_) return false;
      const Duties& duties = duties_.keys[t >> 32];
      return std::all_of(duties.begin(), duties.end(),
                         [&](const auto& d) { return looks_[d.first].states[d.second].accepts; });
    });
  }

  // Between two neighbouring bounds of sets, characters behave alike.
  void step(const std::vector<Thread>& set, CharDfa::State& out) {
    std::vector<Span> found;                           // to: the place of a thread's edge in `moves`
    std::vector<std::pair<uint32_t, uint32_t>> moves;  // duties, node
    std::vector<uint32_t> bounds;
    uint32_t last = 0;
    for (const Thread t : set) {
      const uint32_t duties = uint32_t(t >> 32);
      for (const auto& e : nfa_[uint32_t(t)].edges) {
        budget_.spend(4 + 4 * e.on.ranges().size());
        for (const auto& [lo, hi] : e.on.ranges()) {
          found.push_back({lo, hi, uint32_t(moves.size())});
          bounds.push_back(lo), bounds.push_back(hi + 1);
        }
        moves.emplace_back(duties, e.to);
      }
      if (duties == last) continue;
      last = duties;
      for (const auto& [look, at] : duties_.keys[duties])
        for (const auto& e : looks_[look].states[at].edges) {
          budget_.spend(4 + 2 * e.on.ranges().size());
          for (const auto& [lo, hi] : e.on.ranges()) bounds.push_back(lo), bounds.push_back(hi + 1);
        }
    }
    std::sort(bounds.begin(), bounds.end());
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    std::sort(found.begin(), found.end(), [](const Span& a, const Span& b) { return a.lo < b.lo; });
    Edges edges(out);
    std::vector<Span> open;
    size_t next = 0;
    for (size_t k = 0; k + 1 < bounds.size(); ++k) {
      std::erase_if(open, [&](const Span& s) { return s.hi < bounds[k]; });
      while (next < found.size() && found[next].lo <= bounds[k]) open.push_back(found[next++]);
      if (open.empty()) continue;
      budget_.spend(8 + 4 * open.size());
      std::vector<Thread> to;
      for (const Span& s : open) {
        const auto& [duties, node] = moves[s.to];
        const uint32_t left = duties ? after(duties, bounds[k]) : 0;
        if (left != kNone) to.push_back(uint64_t(left) << 32 | node);
      }
      if (to.empty()) continue;
      std::sort(to.begin(), to.end());
      to.erase(std::unique(to.begin(), to.end()), to.end());
      const auto known = reached_.find(to);
      uint32_t id;
      if (known != reached_.end()) {
        id = known->second;
      } else {
        std::vector<Thread> key = to;
        const size_t size = sets_.keys.size();
        id = sets_.of(reach(std::move(to), 0));
        budget_.spend(key.size() + (sets_.keys.size() > size ? 2 * sets_.keys.back().size() : 0));
        reached_.emplace(std::move(key), id);
      }
      edges.add(bounds[k], bounds[k + 1] - 1, id);
    }
  }

  CompileBudget& budget_;
  const int depth_;
  std::vector<Node> nfa_;
  uint32_t start_ = 0, accept_ = 0;
  bool conditional_ = false;  // there is ^, $ or lookahead
  std::vector<CharDfa> looks_;
  Numbers<Duties> duties_;
  Numbers<std::vector<Thread>> sets_;
  std::map<std::vector<Thread>, uint32_t> reached_;  // by threads before they are closed
  std::vector<uint32_t> seen_;
  std::unordered_map<Thread, int> seen_more_;
  std::vector<uint32_t> anything_;  // heads of .* that nothing has to follow
  uint32_t stamp_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<CharDfa> CharDfa::regex(const Regex& r, RegexMatch match, CompileBudget& budget) {
  return RegexDfa(budget).make(r, match, true);
}

}  // namespace facet::grammar
