#pragma once
#include <algorithm>

#include "cache/kv_cache.h"
#include "session/session_store.h"

// What is mapped while nobody waits for it.
namespace facet {

// What nobody waits for, a few pages at a time: forks that are kept, then slots of prompts that have not begun, then
// those that are taken next, as many as requests may run. Returns whether anything was mapped.
inline bool map_ahead(KvCache& cache, const SessionStore& sessions, int slots) {
  const int64_t most = std::min(cache.pool().left_beside_a_step(), cache.pool().pages_a_step() / 4);
  int64_t few = most;
  for (SlotId s = 0; s < sessions.size() && few > 0; ++s) {
    if (sessions.at(s).use != Sequence::Use::kIdle) continue;
    const auto n = cache.map_pages(s, few);
    if (!n) return few < most;  // whoever needs it tries again
    few -= *n;
  }
  for (const auto use : {Sequence::Use::kRunning, Sequence::Use::kFree})
    for (SlotId s = 0; s < sessions.size() && few > 0 && slots > 0; ++s)
      if (sessions.at(s).use == use && cache.len(s) == 0) few -= cache.premap(s, few), --slots;
  return few < most;
}

}  // namespace facet
