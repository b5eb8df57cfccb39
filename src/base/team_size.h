#pragma once
#include <algorithm>

namespace facet {

// How many threads of a team work, decided from what its loops saved and lost, and from how many cores were idle. A
// thread that another program displaces in the middle of a piece holds that piece for milliseconds, and the loop with
// it; a step of a small model is shorter than that. Times are seconds of any steady clock.
class TeamSize {
 public:
  explicit TeamSize(int most) : most_(std::max(1, most)), now_(most_) {}

  int now() const { return now_; }    // threads at work, 1 to most
  int most() const { return most_; }  // of them
  // When look() wants to be called; only while now() < most().
  double next_look() const { return std::min(next_idle_, next_try_); }

  // A loop was shorter by `seconds` for each helper that took part.
  void saved(double seconds) { credit_ = std::min(kMostCredit, credit_ + kWorth * seconds); }

  // A loop that ended at `at` was longer by `seconds`, because `displaced` of its threads, or its caller, were not
  // running. True: the team is smaller now.
  bool lost(double at, double seconds, int displaced) {
    credit_ -= seconds;
    owed_ += seconds;
    if (credit_ >= 0 || now_ == 1) return false;
    // Tries that last no longer than what they cost come ever more seldom.
    const bool failed = at - grown_ < kTimes * owed_;
    pause_ = failed ? std::min(2 * pause_, kLongest) : std::max(kShortest, 8 * seconds);
    now_ = std::max(1, now_ - std::max(1, displaced));
    next_try_ = at + pause_;
    next_idle_ = at + std::max(kInterval, kTimes * owed_);
    credit_ = owed_ = 0;
    return true;
  }

  // At `at`, next_look() or later: `idle` cores had nothing to do since the last look or change of size; below 0:
  // nobody knows. True: the team is larger now.
  bool look(double at, double idle) {
    int more = at >= next_idle_ && idle >= kIdle ? int(idle + 1 - kIdle) : 0;
    // Programs of low priority leave no core idle, and yet give way. Only a try tells.
    if (more == 0 && at >= next_try_) more = 1;
    if (at >= next_idle_) next_idle_ = at + kInterval;
    if (more == 0) return false;
    grown_ = at, next_try_ = at + pause_;
    credit_ = owed_ = 0;
    now_ = std::min(most_, now_ + more);
    return true;
  }

 private:
  static constexpr double kWorth = 0.25;        // of a second saved: what it is, where cores share their memory
  static constexpr double kMostCredit = 10e-3;  // seconds; some rare turns of others
  static constexpr double kTimes = 20;          // of what was lost, that a size must last to have been right
  static constexpr double kShortest = 5e-3, kLongest = 4;  // seconds from one try to the next
  static constexpr double kInterval = 0.1;                 // seconds: the system counts idle time in hundredths
  static constexpr double kIdle = 0.75;                    // of a core

  int most_, now_;
  double credit_ = 0, owed_ = 0, grown_ = -1e9, pause_ = kShortest, next_idle_ = 0, next_try_ = 0;
};

}  // namespace facet
