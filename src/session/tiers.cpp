#include "session/tiers.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace facet {
namespace {

constexpr int kLeast = SessionStore::kWorthASnapshot / 4;  // tokens that are worth a copy
constexpr int kAheadSlots = 2;     // the prompt after a request wants one, and one for its snapshot
constexpr int kCopies = 4;         // that requests wait for, at a time
constexpr int kAheadOfRam = 2;     // what is copied ahead leaves the other states room
constexpr int kAheadOfPages = 16;  // a part of the pool
constexpr double kQuick = 0.05;    // seconds of a copy that is always worth it

template <class Time>
double seconds_since(Time t) {
  return std::chrono::duration<double>(Time::clock::now() - t).count();
}
Error kept_nowhere() { return {"slot", "this engine keeps no states", "start it without --lockstep"}; }

}  // namespace

Tiers::Tiers(SessionRows& rows, SessionStore& sessions, bool can_copy, int64_t ram, PhaseTimes& phases,
             std::unique_ptr<DiskTier> disk)
    : rows_(rows),
      sessions_(sessions),
      can_copy_(can_copy),
      phases_(phases),
      copy_(rows),
      ram_(ram),
      disk_(std::move(disk)) {}

Tiers::~Tiers() {
  for (const Copy& c : copies_) copy_.wait(c.task);
  for (const Filling& f : fills_) copy_.wait(f.in);
}

// --- slots

bool Tiers::evict_one(SlotId keep) {
  const SlotId s = sessions_.least_recent(keep);
  if (s < 0) return false;
  const PhaseTimes::Scope phase(phases_, Phase::kEvict);
  evict(s);
  release(s);
  return true;
}

// The state of an idle session goes down, before its slot is released.
void Tiers::evict(SlotId s) {
  ++stats_.gpu.evictions;
  if (is_read(s)) ++stats_.copies_waited, finish(s);
  if (!keeps() || is_below(s)) return;
  begin_copy(s);
  ++stats_.copies_waited;
  finish(s);
}

bool Tiers::has_slot_at_once(SlotId keep) {
  if (sessions_.free_slot() >= 0) return true;
  const SlotId s = sessions_.least_recent(keep);
  return s >= 0 && !is_read(s) && (!keeps() || is_below(s));
}

bool Tiers::is_slot_ready(SlotId keep) {
  if (sessions_.running() == 0 || has_slot_at_once(keep)) return true;
  bool is_next = true;
  int64_t bytes = 0;  // being copied
  for (const Copy& c : copies_) bytes += c.image->bytes();
  for (const SlotId s : idle_by_age()) {
    const Sequence& q = sessions_.at(s);
    if (s == keep) continue;
    if (!is_read(s) && !is_below(s)) {
      bytes += rows_.owned(s) * rows_.pool().page_bytes();
      if (!is_next && (copies_.size() >= kCopies || bytes > ram_.most() / kAheadOfRam)) break;
      // Host memory has no room for it, or did not keep it: evict() does what can be done.
      if ((q.copied == q.used || !begin_copy(s)) && is_next) return true;
    }
    is_next = false;
  }
  return is_next;  // there is nothing to wait for
}

std::vector<SlotId> Tiers::idle_by_age() const {
  std::vector<SlotId> idle;
  for (SlotId s = 0; s < sessions_.size(); ++s)
    if (sessions_.at(s).idle()) idle.push_back(s);
  std::ranges::sort(idle, {}, [&](SlotId s) { return sessions_.at(s).used; });
  return idle;
}

SlotId Tiers::take_slot(SlotId keep) {
  if (const SlotId s = sessions_.free_slot(); s >= 0) return s;
  return evict_one(keep) ? sessions_.free_slot() : -1;
}

Result<SlotId> Tiers::fork(SlotId from) {
  const SlotId to = take_slot(from);
  if (to < 0) return Error{"sessions", "all slots are taken", ""};
  for (;;) {
    Status ok = Ok{};
    {
      const PhaseTimes::Scope phase(phases_, Phase::kFork);
      ok = rows_.fork(from, to);
    }
    if (ok) break;
    if (!evict_one(from)) return ok.error();
  }
  ++stats_.gpu.restores;
  return to;
}

void Tiers::release(SlotId s) {
  const PhaseTimes::Scope phase(phases_, Phase::kEvict);
  finish(s);
  rows_.release(s);
  sessions_.clear(s);
}

