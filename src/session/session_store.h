#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/engine.h"
#include "cache/kv_cache.h"
#include "grammar/grammar.h"
#include "session/loop_guard.h"
#include "session/mask_tasks.h"
#include "session/session_image.h"
#include "session/thought.h"

namespace facet {

struct DiskRead;
struct Fill;

// A request as the engine works on it.
struct Job {
  using Clock = std::chrono::steady_clock;
  RequestId id = 0;
  Request request = {};
  Sink sink = {};
  Usage usage = {};
  std::vector<int32_t> tokens = {};  // prompt and answer, while it waits; while it runs they are its session's
  bool answered = false;             // its first token was drawn
  bool counted = false;              // what it goes on from was
  int64_t need = 0;                  // pages it had when it was parked
  int echoed = 1;                    // positions of the prompt whose log-probabilities were told, with the first
  std::vector<int32_t> no_end = {};  // never drawn before Request::min_tokens
  std::optional<GrammarState> grammar = {};   // where the answer's tokens have led, if it follows one
  std::vector<int32_t> untold = {};           // the last of them, of which the grammar has not been told yet
  MaskWait masking = {};                      // what is told, or the next mask, on the thread for those that take long
  int slow = 0;                               // its masks take long: so many more are made there
  std::optional<ThoughtBudget> thought = {};  // likewise, if it limits thoughts
  std::optional<LoopGuard> loops = {};        // likewise, if it may not go round
  std::shared_ptr<DiskRead> reading = {};     // the file that it waits for
  std::shared_ptr<Fill> filling = {};         // likewise, the state that comes into the pool
  bool filled = false;                        // one came, since it last waited
  Clock::time_point arrived = Clock::now(), started = {}, first_token = {};
};

// A sequence whose state is in memory: the model's rows, the drafters', and the tokens that they are of.
struct Session {
  enum class Use : uint8_t { kFree, kFilling, kIdle, kRunning };  // kFilling: a state is being copied there
  Use use = Use::kFree;
  std::vector<int32_t> tokens = {};  // the first memory.len(slot) are computed
  std::string salt = {};
  uint64_t used = 0;           // clock of its last use
  bool snapshot = false;       // idle: a fork of what ran, for any number of requests
  bool decoding = false;       // running: its prompt is computed
  std::vector<int> cuts = {};  // running: lengths at which a snapshot is taken, ascending
  Job work = {};               // running
};

// What sessions are made of; the engine's model, cache and drafters.
class SessionMemory {
 public:
  virtual ~SessionMemory() = default;
  virtual int len(SlotId s) const = 0;
  virtual bool reaches(SlotId s, int len) const = 0;
  virtual int go_back(SlotId s, int len) = 0;  // returns how many rows are left: all that is known of `len` at most
  // `to` will most likely not run in the next steps.
  virtual Status fork(SlotId from, SlotId to) = 0;
  virtual void release(SlotId s) = 0;
  // Whether the slot's rows are being copied elsewhere: they stay as they are until that is over, or waited for.
  virtual bool is_read(SlotId) const { return false; }
  virtual void finish_read(SlotId) {}
  virtual int64_t pages(int rows) const = 0;  // of a session with so many rows of its own
  virtual int64_t owned(SlotId s) const = 0;  // pages that release would give back
  virtual int64_t free_pages() const = 0;
};

// Which session a request goes on from, and which one goes when memory is short.
//
//   running   serves a request
//   idle      what a request left, or a snapshot: a fork taken exactly at some length, because the rings of sliding
//             layers cannot go back far
//
// A request goes on from the idle session with which its prompt shares most. What another request left and it extends
// to the end becomes its own; anything else stays, and the request gets a fork. So a new conversation takes nothing
// from an idle one while there is room. When there is none, the idle session that was used least recently is given up.
//
// A prompt that shares its beginning with one that is being computed waits for it, and the shared part is computed
// once: a snapshot is taken where the two part. The place where a prompt parts from a known one is remembered in the
// same way, for the third that comes.
class SessionStore {
 public:
  static constexpr int kWorthASnapshot = 256;  // tokens; less is computed again

  SessionStore(SessionMemory& memory, int resident, int max_running, int snapshot_every)
      : memory_(memory), sessions_(size_t(resident)), max_running_(max_running), snapshot_every_(snapshot_every) {}
  // Told of an idle session that is about to be given up.
  std::function<void(SlotId)> evicting = {};

  Session& at(SlotId s) { return sessions_[size_t(s)]; }
  const Session& at(SlotId s) const { return sessions_[size_t(s)]; }
  int size() const { return int(sessions_.size()); }
  int running() const;

  // A session for the work, whose tokens it takes over; -1: not now. Its state holds the first memory.len(slot) of
  // them, all but the last at most.
  SlotId open(Job& work);
  // Tokens of the prompt that need not be computed, by what is resident.
  int known(std::span<const int32_t> tokens, const std::string& salt) const { return best_match(tokens, salt).len; }
  // Whether there is memory for the work, `have` of its tokens apart, if all that is idle goes.
  bool has_room(const Job& work, int have) const;
  // By what is resident, whether or not its state reaches so far.
  Nearest nearest(std::span<const int32_t> tokens, const std::string& salt) const;
  // The slot, which was free, holds the state of these tokens now: idle, for any number of requests.
  void adopt(SlotId s, std::vector<int32_t> tokens, const std::string& salt);
  // What runs in the slot is over: its rows stay, idle.
  void close(SlotId s);
  // Keeps a fork of a running session as it is now; does nothing where that is known already or memory is short.
  void snapshot(SlotId s);
  // The most that the next step may compute of a running session: up to its next cut.
  int limit(SlotId s, int pending) const;
  // Takes the snapshot that is due at the session's length, if one is.
  void snapshot_if_due(SlotId s);
  // Gives up the idle session that was used least recently, but `keep`. False: there is none.
  bool make_room(SlotId keep = -1);
  void release(SlotId s);
  // A free slot, if need be an idle session's; -1: all run, or are `keep`.
  SlotId free_slot(SlotId keep = -1);
  void touch(SlotId s) { at(s).used = ++clock_; }

 private:
  struct Match {
    SlotId slot = -1;
    int len = 0;
  };
  Match best_match(std::span<const int32_t> tokens, const std::string& salt) const;
  bool waits_for_a_prefix(const Job& work, int have);
  void plan_cuts(Session& s, int have) const;
  Result<SlotId> fork(SlotId from);
  void keep_as(SlotId to, SlotId from);  // `to` is a fork of `from`, and idle in its place

  SessionMemory& memory_;
  std::vector<Session> sessions_;
  int max_running_, snapshot_every_;
  uint64_t clock_ = 0;
};

}  // namespace facet
