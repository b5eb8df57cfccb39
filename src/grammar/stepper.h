#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "grammar/automaton.h"

namespace facet::grammar {

// Sets of stacks, each stored once: a set is a map from the top entry to the set of what may lie below it, and says
// whether it holds the empty stack. Equal sets have equal numbers, so states can be compared and merged.
class Stacks {
 public:
  using Set = uint32_t;
  static constexpr Set kEmptyStack = 0;  // the set of the empty stack alone
  static constexpr size_t kMaxSets = 100'000, kMaxEntries = 400'000;
  struct Entry {
    uint32_t node;  // to return to
    Set below;
    bool operator==(const Entry&) const = default;
  };

  Stacks() { clear(); }
  void clear();
  Set make(bool has_empty, std::span<const Entry> entries);  // ascending by node
  Set push(uint32_t node, Set below) {
    const Entry e{node, below};
    return make(false, {&e, 1});
  }
  Set unite(Set a, Set b);
  // Valid until the next call of make, push or unite.
  std::span<const Entry> entries(Set s) const { return {entries_.data() + info_[s].begin, info_[s].count}; }
  bool has_empty(Set s) const { return info_[s].has_empty; }
  uint32_t depth(Set s) const { return info_[s].depth; }  // of the deepest
  // Too many sets were made; what was returned since is wrong.
  bool overflow() const { return overflow_; }

 private:
  struct Info {
    uint32_t begin, count, depth;
    bool has_empty;
  };
  size_t slot_of(bool has_empty, std::span<const Entry> entries) const;
  void grow();
  std::vector<Info> info_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> table_;  // number + 1; open addressing, a power of two
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

// Runs an automaton over bytes and special tokens. Not for several threads.
class Stepper {
 public:
  void reset(const Automaton& a);  // forgets every stack
  Stacks& stacks() { return stacks_; }

  void start(Frame& out);
  // Items [begin, end) of a list and one byte; appends to the list. False if nothing can come of it.
  bool step(std::vector<Item>& list, size_t begin, size_t end, uint8_t byte, bool& may_end);
  void step(const Frame& in, uint8_t byte, Frame& out);
  void step(const Frame& in, SpecialToken token, Frame& out);
  void pop(Item item, Frame& out);  // as if the item's rule ended here

 private:
  void next_round();
  void add(uint32_t node, Stacks::Set stacks, bool returns);
  void call(uint32_t node, Stacks::Set stacks);
  void request(uint32_t rule, Stacks::Set stacks);
  bool close_work(std::vector<Item>& out);

  const Automaton* a_ = nullptr;
  Stacks stacks_;
  std::vector<Item> work_;
  std::vector<uint32_t> place_, stamp_;  // of a node in work_
  uint32_t now_ = 0;
  std::vector<uint32_t> returns_;  // places in work_ that may end their rule
  // Rules that start here: a heap by rank, and by rule what to return to.
  std::vector<std::pair<uint32_t, uint32_t>> requested_;
  std::vector<uint32_t> request_stamp_;
  std::vector<Stacks::Set> request_stacks_;
};

}  // namespace facet::grammar
