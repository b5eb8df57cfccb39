#include "grammar/stepper.h"

#include <algorithm>
#include <functional>

namespace facet::grammar {

// --- stacks

void Stacks::clear(GrammarWork* work) {
  info_.clear();
  entries_.clear();
  merged_.clear();
  overflow_ = false;
  work_ = work;
  if (n_pairs_ > 0 || pairs_.empty()) {
    if (pairs_.size() > 4096 || pairs_.empty()) std::vector<Pair>(256).swap(pairs_);
    std::fill(pairs_.begin(), pairs_.end(), Pair{kNoPair, 0, 0});
    n_pairs_ = 0;
  }
  if (table_.size() > 4096 || table_.empty())
    table_.assign(512, 0);
  else
    std::fill(table_.begin(), table_.end(), 0);
  make(true, {});
}

size_t Stacks::slot_of(bool has_empty, std::span<const Entry> entries) const {
  uint64_t h = has_empty ? 0x51ED270B : 0x1B873593;
  for (const Entry& e : entries) h = (h ^ (uint64_t(e.node) << 32 | e.below)) * 0x9E3779B97F4A7C15u, h ^= h >> 31;
  const size_t mask = table_.size() - 1;
  size_t slot = size_t(h >> 8) & mask;
  while (table_[slot]) {
    const Info& info = info_[table_[slot] - 1];
    if (info.has_empty == has_empty && info.count == entries.size() &&
        std::equal(entries.begin(), entries.end(), entries_.begin() + info.begin))
      break;
    slot = (slot + 1) & mask;
  }
  return slot;
}

void Stacks::grow() {
  table_.assign(table_.size() * 2, 0);
  for (uint32_t s = 0; s < info_.size(); ++s) table_[slot_of(info_[s].has_empty, entries(s))] = s + 1;
}

void Stacks::end() {
  overflow_ = true;
  if (work_) work_->end();
}

Stacks::Set Stacks::make(bool has_empty, std::span<const Entry> entries) {
  if (overflow_) return kEmptyStack;
  spend(1 + entries.size());
  const size_t slot = slot_of(has_empty, entries);
  if (table_[slot]) return table_[slot] - 1;
  if (info_.size() >= kMaxSets || entries_.size() + entries.size() > kMaxEntries) {
    end();
    return kEmptyStack;
  }
  uint32_t depth = 0;
  for (const Entry& e : entries) depth = std::max(depth, info_[e.below].depth + 1);
  info_.push_back({uint32_t(entries_.size()), uint32_t(entries.size()), depth, has_empty});
  entries_.insert(entries_.end(), entries.begin(), entries.end());
  const Set made = Set(info_.size() - 1);
  table_[slot] = made + 1;
  if (info_.size() * 2 > table_.size()) grow();
  return made;
}

size_t Stacks::pair_slot(Set a, Set b) const {
  uint64_t h = (uint64_t(a) << 32 | b) * 0x9E3779B97F4A7C15u;
  h ^= h >> 32;
  const size_t mask = pairs_.size() - 1;
  size_t slot = size_t(h) & mask;
  while (pairs_[slot].a != kNoPair && (pairs_[slot].a != a || pairs_[slot].b != b)) slot = (slot + 1) & mask;
  return slot;
}

void Stacks::remember(Set a, Set b, Set both) {
  if (n_pairs_ >= kMaxPairs) {
    std::fill(pairs_.begin(), pairs_.end(), Pair{kNoPair, 0, 0});
    n_pairs_ = 0;
  }
  pairs_[pair_slot(a, b)] = {a, b, both};
  if (++n_pairs_ * 2 <= pairs_.size()) return;
  std::vector<Pair> old(pairs_.size() * 2, Pair{kNoPair, 0, 0});
  old.swap(pairs_);
  for (const Pair& p : old)
    if (p.a != kNoPair) pairs_[pair_slot(p.a, p.b)] = p;
}

// As deep as the stacks are, which the automaton bounds.
Stacks::Set Stacks::unite_unequal(Set a, Set b) {
  if (a > b) std::swap(a, b);
  if (const Pair& known = pairs_[pair_slot(a, b)]; known.a != kNoPair) return known.both;
  spend(2 + info_[a].count + info_[b].count);
  const size_t first = merged_.size();
  size_t i = 0, k = 0;
  while (!overflow_ && (i < info_[a].count || k < info_[b].count)) {  // entries() moves while united below
    const Entry* x = i < info_[a].count ? &entries_[info_[a].begin + i] : nullptr;
    const Entry* y = k < info_[b].count ? &entries_[info_[b].begin + k] : nullptr;
    if (x && y && x->node == y->node) {
      const uint32_t node = x->node;
      const Set below = unite(x->below, y->below);
      merged_.push_back({node, below});
      ++i, ++k;
    } else if (!y || (x && x->node < y->node)) {
      merged_.push_back(*x);
      ++i;
    } else {
      merged_.push_back(*y);
      ++k;
    }
  }
  const Set both = make(info_[a].has_empty || info_[b].has_empty, std::span(merged_).subspan(first));
  merged_.resize(first);
  if (!overflow_) remember(a, b, both);
  return both;
}

Stacks::Set Stacks::cut(Set s, uint32_t most) {
  if (overflow_) return kNone;
  if (most == 0) return info_[s].has_empty ? kEmptyStack : kNone;
  if (const Pair& known = pairs_[pair_slot(s, kCut | most)]; known.a != kNoPair) return known.both;
  spend(2 + info_[s].count);
  const size_t first = merged_.size();
  for (size_t i = 0; !overflow_ && i < info_[s].count; ++i) {  // entries() moves while what lies below is cut
    const Entry e = entries_[info_[s].begin + i];
    if (const Set below = within(e.below, most - 1); below != kNone) merged_.push_back({e.node, below});
  }
  const bool none = merged_.size() == first && !info_[s].has_empty;
  const Set made = none ? kNone : make(info_[s].has_empty, std::span(merged_).subspan(first));
  merged_.resize(first);
  if (!overflow_) remember(s, kCut | most, made);
  return made;
}

// --- steps

void Stepper::reset(const Automaton& a, GrammarWork& work) {
  a_ = &a;
  work_ = &work;
  stacks_.clear(&work);
  was_cut_ = false;
  // An exception may have left something there.
  reached_.clear();
  returns_.clear();
  if (stamp_.size() < a.nodes.size()) {
    stamp_.resize(a.nodes.size(), 0);
    place_.resize(a.nodes.size(), 0);
  }
  if (request_stamp_.size() < a.rules.size()) {
    request_stamp_.resize(a.rules.size(), 0);
    request_stacks_.resize(a.rules.size(), 0);
  }
}

void Stepper::next_round() {
  if (++now_ != 0) return;
  std::fill(stamp_.begin(), stamp_.end(), 0);
  std::fill(request_stamp_.begin(), request_stamp_.end(), 0);
  now_ = 1;
}

void Stepper::add(uint32_t node, Stacks::Set stacks, bool returns) {
  if (!work_->spend(1) || (stacks = with_room(a_->nodes[node].need, stacks)) == Stacks::kNone) return;
  const bool may_return = returns && (a_->nodes[node].flags & Automaton::kFinal);
  if (stamp_[node] != now_) {
    stamp_[node] = now_;
    place_[node] = uint32_t(reached_.size());
    reached_.push_back({node, stacks});
  } else {
    Item& there = reached_[place_[node]];
    const Stacks::Set both = stacks_.unite(there.stacks, stacks);
    if (both == there.stacks) return;
    there.stacks = both;
  }
  if (may_return) returns_.push_back(place_[node]);
}

void Stepper::request(uint32_t rule, Stacks::Set stacks) {
  work_->spend(2);
  if (request_stamp_[rule] == now_) {
    request_stacks_[rule] = stacks_.unite(request_stacks_[rule], stacks);
    return;
  }
  request_stamp_[rule] = now_;
  request_stacks_[rule] = stacks;
  requested_.push_back({a_->rules[rule].rank, rule});
  std::push_heap(requested_.begin(), requested_.end(), std::greater<>{});
}

// A node that is final and has no edges need not be returned to: its own caller will do. So a list that ends in a call
// of itself does not grow a stack.
void Stepper::call(uint32_t node, Stacks::Set stacks) {
  for (const Automaton::Call& c : a_->calls_of(node)) {
    if (work_->over()) return;
    if (a_->nodes[c.to].flags & Automaton::kPureFinal)
      request(c.rule, stacks);
    else if (const Stacks::Set room = with_room(a_->nodes[c.to].need, stacks); room != Stacks::kNone)
      request(c.rule, stacks_.push(c.to, room));
  }
}

// reached_ holds what the input led to. Returns first; then rules that start here, callers before what they call, so
// that a rule's stacks are complete when it is started. What has just started does not return: a call never consumes
// nothing.
bool Stepper::close(std::vector<Item>& out) {
  bool may_end = false;
  while (!returns_.empty() && !work_->over()) {
    const Stacks::Set stacks = reached_[returns_.back()].stacks;
    returns_.pop_back();
    may_end |= stacks_.has_empty(stacks);
    for (size_t i = 0; i < stacks_.entries(stacks).size(); ++i) {
      const Stacks::Entry e = stacks_.entries(stacks)[i];
      add(e.node, e.below, true);
    }
  }
  requested_.clear();
  for (size_t i = 0, n = reached_.size(); i < n && !work_->over(); ++i)
    if (a_->nodes[reached_[i].node].flags & Automaton::kCalls) call(reached_[i].node, reached_[i].stacks);
  while (!requested_.empty() && !work_->over()) {
    std::pop_heap(requested_.begin(), requested_.end(), std::greater<>{});
    const uint32_t rule = requested_.back().second;
    requested_.pop_back();
    const uint32_t start = a_->rules[rule].start;
    const Stacks::Set stacks = with_room(a_->nodes[start].need, request_stacks_[rule]);
    if (stacks == Stacks::kNone) continue;
    add(start, stacks, false);
    if (a_->nodes[start].flags & Automaton::kCalls) call(start, stacks);
  }
  if (work_->over()) {
    reached_.clear();
    returns_.clear();
    return false;
  }
  for (const Item& item : reached_)
    if ((a_->nodes[item.node].flags & Automaton::kTerminals) || item.node == Automaton::kEscape) out.push_back(item);
  reached_.clear();
  return may_end;
}

void Stepper::start(Frame& out) {
  next_round();
  out = {};
  const uint32_t start = a_->rules[a_->root].start;
  add(start, Stacks::kEmptyStack, true);
  out.may_end = close(out.items);
}

bool Stepper::step(std::vector<Item>& list, size_t begin, size_t end, uint8_t byte, bool& may_end) {
  may_end = false;
  if (!work_->spend(1 + end - begin)) return false;
  const size_t before = list.size();
  if (end - begin == 1) {  // most steps: one item, and nothing happens but the step
    const Item item = list[begin];
    if (!(a_->nodes[item.node].flags & Automaton::kOverlaps)) {
      for (const Automaton::Range& r : a_->ranges_of(item.node)) {
        if (byte > r.hi) continue;
        if (byte < r.lo) return false;
        const uint8_t flags = a_->nodes[r.to].flags;
        if (flags == Automaton::kTerminals && a_->nodes[r.to].need + stacks_.depth(item.stacks) <= a_->max_depth) {
          list.push_back({r.to, item.stacks});
          return true;
        }
        next_round();
        add(r.to, item.stacks, true);
        may_end = close(list);
        return may_end || list.size() > before;
      }
      return false;
    }
  }
  next_round();
  for (size_t i = begin; i < end && !work_->over(); ++i) {
    const Item item = list[i];
    const auto ranges = a_->ranges_of(item.node);
    const bool overlaps = a_->nodes[item.node].flags & Automaton::kOverlaps;
    if (overlaps) work_->spend(ranges.size() / 4);
    for (const Automaton::Range& r : ranges) {
      if (byte < r.lo || byte > r.hi) continue;
      add(r.to, item.stacks, true);
      if (!overlaps) break;
    }
  }
  if (reached_.empty()) return false;
  may_end = close(list);
  return may_end || list.size() > before;
}

void Stepper::step(const Frame& in, uint8_t byte, Frame& out) {
  std::vector<Item> list = in.items;
  const size_t n = list.size();
  step(list, 0, n, byte, out.may_end);
  out.items.assign(list.begin() + ptrdiff_t(n), list.end());
}

void Stepper::step(const Frame& in, SpecialToken token, Frame& out) {
  next_round();
  work_->spend(1 + in.items.size());
  for (const Item& item : in.items)
    for (const Automaton::TokenEdge& e : a_->tokens_of(item.node))
      if (e.token == token) add(e.to, item.stacks, true);
  out = {};
  out.may_end = close(out.items);
}

void Stepper::pop(Item item, Frame& out) {
  next_round();
  out = {};
  const bool ends = stacks_.has_empty(item.stacks);
  for (size_t i = 0; i < stacks_.entries(item.stacks).size(); ++i) {
    const Stacks::Entry e = stacks_.entries(item.stacks)[i];
    add(e.node, e.below, true);
  }
  out.may_end = close(out.items) || ends;
}

}  // namespace facet::grammar
