#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "grammar/plain_run.h"
#include "grammar/stepper.h"
#include "grammar/vocab.h"

namespace facet::grammar {

// Sets of items that a walk meets, each stored once, and where bytes lead from them. An ambiguous grammar leads to few
// of them by many texts; and what a byte leads to need be worked out only once.
class FramePool {
 public:
  static constexpr uint32_t kUnknown = UINT32_MAX, kNowhere = UINT32_MAX - 1;
  static constexpr size_t kMaxFrames = 4096, kMaxItems = 1 << 19;

  void clear();
  bool full() const { return info_.size() + 2 > kMaxFrames || items_.size() > kMaxItems; }
  uint32_t of(std::span<const Item> items, bool escapes);
  std::span<const Item> items(uint32_t f) const { return {items_.data() + info_[f].begin, info_[f].count}; }
  bool escapes(uint32_t f) const { return info_[f].escapes; }  // the stack decides as well
  uint32_t& to(uint32_t f, uint8_t byte) { return to_[f][byte]; }

 private:
  struct Info {
    uint32_t begin, count;
    bool escapes;
  };
  std::vector<Item> items_;
  std::vector<Info> info_;
  std::deque<std::array<uint32_t, 256>> to_;
  std::vector<uint32_t> table_;  // number + 1; open addressing, a power of two
};

// Goes through the trie with an automaton. Nearly all steps have one item whose rule goes on; they take a table of the
// node's targets, and everything else the stepper. Once its work is over nothing more may follow.
class Walk {
 public:
  // More items at once than any text of a grammar that can be followed leads to.
  static constexpr size_t kMostItems = 16'384;

  // lone: stacks that say nothing when their rule ends but that it has: the empty one, or the escape.
  Walk(const GrammarVocab& vocab, const Automaton& a, Stepper& stepper, Stacks::Set lone);

