#pragma once
#include <algorithm>

#include "cache/kv_cache.h"
#include "session/session_store.h"

// What is mapped between steps.
namespace facet {

// What nobody waits for, and so fewer pages a step: forks that are kept, then rings of the slots that are taken next. A
// prompt wants one, and another for its snapshot.
inline void map_ahead(KvCache& cache, const SessionStore& sessions) {
  int64_t few = std::min(cache.pool().left_a_step(), cache.pool().pages_a_step() / 4);
  for (SlotId s = 0; s < sessions.size() && few > 0; ++s) {
    if (sessions.at(s).use != Sequence::Use::kIdle) continue;
    const auto n = cache.map_pages(s, few);
    if (!n) return;  // whoever needs it tries again
    few -= *n;
  }
  int slots = 2;
  for (SlotId s = 0; s < sessions.size() && few > 0 && slots > 0; ++s)
    if (sessions.at(s).use == Sequence::Use::kFree) few -= cache.premap_rings(s, few), --slots;
}

}  // namespace facet
