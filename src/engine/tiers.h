#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/worker.h"
#include "engine/session_copy.h"
#include "session/disk_tier.h"
#include "session/host_tier.h"

namespace facet {

// A state on its way into the pool, for whoever waits for it.
struct Fill {
  ImagePtr image = {};
  CacheUse::Source source = CacheUse::Source::kNone;
  Job::Clock::time_point start = Job::Clock::now();
  bool over = false, ok = false;
  double seconds = 0;
};

// What is kept of sessions outside of the pool, and how they come back: host memory, below it a folder of files.
// States go down when they are given up and come up when a request can go on from them. Neither stalls a step: files
// are read and written by threads of the disk's tier, rows are copied by others, and the request waits while others
// run. What will be given up next is copied before that. Of the engine's thread.
template <Backend B>
class Tiers {
 public:
  using Source = CacheUse::Source;

  // disk: null for none.
  Tiers(Runner<B>& runner, Speculator<B>& spec, SessionStore& sessions, const EngineConfig& c, PhaseTimes& phases,
        std::unique_ptr<DiskTier> disk)
      : runner_(runner),
        sessions_(sessions),
        phases_(phases),
        copy_(runner, spec, sessions),
        ram_(c.cache_ram),
        disk_(std::move(disk)) {
    ram_.evicting = [this](ImagePtr image) {
      ++stats_.ram.evictions;
      if (disk_)
        disk_->put(image);
      else  // its memory goes back to the system, which takes a while
        files_.push([image = std::move(image)]() mutable { image.reset(); });
    };
  }
  ~Tiers() {
    for (const Copy& c : copies_) copy_.wait(c.job);
    for (Filling& f : fills_) copy_.finish_in(f.in);
  }

  // Before requests are looked at: what copying has finished since.
  void look_at_copies() {
    const PhaseTimes::Scope phase(phases_, Phase::kCopy);
    awaited_ = false;
    for (auto i = copies_.begin(); i != copies_.end();) {
      const auto at = i++;
      if (copy_.done(at->job)) end_copy(at);
    }
    for (auto i = fills_.begin(); i != fills_.end();) {
      const auto at = i++;
      map_in(at->in);
      if (copy_.is_over(at->in)) end_fill(at);
    }
  }

  // Begins to copy an idle session that would go next, if memory is short; one at a time.
  void copy_ahead() {
    if (!keeps() || !copies_.empty()) return;
    const PhaseTimes::Scope phase(phases_, Phase::kCopy);
    std::vector<SlotId> idle;
    int slots = kAheadSlots;
    for (SlotId s = 0; s < sessions_.size(); ++s) {
      if (sessions_.at(s).use == Session::Use::kIdle) idle.push_back(s);
      if (sessions_.at(s).use == Session::Use::kFree) --slots;
    }
    const PagePool& pool = *runner_.pool;
    int64_t pages = pool.budget() / kAheadOfPages - (pool.budget() - pool.used());
    std::sort(idle.begin(), idle.end(),
              [&](SlotId a, SlotId b) { return sessions_.at(a).used < sessions_.at(b).used; });
    for (const SlotId s : idle) {
      if (slots <= 0 && pages <= 0) return;
      --slots;
      pages -= runner_.cache->owned_pages(s);
      // One that sleeps would have to be mapped whole for it; it is in a few steps.
      if (!is_below(s) && (sessions_.running() == 0 || !runner_.cache->asleep(s))) return begin_copy(s);
    }
  }

  // An idle session is about to be given up.
  void put_down(SlotId s) {
    ++stats_.gpu.evictions;
    if (is_read(s)) ++stats_.copies_waited, finish(s);
    if (!keeps() || is_below(s)) return;
    begin_copy(s);
    ++stats_.copies_waited;
    finish(s);
  }

