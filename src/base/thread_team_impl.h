#pragma once
// BasicTeam's members, for base/thread_team.cpp and for tests that claim otherwise.
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <system_error>
#include <utility>

#include "base/thread_team.h"

namespace facet {
namespace team_detail {

// Helpers look for the next loop for so long before they sleep: to wake a thread costs as much as a small matrix, and
// on a virtual machine up to a millisecond. Far less than a step's work between two loops is too little.
constexpr double kSpin = 200e-6;
// A helper gives way after so long, between two pieces. The system gives a thread turns of one to three milliseconds,
// and displaces it at the end of one, wherever it is.
constexpr double kTurn = 250e-6;
constexpr double kPatience = 100e-6;  // of the calling thread with the last pieces, before it sleeps
constexpr double kLong = 500e-6;      // a thread that works on one loop for longer asks whether it was displaced
constexpr double kVeryLong = 2e-3;    // to wait for a piece, however small
constexpr double kShortStay = 50e-3;  // on a core, of a calling thread that is displaced there too
constexpr int kPiecesEach = 64;       // of a loop, for each thread: more are taken several at a time
constexpr int kWakes = 2;             // threads that one thread wakes; those wake others

double now();  // seconds of a steady clock, read in a few nanoseconds
void pause();
void set_thread_index(int index, bool in_loop);
void note_size(int at_work, int asked);
void note_stall(double lost);
int cpus_to_see();
void ask_for_short_turns();
void leave_cpu(int cpu);

inline void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
inline void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// The thread works on a loop while this lives.
class InLoop {
 public:
  InLoop() { set_thread_index(0, true); }
  ~InLoop() { set_thread_index(0, false); }
};

}  // namespace team_detail

template <class ClaimsOf>
BasicTeam<ClaimsOf>::BasicTeam(int n_threads)
    : limit_(1), size_(std::max(1, std::min(n_threads, team_detail::cpus_to_see()))) {
  helpers_.reserve(size_t(size_.most()));
  set_size();
}

template <class ClaimsOf>
BasicTeam<ClaimsOf>::~BasicTeam() {
  if (::getpid() != process_) {  // a copy of the process by fork(), which copies no helpers
    for (auto& h : helpers_) h->thread.detach();
    return;
  }
  ending_.store(true);
  for (const auto& h : helpers_) {
    h->asleep.store(0);
    team_detail::futex_wake(h->asleep);
  }
  for (const auto& h : helpers_) h->thread.join();
}

// Makes the helpers that the size asks for. Without a thread, because the system makes no more, loops do with fewer.
template <class ClaimsOf>
void BasicTeam<ClaimsOf>::set_size() {
  // Signals are for the program's other threads.
  sigset_t all, before;
  sigfillset(&all);
  if (more_threads_ && int(helpers_.size()) + 1 < size_.now()) {
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (more_threads_ && int(helpers_.size()) + 1 < size_.now()) {
      helpers_.push_back(std::make_unique<Helper>());
      Helper& h = *helpers_.back();
      const int index = int(helpers_.size());
      try {
        h.thread = std::thread([this, index] { help(index); });
        n_helpers_.store(index, std::memory_order_release);
      } catch (const std::system_error&) {
        helpers_.pop_back();
        more_threads_ = false;
      }
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  limit_.store(std::min(size_.now(), int(helpers_.size()) + 1));
  next_look_ = size_.now() < size_.most() ? size_.next_look() : 1e300;
  team_detail::note_size(size_.now(), size_.most());
}

// Wakes sleeping helpers, which wake others.
template <class ClaimsOf>
void BasicTeam<ClaimsOf>::wake(int at_most) {
  const int n = std::min(limit_.load(std::memory_order_relaxed) - 1, n_helpers_.load(std::memory_order_acquire));
  for (int i = 0; i < n && at_most > 0; ++i) {
    Helper& h = *helpers_[size_t(i)];
    if (h.asleep.load(std::memory_order_seq_cst) == 0 || h.asleep.exchange(0) == 0) continue;
    team_detail::futex_wake(h.asleep);
    --at_most;
  }
}

template <class ClaimsOf>
void BasicTeam<ClaimsOf>::Turn::restart() {
  lost.restart();
  begin = team_detail::now();
}

template <class ClaimsOf>
bool BasicTeam<ClaimsOf>::wait_for_pieces(int index, Turn& turn) {
  Helper& self = *helpers_[size_t(index - 1)];
  auto ready = [&] { return ending_.load() || (index < limit_.load() && ClaimsOf::left(claims_.look())); };
  bool slept = false;
  for (const double start = team_detail::now(); index < limit_.load(std::memory_order_relaxed) && !ready();) {
    const double now = team_detail::now();
    if (now - start > team_detail::kSpin) break;
    if (now - turn.begin > team_detail::kTurn)
      give_way(turn);
    else
      team_detail::pause();
  }
  while (!ready()) {
    self.asleep.store(1, std::memory_order_seq_cst);
    if (!ready()) team_detail::futex_wait(self.asleep, 1);
    self.asleep.store(0, std::memory_order_relaxed);
    slept = true;
    if (ready()) wake(team_detail::kWakes);
  }
  if (slept) turn.restart();
  return !ending_.load(std::memory_order_relaxed);
}

template <class ClaimsOf>
void BasicTeam<ClaimsOf>::help(int index) {
  team_detail::set_thread_index(index, true);
  pthread_setname_np(pthread_self(), "facet team");
  team_detail::ask_for_short_turns();
  Turn turn;
  turn.restart();
  while (wait_for_pieces(index, turn)) {
    // Where the calling thread is to run, nobody helps it.
    if (const int cpu = caller_cpu_.load(std::memory_order_relaxed); cpu == ::sched_getcpu()) {
      team_detail::leave_cpu(cpu);
      turn.restart();
      continue;
    }
    const double start = team_detail::now();
    const int64_t pieces = work(&turn);
    if (pieces == 0) continue;
    const double took = team_detail::now() - start;
    if (took > team_detail::kLong && turn.lost.seconds_of(took) > team_detail::kLong / 2)
      displaced_.fetch_add(1, std::memory_order_relaxed);
    finish(pieces);
    if (start + took - turn.begin > team_detail::kTurn) give_way(turn);
  }
}

// The system displaces a thread whose turn is over, wherever it is; one that gives way in time holds no piece then.
template <class ClaimsOf>
void BasicTeam<ClaimsOf>::give_way(Turn& turn) {
  ::sched_yield();
  turn.restart();
}

// On the loop until no piece is left, or, of a helper, until its turn is nearly over. Returns how many it did.
template <class ClaimsOf>
int64_t BasicTeam<ClaimsOf>::work(const Turn* turn) {
  int64_t done = 0;
  for (uint64_t word = claims_.take(); ClaimsOf::left(word); word = claims_.take()) {
    const int64_t i = ClaimsOf::piece(word);
    ++done;
    try {
      piece_(context_, n_ * i / pieces_, n_ * (i + 1) / pieces_);
    } catch (...) {
      if (!threw_.test_and_set()) thrown_ = std::current_exception();
      return done + claims_.take_rest();
    }
    if (turn && team_detail::now() - turn->begin > team_detail::kTurn) break;
  }
  return done;
}

// Of a helper. Nothing of the loop may be touched afterwards.
template <class ClaimsOf>
void BasicTeam<ClaimsOf>::finish(int64_t pieces) {
  done_.fetch_add(uint32_t(pieces), std::memory_order_seq_cst);
  if (caller_sleeps_.load(std::memory_order_seq_cst) != 0) team_detail::futex_wake(done_);
}

// Returns when the helpers have done what the calling thread has not. own_pieces, own: its share, in pieces and
// seconds.
template <class ClaimsOf>
void BasicTeam<ClaimsOf>::wait_for_helpers(int64_t own_pieces, double own) {
  const int64_t pieces = pieces_ - own_pieces;
  auto all_done = [&] { return int64_t(done_.load(std::memory_order_acquire)) >= pieces; };
  double waited = 0;
  bool slept = false;
  if (!all_done()) {
    const double start = team_detail::now();
    while (!all_done() && (waited = team_detail::now() - start) < team_detail::kPatience) team_detail::pause();
    while (!all_done()) {
      caller_sleeps_.store(1, std::memory_order_seq_cst);
      const uint32_t seen = done_.load(std::memory_order_seq_cst);
      if (int64_t(seen) < pieces) team_detail::futex_wait(done_, seen);
      caller_sleeps_.store(0, std::memory_order_relaxed);
      slept = true;
    }
    if (slept) waited = team_detail::now() - start;
  }
  if (own_pieces > 0) size_.saved(own * double(pieces) / double(own_pieces * std::max(1, size_.now() - 1)) - waited);
  if (slept || own > team_detail::kLong) count_lost(slept ? waited : 0, own);
}

// What did the loop lose, of which it took `own` seconds to do the calling thread's share and `waited` for the rest? A
// helper says whether it was displaced. A virtual machine's whole core can be, of which nobody is told: waits far
// longer than the helper's share could take count too.
template <class ClaimsOf>
void BasicTeam<ClaimsOf>::count_lost(double waited, double own) {
  const int displaced = int(displaced_.exchange(0, std::memory_order_relaxed));
  const double off = own > team_detail::kLong ? lost_.seconds_of(own) : 0;  // the calling thread itself
  if (waited > 0) lost_.restart();
  const double lost = off + (displaced > 0 || waited > team_detail::kVeryLong + 8 * own ? waited : 0);
  if (lost < team_detail::kLong / 2) return;
  const double now = team_detail::now();
  team_detail::note_stall(lost);
  if (size_.lost(now, lost, displaced)) {
    cores_.restart();
    set_size();
  } else if (off > team_detail::kLong && now > next_move_) {
    // Somebody else wants the calling thread's core, and a helper's may be the team's alone: the helper leaves the core
    // that the calling thread comes to. Where the last move was no use, it waits before it moves again.
    move_pause_ = now - moved_ < team_detail::kShortStay ? std::clamp(2 * move_pause_, 0.05, 4.) : 0;
    moved_ = now, next_move_ = now + move_pause_;
    team_detail::leave_cpu(::sched_getcpu());
    lost_.restart();
  }
}

template <class ClaimsOf>
void BasicTeam<ClaimsOf>::look_at_size(double now) {
  const CoreUse::Since use = cores_.since();
  size_.look(now, use.cpus > 0 ? use.idle : -1);
  cores_.restart();
  lost_.restart();
  set_size();
}

template <class ClaimsOf>
void BasicTeam<ClaimsOf>::run(int64_t n, threads_detail::Piece piece, void* context) {
  const team_detail::InLoop in_loop;
  const double start = team_detail::now();
  if (start >= next_look_) look_at_size(start);
  if (size_.now() == 1) return piece(context, 0, n);
  lost_.begin(start);
  piece_ = piece, context_ = context, n_ = n;
  pieces_ = std::min<int64_t>(n, int64_t(team_detail::kPiecesEach) * size_.most());
  if (const int cpu = ::sched_getcpu(); cpu != caller_cpu_.load(std::memory_order_relaxed))
    caller_cpu_.store(cpu, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  claims_.open(uint32_t(pieces_));
  wake(team_detail::kWakes);
  const int64_t own = work(nullptr);
  wait_for_helpers(own, team_detail::now() - start);
  if (threw_.test()) {
    threw_.clear();
    std::rethrow_exception(std::exchange(thrown_, nullptr));
  }
}

}  // namespace facet
