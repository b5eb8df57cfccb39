#pragma once
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "api/cache_stats.h"
#include "api/config.h"
#include "api/phases.h"
#include "base/worker.h"
#include "session/disk_tier.h"
#include "session/host_tier.h"
#include "session/session_copy.h"
#include "session/session_store.h"

namespace facet {

// A state on its way into the pool, for the requests that wait for it.
struct Fill {
  ImagePtr image = {};
  CacheUse::Source source = CacheUse::Source::kNone;
  ActiveRequest::Clock::time_point start = ActiveRequest::Clock::now();
  bool over = false, ok = false;
  double seconds = 0;
};

// Where the state of sequences lies: slots of the pool, host memory, below it a folder of files. Tiers carries out what
// the store decides (evict, fork, release) and brings states back.
//
// A state goes down when its session is evicted, and comes up when a request can go on from it. Neither stalls a step:
// files are read and written by threads of the disk's tier, rows are copied by others, and the request waits while
// others run. What will be evicted next is copied before that. For the engine's thread.
class Tiers {
 public:
  using Source = CacheUse::Source;

  // can_copy: false for a backend of two (lockstep), which has two of every row. disk: null for none.
  Tiers(SessionRows& rows, SessionStore& sessions, bool can_copy, int64_t ram, PhaseTimes& phases,
        std::unique_ptr<DiskTier> disk);
  ~Tiers();

  // --- slots

  // Evicts the idle session that the store would miss least, but `keep`. False: there is none.
  bool evict_one(SlotId keep = -1);
  // A slot that holds nothing, if need be an evicted session's; -1: all run, or are `keep`.
  SlotId take_slot(SlotId keep = -1);
  // Whether take_slot() will find one without waiting for a copy.
  bool has_slot_at_once(SlotId keep);
  // The same, for one who asks again after a step. False: requests run, and what would go next is being copied.
  bool is_slot_ready(SlotId keep = -1);
  // The session's state in another slot as well; memory is made for it. Nothing waits for its drafters.
  Result<SlotId> fork(SlotId from);
  // The slot holds nothing any more.
  void release(SlotId s);
  // The slot's rows are being copied: they stay as they are until that is over, or waited for.
  bool is_read(SlotId s) const;
  // Waits until no copy reads or fills the slot.
  void finish(SlotId s);

  // --- once a tick

  // Before requests are looked at: what copying has finished since.
  void look_at_copies();
  // Begins to copy an idle session that would go next, if memory is short; one at a time.
  void copy_ahead();
  // For all that requests wait for, when there is nothing to do meanwhile. False: none was left waiting when they were
  // looked at. One that was is to be looked at again, also if its state has come since.
  bool wait();

  // --- requests

  // Brings the state back that saves a request most, if it has nothing as good in the pool. False: it is on its way,
  // and the request waits.
  bool restore(ActiveRequest& w);
  // Waits for the states that are on their way, so that what they took can be evicted again. False: none is.
  bool finish_fills();
  // A step computed so many tokens of prompts.
  void observe_prompt(int tokens, double seconds) { prompt_rate_.add(tokens, seconds); }
  void look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const;

  // --- the end, and callers that name a slot. Nothing waits for the drafters of what runs.

  bool has_disk() const { return disk_ != nullptr; }
  // Everything to the disk, so that the next process goes on from it. What was used last comes last, and stays where
  // not all of it fits.
  void put_all();
  void save(SlotId s, const std::string& path, const SessionHeader::Fingerprint& whose, SlotSink done);
  // back: runs what it is given on the engine's thread.
  void load(SlotId s, const std::string& path, const SessionHeader::Fingerprint& whose,
            std::function<void(std::function<void()>)> back, SlotSink done);

  CacheStats& stats() { return stats_; }
  CacheStats stats_now() const;        // with what is in use now
  void disk_now(CacheStats& s) const;  // the part of them that is the disk's. Any thread.

 private:
  using Clock = std::chrono::steady_clock;

  // Of the last few: bytes or tokens a second.
  class Rate {
   public:
    void add(double n, double seconds) { n_ = n_ / 2 + n, s_ = s_ / 2 + seconds; }
    double seconds(double n) const { return n_ > 0 ? n * s_ / n_ : 0; }  // 0: nothing is known
    void decay() { s_ *= 0.9; }

   private:
    double n_ = 0, s_ = 0;
  };
  struct Copy {
    SlotId slot;
    ImagePtr image;
    RowCopier::TaskPtr task;
  };
  struct Filling {
    std::shared_ptr<Fill> fill;
    SessionCopy::In in;
  };

  bool keeps() const { return can_copy_ && (ram_.most() > 0 || disk_); }
  bool is_worth(Rate& rate, int64_t bytes, int tokens);
  bool defer();
  int use_of(const SessionImage& image, const ActiveRequest& w) const;
  bool is_below(SlotId s);
  std::vector<SlotId> idle_by_age() const;
  void evict(SlotId s);
  void put(const ImagePtr& image);
  bool begin_copy(SlotId s);
  void end_copy(std::list<Copy>::iterator i);
  ImagePtr image_of(SlotId s);
  HostTier::Found best_below(ActiveRequest& w, int least, Source& source, bool& on_its_way);
  void map_in(SessionCopy::In& in, int64_t pages);
  std::shared_ptr<Fill> begin_fill(SlotId s, const ImagePtr& image, Source source);
  void end_fill(std::list<Filling>::iterator i);
  static void restored(ActiveRequest& w, const Fill& f);

  SessionRows& rows_;
  SessionStore& sessions_;
  const bool can_copy_;
  PhaseTimes& phases_;
  SessionCopy copy_;
  HostTier ram_;
  std::unique_ptr<DiskTier> disk_;
  CacheStats stats_;
  Rate ram_rate_, disk_rate_, prompt_rate_;
  bool awaited_ = false;  // restore() left a request waiting since look_at_copies()
  std::list<Copy> copies_;
  std::list<Filling> fills_;
  const Reaches reaches_ = [this](std::span<const KvState> owners, int len) { return copy_.reaches(owners, len); };
  Worker files_;  // of slots; last: it uses the others
};

}  // namespace facet
