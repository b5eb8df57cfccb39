#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace facet {

// Tells when an answer goes round in a loop: its last tokens are one sequence of at most kPeriod tokens, so many times
// in a row, and kLeast tokens in all. Tables, code and lists repeat tokens; hardly any text that is worth having
// repeats them that long without a difference.
class LoopGuard {
 public:
  static constexpr int kPeriod = 64, kLeast = 128;
  explicit LoopGuard(int times) : times_(std::max(2, times)) {}

  // history: prompt and answer, with the newest token, which counts. Tokens of the prompt count for nothing.
  bool advance(std::span<const int32_t> history) {
    ++n_;
    bool loop = false;
    for (int p = 1; p <= kPeriod; ++p) {
      int& run = run_[size_t(p)];  // tokens that are those p places before
      const bool same = p < n_ && history.back() == history[history.size() - 1 - size_t(p)];
      run = same ? run + 1 : 0;
      loop |= run + p >= std::max(kLeast, p * times_);
    }
    return loop;
  }

 private:
  int times_, n_ = 0;
  std::array<int, kPeriod + 1> run_{};
};

}  // namespace facet