  // The slot's rows are being copied.
  bool is_read(SlotId s) const {
    return std::any_of(copies_.begin(), copies_.end(), [&](const Copy& c) { return c.slot == s; });
  }
  // Waits until no copy reads or fills the slot.
  void finish(SlotId s) {
    for (auto i = copies_.begin(); i != copies_.end();)
      if (const auto at = i++; at->slot == s) end_copy(at);
    for (auto i = fills_.begin(); i != fills_.end();)
      if (const auto at = i++; at->in.slot == s) end_fill(at);
  }

  // Brings the state back that saves a request most, if it has nothing as good in the pool. False: it is on its way,
  // and the request waits.
  bool bring_up(Job& w) {
    if (!on() || !w.request.cache) return true;
    if (w.filling) {
      if (!w.filling->over) return later();
      came(w, *std::exchange(w.filling, nullptr));
    }
    const int least = sessions_.known(w.tokens, w.request.cache_salt) + kLeast;
    for (const Filling& f : fills_)  // for another request, or for this one that was parked meanwhile
      if (use_of(*f.fill->image, w) > least) return w.filling = f.fill, later();
    if (w.filled) return true;
    HostTier::Found best = ram_.find(w.tokens, w.request.cache_salt, least, reaches_);
    Source source = Source::kRam;
    if (disk_) {
      if (!w.reading)
        if (const auto found =
                disk_->find(w.tokens, w.request.cache_salt, std::max(least, best.len + kLeast), reaches_);
            !found.name.empty() && is_worth(disk_rate_, found.bytes, found.len - least))
          w.reading = disk_->read(found.name);
      if (w.reading) {
        if (!w.reading->done) return later();
        if (const ImagePtr image = w.reading->image; image) {
          disk_rate_.add(double(image->bytes()), w.reading->seconds);
          if (use_of(*image, w) > best.len) best = {image, use_of(*image, w)}, source = Source::kDisk;
        }
      }
    }
    // Copied when it can run; until then it stays where it is.
    if (best.image && best.len > least && sessions_.running() > 0 && !sessions_.has_room(w, 0)) return true;
    w.reading = nullptr;
    if (!best.image || best.len <= least) return true;
    if (source == Source::kDisk) ram_.put(best.image);
    if (!is_worth(ram_rate_, best.image->bytes(), best.len - least)) return true;
    const SlotId s = sessions_.free_slot();
    w.filling = s < 0 ? nullptr : begin_fill(s, best.image, source);
    return w.filling ? later() : true;
  }
  // Waits for the states that are on their way, so that what they took can be given up again. False: none is.
  bool finish_fills() {
    const bool any = !fills_.empty();
    while (!fills_.empty()) end_fill(fills_.begin());
    return any;
  }
  // For all that requests wait for, when there is nothing to do meanwhile. False: none was left waiting when they were
  // looked at. One that was is to be looked at again, also if its state has come since.
  bool wait() {
    if (!awaited_) return false;
    if (disk_) disk_->finish_reads();
    finish_fills();
    return true;
  }
  // A step computed so many tokens of prompts.
  void observe_prompt(int tokens, double seconds) { prompt_rate_.add(tokens, seconds); }

  void look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const {
    ram_.look_for(nearest, tokens, salt);
    if (disk_) disk_->look_for(nearest, tokens, salt);
  }

  // At the end: everything to the disk, so that the next process goes on from it. What was used last comes last, and
  // stays where not all of it fits.
  void put_all() {
    if (!disk_) return;
    while (!copies_.empty()) end_copy(copies_.begin());
    for (auto i = ram_.images().rbegin(); i != ram_.images().rend(); ++i) disk_->put(*i, /*wait=*/true);
    std::vector<SlotId> slots;
    for (SlotId s = 0; s < sessions_.size(); ++s)
      if (const Session& q = sessions_.at(s); q.use == Session::Use::kIdle || q.work.request.cache) slots.push_back(s);
    std::sort(slots.begin(), slots.end(),
              [&](SlotId a, SlotId b) { return sessions_.at(a).used < sessions_.at(b).used; });
    for (const SlotId s : slots)
      if (runner_.cache->len(s) > 0 && sessions_.at(s).use != Session::Use::kFilling)
        if (auto image = image_of(s)) disk_->put(image, /*wait=*/true);
  }

