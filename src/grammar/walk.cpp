#include "grammar/walk.h"

namespace facet::grammar {

// --- frames

void FramePool::clear() {
  items_.clear();
  info_.clear();
  if (items_.capacity() > 2 * kMaxItems) items_.shrink_to_fit();
  if (table_.size() > 512 || table_.empty())
    std::vector<uint32_t>(512).swap(table_);
  else
    std::fill(table_.begin(), table_.end(), 0);
}

uint32_t FramePool::of(std::span<const Item> items, bool escapes) {
  const auto hash = [](std::span<const Item> list, bool e) {
    uint64_t h = e ? 0x51ED270B : 0x1B873593;
    for (const Item& i : list) h = (h ^ (uint64_t(i.node) << 32 | i.stacks)) * 0x9E3779B97F4A7C15u, h ^= h >> 31;
    return size_t(h >> 8);
  };
  const auto slot_of = [&](std::span<const Item> list, bool e) {
    const size_t mask = table_.size() - 1;
    size_t slot = hash(list, e) & mask;
    for (; table_[slot]; slot = (slot + 1) & mask) {
      const Info& info = info_[table_[slot] - 1];
      if (info.escapes == e && info.count == list.size() &&
          std::equal(list.begin(), list.end(), items_.begin() + info.begin,
                     [](const Item& x, const Item& y) { return x.node == y.node && x.stacks == y.stacks; }))
        break;
    }
    return slot;
  };
  const size_t slot = slot_of(items, escapes);
  if (table_[slot]) return table_[slot] - 1;
  const uint32_t made = uint32_t(info_.size());
  info_.push_back({uint32_t(items_.size()), uint32_t(items.size()), escapes});
  items_.insert(items_.end(), items.begin(), items.end());
  if (to_.size() <= made) to_.emplace_back();
  to_[made].fill(kUnknown);
  table_[slot] = made + 1;
  if (info_.size() * 2 > table_.size()) {
    table_.assign(table_.size() * 2, 0);
    for (uint32_t f = 0; f < info_.size(); ++f) table_[slot_of(this->items(f), info_[f].escapes)] = f + 1;
  }
  return made;
}

// --- walks

Walk::Kept& Walk::kept() {
  thread_local Kept kept;
  return kept;
}

Walk::Walk(const GrammarVocab& vocab, const Automaton& a, Stepper& stepper, Stacks::Set lone)
    : trie_(vocab.trie()),
      a_(a),
      stepper_(stepper),
      work_(stepper.work()),
      lone_(lone),
      lone_escapes_(lone != Stacks::kEmptyStack),
      kept_(kept()),
      frames_(kept_.frames) {
  if (kept_.walk.size() < a.nodes.size()) kept_.walk.resize(a.nodes.size(), 0), kept_.place.resize(a.nodes.size(), 0);
  if (kept_.pool.size() > kKeptTables) kept_.pool.resize(kKeptTables);
  kept_.used = 0;
  if (++kept_.now == 0) std::fill(kept_.walk.begin(), kept_.walk.end(), 0), kept_.now = 1;
  frames_.clear();
}

uint32_t Walk::step(uint32_t level, uint8_t byte) {
  if (frames_.full()) flush(level + 1);
  Level& from = level_[level];
  if (from.frame == FramePool::kUnknown) from.frame = frames_.of({&from.item, 1}, false);
  if (const uint32_t known = frames_.to(from.frame, byte); known != FramePool::kUnknown) return known;
  const auto items = frames_.items(from.frame);
  const size_t n = items.size();
  list_.assign(items.begin(), items.end());
  bool may_end;
  uint32_t to = FramePool::kNowhere;
  if (stepper_.step(list_, 0, n, byte, may_end)) {
    list_.erase(list_.begin(), list_.begin() + ptrdiff_t(n));
    const bool escapes = take_escapes(list_);
    if (list_.size() > kMostItems) work_.end();
    work_.spend(8 + list_.size());
    to = frames_.of(list_, escapes);
  }
  return frames_.to(from.frame, byte) = to;
}

void Walk::flush(uint32_t levels) {
  std::vector<std::vector<Item>> kept(levels);
  for (uint32_t l = 0; l < levels; ++l) {
    if (level_[l].single) continue;
    const auto items = frames_.items(level_[l].frame);
    kept[l].assign(items.begin(), items.end());
    work_.spend(items.size());
  }
  frames_.clear();
  for (uint32_t l = 0; l < levels; ++l)
    level_[l].frame = level_[l].single ? FramePool::kUnknown : frames_.of(kept[l], false);
}

bool Walk::take_escapes(std::vector<Item>& items) {
  size_t n = 0;
  for (const Item& item : items) {
    if (item.node == Automaton::kEscape) continue;
    depth_ = std::max(depth_, stepper_.stacks().depth(item.stacks) + a_.nodes[item.node].need);
    items[n++] = item;
  }
  const bool escapes = n < items.size();
  items.resize(n);
  return escapes;
}

namespace {
// Whether a node takes no byte of these kinds.
bool takes_none(const Automaton& a, uint32_t node, uint16_t kinds) {
  for (const auto& r : a.ranges_of(node))
    for (int b = r.lo; b <= r.hi; ++b)
      if (kinds >> GrammarVocab::kind_of(uint8_t(b)) & 1) return false;
  return true;
}
}  // namespace

const Walk::Hot& Walk::made(uint32_t node, int ahead) {
  if (kept_.walk[node] == kept_.now) return kept_.pool[kept_.place[node]];
  kept_.walk[node] = kept_.now;
  kept_.place[node] = uint32_t(kept_.used);
  if (kept_.used == kept_.pool.size()) kept_.pool.emplace_back();
  work_.spend(64);
  Hot& hot = kept_.pool[kept_.used++];
  hot.to.fill(kNowhere);
  for (const auto& r : a_.ranges_of(node)) std::fill(hot.to.begin() + r.lo, hot.to.begin() + r.hi + 1, r.to);
  const Plain plain = plain_character(a_, node);
  hot.kinds = plain.kinds;
  hot.run = plain.kinds ? (plain.next == node ? UINT8_MAX : 1) : 0;
  hot.final = (a_.nodes[node].flags | a_.nodes[plain.next].flags) & Automaton::kFinal;
  hot.finals = a_.nodes[plain.next].flags & Automaton::kFinal;
  hot.stops = hot.run == 1 && takes_none(a_, plain.next, hot.kinds);
  hot.need = std::max(a_.nodes[node].need, a_.nodes[plain.next].need);
  if (hot.run != 1 || ahead == Automaton::kHorizon || (a_.nodes[plain.next].flags & Automaton::kOverlaps)) return hot;
  const Hot next = made(plain.next, ahead + 1);  // on a cycle one that is not complete, and says too little
  if (hot.kinds & ~next.kinds) return hot;
  hot.stops = next.stops && hot.run + next.run < UINT8_MAX;
  hot.run = uint16_t(std::min(hot.run + next.run, UINT8_MAX));
  hot.final |= next.final;
  hot.finals &= next.finals;
  hot.need = std::max(hot.need, next.need);
  return hot;
}

}  // namespace facet::grammar