  // Calls tokens(begin, end) for runs of trie.tokens that may follow, and ended(node) where the stack decides; where it
  // does so at each code point of a subtree, all_ended(node, kinds of its code points) once. Begins with the children
  // of a trie node.
  template <class Tokens, class Ended, class AllEnded>
  void run(uint32_t root, std::span<const Item> items, const Tokens& tokens, const Ended& ended,
           const AllEnded& all_ended) {
    if (frames_.full()) flush(0);
    const uint32_t base = trie_.depth[root];
    level_[0] = level_of(items);
    for (uint32_t i = root + 1, last = trie_.next[root]; i < last && work_.spend(1);) {
      const uint32_t d = trie_.depth[i] - base;
      Level& from = level_[d - 1];
      const Hot* hot = from.single ? hot_of(from.item.node) : nullptr;
      if (hot && !(trie_.below[i] & ~hot->kinds) && plain_subtree(*hot, i, from.item.stacks, tokens, all_ended)) {
        i = trie_.next[i];
        continue;
      }
      if (hot) {
        const uint32_t target = hot->to[trie_.byte[i]];
        if (target == kNowhere) {
          i = trie_.next[i];
          continue;
        }
        const uint8_t flags = a_.nodes[target].flags;
        const Stacks::Set stacks = from.item.stacks;
        const bool lone = stacks == lone_ || stacks == Stacks::kEmptyStack;
        if (!(flags & Automaton::kCalls) && (lone || !(flags & Automaton::kFinal)) &&
            fits(a_.nodes[target].need, stacks)) {
          tokens(trie_.tokens_[i], trie_.tokens_[i + 1]);
          if ((flags & Automaton::kFinal) && stacks == lone_ && lone_escapes_ && trie_.next[i] > i + 1) ended(i);
          if (flags & Automaton::kTerminals) {
            level_[d] = {{target, stacks}, true, FramePool::kUnknown};
            ++i;
          } else {
            i = trie_.next[i];
          }
          continue;
        }
      }
      const uint32_t to = step(d - 1, trie_.byte[i]);
      if (to == FramePool::kNowhere) {
        i = trie_.next[i];
        continue;
      }
      tokens(trie_.tokens_[i], trie_.tokens_[i + 1]);
      if (frames_.escapes(to) && trie_.next[i] > i + 1) ended(i);
      const auto items_there = frames_.items(to);
      if (items_there.empty()) {
        i = trie_.next[i];
        continue;
      }
      level_[d] = {items_there[0], items_there.size() == 1, to};
      ++i;
    }
  }
  // Likewise for one trie node and what is below it; item: where the bytes before it have led.
  template <class Tokens, class Ended, class AllEnded>
  void enter(uint32_t n, Item item, const Tokens& tokens, const Ended& ended, const AllEnded& all_ended) {
    bool escapes = false;
    std::vector<Item>& items = entered_;
    items.assign(1, item);
    bool may_end;
    if (!stepper_.step(items, 0, 1, trie_.byte[n], may_end)) return;
    items.erase(items.begin());
    escapes = take_escapes(items);
    tokens(trie_.tokens_[n], trie_.tokens_[n + 1]);
    const bool inner = trie_.next[n] > n + 1;
    if (escapes && inner) ended(n);
    if (!items.empty() && inner) run(n, items, tokens, ended, all_ended);
  }
  // Whether this node's need leaves room on the stacks; counts towards depth().
  bool fits(uint32_t need, Stacks::Set stacks) {
    const uint32_t depth = stepper_.stacks().depth(stacks) + need;
    depth_ = std::max(depth_, depth);
    return depth <= a_.max_depth;
  }
  uint32_t depth() const { return depth_; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr size_t kKeptTables = 4096, kMostTables = 16'384;
  struct Level {
    Item item;
    bool single;     // item is all there is
    uint32_t frame;  // in the pool; kUnknown: a single item that is not there yet
  };
  struct Hot {
    // So many characters of these kinds lead through nodes that want nothing but to go on.
    uint16_t kinds = 0, run = 0;
    bool final = false;   // one of these nodes is
    bool finals = false;  // all of them are, but perhaps the first
    bool stops = false;   // behind so many no character of these kinds may come
    uint32_t need = 0;    // the most of these nodes
    std::array<uint32_t, 256> to;
  };
  // By node, for one thread; entries of earlier walks are told by their number.
  struct Kept {
    std::vector<uint32_t> walk, place;
    std::deque<Hot> pool;
    size_t used = 0;
    uint32_t now = 0;
    FramePool frames;
  };
  static Kept& kept();

  Level level_of(std::span<const Item> items) {
    const Item first = items.empty() ? Item{Automaton::kEscape, Stacks::kEmptyStack} : items[0];
    if (items.size() == 1) return {first, true, FramePool::kUnknown};
    return {first, false, frames_.of(items, false)};
  }
  // Where the byte leads from a level, as a number of the pool, or kNowhere.
  uint32_t step(uint32_t level, uint8_t byte);
  // The pool forgets all but the levels below `levels`.
  void flush(uint32_t levels);
  // Items at the escape go; the others count towards depth().
  bool take_escapes(std::vector<Item>& items);

  // A subtree of plain characters alone, without a look at its nodes. False: they have to be looked at.
  template <class Tokens, class AllEnded>
  bool plain_subtree(const Hot& hot, uint32_t i, Stacks::Set stacks, const Tokens& tokens, const AllEnded& all_ended) {
    const bool ends = hot.final && !ends_alone(stacks), all = trie_.chars[i] <= hot.run;
    if (ends && !(all && hot.finals && stacks == lone_ && lone_escapes_)) return false;
    if (!all && !hot.stops) return false;
    if (!fits(hot.need, stacks)) return false;
    const uint32_t begin = trie_.tokens_[i], end = trie_.tokens_[trie_.next[i]];
    work_.spend((end - begin) / 8);
    if (all) {
      tokens(begin, end);
      if (ends && trie_.next[i] > i + 1) all_ended(i, hot.kinds);
      return true;
    }
    const uint32_t most = uint32_t(trie_.before[i]) + hot.run;
    for (uint32_t k = begin; k < end;) {
      uint32_t to = k;
      while (to < end && trie_.token_chars[to] <= most) ++to;
      if (to > k) tokens(k, to);
      k = to + 1;
    }
    return true;
  }
  // Where the rule's end is the answer's end, which no longer token needs.
  bool ends_alone(Stacks::Set stacks) const { return stacks == Stacks::kEmptyStack; }
  // Null if the node's ranges overlap, or there are too many tables.
  const Hot* hot_of(uint32_t node) {
    if (node == last_node_) return last_;
    const bool none =
        (a_.nodes[node].flags & Automaton::kOverlaps) || (kept_.used >= kMostTables && kept_.walk[node] != kept_.now);
    last_node_ = node;
    return last_ = none ? nullptr : &made(node, 0);
  }
  const Hot& made(uint32_t node, int ahead);

  const GrammarVocab::Trie& trie_;
  const Automaton& a_;
  Stepper& stepper_;
  GrammarWork& work_;
  std::vector<Item> list_, entered_;
  Level level_[Automaton::kHorizon + 1];
  uint32_t depth_ = 0;
  const Stacks::Set lone_;
  const bool lone_escapes_;
  Kept& kept_;
  FramePool& frames_;
  uint32_t last_node_ = kNowhere;
  const Hot* last_ = nullptr;
};

}  // namespace facet::grammar
