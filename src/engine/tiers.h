#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/worker.h"
#include "engine/disk_tier.h"
#include "engine/host_tier.h"
#include "engine/runner.h"
#include "engine/session_store.h"
#include "engine/speculate.h"

namespace facet {

// What is kept of sessions outside of the pool, and how they come back: host memory, below it a folder of files.
// States go down when they are given up and come up when a request can go on from them; from a file into host memory
// on another thread, while the request waits and others run. Of the engine's thread.
template <Backend B>
class Tiers {
 public:
  using Source = CacheUse::Source;

  // disk: null for none. A second engine beside the first (lockstep) has two of everything, and keeps nothing.
  Tiers(Runner<B>& runner, Speculator<B>& spec, SessionStore& sessions, const EngineConfig& c,
        std::unique_ptr<DiskTier> disk)
      : runner_(runner), spec_(spec), sessions_(sessions), ram_(c.cache_ram), disk_(std::move(disk)) {
    if (disk_)
      ram_.evicting = [this](const ImagePtr& image) { ++stats_.ram.evictions, disk_->put(image); };
    else
      ram_.evicting = [this](const ImagePtr&) { ++stats_.ram.evictions; };
  }

  // An idle session is about to be given up.
  void put_down(SlotId s) {
    ++stats_.gpu.evictions;
    const Session& q = sessions_.at(s);
    if (!on() || (ram_.most() == 0 && !disk_) || q.tokens.empty() || ram_.holds(q.tokens, q.salt)) return;
    if (auto image = image_of(s)) ram_.put(image);
  }

  // Brings the state back that saves a request most, if it has nothing as good in the pool. False: a file is being
  // read, and the request waits.
  bool bring_up(Job& w) {
    if (!on() || !w.request.cache) return true;
    const int least = sessions_.known(w.tokens, w.request.cache_salt) + kLeast;
    HostTier::Found best = ram_.find(w.tokens, w.request.cache_salt, least, reaches_);
    Source source = Source::kRam;
    if (disk_) {
      if (!w.reading)
        if (const auto found =
                disk_->find(w.tokens, w.request.cache_salt, std::max(least, best.len + kLeast), reaches_);
            !found.name.empty())
          w.reading = disk_->read(found.name);
      if (w.reading) {
        if (!w.reading->done) return false;
        if (const ImagePtr image = w.reading->image; image && use_of(*image, w) > best.len)
          best = {image, use_of(*image, w)}, source = Source::kDisk;
      }
    }
    if (best.image && best.len > least) {
      // Copied when it can run; until then it stays where it is.
      if (sessions_.running() > 0 && !sessions_.has_room(w, 0)) return true;
      const auto start = Clock::now();
      const SlotId s = sessions_.free_slot();
      if (s < 0) return true;
      if (source == Source::kDisk) ram_.put(best.image);
      if (restore(s, *best.image)) {
        sessions_.adopt(s, best.image->tokens, best.image->salt);
        const double took = std::chrono::duration<double>(Clock::now() - start).count();
        if (!w.counted) w.usage.cache.source = source;
        w.usage.cache.restore_s += took;
        stats_.restore_s += took;
        ++(source == Source::kDisk ? stats_.disk : stats_.ram).restores;
      }
    }
    w.reading = nullptr;
    return true;
  }
  bool reads_of(const Job& w) const { return w.reading && !w.reading->done; }
  void finish_reads() { disk_->finish_reads(); }

  void look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const {
    ram_.look_for(nearest, tokens, salt);
    if (disk_) disk_->look_for(nearest, tokens, salt);
  }

  // At the end: everything to the disk, so that the next process goes on from it. What was used last comes last, and
  // stays where not all of it fits.
  void put_all() {
    if (!disk_) return;
    for (auto i = ram_.images().rbegin(); i != ram_.images().rend(); ++i) disk_->put(*i, /*wait=*/true);
    std::vector<SlotId> slots;
    for (SlotId s = 0; s < sessions_.size(); ++s)
      if (const Session& q = sessions_.at(s); q.use == Session::Use::kIdle || q.work.request.cache) slots.push_back(s);
    std::sort(slots.begin(), slots.end(),
              [&](SlotId a, SlotId b) { return sessions_.at(a).used < sessions_.at(b).used; });
    for (const SlotId s : slots)
      if (runner_.cache->len(s) > 0)
        if (auto image = image_of(s)) disk_->put(image, /*wait=*/true);
  }

  // --- for whoever names a slot

