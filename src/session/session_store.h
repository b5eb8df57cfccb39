#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "session/sequence.h"
#include "session/session_image.h"
#include "session/session_rows.h"

namespace facet {

// How a request begins.
struct Placement {
  SlotId from = -1;    // the session that it goes on from; -1: none, any free slot will do
  int len = 0;         // the tokens that both have
  bool stays = false;  // the session stays as it is, for others: the request needs a fork of it
};

// Which session a request goes on from, and which one goes when memory is short.
//
//   running   serves a request
//   idle      what a request left, or a snapshot: a fork of exactly some length, because the rings of sliding layers
//             cannot go back far
//
// A request goes on from the session with which its prompt shares most, an idle one or one that answers. What another
// request left and it extends to the end becomes its own; anything else stays, and the request gets a fork. So a new
// conversation takes nothing from an idle one while there is room. When there is none, the idle session that was used
// least recently is given up.
//
// A prompt that shares its beginning with one that is being computed waits for it, and the shared part is computed
// once: a snapshot is taken where the two part. The place where a prompt parts from a known one is remembered in the
// same way, for the third that comes.
//
// The store decides and keeps books. It calls nobody: whoever asks carries its decisions out (Tiers, Admission) and
// then says so.
class SessionStore {
 public:
  static constexpr int kWorthASnapshot = 256;  // tokens; less is computed again

  SessionStore(const SessionRows& rows, int resident, int max_running, int snapshot_every)
      : rows_(rows), sequences_(size_t(resident)), max_running_(max_running), snapshot_every_(snapshot_every) {}

  Sequence& at(SlotId s) { return sequences_[size_t(s)]; }
  const Sequence& at(SlotId s) const { return sequences_[size_t(s)]; }
  std::span<Sequence> all() { return sequences_; }
  int size() const { return int(sequences_.size()); }
  int running() const;

  // --- decisions

  // What the work goes on from; nullopt: it cannot begin now.
  std::optional<Placement> place(const ActiveRequest& work);
  // The idle session that was used least recently, but `keep`: the next to be evicted; -1: there is none.
  SlotId least_recent(SlotId keep = -1) const;
  SlotId free_slot() const;  // -1: there is none
  // Whether a snapshot of the session's first `len` rows should be kept. Where there is one it counts as used.
  bool wants_snapshot(SlotId s, int len);
  // Whether a snapshot is due at the session's length; once for each.
  bool snapshot_is_due(SlotId s);
  // The most that the next step may compute of a running session: up to its next snapshot.
  int limit(SlotId s, int pending) const;
  // Tokens of the prompt that need not be computed, by what is resident.
  int known(std::span<const int32_t> tokens, const std::string& salt) const { return best_match(tokens, salt).len; }
  // Whether there is memory for the work, `have` of its tokens apart, if all that is idle goes.
  bool has_room(const ActiveRequest& work, int have) const;
  // By what is resident, whether or not its state reaches so far.
  Nearest nearest(std::span<const int32_t> tokens, const std::string& salt) const;

  // --- what was carried out

  // The work runs in the slot, whose first `have` rows are computed, and gives it its tokens.
  void begin(SlotId s, ActiveRequest& work, int have);
  // What runs in the slot is over. False: nothing of it is kept, and its memory is to be released.
  bool end(SlotId s);
  // The slot, which was free, is filled from elsewhere; then it is adopted or cleared.
  void begin_fill(SlotId s) { at(s).use = Sequence::Use::kFilling; }
  // The slot holds the state of these tokens now: idle, for any number of requests.
  void adopt(SlotId s, std::vector<int32_t> tokens, const std::string& salt);
  void keep_copy(SlotId to, SlotId from);      // `to` is a fork of `from`, which is idle, and stays in its place
  void keep_snapshot(SlotId to, SlotId from);  // `to` is a fork of the beginning of `from`
  void clear(SlotId s) { at(s).reset(); }      // the slot holds nothing
  void touch(SlotId s) { at(s).used = ++clock_; }

 private:
  struct Match {
    SlotId slot = -1;
    int len = 0;
  };
  Match best_match(std::span<const int32_t> tokens, const std::string& salt) const;
  bool waits_for_a_prefix(const ActiveRequest& work, int have);
  void plan_snapshots(Sequence& s, int have) const;

  const SessionRows& rows_;
  std::vector<Sequence> sequences_;
  int max_running_, snapshot_every_;
  uint64_t clock_ = 0;
};

}  // namespace facet
