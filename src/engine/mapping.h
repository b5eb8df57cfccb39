#pragma once
#include <algorithm>
#include <vector>

#include "backend/step.h"
#include "cache/kv_cache.h"
#include "engine/scheduler.h"
#include "engine/session_store.h"

// What is mapped between steps, and who waits for it.
namespace facet {

// Beside answers, one that runs in a fork that is not mapped yet waits until it is: its pages are mapped between steps.
// Steps with more of a prompt are as long as that takes.
inline void let_sleep(std::vector<SeqDemand>& demands, const KvCache& cache) {
  const auto sleeps = [&](const SeqDemand& d) { return cache.asleep(d.id); };
  bool answers = false;
  for (const SeqDemand& d : demands) {
    if (sleeps(d)) continue;
    if (d.pending > kSmallT) return;
    answers |= d.decoding;
  }
  if (answers) std::erase_if(demands, sleeps);
}

// What nobody waits for, and so fewer pages a step: forks that are kept, then rings of the slots that are taken next. A
// prompt wants one, and another for its snapshot.
inline void map_ahead(KvCache& cache, const SessionStore& sessions) {
  int64_t few = std::min(cache.pool().left_a_step(), cache.pool().pages_a_step() / 4);
  for (SlotId s = 0; s < sessions.size() && few > 0; ++s) {
    if (sessions.at(s).use != Session::Use::kIdle) continue;
    const auto n = cache.wake_some(s, few);
    if (!n) return;  // whoever needs it tries again
    few -= *n;
  }
  int slots = 2;
  for (SlotId s = 0; s < sessions.size() && few > 0 && slots > 0; ++s)
    if (sessions.at(s).use == Session::Use::kFree) few -= cache.spare_rings(s, few), --slots;
}

}  // namespace facet
