#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/work.h"

namespace facet::grammar {

// Sets of stacks, each stored once: a set is a map from the top entry to the set of what may lie below it, and says
// whether it holds the empty stack. Equal sets have equal numbers, so states can be compared and merged.
class Stacks {
 public:
  using Set = uint32_t;
  static constexpr Set kEmptyStack = 0;  // the set of the empty stack alone
  static constexpr size_t kMaxSets = 100'000, kMaxEntries = 400'000, kMaxPairs = 200'000;
  struct Entry {
    uint32_t node;  // to return to
    Set below;
    bool operator==(const Entry&) const = default;
  };

  Stacks() { clear(nullptr); }
  void clear(GrammarWork* work);                             // what is done from now on counts there
  Set make(bool has_empty, std::span<const Entry> entries);  // ascending by node
  Set push(uint32_t node, Set below) {
    const Entry e{node, below};
    return make(false, {&e, 1});
  }
  Set unite(Set a, Set b) {
    if (a == b || overflow_) return a;
    return unite_unequal(a, b);
  }
  // Without the stacks of more than so many entries; kNone: all are deeper.
  static constexpr Set kNone = UINT32_MAX;
  Set within(Set s, uint32_t most) { return depth(s) <= most ? s : cut(s, most); }
  // Valid until the next call of make, push, unite or within.
  std::span<const Entry> entries(Set s) const { return {entries_.data() + info_[s].begin, info_[s].count}; }
  bool has_empty(Set s) const { return info_[s].has_empty; }
  uint32_t depth(Set s) const { return info_[s].depth; }  // of the deepest
  // Too many sets were made, or the work is over; what was returned since is wrong.
  bool overflow() const { return overflow_; }

 private:
  Set unite_unequal(Set a, Set b);
  Set cut(Set s, uint32_t most);
  void end();
  void spend(size_t n) {
    if (work_ && !work_->spend(n)) overflow_ = true;
  }
  struct Info {
    uint32_t begin, count, depth;
    bool has_empty;
  };
  size_t slot_of(bool has_empty, std::span<const Entry> entries) const;
  void grow();
  // United pairs, the smaller number first, and sets that were cut (b: kCut and the depth). Without them two sets that
  // share much of what lies below are united along every path through it.
  struct Pair {
    Set a, b, both;  // a kNoPair: free
  };
  static constexpr Set kNoPair = UINT32_MAX, kCut = 0x80000000;
  size_t pair_slot(Set a, Set b) const;
  void remember(Set a, Set b, Set both);
  std::vector<Info> info_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> table_;  // number + 1; open addressing, a power of two
  std::vector<Pair> pairs_;      // likewise
  size_t n_pairs_ = 0;
  std::vector<Entry> merged_;  // of the unions that are being made, one behind the other
  GrammarWork* work_ = nullptr;
  bool overflow_ = false;
};

struct Item {
  uint32_t node;
  Stacks::Set stacks;
};

// What a text leads to: nodes with stacks, of which only those that can consume something are kept, and whether the
// text may end there.
struct Frame {
  std::vector<Item> items;
  bool may_end = false;
  bool alive() const { return may_end || !items.empty(); }
};

// Runs an automaton over bytes and special tokens. Not for several threads. Once the work is over, or there are too
// many stacks, nothing follows anything.
class Stepper {
 public:
  void reset(const Automaton& a, GrammarWork& work);  // forgets every stack
  void reset(const Automaton& a) {                    // with as much work as one token may take
    own_ = GrammarWork();
    reset(a, own_);
  }
  Stacks& stacks() { return stacks_; }
  GrammarWork& work() { return *work_; }

  void start(Frame& out);
  // Items [begin, end) of a list and one byte; appends to the list. False if nothing can come of it.
  bool step(std::vector<Item>& list, size_t begin, size_t end, uint8_t byte, bool& may_end);
  void step(const Frame& in, uint8_t byte, Frame& out);
  void step(const Frame& in, SpecialToken token, Frame& out);
  void pop(Item item, Frame& out);           // as if the item's rule ended here
  bool was_cut() const { return was_cut_; }  // stacks were given up because they were too deep, since the reset

 private:
  void next_round();
  // The stacks with which so many more entries may still come.
  Stacks::Set with_room(uint32_t need, Stacks::Set stacks) {
    if (need + stacks_.depth(stacks) <= a_->max_depth) return stacks;
    was_cut_ = true;
    return need > a_->max_depth ? Stacks::kNone : stacks_.within(stacks, a_->max_depth - need);
  }
  void add(uint32_t node, Stacks::Set stacks, bool returns);
  void call(uint32_t node, Stacks::Set stacks);
  void request(uint32_t rule, Stacks::Set stacks);
  bool close(std::vector<Item>& out);

  const Automaton* a_ = nullptr;
  GrammarWork* work_ = nullptr;
  GrammarWork own_;
  Stacks stacks_;
  bool was_cut_ = false;
  std::vector<Item> reached_;
  std::vector<uint32_t> place_, stamp_;  // of a node in reached_
  uint32_t now_ = 0;
  std::vector<uint32_t> returns_;  // places in reached_ that may end their rule
  // Rules that start here: a heap by rank, and by rule what to return to.
  std::vector<std::pair<uint32_t, uint32_t>> requested_;
  std::vector<uint32_t> request_stamp_;
  std::vector<Stacks::Set> request_stacks_;
};

}  // namespace facet::grammar