  // --- for whoever names a slot

  void save(SlotId s, const std::string& path, const SessionHeader::Fingerprint& whose, SlotSink done) {
    if (!on()) return done(kept_nowhere());
    const auto start = Clock::now();
    finish(s);
    ImagePtr image = runner_.cache->len(s) > 0 ? image_of(s) : nullptr;
    if (!image) return done(Error{"slot", "expected one with tokens, found an empty one", "save one that has some"});
    files_.push([image, path, whose, start, done] {
      const auto written = write_session(path, *image, whose);
      if (!written) return done(written.error());
      done(SlotDone{int(image->tokens.size()), *written, seconds_since(start)});
    });
  }
  // back: runs what it is given on the engine's thread.
  void load(SlotId s, const std::string& path, const SessionHeader::Fingerprint& whose,
            std::function<void(std::function<void()>)> back, SlotSink done) {
    if (!on()) return done(kept_nowhere());
    files_.push([this, s, path, whose, back = std::move(back), done = std::move(done), start = Clock::now()] {
      auto read = read_session(path, whose);
      if (!read) return done(read.error());
      back([this, s, start, done, path, image = std::make_shared<const SessionImage>(std::move(*read))] {
        if (sessions_.at(s).use == Session::Use::kRunning)
          return done(Error{"slot", "a request runs there", "wait until it is done, or name another"});
        sessions_.release(s);
        const auto f = begin_fill(s, image, Source::kDisk);
        if (f) finish(s);
        if (!f || !f->ok) return done(Error{path, "no memory for its rows, or they are not this engine's", ""});
        done(SlotDone{int(image->tokens.size()), session_file_bytes(*image), seconds_since(start)});
      });
    });
  }

