#pragma once
#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace facet {

// From now on this thread, whose work nobody's next token waits for, gets about a tenth of a core that others want,
// too.
void lower_priority();

int physical_cores();  // that this machine has; at least 1
int usable_cpus();     // on which the calling thread may run; at least 1

// Which thread of its team runs this: 0 is the one that called parallel_for, and every thread outside of a loop.
int thread_index();

namespace threads_detail {
// Items [begin, end) of a loop. `context` is the loop's body.
using Piece = void (*)(void* context, int64_t begin, int64_t end);
bool in_loop();  // the calling thread runs an item of a loop
void run(int64_t n, int n_threads, Piece piece, void* context);
}  // namespace threads_detail

// Calls f(i) for every i in [0, n), once each, spread over at most n_threads: the calling thread and the helpers of its
// team (base/thread_team.h), fewer while other programs use the cores. The body must not depend on which thread runs
// it: results are the same for every n_threads. A loop within a body runs on the body's thread. What a body throws is
// thrown here, once nobody works on the loop any more; items that had not begun are then left out.
template <class F>
void parallel_for(int64_t n, int n_threads, F&& f) {
  if (n_threads <= 1 || n <= 1 || threads_detail::in_loop()) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  using Body = std::remove_reference_t<F>;
  threads_detail::run(
      n, n_threads,
      [](void* context, int64_t begin, int64_t end) {
        Body& body = *static_cast<Body*>(context);
        for (int64_t i = begin; i < end; ++i) body(i);
      },
      const_cast<std::remove_const_t<Body>*>(&f));
}

// As parallel_for, in contiguous pieces of min_piece items or more: f(begin, end). For bodies too small for one call
// each. cost: of an item, in nanoseconds of one thread, as a rough guess. A thread that has long pieces is displaced in
// the middle of one, so a costly loop has more of them.
template <class F>
void parallel_ranges(int64_t n, int n_threads, int64_t min_piece, F&& f, int64_t cost = 0) {
  constexpr int64_t kPieceCost = 40'000;
  const int64_t threads = std::max(1, n_threads), wanted = std::clamp(n * cost / kPieceCost, 4 * threads, 64 * threads);
  const int64_t pieces = std::clamp<int64_t>(n / std::max<int64_t>(1, min_piece), 1, wanted);
  if (n_threads <= 1 || pieces == 1 || threads_detail::in_loop()) {
    f(int64_t(0), n);
    return;
  }
  auto range = [&](int64_t begin, int64_t end) { f(n * begin / pieces, n * end / pieces); };
  threads_detail::run(
      pieces, n_threads,
      [](void* context, int64_t begin, int64_t end) { (*static_cast<decltype(range)*>(context))(begin, end); }, &range);
}

// What the loops of this process met, of all its teams together. For reports: one moment's values of counters that go
// on.
struct TeamUse {
  int64_t stalls = 0;       // times that a loop waited for a thread that another program had displaced
  double lost_seconds = 0;  // of the calling threads in those
  int at_work = 0;          // threads that the team which ran last may use now; 0: there is no team
  int asked = 0;            // threads it was made for, or the CPUs there are, if these are fewer
};
TeamUse team_use();

// For tests: teams made from now on see so many CPUs; 0: the machine's.
void pretend_cpus(int n);

}  // namespace facet
