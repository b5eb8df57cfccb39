#pragma once
#include <deque>
#include <string>
#include <vector>

#include "api/config.h"
#include "api/phases.h"
#include "engine/device_ops.h"
#include "engine/request_queue.h"
#include "engine/speculate.h"
#include "session/session_store.h"
#include "session/tiers.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// Requests that wait and those that run: who begins, in which session, and who gives way when memory is short. The
// store decides which session that is; Admission carries it out through Tiers. For the engine's thread.
class Admission {
 public:
  Admission(const EngineConfig& c, const EngineDebug& debug, const Tokenizer* tokenizer, DeviceOps& ops,
            Speculator& spec, SessionRows& rows, SessionStore& sessions, Tiers& tiers, PhaseTimes& phases)
      : cfg_(c),
        drafts_are_forced_(!debug.forced_drafts.empty()),
        tokenizer_(tokenizer),
        ops_(ops),
        spec_(spec),
        rows_(rows),
        sessions_(sessions),
        tiers_(tiers),
        phases_(phases) {}

  // Cancellations, then waiting requests into sessions, in the order of their priority and arrival; one that waits for
  // a prefix which another computes lets those behind it pass.
  void admit(RequestQueue::Taken taken);
  int waiting() const { return int(waiting_.size()); }
  // What forks still lack (KvCache::fork), a little before every step: first those in which requests run.
  void map_some();
  // What nobody waits for, a few pages: forks that are kept, and slots for the next prompts. While the device computes,
  // and when it has nothing to do. False: nothing was mapped.
  bool map_ahead();
  // A step needs memory for session s: an idle session goes, else the running one that is last by priority and arrival
  // is parked. It waits with its tokens, and goes on where it was when there is room. False: nothing can go.
  bool make_room(SlotId s);
  // Keeps a fork of the session's first `len` rows; does nothing where there is one already or memory is short. at_once:
  // nor where other requests would wait until another session is copied to RAM.
  void snapshot(SlotId s, int len, bool at_once);
  // A step is over: a snapshot of the session's prompt, if it could not go back there after the next step.
  void keep_prompt(SlotId s);
  // The request that runs in the slot is over; its rows stay, idle.
  void finish(SlotId s, Stop why, const std::string& error = "");
  // Memory ran out on this thread: the request that has most of it ends. all: behind a step's forward pass all that
  // took part may be half done.
  void end_for_memory(bool all);

 private:
  void cancel(RequestId id);
  void wait(ActiveRequest&& work);
  SlotId place(ActiveRequest& work);
  SlotId place_beside(SlotId running, int len, ActiveRequest& work);
  Result<SlotId> fork(SlotId from);
  void begin(SlotId s, const Nearest& nearest);
  void count(ActiveRequest& work, const Nearest& nearest);
  void close(SlotId s);
  std::vector<int32_t> no_end(const Request& r) const;
  void report_useless_drafter();

  const EngineConfig& cfg_;
  const bool drafts_are_forced_;
  const Tokenizer* tokenizer_;
  DeviceOps& ops_;
  Speculator& spec_;
  SessionRows& rows_;
  SessionStore& sessions_;
  Tiers& tiers_;
  PhaseTimes& phases_;
  std::deque<ActiveRequest> waiting_;
};

}  // namespace facet
