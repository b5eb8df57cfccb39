#pragma once
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "spec/drafter.h"

namespace facet {

// What followed the last place where the sequence had the same tokens as at its end: prompt lookup. The place with the
// longest match counts, kLongest tokens or more being as good as any, the latest of several; without kShortest there
// is none. A continuation that reaches the end goes on with itself.
inline std::vector<int32_t> looked_up(std::span<const int32_t> history, int most) {
  constexpr int kShortest = 2, kLongest = 8;
  constexpr ptrdiff_t kReach = 1 << 16;  // tokens that are looked at
  const ptrdiff_t n = ptrdiff_t(history.size());
  ptrdiff_t at = -1;
  int best = kShortest - 1;
  for (ptrdiff_t j = n - 2; j >= std::max<ptrdiff_t>(0, n - 1 - kReach) && best < kLongest; --j) {
    int match = 0;
    while (match < kLongest && j >= match && history[size_t(j - match)] == history[size_t(n - 1 - match)]) ++match;
    if (match > best) best = match, at = j;
  }
  std::vector<int32_t> found;
  for (ptrdiff_t i = at + 1; at >= 0 && int(found.size()) < most; ++i)
    found.push_back(i < n ? history[size_t(i)] : found[size_t(i - n)]);
  // Not into a picture or a sound, whose ids are below 0.
  found.erase(std::find_if(found.begin(), found.end(), [](int32_t id) { return id < 0; }), found.end());
  return found;
}

// Prompt lookup as a drafter: no file, no memory, next to no time. It keeps nothing of a sequence but its length.
template <Backend B>
class Ngram final : public Drafter<B> {
 public:
  using typename Drafter<B>::Rows;
  static constexpr int kMaxChain = 15;  // with the newest token: 16 rows to verify
  explicit Ngram(const TargetView<B>& t) : held_(size_t(t.plan.resident())) {}

  const char* name() const override { return "ngram"; }
  int max_draft() const override { return kMaxChain; }
  std::span<const int> tap_layers() const override { return {}; }
  bool wants_final_hidden() const override { return false; }

  void absorb(std::span<const Committed> rows, const Features<Rows>&) override {
    for (const Committed& c : rows) {
      int& held = held_[size_t(c.slot)];
      CHECK(c.n > 0 && c.position == held, "{} rows from {} on for slot {} that holds {}", c.n, c.position, c.slot,
            held);
      held += c.n;
    }
  }
  void propose(std::span<Draft> drafts) override {
    for (Draft& d : drafts) {
      const std::vector<int32_t> found = looked_up(d.history, std::min(d.max_draft, kMaxChain));
      d.token.insert(d.token.end(), found.begin(), found.end());
      if (d.n_top <= 1) continue;  // a chain is verified as it is
      for (const int32_t id : found) {
        d.top.push_back(id);
        d.top.resize(d.top.size() + size_t(d.n_top - 1), -1);
        d.top_log_prob.resize(d.top.size(), kSure);
      }
    }
  }

  int held(SlotId s) const override { return held_[size_t(s)]; }
  int rewind(SlotId s, int len) override { return held_[size_t(s)] = len; }
  void forget(SlotId s) override { held_[size_t(s)] = 0; }
  Status fork(SlotId from, SlotId to) override {
    held_[size_t(to)] = held_[size_t(from)];
    return Ok{};
  }
  bool has_state() const override { return false; }
  bool load(SlotId s, int held, std::span<const float> beside) override {
    held_[size_t(s)] = held;
    return beside.empty();
  }

 private:
  static constexpr float kSure = -.3f;  // log-probability that a tree is told
  std::vector<int> held_;               // per slot
};

}  // namespace facet
