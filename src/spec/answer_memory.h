#pragma once
#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "spec/suffix_index.h"

// Answers of earlier requests, to draft from: in memory alone, and gone with the engine.
namespace facet {

// The newest answers of one owner: a ring of token ids, the oldest first overwritten, with chains as SuffixIndex has
// them.
class AnswerMemory {
 public:
  static constexpr int kBytesPerToken = 24;
  static constexpr int32_t kEnd = -1;  // behind an answer
  explicit AnswerMemory(size_t limit) : limit_(limit) {}

  void add(std::span<const int32_t> answer);
  // Where answers have the same tokens as the history at its end, kOrders[0] of SuffixIndex or more.
  void matches(std::span<const int32_t> history, std::vector<SuffixIndex::Match>& out) const;
  // At a place of matches() or behind one: kEnd where the answer ends.
  int32_t token(int32_t place) const { return token_[size_t(place)]; }
  int32_t next(int32_t place) const { return size_t(place) + 1 == token_.size() ? 0 : place + 1; }

  size_t n_token() const { return std::min<size_t>(written_, token_.size()); }
  size_t bytes() const;
  void set_limit(size_t limit);  // the newest tokens stay

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  size_t place_of(uint32_t at) const { return at % token_.size(); }
  void grow();
  void push(int32_t token);
  void chain(uint32_t at);
  int length_at(uint32_t at, std::span<const int32_t> history) const;
  void look(size_t order, std::span<const int32_t> history, std::vector<SuffixIndex::Match>& out) const;

  size_t limit_;
  uint32_t written_ = 0;        // tokens ever, since the ring was last laid out
  std::vector<int32_t> token_;  // token number i at i % size
  struct Chains {
    std::vector<uint32_t> head, link;  // numbers of tokens; of link by place
  };
  std::array<Chains, SuffixIndex::kOrders.size()> chains_;
};

// A memory for each owner: what one says is never drafted for another. All of them together hold at most `limit`
// tokens: each has the same part of it, by a power of two of owners.
class AnswerStore {
 public:
  static constexpr int kMostOwners = 16;  // the one that was not used for longest goes
  static constexpr size_t kMostTokens = 4'000'000;
  explicit AnswerStore(size_t limit = 0) : limit_(limit) {}

  bool on() const { return limit_ > 0; }
  void add(const std::string& owner, std::span<const int32_t> answer);
  const AnswerMemory* find(const std::string& owner);  // null: nothing is known
  size_t n_token() const;
  size_t bytes() const;

 private:
  struct Owner {
    std::string name;
    AnswerMemory memory;
  };
  std::list<Owner>::iterator use(const std::string& owner);

  size_t limit_;
  size_t shares_ = 1;
  std::list<Owner> owners_;  // the one that was used last comes first
};

}  // namespace facet
