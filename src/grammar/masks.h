#pragma once
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/grammar.h"

namespace facet {

// Which tokens may come next. Masks are remembered by state, and what makes them up by node of the automaton: the
// tokens that a rule decides alone, whatever lies below it on the stack, and the places in the trie of tokens where the
// rule has ended and the stack decides. Any number of threads; what is computed twice at a time is equal.
class GrammarMasks {
 public:
  explicit GrammarMasks(std::shared_ptr<const GrammarVocab> vocab, size_t max_bytes = size_t(128) << 20);
  ~GrammarMasks();

  // Bit t of the mask (word t / 32, bit t % 32) is set iff token t may come next; the end-of-generation tokens' iff the
  // grammar may end. mask.size() is vocab().mask_words(). False, and no bit is set, if the work (work.h) is over before
  // it is complete.
  bool mask(const GrammarState& state, std::span<uint32_t> mask);
  // Remembers the mask of the grammar's start, or says that it is too ambiguous.
  Status prepare(const GrammarPtr& grammar);
  bool known(const GrammarState& state) const;  // its mask is remembered
  // The token that must come next because the mask has but one, or -1; also where the work is over.
  int32_t forced_token(const GrammarState& state);

  const GrammarVocab& vocab() const { return *vocab_; }
  struct Stats {
    uint64_t state_hits = 0, state_misses = 0, node_misses = 0;
    size_t bytes = 0;
  };
  Stats stats() const;

 private:
  struct NodeMask;
  using NodeMaskPtr = std::shared_ptr<const NodeMask>;
  struct StateMask;
  using StateMaskPtr = std::shared_ptr<const StateMask>;
  struct Hash {
    size_t operator()(const std::array<uint64_t, 2>& c) const { return size_t(c[0]); }
    size_t operator()(const std::vector<uint32_t>& key) const;
  };

  static constexpr size_t kMostParts = 32;  // nodes of a state whose masks are put together
  static std::vector<uint32_t> key_of(const GrammarState& state);
  StateMaskPtr state_mask(const GrammarState& state);                 // null: the work is over
  NodeMaskPtr node_mask(const grammar::Automaton& a, uint32_t node);  // likewise
  bool compute(const GrammarState& state, std::span<uint32_t> mask);
  void make_room();

  std::shared_ptr<const GrammarVocab> vocab_;
  size_t max_bytes_;
  mutable std::mutex mutex_;
  std::unordered_map<std::array<uint64_t, 2>, NodeMaskPtr, Hash> nodes_;
  std::list<StateMaskPtr> recent_;  // latest use first
  std::unordered_map<std::vector<uint32_t>, std::list<StateMaskPtr>::iterator, Hash> states_;
  size_t node_bytes_ = 0, state_bytes_ = 0;
  Stats stats_;
};

}  // namespace facet
