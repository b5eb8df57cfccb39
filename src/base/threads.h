#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace facet {

// From now on this thread, whose work nobody's next token waits for, gets about a tenth of a core that others want,
// too.
void lower_priority();

int physical_cores();  // that this machine has; at least 1

// Calls f(i) for every i in [0, n), spread over n_threads. The body must not depend on which thread
// runs it: results are the same for every n_threads.
template <class F>
void parallel_for(int64_t n, int n_threads, F&& f) {
  if (n_threads <= 1 || n <= 1) {
    for (int64_t i = 0; i < n; ++i) f(i);
    return;
  }
  // All of them, also for fewer calls: a smaller team would end the other threads, and the next larger one would have
  // to make them again.
#pragma omp parallel for schedule(dynamic, 1) num_threads(n_threads)
  for (int64_t i = 0; i < n; ++i) f(i);
}

// As parallel_for, in contiguous pieces: f(begin, end). For bodies too small for one call each.
template <class F>
void parallel_ranges(int64_t n, int n_threads, int64_t min_piece, F&& f) {
  const int64_t pieces = std::clamp<int64_t>(n / std::max<int64_t>(1, min_piece), 1, std::max(1, n_threads) * 4);
  if (n_threads <= 1 || pieces == 1) {
    f(int64_t(0), n);
    return;
  }
  parallel_for(pieces, n_threads, [&](int64_t p) { f(n * p / pieces, n * (p + 1) / pieces); });
}

}  // namespace facet
