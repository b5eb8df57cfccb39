#include "base/thread_team.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <mutex>

#include "base/thread_team_impl.h"
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace facet {
namespace {

thread_local int t_index = 0;
thread_local bool t_in_loop = false;

std::atomic<int> g_pretended{0}, g_at_work{0}, g_asked{0};
std::atomic<int64_t> g_stalls{0}, g_lost_ns{0};

constexpr uint64_t kTurnAsked = 300'000;  // nanoseconds

double steady() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

#if defined(__x86_64__)
// The time-stamp counter's rate, from the steady clock over 100 microseconds. The team's decisions need no more.
double seconds_of_tick() {
  const double start = steady();
  const uint64_t first = __rdtsc();
  double at = start;
  while (at - start < 100e-6) at = steady();
  return (at - start) / double(std::max<uint64_t>(1, __rdtsc() - first));
}
#endif

}  // namespace

namespace team_detail {

#if defined(__x86_64__)
double now() {
  static const double tick = seconds_of_tick();
  return double(__rdtsc()) * tick;
}
void pause() { __builtin_ia32_pause(); }
#else
double now() { return steady(); }
void pause() {
#if defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}
#endif

void set_thread_index(int index, bool in_loop) { t_index = index, t_in_loop = in_loop; }
void note_size(int at_work, int asked) {
  g_at_work.store(at_work, std::memory_order_relaxed);
  g_asked.store(asked, std::memory_order_relaxed);
}
void note_stall(double lost) {
  g_stalls.fetch_add(1, std::memory_order_relaxed);
  g_lost_ns.fetch_add(int64_t(1e9 * lost), std::memory_order_relaxed);
}
int cpus_to_see() {
  const int pretended = g_pretended.load(std::memory_order_relaxed);
  return pretended > 0 ? pretended : usable_cpus();
}

// The kernel lets a thread of short turns run sooner after it woke, and displaces one only when it has had more than
// its share. Since Linux 6.12; others leave things as they are.
void ask_for_short_turns() {
  struct Attributes {  // struct sched_attr, which not every libc has
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } a{};
  if (::syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH))
    return;
  a.size = sizeof a, a.runtime = kTurnAsked;
  ::syscall(SYS_sched_setattr, 0, &a, 0);
}

void leave_cpu(int cpu) {
  cpu_set_t usable, others;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  others = usable;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0 || ::sched_setaffinity(0, sizeof others, &others) != 0) return;
  ::sched_setaffinity(0, sizeof usable, &usable);
}

}  // namespace team_detail

namespace {
struct ThreadUse {
  long displaced;
  double cpu, at;
};
ThreadUse thread_use() {
  rusage use{};
  ::getrusage(RUSAGE_THREAD, &use);  // its times are of the last tick
  timespec cpu{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
  return {use.ru_nivcsw, double(cpu.tv_sec) + 1e-9 * double(cpu.tv_nsec), team_detail::now()};
}
}  // namespace

void LostTime::restart() {
  const ThreadUse use = thread_use();
  displaced_ = use.displaced, cpu_ = use.cpu, at_ = use.at;
}

double LostTime::seconds_of(double took) {
  const long displaced = displaced_;
  const double cpu = cpu_, at = at_;
  restart();
  if (displaced_ == displaced) return 0;
  return std::clamp((at_ - at) - (cpu_ - cpu), 0., took);
}

template class BasicTeam<Claims>;

int thread_index() { return t_index; }

namespace threads_detail {

bool in_loop() { return t_in_loop; }

void run(int64_t n, int n_threads, Piece piece, void* context) {
  // One team for each number of threads that this thread has asked for; seldom more than one. They end with it.
  thread_local std::map<int, ThreadTeam> teams;
  teams.try_emplace(n_threads, n_threads).first->second.run(n, piece, context);
}

}  // namespace threads_detail

TeamUse team_use() {
  return {g_stalls.load(std::memory_order_relaxed), 1e-9 * double(g_lost_ns.load(std::memory_order_relaxed)),
          g_at_work.load(std::memory_order_relaxed), g_asked.load(std::memory_order_relaxed)};
}
void pretend_cpus(int n) { g_pretended.store(n, std::memory_order_relaxed); }

}  // namespace facet
