#include "engine/scheduler.h"

#include <algorithm>

#include "backend/step.h"

namespace facet {

std::vector<SeqGrant> schedule(std::span<const SeqDemand> demands, int budget) {
  std::vector<SeqGrant> grants;
  for (const bool decoding : {true, false})
    for (const SeqDemand& d : demands) {
      if (d.decoding != decoding || d.pending == 0 || budget == 0) continue;
      const int n = std::min(d.pending, budget);
      grants.push_back({d.id, n});
      budget -= n;
    }
  // Row-invariant kernels take the leading short sequences (StepShape::n_small).
  auto small_end = grants.begin();
  for (auto g = grants.begin(); g != grants.end(); ++g)
    if (g->n <= kSmallT) std::rotate(small_end++, g, g + 1);
  return grants;
}

}  // namespace facet