bool Tiers::is_read(SlotId s) const {
  return std::ranges::any_of(copies_, [&](const Copy& c) { return c.slot == s; });
}

void Tiers::finish(SlotId s) {
  for (auto i = copies_.begin(); i != copies_.end();)
    if (const auto at = i++; at->slot == s) end_copy(at);
  for (auto i = fills_.begin(); i != fills_.end();)
    if (const auto at = i++; at->in.slot == s) end_fill(at);
}

// --- once a tick

// What is mapped here may evict idle sessions. None of them is being filled, so no fill ends within the loop but the
// one that it looks at.
void Tiers::look_at_copies() {
  const PhaseTimes::Scope phase(phases_, Phase::kCopy);
  awaited_ = false;
  for (auto i = copies_.begin(); i != copies_.end();) {
    const auto at = i++;
    if (copy_.done(at->task)) end_copy(at);
  }
  for (auto i = fills_.begin(); i != fills_.end();) {
    const auto at = i++;
    map_in(at->in, rows_.pool().left_a_step());
    if (SessionCopy::is_over(at->in)) end_fill(at);
  }
}

void Tiers::copy_ahead() {
  if (!keeps() || !copies_.empty()) return;
  const PhaseTimes::Scope phase(phases_, Phase::kCopy);
  int slots = kAheadSlots * std::max(1, sessions_.running());
  for (SlotId s = 0; s < sessions_.size(); ++s) slots -= sessions_.at(s).use == Sequence::Use::kFree;
  const PagePool& pool = rows_.pool();
  int64_t pages = pool.budget() / kAheadOfPages - (pool.budget() - pool.used());
  int64_t bytes = ram_.most() / kAheadOfRam;
  int few = kAheadSlots;
  for (const SlotId s : idle_by_age()) {
    if ((slots <= 0 && pages <= 0) || (few <= 0 && bytes <= 0)) return;
    --slots, --few;
    const int64_t owned = rows_.cache().owned_pages(s);
    pages -= owned, bytes -= owned * pool.page_bytes();
    // One that is not mapped would have to be mapped whole for it; it is in a few steps.
    if (!is_below(s) && (sessions_.running() == 0 || !rows_.cache().unmapped(s))) return void(begin_copy(s));
  }
}

bool Tiers::wait() {
  if (!awaited_) return false;
  if (disk_) disk_->finish_reads();
  finish_fills();
  return true;
}

// --- requests

bool Tiers::restore(ActiveRequest& w) {
  if (!can_copy_ || !w.request.cache) return true;
  if (w.filling) {
    if (!w.filling->over) return defer();
    restored(w, *std::exchange(w.filling, nullptr));
  }
  const int least = sessions_.known(w.tokens, w.request.cache_salt) + kLeast;
  for (const Filling& f : fills_)  // for another request, or for this one that was parked meanwhile
    if (use_of(*f.fill->image, w) > least) return w.filling = f.fill, defer();
  if (w.filled) return true;
  Source source = Source::kRam;
  bool on_its_way = false;
  const HostTier::Found best = best_below(w, least, source, on_its_way);
  if (on_its_way) return defer();
  // Copied when it can run; until then it stays where it is.
  if (best.image && best.len > least && sessions_.running() > 0 && !sessions_.has_room(w, 0)) return true;
  if (best.image && best.len > least && !is_slot_ready()) return w.wanted = best.image, defer();
  w.reading = nullptr, w.wanted = nullptr;
  if (!best.image || best.len <= least) return true;
  if (source == Source::kDisk) put(best.image);
  if (!is_worth(ram_rate_, best.image->bytes(), best.len - least)) return true;
  const SlotId s = take_slot();
  w.filling = s < 0 ? nullptr : begin_fill(s, best.image, source);
  return w.filling ? defer() : true;
}

