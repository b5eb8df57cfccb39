#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "grammar/compile_limits.h"

namespace facet::grammar {

// Counts what compiling one grammar takes, while it is spent, and ends it where its limits do. One unit stands for
// about 10 ns of one core or for 8 bytes: an edge made, some bytes compared. Whoever makes or compares much says so
// before.
//
// Ends by throwing Stop, as it may be anywhere between the front ends and the automaton; compile_*() catch it, and
// nothing outside src/grammar sees it.
class CompileBudget {
 public:
  struct Stop {
    Error error;
  };

  explicit CompileBudget(const CompileLimits& limits = {}) : limits_(limits) { next_ = look_again(); }

  void spend(uint64_t units) {
    spent_ += units < limits_.work ? units : limits_.work;  // cannot overflow
    if (spent_ >= next_) look();
  }
  // What the work is done for: JSON path, rule. Named when it ends there.
  void set_place(std::string_view place) { place_.assign(place.substr(0, 200)); }

  uint64_t spent() const { return spent_; }

 private:
  static constexpr uint64_t kBetweenLooks = 100'000;  // units: about a millisecond
  uint64_t look_again() const {
    const uint64_t soon = spent_ + kBetweenLooks, end = limits_.work + 1;
    return soon < end ? soon : end;
  }
  void look();

  CompileLimits limits_;
  uint64_t spent_ = 0, next_ = 0;
  std::string place_ = "grammar";
};

}  // namespace facet::grammar