  void save(SlotId s, const std::string& path, const SessionHeader::Fingerprint& whose, SlotSink done) {
    if (!on()) return done(kept_nowhere());
    const auto start = Clock::now();
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
        if (!restore(s, *image)) return done(Error{path, "no memory for its rows, or they are not this engine's", ""});
        sessions_.adopt(s, image->tokens, image->salt);
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
    if (!disk_) return s;
    const DiskTier::Counts d = disk_->counts();
    s.disk.bytes = d.bytes, s.disk.entries = d.entries, s.disk.evictions = d.evictions, s.disk.limit = disk_->most();
    s.disk_errors = d.errors, s.disk_dropped = d.dropped;
    return s;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int kLeast = SessionStore::kWorthASnapshot / 4;  // tokens that are worth a copy
  static double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
  static Error kept_nowhere() { return {"slot", "this engine keeps no states", "start it without --lockstep"}; }
  static constexpr bool kOneOfEach = !requires(B & b) { b.report(); };  // lockstep has two
  bool on() const { return kOneOfEach; }

  bool reaches(std::span<const KvState> owners, int len) const {
    if (owners.size() != 1 + spec_.drafters().size()) return false;
    if (len > owners[0].len || !runner_.cache->reaches(owners[0], len)) return false;
    for (size_t i = 1; i < owners.size(); ++i)
      if (const KvCache* c = spec_.drafters()[i - 1]->rows(); c && owners[i].len > len && !c->reaches(owners[i], len))
        return false;
    return true;
  }
  int use_of(const SessionImage& image, const Job& w) const {
    const int len = int(std::min(shared_prefix(image.tokens, w.tokens), w.tokens.size() - 1));
    return image.salt == w.request.cache_salt && reaches(image.states(), len) ? len : 0;
  }

  ImagePtr image_of(SlotId s) {
    SessionImage image;
    if constexpr (kOneOfEach) {
      const Session& q = sessions_.at(s);
      spec_.settle(s);
      image.tokens.assign(q.tokens.begin(), q.tokens.begin() + runner_.cache->len(s));
      image.salt = q.salt;
      if (!copy_rows(*runner_.cache, s, image.owners.emplace_back())) return nullptr;
      image.owners.back().held = runner_.cache->len(s);
      for (const auto& d : spec_.drafters()) {
        SessionImage::Owner& o = image.owners.emplace_back();
        o.held = d->held(s), o.beside = d->save(s);
        if (KvCache* rows = d->rows(); rows && !copy_rows(*rows, s, o)) return nullptr;
      }
      runner_.pool->wait();
    }
    return std::make_shared<const SessionImage>(std::move(image));
  }
  bool copy_rows(const KvCache& c, SlotId s, SessionImage::Owner& o) const {
    o.state = c.state(s);
    int64_t n = 0;
    const std::vector<KvCache::Part> parts = c.parts(s);
    for (const KvCache::Part& p : parts) o.parts.push_back({p.rows, p.row}), n += p.bytes();
    o.rows = HostBytes(size_t(n));
    if (int64_t(o.rows.size()) != n) return false;
    std::byte* at = o.rows.data();
    for (const KvCache::Part& p : parts) c.pool().to_host(at, p.at, p.bytes()), at += p.bytes();
    return true;
  }

  // Whether it is a state of this engine, whoever wrote it.
  bool fits(const SessionImage& image) const {
    if (image.owners.size() != 1 + spec_.drafters().size()) return false;
    const SessionImage::Owner& model = image.owners[0];
    if (int(image.tokens.size()) != model.state.len || model.state.len == 0) return false;
    for (size_t i = 0; i < image.owners.size(); ++i) {
      const SessionImage::Owner& o = image.owners[i];
      const KvCache* c = i == 0 ? runner_.cache.get() : spec_.drafters()[i - 1]->rows();
      if (o.held < 0 || o.held > model.state.len) return false;
      std::vector<SessionImage::Part> want;
      if (c) {
        if (o.state.len > model.state.len || o.state.high > c->plan().max_ctx || !c->reaches(o.state, o.state.len))
          return false;
        for (const KvCache::Part& p : c->parts_of(o.state)) want.push_back({p.rows, p.row});
      }
      if (want != o.parts) return false;
    }
    return true;
  }
  bool restore(SlotId s, const SessionImage& image) {
    bool ok = fits(image) && fill(*runner_.cache, s, image.owners[0]);
    for (size_t i = 1; ok && i < image.owners.size(); ++i) {
      const SessionImage::Owner& o = image.owners[i];
      Drafter<B>& d = *spec_.drafters()[i - 1];
      if (KvCache* rows = d.rows()) ok = fill(*rows, s, o);
      ok = ok && d.load(s, o.held, o.beside);
    }
    runner_.pool->wait();
    if (!ok) sessions_.release(s);
    return ok;
  }
  bool fill(KvCache& c, SlotId s, const SessionImage::Owner& o) {
    while (!c.restore(s, o.state))
      if (!sessions_.make_room(s)) return false;
    const std::byte* from = o.rows.data();
    for (const KvCache::Part& p : c.parts(s)) c.pool().from_host(p.at, from, p.bytes()), from += p.bytes();
    return true;
  }

  Runner<B>& runner_;
  Speculator<B>& spec_;
  SessionStore& sessions_;
  HostTier ram_;
  std::unique_ptr<DiskTier> disk_;
  CacheStats stats_;
  const Reaches reaches_ = [this](std::span<const KvState> owners, int len) { return reaches(owners, len); };
  Worker files_;  // of slots; last: it uses the others
};

}  // namespace facet
