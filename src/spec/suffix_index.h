#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

// Suffix decoding (Oliaro et al., arXiv 2411.04975) needs to know where the last tokens stood before.
namespace facet {

uint32_t hash_of_tokens(std::span<const int32_t> tokens);

// Where a sequence had the same tokens as at its end. One more token costs the same whatever the length of the
// sequence, a search looks at a bounded number of places, and a token takes at most kBytesPerToken.
//
// For each of kOrders a token's place is chained with those places before it where the last so many tokens have the
// same hash: the short order finds every match, the newest ones first, the long one those that stand far behind many
// short ones.
class SuffixIndex {
 public:
  static constexpr std::array<int, 2> kOrders{2, 8};
  static constexpr int kMostLength = 64;  // of a match: a longer one is as good as that
  static constexpr int kMostPlaces = 32;  // looked at in each order
  static constexpr int kBytesPerToken = 24;
  static constexpr size_t kMostAtOnce = 16384;  // tokens of one extend()

  // Chains what is new of the history, which must begin as it did before; of a long one a part. True: all of it is.
  bool extend(std::span<const int32_t> history);
  void clear();
  // The sequence goes back to so many tokens.
  void truncate(size_t n_token) {
    if (n_token < n_) clear();
  }
  size_t n_token() const { return n_; }
  size_t bytes() const;

  struct Match {
    int32_t next = 0;  // place of the token that followed
    int length = 0;    // tokens that are the same before it, kOrders[0] .. kMostLength
  };
  // Of all that extend() was given; the longest first, and of those as long the newest.
  void matches(std::span<const int32_t> history, std::vector<Match>& out) const;
  // Of a text that goes on behind the history: `tail` is its end, kMostLength tokens or all of it.
  void matches_of(std::span<const int32_t> history, std::span<const int32_t> tail, std::vector<Match>& out) const;

 private:
  struct Chains {
    std::vector<int32_t> head;  // by hash: the newest place; a power of two of them, at least half of the tokens
    std::vector<int32_t> link;  // by place: the one before it; -1: there is none
  };
  static void add(Chains& c, int order, std::span<const int32_t> history, size_t at);
  // From the place `at` on backwards; found: of out, what other orders have found.
  void look(size_t order, std::span<const int32_t> history, std::span<const int32_t> tail, int32_t at, size_t found,
            std::vector<Match>& out) const;

  std::array<Chains, kOrders.size()> chains_;
  size_t n_ = 0;
};

// Tokens that are the same before place `at` as at the end of the history, at most kMostLength.
int match_length(std::span<const int32_t> text, size_t at, std::span<const int32_t> history);

inline void sort_matches(std::vector<SuffixIndex::Match>& m) {
  std::sort(m.begin(), m.end(), [](const SuffixIndex::Match& a, const SuffixIndex::Match& b) {
    return a.length != b.length ? a.length > b.length : a.next > b.next;
  });
}

}  // namespace facet