// The state in host memory or a file that saves the request most; a file may have to be read first.
HostTier::Found Tiers::best_below(ActiveRequest& w, int least, Source& source, bool& on_its_way) {
  HostTier::Found best = ram_.find(w.tokens, w.request.cache_salt, least, reaches_);
  if (w.wanted && use_of(*w.wanted, w) > best.len) best = {w.wanted, use_of(*w.wanted, w)};
  if (!disk_) return best;
  if (!w.reading)
    if (const auto found = disk_->find(w.tokens, w.request.cache_salt, std::max(least, best.len + kLeast), reaches_);
        !found.name.empty() && is_worth(disk_rate_, found.bytes, found.len - least))
      w.reading = disk_->read(found.name);
  if (!w.reading) return best;
  on_its_way = !w.reading->done;
  if (on_its_way) return best;
  if (const ImagePtr image = w.reading->image; image) {
    disk_rate_.add(double(image->bytes()), w.reading->seconds);
    if (use_of(*image, w) > best.len) best = {image, use_of(*image, w)}, source = Source::kDisk;
  }
  return best;
}

bool Tiers::finish_fills() {
  const bool any = !fills_.empty();
  while (!fills_.empty()) end_fill(fills_.begin());
  return any;
}

void Tiers::look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const {
  ram_.look_for(nearest, tokens, salt);
  if (disk_) disk_->look_for(nearest, tokens, salt);
}

// Whether a copy is faster than computing the tokens again, where that makes a difference.
bool Tiers::is_worth(Rate& rate, int64_t bytes, int tokens) {
  const double copy = rate.seconds(double(bytes)), compute = prompt_rate_.seconds(tokens);
  if (copy < kQuick || compute == 0 || copy <= compute) return true;
  rate.decay();  // or it would never be measured again
  return false;
}

// What restore() says of a request that waits.
bool Tiers::defer() {
  awaited_ = true;
  return false;
}

int Tiers::use_of(const SessionImage& image, const ActiveRequest& w) const {
  const int len =
      soft_token_border(w.tokens, int(std::min(shared_prefix(image.tokens, w.tokens), w.tokens.size() - 1)));
  return image.salt == w.request.cache_salt && copy_.reaches(image.states(), len) ? len : 0;
}

void Tiers::restored(ActiveRequest& w, const Fill& f) {
  w.filled = true;
  if (!f.ok) return;
  if (!w.counted) w.usage.cache.source = f.source;
  w.usage.cache.restore_s += f.seconds;
}

// --- copies down

// A copy is there, or there is nothing to copy.
bool Tiers::is_below(SlotId s) {
  const Sequence& q = sessions_.at(s);
  return q.tokens.empty() || ram_.holds(q.tokens, q.salt);
}

void Tiers::put(const ImagePtr& image) {
  for (ImagePtr& gone : ram_.put(image)) {
    ++stats_.ram.evictions;
    if (disk_)
      disk_->put(gone);
    else  // its memory goes back to the system, which takes a while
      files_.push([image = std::move(gone)]() mutable { image.reset(); });
  }
}

bool Tiers::begin_copy(SlotId s) {
  auto out = copy_.begin_out(s, sessions_.at(s));
  if (!out.image) return false;
  ++stats_.copies;
  copies_.push_back({s, std::move(out.image), std::move(out.task)});
  return true;
}

void Tiers::end_copy(std::list<Copy>::iterator i) {
  copy_.wait(i->task);
  const ImagePtr image = std::move(i->image);
  Sequence& q = sessions_.at(i->slot);
  q.copied = q.used;
  copies_.erase(i);
  put(image);
}

ImagePtr Tiers::image_of(SlotId s) {
  auto out = copy_.begin_out(s, sessions_.at(s));
  if (out.image) copy_.wait(out.task);
  return out.image;
}

// --- copies up

// Maps so many pages of what the state needs. Idle sessions are evicted for it, while there are any.
void Tiers::map_in(SessionCopy::In& in, int64_t pages) {
  const PhaseTimes::Scope phase(phases_, Phase::kMap);
  while (!copy_.map_in(in, pages))
    if (!evict_one(in.slot)) {
      in.failed = true;
      return;
    }
}

std::shared_ptr<Fill> Tiers::begin_fill(SlotId s, const ImagePtr& image, Source source) {
  Filling f{std::make_shared<Fill>(Fill{.image = image, .source = source}), {}};
  sessions_.begin_fill(s);
  if (!copy_.begin_in(f.in, s, image)) {
    release(s);
    return nullptr;
  }
  map_in(f.in, rows_.pool().left_a_step());
  fills_.push_back(std::move(f));
  return fills_.back().fill;
}

