#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <utility>

namespace facet {

// What the engine's thread does between the tokens of one step and those of the next.
enum class Phase : uint8_t {
  kAdmit,    // cancellations, matching what is kept, opening; and what is nothing else
  kMap,      // pages of states that come back and of forks
  kFork,     // forks, for requests and snapshots, with their rings
  kEvict,    // sessions given up, with copies that somebody has to wait for
  kCopy,     // copies of states: beginning and ending them
  kDraft,    // drafters
  kPrepare,  // pages of the step's rows, its arrays
  kForward,  // the pass: computing it, or launching it on a GPU
  kWait,     // for a GPU's tokens
  kSettle,   // accepting, committing, handing out tokens
};
constexpr int kPhases = 10;
constexpr const char* kPhaseName[kPhases] = {"admit", "map",     "fork",    "evict", "copy",
                                             "draft", "prepare", "forward", "wait",  "settle"};

// Where the time of one thread goes: every moment counts for the phase that was entered last.
class PhaseTimes {
 public:
  using Seconds = std::array<double, kPhases>;

  // Returns the phase that ends.
  Phase enter(Phase p) {
    const Clock::time_point t = Clock::now();
    seconds_[size_t(now_)] += std::chrono::duration<double>(t - since_).count();
    since_ = t;
    return std::exchange(now_, p);
  }
  // The phase until the end of the scope; then the one before goes on.
  class Scope {
   public:
    Scope(PhaseTimes& times, Phase p) : times_(times), before_(times.enter(p)) {}
    ~Scope() { times_.enter(before_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseTimes& times_;
    Phase before_;
  };
  // Since the last time, or restart().
  Seconds take() {
    enter(now_);
    return std::exchange(seconds_, {});
  }
  void restart() { seconds_ = {}, since_ = Clock::now(), now_ = Phase::kAdmit; }

 private:
  using Clock = std::chrono::steady_clock;
  Seconds seconds_ = {};
  Phase now_ = Phase::kAdmit;
  Clock::time_point since_ = Clock::now();
};

}  // namespace facet
