#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "spec/drafter.h"

// Suffix decoding (Oliaro et al., arXiv 2411.04975): drafts out of what the sequence itself has said, by how often what
// followed its last tokens followed them before.
namespace facet {

// Where a sequence had the same tokens as at its end. One more token costs the same whatever the length of the
// sequence, a search looks at a bounded number of places, and a token takes at most kBytesPerToken.
//
// For each of kOrders a token's place is chained with those places before it where the last so many tokens have the
// same hash: the short order finds every match, the newest ones first, the long one those that stand far behind many
// short ones.
class SuffixIndex {
 public:
  static constexpr std::array<int, 2> kOrders{3, 12};
  static constexpr int kMostLength = 64;  // of a match: a longer one is as good as that
  static constexpr int kMostPlaces = 48;  // looked at in each order
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

 private:
  struct Chains {
    std::vector<int32_t> head;  // by hash: the newest place; a power of two of them, at least half of the tokens
    std::vector<int32_t> link;  // by place: the one before it; -1: there is none
  };
  static void add(Chains& c, int order, std::span<const int32_t> history, size_t at);
  void look(size_t order, std::span<const int32_t> history, std::vector<Match>& out) const;

  std::array<Chains, kOrders.size()> chains_;
  size_t n_ = 0;
};

// How often a draft is right that continues a match of some length, learned by length from verifications of all
// sequences; what is known at first was measured (bench spec --replay).
class MatchTrust {
 public:
  double value(int length) const;  // of the token behind a match
  void observe(int length, bool right);

 private:
  struct Known {
    double hit = 0, trial = 0;
  };
  std::array<Known, 8> known_{};
};

// What follows the matches: by depth the token that followed most often, of several as often the one whose match comes
// first, as long as the expected number of right tokens grows.
struct Continuation {
  struct Position {
    int32_t token = 0;
    float probability = 0;  // that it is right if those before it are
    int length = 0;         // of the match before it
  };
  std::vector<Position> chain;
  // By position, up to n_top tokens each, best first: what else followed. Empty where n_top <= 1.
  std::vector<int32_t> top;
  std::vector<float> top_probability;
};
Continuation continue_matches(std::span<const int32_t> history, std::span<const SuffixIndex::Match> matches,
                              const MatchTrust& trust, int most, int n_top);

// A drafter without a file, for every model. It tells what it would draft, and how sure it is of it, before it is
// chosen: where nothing matches it costs a round nothing.
template <Backend B>
class SuffixDrafter final : public Drafter<B> {
 public:
  using typename Drafter<B>::Rows;
  static constexpr int kMaxChain = 15;  // with the newest token: 16 rows to verify
  explicit SuffixDrafter(const TargetView<B>& t) : slots_(size_t(t.plan.resident())) {}

  const char* name() const override { return "suffix"; }
  int max_draft() const override { return kMaxChain; }
  std::span<const int> tap_layers() const override { return {}; }
  bool wants_final_hidden() const override { return false; }
  bool foretells() const override { return true; }

  void absorb(std::span<const Committed> rows, const Features<Rows>&) override {
    for (const Committed& c : rows) {
      int& held = slots_[size_t(c.slot)].held;
      CHECK(c.n > 0 && c.position == held, "{} rows from {} on for slot {} that holds {}", c.n, c.position, c.slot,
            held);
      held += c.n;
    }
  }
  void propose(std::span<Draft> drafts) override {
    for (Draft& d : drafts) {
      Slot& s = slots_[size_t(d.slot)];
      s.lengths.clear();
      if (!s.index.extend(d.history)) continue;  // it is read in a few rounds
      s.index.matches(d.history, found_);
      const Continuation c = continue_matches(d.history, found_, trust_, std::min(d.max_draft, kMaxChain), d.n_top);
      for (const auto& p : c.chain) d.token.push_back(p.token), s.lengths.push_back(p.length);
      if (d.n_top > 1) {
        d.top = c.top;
        for (const float p : c.top_probability) d.top_log_prob.push_back(std::log(p));
      } else {
        for (const auto& p : c.chain) d.top.push_back(p.token), d.top_log_prob.push_back(std::log(p.probability));
      }
    }
  }
  void judged(SlotId slot, int offered, int accepted) override {
    const std::vector<int>& lengths = slots_[size_t(slot)].lengths;
    for (int k = 0; k < std::min({offered, accepted + 1, int(lengths.size())}); ++k)
      trust_.observe(lengths[size_t(k)], k < accepted);
  }

  int held(SlotId s) const override { return slots_[size_t(s)].held; }
  int rewind(SlotId s, int len) override {
    slots_[size_t(s)].index.truncate(size_t(len));
    return slots_[size_t(s)].held = len;
  }
  void forget(SlotId s) override { slots_[size_t(s)].held = 0, slots_[size_t(s)].index.clear(); }
  Status fork(SlotId from, SlotId to) override {
    forget(to);
    slots_[size_t(to)].held = slots_[size_t(from)].held;
    return Ok{};
  }
  bool has_state() const override { return false; }
  bool load(SlotId s, int held, std::span<const float> beside) override {
    forget(s);
    slots_[size_t(s)].held = held;
    return beside.empty();
  }

 private:
  struct Slot {
    int held = 0;
    SuffixIndex index;
    std::vector<int> lengths;  // of the matches of what was proposed last
  };
  std::vector<Slot> slots_;
  MatchTrust trust_;
  std::vector<SuffixIndex::Match> found_;
};

}  // namespace facet
