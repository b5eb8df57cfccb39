#include "engine/scheduler.h"

#include <algorithm>

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
  return grants;
}

}  // namespace facet
