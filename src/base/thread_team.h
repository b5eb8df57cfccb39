#pragma once
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "base/core_use.h"
#include "base/team_size.h"
#include "base/threads.h"

// The threads behind parallel_for. A loop is cut into pieces, and a thread holds a piece only while it works on it:
// whoever does not run holds none, is not waited for, and the calling thread does all the work if nobody else comes.
// What can be lost is the rest of one piece, when a helper is displaced in the middle of it; then the team shrinks.
namespace facet {

// The pieces of a loop that nobody has claimed yet, in one word: how many there are, above the number claimed. A claim
// is one addition, and its result alone tells whether there was a piece: a helper that slept between two claims, for
// however long, may claim again without a look at what has happened since.
class Claims {
 public:
  static bool left(uint64_t word) { return uint32_t(word) < uint32_t(word >> 32); }
  static uint32_t piece(uint64_t word) { return uint32_t(word); }

  // Nobody works on the loop before. What was written before this is seen by whoever claims a piece.
  void open(uint32_t n) { word_.store(uint64_t(n) << 32, std::memory_order_seq_cst); }
  // A word of which left() is true is a piece, which nobody else gets. The loop does not end before finish() of it.
  uint64_t take() { return word_.fetch_add(1, std::memory_order_acq_rel); }
  uint64_t look() const { return word_.load(std::memory_order_seq_cst); }
  // Claims what is left, and says how many pieces that are.
  uint32_t take_rest() {
    const uint64_t all = word_.load(std::memory_order_relaxed) >> 32;
    const uint64_t before = word_.exchange(all << 32 | all, std::memory_order_acq_rel);
    return left(before) ? uint32_t(before >> 32) - uint32_t(before) : 0;
  }

 private:
  std::atomic<uint64_t> word_{0};
};

// What a thread loses to other programs: asked at the end of loops that took suspiciously long.
class LostTime {
 public:
  void restart();  // after the thread slept or gave way of its own will
  // Before work at `now`: what was asleep before the last two milliseconds is not lost.
  void begin(double now) {
    if (now - at_ > 2e-3) restart();
  }
  double seconds_of(double took);  // of the last `took` seconds: displaced, not asleep; 0: it ran

 private:
  long displaced_ = 0;
  double cpu_ = 0, at_ = -1e9;
};

// `ClaimsOf` is Claims, except in tests of it. One team belongs to one calling thread.
template <class ClaimsOf>
class BasicTeam {
 public:
  // Up to n_threads, the calling one included, and no more than there are CPUs to run them; see pretend_cpus().
  explicit BasicTeam(int n_threads);
  ~BasicTeam();
  BasicTeam(const BasicTeam&) = delete;

  // Calls piece(context, begin, end) for pieces of [0, n). From the team's own thread, and not from within a piece.
  void run(int64_t n, threads_detail::Piece piece, void* context);
  int at_work() const { return size_.now(); }

 private:
  struct alignas(64) Helper {
    std::atomic<uint32_t> asleep{0};  // a futex
    std::thread thread;
  };

  void help(int index);
  struct Turn {  // of a helper, since it last slept or gave way
    double begin = 0;
    LostTime lost;
    void restart();
  };
  bool wait_for_pieces(int index, Turn& turn);  // false: the team ends
  void give_way(Turn& turn);
  int64_t work(const Turn* turn);
  void finish(int64_t pieces);
  void wait_for_helpers(int64_t own_pieces, double own);
  void count_lost(double waited, double own);
  void wake(int at_most);
  void look_at_size(double now);
  void set_size();

  // What helpers read of a loop; written while nobody holds a piece of it.
  threads_detail::Piece piece_ = nullptr;
  void* context_ = nullptr;
  int64_t n_ = 0, pieces_ = 0;

  alignas(64) ClaimsOf claims_;
  alignas(64) std::atomic<uint32_t> done_{0};  // pieces of helpers; a futex
  std::atomic<uint32_t> caller_sleeps_{0};
  std::atomic<uint32_t> displaced_{0};  // helpers that were not running while they held a piece
  alignas(64) std::atomic<int> limit_;  // helpers of this index and above sleep
  std::atomic<int> caller_cpu_{-1};
  std::atomic<bool> ending_{false};

  // Of the calling thread.
  alignas(64) TeamSize size_;
  double next_look_ = 0, moved_ = -1e9, next_move_ = 0, move_pause_ = 0;
  LostTime lost_;
  CoreUse cores_;
  std::vector<std::unique_ptr<Helper>> helpers_;  // [i] has index i + 1; room for all is reserved
  std::atomic<int> n_helpers_{0};
  const int process_ = int(::getpid());
  bool more_threads_ = true;  // the system still made the last one

  std::atomic_flag threw_ = ATOMIC_FLAG_INIT;
  std::exception_ptr thrown_;
};

using ThreadTeam = BasicTeam<Claims>;
extern template class BasicTeam<Claims>;

}  // namespace facet
