#include "base/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/core_use.h"
#include "base/thread_team_impl.h"

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

double cpu_seconds() {  // of this process
  timespec t{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Teams of a test have as many threads as it says, on any machine.
struct Cpus {
  explicit Cpus(int n) { pretend_cpus(n); }
  ~Cpus() { pretend_cpus(0); }
};

template <class Team, class F>
void loop(Team& team, int64_t n, F&& f) {
  auto piece = [](void* context, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) (*static_cast<F*>(context))(i);
  };
  team.run(n, piece, &f);
}
void work_for(std::chrono::microseconds t) {
  for (const auto start = Clock::now(); Clock::now() - start < t;) continue;
}

// ---- a piece is claimed once

// Planted: now and then two threads get the same piece, as if a claim were a load and a store.
class ClaimsTwice : public Claims {
 public:
  uint64_t take() {
    const uint64_t word = Claims::take();
    return Claims::piece(word) % 7 == 3 && Claims::left(word) ? word - 1 : word;
  }
};
// The first size of a loop of which an item did not run exactly once; -1: none.
template <class ClaimsOf>
int64_t first_size_not_run_once(int n_threads) {
  const Cpus cpus(n_threads);
  BasicTeam<ClaimsOf> team(n_threads);
  for (int round = 0; round < 200; ++round)
    for (const int64_t n : {1, 2, 3, 5, 8, 64, 1000, 4097}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      loop(team, n, [&](int64_t i) { runs[size_t(i)].fetch_add(1, std::memory_order_relaxed); });
      for (const auto& r : runs)
        if (r.load() != 1) return n;
    }
  return -1;
}
TEST(ThreadTeam, RunsEveryItemOnce) {
  for (const int n_threads : {1, 2, 4, 9}) EXPECT_EQ(first_size_not_run_once<Claims>(n_threads), -1) << n_threads;
  for (const int n_threads : {2, 4}) EXPECT_GT(first_size_not_run_once<ClaimsTwice>(n_threads), 0) << n_threads;
}

TEST(ThreadTeam, ItemsSeeWhatWasWrittenBeforeTheLoopAndTheCallerWhatTheyWrote) {
  const Cpus cpus(4);
  ThreadTeam team(4);
  std::vector<int64_t> in(257), out(257);  // not atomic: ThreadSanitizer looks
  for (int64_t round = 0; round < 2000; ++round) {
    for (int64_t& x : in) x = round;
    loop(team, int64_t(in.size()), [&](int64_t i) { out[size_t(i)] = in[size_t(i)] + i; });
    for (int64_t i = 0; i < int64_t(out.size()); ++i) ASSERT_EQ(out[size_t(i)], round + i);
  }
}

// ---- whoever does not run holds nothing

// Where threads are stopped: in a handler of SIGUSR1, which helpers have to let through.
struct Stopped {
  static inline sem_t here, go;
  static inline std::atomic<int> naps{0};
  static void stop(int) { ::sem_post(&here), ::sem_wait(&go); }
  static void nap(int) {
    const timespec t{0, 300'000};
    ::nanosleep(&t, nullptr);
    naps.fetch_add(1, std::memory_order_relaxed);
  }
  explicit Stopped(void (*handler)(int)) {
    ::sem_init(&here, 0, 0), ::sem_init(&go, 0, 0);
    naps = 0;
    struct sigaction act {};
    act.sa_handler = handler;
    ::sigaction(SIGUSR1, &act, &before);
  }
  ~Stopped() { ::sigaction(SIGUSR1, &before, nullptr); }
  struct sigaction before {};
};
// The threads of a team of n, the calling one first. They take SIGUSR1 from here on.
std::vector<pthread_t> threads_of(ThreadTeam& team, int n) {
  std::vector<pthread_t> ids(static_cast<size_t>(n));
  std::atomic<int> seen{0};
  std::vector<std::atomic<bool>> known(static_cast<size_t>(n));
  while (seen < n)
    loop(team, 4 * n, [&](int64_t) {
      const size_t me = size_t(thread_index());
      if (!known[me].exchange(true)) {
        ids[me] = ::pthread_self();
        sigset_t usr1;
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        ::pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
        ++seen;
      }
      work_for(std::chrono::microseconds(100));
    });
  return ids;
}

TEST(ThreadTeam, AThreadStoppedBetweenTwoClaimsIsNotWaitedFor) {
  const Cpus cpus(3);
  const Stopped stopped(Stopped::stop);
  ThreadTeam team(3);
  const std::vector<pthread_t> ids = threads_of(team, 3);
  for (int k = 1; k < 3; ++k) {  // the last loop is over, so neither of them is in a piece
    ASSERT_EQ(::pthread_kill(ids[size_t(k)], SIGUSR1), 0);
    ::sem_wait(&Stopped::here);
    for (int round = 0; round < 300; ++round) {
      std::vector<int> runs(100);
      loop(team, 100, [&](int64_t i) {
        EXPECT_NE(thread_index(), k);
        ++runs[size_t(i)];
      });
      for (int r : runs) ASSERT_EQ(r, 1);
    }
  }
  ::sem_post(&Stopped::go), ::sem_post(&Stopped::go);
}

TEST(ThreadTeam, ThreadsStoppedAnywhereChangeNothing) {
  const Cpus cpus(4);
  const Stopped stopped(Stopped::nap);
  ThreadTeam team(4);
  const std::vector<pthread_t> ids = threads_of(team, 4);
  std::atomic<bool> over{false};
  std::thread storm([&] {
    for (unsigned i = 0; !over; ++i) {
      ::pthread_kill(ids[i % 4], SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(70));
    }
  });
  const auto start = Clock::now();
  for (int64_t round = 0; seconds_since(start) < 1; ++round) {
    std::vector<std::atomic<int>> runs(150);
    loop(team, 150, [&](int64_t i) {
      runs[size_t(i)].fetch_add(1, std::memory_order_relaxed);
      work_for(std::chrono::microseconds(2));
    });
    for (const auto& r : runs) ASSERT_EQ(r.load(), 1) << "round " << round;
  }
  over = true;
  storm.join();
  EXPECT_GT(Stopped::naps, 20);
}

TEST(ThreadTeam, SleepsWhereThereIsNothingToDo) {
  const Cpus cpus(4);
  ThreadTeam team(4);
  loop(team, 1000, [](int64_t) { work_for(std::chrono::microseconds(10)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.02);
}

// A loop that takes long, after the thread slept: the sleep is not lost time, and the team stays as it is.
TEST(LostTime, IsNotTimeAsleep) {
  LostTime lost;
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const double start = team_detail::now(), cpu = cpu_seconds();
    lost.begin(start);
    work_for(std::chrono::milliseconds(3));
    const double told = lost.seconds_of(team_detail::now() - start);
    // Another program may have had the core until now, and it counts until it is asked.
    const double took = team_detail::now() - start, ran = cpu_seconds() - cpu;
    EXPECT_LE(told, took - ran + 0.001);
  }
}

// ---- what loops may rely on

TEST(ParallelFor, AnIndexIsOneThreadsAtATime) {
  const Cpus cpus(4);
  std::array<std::atomic<int>, 4> inside{};
  std::atomic<int> most{0};
  for (int round = 0; round < 100; ++round)
    parallel_for(200, 4, [&](int64_t) {
      const int me = thread_index();
      ASSERT_TRUE(me >= 0 && me < 4);
      EXPECT_EQ(inside[size_t(me)].fetch_add(1), 0);
      most = std::max(most.load(), me);
      parallel_for(10, 4, [&](int64_t) { EXPECT_EQ(thread_index(), me) << "a loop within a body"; });
      work_for(std::chrono::microseconds(5));
      inside[size_t(me)].fetch_sub(1);
    });
  EXPECT_GT(most, 0) << "nobody helped";
  EXPECT_EQ(thread_index(), 0);
}

TEST(ParallelFor, ThrowsWhatABodyThrewAndGoesOn) {
  const Cpus cpus(3);
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> inside{0};
    const int64_t bad = round % 50;
    try {
      parallel_for(50, 3, [&](int64_t i) {
        inside.fetch_add(1);
        work_for(std::chrono::microseconds(3));
        inside.fetch_sub(1);
        if (i == bad) throw std::runtime_error("item " + std::to_string(i));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(e.what(), "item " + std::to_string(bad));
      EXPECT_EQ(inside, 0) << "somebody still works";
    }
    std::atomic<int> sum{0};
    parallel_for(50, 3, [&](int64_t i) { sum += int(i); });
    ASSERT_EQ(sum, 1225);
  }
}

TEST(ParallelFor, EveryCallingThreadHasATeamOfItsOwn) {
  const Cpus cpus(3);
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t)
    callers.emplace_back([t] {
      for (int round = 0; round < 50; ++round)
        for (const int n_threads : {2, 3}) {
          std::atomic<int64_t> sum{0};
          parallel_for(100, n_threads, [&](int64_t i) { sum += i * t; });
          EXPECT_EQ(sum, 4950 * t);
        }
    });
  for (std::thread& t : callers) t.join();
}

// fork() copies no helpers: the copy's loops run without, and it ends.
TEST(ParallelFor, RunsInACopyOfTheProcess) {
  const Cpus cpus(3);
  parallel_for(100, 3, [](int64_t) { work_for(std::chrono::microseconds(10)); });
  const pid_t child = ::fork();
  if (child == 0) {
    std::atomic<int> sum{0};
    for (int round = 0; round < 100; ++round) parallel_for(50, 3, [&](int64_t i) { sum += int(i); });
    std::exit(sum == 122500 ? 0 : 1);  // ends the team, as a program's end does
  }
  int status = -1;
  for (int i = 0; i < 1000 && ::waitpid(child, &status, WNOHANG) == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  if (status == -1) ::kill(child, SIGKILL);
  EXPECT_EQ(status, 0);
}

TEST(ParallelRanges, CoverEverythingOnce) {
  const Cpus cpus(3);
  for (const int64_t n : {1, 7, 100, 12345})
    for (const int n_threads : {1, 3}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      parallel_ranges(n, n_threads, 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++runs[size_t(i)];
      });
      for (const auto& r : runs) ASSERT_EQ(r.load(), 1);
    }
}
TEST(ParallelRanges, CostlyLoopsHaveMorePieces) {
  auto pieces = [](int64_t n, int64_t min_piece, int64_t cost) {
    const Cpus cpus(2);
    std::atomic<int> calls{0};
    std::thread([&] {
      parallel_ranges(
          n, 2, min_piece, [&](int64_t, int64_t) { ++calls; }, cost);
    }).join();
    return calls.load();
  };
  EXPECT_EQ(pieces(1000, 1, 0), 8);
  EXPECT_EQ(pieces(1000, 1, 1000), 25) << "a millisecond in pieces of 40 microseconds";
  EXPECT_EQ(pieces(1000, 1, 1'000'000), 128) << "as many as are claimed one by one";
  EXPECT_EQ(pieces(1000, 300, 1000), 3) << "of min_piece or more";
}

// ---- how many work

constexpr double kTurnOfOthers = 0.004;
// The share of its time that a team of two loses where a try costs a turn of another program, after a millisecond.
template <class Size>
double lost_share(double seconds) {
  Size size(2);
  double lost = 0, t = 0;
  while (t < seconds) {
    if (size.now() == 1) {
      t = std::max(t, size.next_look());
      size.look(t, 0);
      continue;
    }
    t += 0.001 + kTurnOfOthers, lost += kTurnOfOthers;
    size.saved(0.001);
    size.lost(t, kTurnOfOthers, 1);
  }
  return lost / t;
}
struct TriesAtOnce : TeamSize {  // planted: no pause grows
  using TeamSize::TeamSize;
  double next_look() const { return TeamSize::next_look(); }
  bool look(double at, double) { return TeamSize::look(at, 2); }
};
TEST(TeamSize, TriesThatFailCostLittle) {
  EXPECT_LT(lost_share<TeamSize>(1), 0.05);
  EXPECT_LT(lost_share<TeamSize>(60), 0.004);
  EXPECT_GT(lost_share<TriesAtOnce>(60), 0.02);
}
TEST(TeamSize, KeepsAHelperThatSavesMoreThanItLoses) {
  TeamSize size(2);
  double t = 0;
  for (int i = 0; i < 1000; ++i) {
    size.saved(0.1);
    EXPECT_FALSE(size.lost(t += 0.2, kTurnOfOthers, 1));
  }
}
TEST(TeamSize, GrowsAtOnceByTheCoresThatAreIdle) {
  TeamSize size(16);
  EXPECT_TRUE(size.lost(1, 0.05, 12));
  EXPECT_EQ(size.now(), 4);
  double t = 1;
  for (int i = 0; i < 100 && size.now() < 16; ++i) {
    t = std::max(t, size.next_look());
    size.look(t, t < 1.5 ? 0.2 : 11.9);
  }
  EXPECT_EQ(size.now(), 16);
  EXPECT_LT(t, 3);
}
TEST(TeamSize, ShrinksByWhoWasDisplacedAndNotBelowOne) {
  TeamSize size(4);
  EXPECT_TRUE(size.lost(1, kTurnOfOthers, 0));
  EXPECT_EQ(size.now(), 3);
  EXPECT_TRUE(size.lost(2, kTurnOfOthers, 7));
  EXPECT_EQ(size.now(), 1);
  EXPECT_FALSE(size.lost(3, kTurnOfOthers, 1));
}

TEST(CoreUse, KnowsItsOwnWorkFromOthers) {
  const double before = cpu_seconds();
  const CoreUse use;
  work_for(std::chrono::milliseconds(500));
  const CoreUse::Since since = use.since();
  const double own = cpu_seconds() - before;
  if (since.cpus == 0) GTEST_SKIP() << "the system does not tell";
  EXPECT_EQ(since.cpus, usable_cpus());
  EXPECT_GE(since.seconds, 0.5);
  EXPECT_LT(since.idle + since.others + own / since.seconds, since.cpus + 0.2);
  EXPECT_EQ(other_programs({1, 0, 0.1, 2}), "");
  EXPECT_EQ(other_programs({1, 0, 1.34, 2}), "other programs use these cores: 1.3 of 2");
}

}  // namespace
}  // namespace facet