void Tiers::end_fill(std::list<Filling>::iterator i) {
  while (!i->in.mapped() && !i->in.failed) map_in(i->in, std::numeric_limits<int32_t>::max());
  copy_.wait(i->in);
  const Filling done = std::move(*i);
  fills_.erase(i);
  Fill& f = *done.fill;
  f.ok = copy_.end_in(done.in);
  if (f.ok)
    sessions_.adopt(done.in.slot, f.image->tokens, f.image->salt);
  else
    release(done.in.slot);
  f.over = true;
  f.seconds = seconds_since(f.start);
  if (!f.ok) return;
  ram_rate_.add(double(f.image->bytes()), f.seconds);
  stats_.restore_s += f.seconds;
  ++(f.source == Source::kDisk ? stats_.disk : stats_.ram).restores;
}

// --- the end, and callers that name a slot

void Tiers::put_all() {
  if (!disk_) return;
  while (!copies_.empty()) end_copy(copies_.begin());
  for (auto i = ram_.images().rbegin(); i != ram_.images().rend(); ++i) disk_->put(*i, /*wait=*/true);
  std::vector<SlotId> slots;
  for (SlotId s = 0; s < sessions_.size(); ++s)
    if (const Sequence& q = sessions_.at(s); q.use == Sequence::Use::kIdle || q.work.request.cache) slots.push_back(s);
  std::sort(slots.begin(), slots.end(),
            [&](SlotId a, SlotId b) { return sessions_.at(a).used < sessions_.at(b).used; });
  for (const SlotId s : slots)
    if (rows_.len(s) > 0 && sessions_.at(s).use != Sequence::Use::kFilling)
      if (auto image = image_of(s)) disk_->put(image, /*wait=*/true);
}

void Tiers::save(SlotId s, const std::string& path, const SessionHeader::Fingerprint& whose, SlotSink done) {
  if (!can_copy_) return done(kept_nowhere());
  const auto start = Clock::now();
  finish(s);
  ImagePtr image = rows_.len(s) > 0 ? image_of(s) : nullptr;
  if (!image) return done(Error{"slot", "expected one with tokens, found an empty one", "save one that has some"});
  files_.push([image, path, whose, start, done] {
    const auto written = write_session(path, *image, whose);
    if (!written) return done(written.error());
    done(SlotDone{int(image->tokens.size()), *written, seconds_since(start)});
  });
}

void Tiers::load(SlotId s, const std::string& path, const SessionHeader::Fingerprint& whose,
                 std::function<void(std::function<void()>)> back, SlotSink done) {
  if (!can_copy_) return done(kept_nowhere());
  files_.push([this, s, path, whose, back = std::move(back), done = std::move(done), start = Clock::now()] {
    auto read = read_session(path, whose);
    if (!read) return done(read.error());
    back([this, s, start, done, path, image = std::make_shared<const SessionImage>(std::move(*read))] {
      if (sessions_.at(s).use == Sequence::Use::kRunning)
        return done(Error{"slot", "a request runs there", "wait until it is done, or name another"});
      release(s);
      const auto f = begin_fill(s, image, Source::kDisk);
      if (f) finish(s);
      if (!f || !f->ok) return done(Error{path, "no memory for its rows, or they are not this engine's", ""});
      done(SlotDone{int(image->tokens.size()), session_file_bytes(*image), seconds_since(start)});
    });
  });
}

// --- reports

CacheStats Tiers::stats_now() const {
  CacheStats s = stats_;
  const PagePool& pool = rows_.pool();
  s.gpu.bytes = pool.used() * pool.page_bytes(), s.gpu.limit = pool.budget() * pool.page_bytes();
  s.gpu.entries = 0;
  for (SlotId i = 0; i < sessions_.size(); ++i) s.gpu.entries += sessions_.at(i).use == Sequence::Use::kIdle;
  s.ram.bytes = ram_.bytes(), s.ram.entries = int64_t(ram_.size()), s.ram.limit = ram_.most();
  disk_now(s);
  return s;
}

void Tiers::disk_now(CacheStats& s) const {
  if (!disk_) return;
  disk_->look_for_room();
  const DiskTier::Counts d = disk_->counts();
  s.disk.bytes = d.bytes, s.disk.entries = d.entries, s.disk.evictions = d.evictions,
  s.disk.limit = d.paused ? 0 : disk_->most();
  s.disk_errors = d.errors, s.disk_dropped = d.dropped;
}

}  // namespace facet