  CacheStats& stats() { return stats_; }
  // With what is in use now.
  CacheStats stats_now() const {
    CacheStats s = stats_;
    const PagePool& pool = *runner_.pool;
    s.gpu.bytes = pool.used() * pool.page_bytes(), s.gpu.limit = pool.budget() * pool.page_bytes();
    s.gpu.entries = 0;
    for (SlotId i = 0; i < sessions_.size(); ++i) s.gpu.entries += sessions_.at(i).use == Session::Use::kIdle;
    s.ram.bytes = ram_.bytes(), s.ram.entries = int64_t(ram_.size()), s.ram.limit = ram_.most();
    disk_now(s);
    return s;
  }
  // The part of them that is the disk's. Any thread.
  void disk_now(CacheStats& s) const {
    if (!disk_) return;
    disk_->look_for_room();
    const DiskTier::Counts d = disk_->counts();
    s.disk.bytes = d.bytes, s.disk.entries = d.entries, s.disk.evictions = d.evictions,
    s.disk.limit = d.paused ? 0 : disk_->most();
    s.disk_errors = d.errors, s.disk_dropped = d.dropped;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLeast = SessionStore::kWorthASnapshot / 4;  // tokens that are worth a copy
  static constexpr int kAheadSlots = 2;                             // a prompt wants one, and another for its snapshot
  static constexpr int kAheadOfPages = 16;                          // a part of the pool
  static double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
  static Error kept_nowhere() { return {"slot", "this engine keeps no states", "start it without --lockstep"}; }
  static bool on() { return SessionCopy<B>::kPossible; }
  bool keeps() const { return on() && (ram_.most() > 0 || disk_); }

  // Of the last few: bytes or tokens a second.
  class Rate {
   public:
    void add(double n, double seconds) { n_ = n_ / 2 + n, s_ = s_ / 2 + seconds; }
    double seconds(double n) const { return n_ > 0 ? n * s_ / n_ : 0; }  // 0: nothing is known
    void hope() { s_ *= 0.9; }

   private:
    double n_ = 0, s_ = 0;
  };
  // Whether a copy is faster than computing the tokens again, where that makes a difference.
  bool is_worth(Rate& rate, int64_t bytes, int tokens) {
    const double copy = rate.seconds(double(bytes)), compute = prompt_rate_.seconds(tokens);
    if (copy < kQuick || compute == 0 || copy <= compute) return true;
    rate.hope();  // or it would never be measured again
    return false;
  }
  static constexpr double kQuick = 0.05;

  // What bring_up() says of a request that waits.
  bool later() {
    awaited_ = true;
    return false;
  }
  int use_of(const SessionImage& image, const Job& w) const {
    const int len =
        soft_token_border(w.tokens, int(std::min(shared_prefix(image.tokens, w.tokens), w.tokens.size() - 1)));
    return image.salt == w.request.cache_salt && copy_.reaches(image.states(), len) ? len : 0;
  }
  // A copy is there, or there is nothing to copy.
  bool is_below(SlotId s) {
    const Session& q = sessions_.at(s);
    return q.tokens.empty() || ram_.holds(q.tokens, q.salt);
  }

  struct Copy {
    SlotId slot;
    ImagePtr image;
    RowCopier::JobPtr job;
  };
  void begin_copy(SlotId s) {
    auto out = copy_.begin_out(s);
    if (!out.image) return;
    ++stats_.copies;
    copies_.push_back({s, std::move(out.image), std::move(out.job)});
  }
  void end_copy(typename std::list<Copy>::iterator i) {
    copy_.wait(i->job);
    const ImagePtr image = std::move(i->image);
    copies_.erase(i);
    ram_.put(image);
  }
  ImagePtr image_of(SlotId s) {
    auto out = copy_.begin_out(s);
    if (out.image) copy_.wait(out.job);
    return out.image;
  }

  struct Filling {
    std::shared_ptr<Fill> fill;
    typename SessionCopy<B>::In in;
  };
  void map_in(typename SessionCopy<B>::In& in) {
    const PhaseTimes::Scope phase(phases_, Phase::kMap);
    copy_.map_in(in);
  }
  std::shared_ptr<Fill> begin_fill(SlotId s, const ImagePtr& image, Source source) {
    Filling f{std::make_shared<Fill>(Fill{.image = image, .source = source}), {}};
    sessions_.at(s).use = Session::Use::kFilling;
    if (!copy_.begin_in(f.in, s, image)) return sessions_.release(s), nullptr;
    map_in(f.in);
    fills_.push_back(std::move(f));
    return fills_.back().fill;
  }
  void end_fill(typename std::list<Filling>::iterator i) {
    copy_.finish_in(i->in);
    const Filling done = std::move(*i);
    fills_.erase(i);
    Fill& f = *done.fill;
    f.ok = copy_.end_in(done.in);
    f.over = true;
    f.seconds = seconds_since(f.start);
    if (!f.ok) return;
    ram_rate_.add(double(f.image->bytes()), f.seconds);
    stats_.restore_s += f.seconds;
    ++(f.source == Source::kDisk ? stats_.disk : stats_.ram).restores;
  }
  void came(Job& w, const Fill& f) {
    w.filled = true;
    if (!f.ok) return;
    if (!w.counted) w.usage.cache.source = f.source;
    w.usage.cache.restore_s += f.seconds;
  }

  Runner<B>& runner_;
  SessionStore& sessions_;
  PhaseTimes& phases_;
  SessionCopy<B> copy_;
  HostTier ram_;
  std::unique_ptr<DiskTier> disk_;
  CacheStats stats_;
  Rate ram_rate_, disk_rate_, prompt_rate_;
  bool awaited_ = false;  // bring_up() left a request waiting since look_at_copies()
  std::list<Copy> copies_;
  std::list<Filling> fills_;
  const Reaches reaches_ = [this](std::span<const KvState> owners, int len) { return copy_.reaches(owners, len); };
  Worker files_;  // of slots; last: it uses the others
};

}  // namespace facet
