#include "session/disk_tier.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <future>
#include <system_error>
#include <utility>

#include "base/hash.h"

namespace facet {
namespace {

constexpr const char* kSuffix = ".facet-session";

void finish(Worker& w) {
  std::promise<void> done;
  w.push([&done] { done.set_value(); });
  done.get_future().wait();
}

constexpr int64_t kSecond = 1'000'000'000;  // ns
// Since 1970; a file can have any time.
constexpr const char* kGoesOn = "there is room again, and files are written";

int64_t ns_of(const timespec& t) {
  return std::clamp<int64_t>(t.tv_sec, 0, 9'000'000'000) * kSecond + std::clamp<int64_t>(t.tv_nsec, 0, kSecond - 1);
}

// A regular file, and no link to one.
bool is_regular(const std::string& path, struct stat& st) {
  return ::lstat(path.c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

}  // namespace

Result<std::unique_ptr<DiskTier>> DiskTier::open(Config c) {
  auto lock = FolderLock::take(c.folder);
  if (!lock) return lock.error();
  if (!lock->held()) return std::unique_ptr<DiskTier>();
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(c)));
  tier->lock_ = std::move(*lock);
  tier->index();
  return tier;
}

DiskTier::~DiskTier() {
  finish_reads();
  finish_writes();
}

void DiskTier::note(const std::string& text) {
  if (c_.on_note) c_.on_note("cache-disk: " + text);
}

// One file for a salt and tokens, whoever writes it.
std::string DiskTier::name_of(const SessionImage& image) const {
  Hash128 h;
  h.add(std::as_bytes(std::span(c_.whose)));
  h.add(image.salt);
  h.add(std::as_bytes(std::span(image.tokens)));
  return hex(h.digest()) + kSuffix;
}

void DiskTier::index() {
  std::vector<std::pair<int64_t, Entry>> found;
  std::error_code error;
  for (std::filesystem::directory_iterator i(c_.folder, error), end; !error && i != end; i.increment(error))
    index(i->path().filename().string(), found);
  if (error) note(fmt::format("{}: cannot list its files: {}", c_.folder, error.message()));
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  int others = 0;
  int64_t their_bytes = 0;
  if (!found.empty()) last_used_ = found.front().first;
  for (auto& [time, e] : found) {
    bytes_ += e.bytes;
    if (!e.ours) ++others, their_bytes += e.bytes;
    entries_.push_back(std::move(e));
  }
  drop_oldest(0);
  counts_.evictions = 0;
  if (others > 0)
    note(fmt::format("{} files of another model or other options, {:.1f} MB, stay until there is no room for them",
                     others, double(their_bytes) / 1e6));
}

void DiskTier::index(const std::string& name, std::vector<std::pair<int64_t, Entry>>& found) {
  struct stat st {};
  const std::string file = path(name);
  if (name.ends_with(std::string(kSuffix) + ".part")) {  // an interrupted write: nobody else has the folder
    if (is_regular(file, st)) ::unlink(file.c_str());
    return;
  }
  if (!name.ends_with(kSuffix)) return;
  if (!is_regular(file, st)) return note(fmt::format("{} is no regular file and is left alone", file));
  SessionEntry read;
  const auto ok = read_session_header(file, read);
  if (!ok && read.magic == SessionMagic::kForeign) {
    ++counts_.errors;
    return note(fmt::format("{}; it is left alone", ok.error().message()));
  }
  if (!ok) {
    ++counts_.errors;
    ::unlink(file.c_str());
    return note(fmt::format("{}; it is deleted", ok.error().message()));
  }
  SessionHeader& h = read.header;
  Entry e{.name = name, .bytes = read.bytes, .ours = h.fingerprint == c_.whose};
  if (e.ours) {
    e.salt = std::move(h.salt), e.tokens = std::move(h.tokens);
    for (const SessionHeader::Owner& o : h.owners) e.states.push_back({o.len, o.high});
  }
  found.emplace_back(ns_of(st.st_mtim), std::move(e));
}

void DiskTier::mark_used(const std::string& name) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  last_used_ = std::max(ns_of(now), last_used_ + 1);
  const timespec t{.tv_sec = time_t(last_used_ / kSecond), .tv_nsec = long(last_used_ % kSecond)};
  const timespec times[] = {t, t};
  ::utimensat(AT_FDCWD, path(name).c_str(), times, AT_SYMLINK_NOFOLLOW);
}

bool DiskTier::holds(const std::string& name) const {
  const auto is = [&](const Entry& e) { return e.name == name; };
  return std::any_of(entries_.begin(), entries_.end(), is) ||
         std::find(queued_.begin(), queued_.end(), name) != queued_.end();
}

void DiskTier::put(const ImagePtr& image, bool wait) {
  const std::string name = name_of(*image);
  const int64_t n = image->bytes();
  if (wait) finish_writes();
  {
    const std::lock_guard lock(mutex_);
    if (n > c_.most || holds(name)) return;
    if (!may_write() || (!wait && waiting_ > 0 && waiting_ + n > c_.most_waiting)) {
      ++counts_.dropped;
      return;
    }
    waiting_ += n;
    queued_.push_back(name);
  }
  writer_.push([this, image, n] { write(image, n); });
}

bool DiskTier::may_write() const { return !paused_ || std::chrono::steady_clock::now() >= retry_at_; }

// A pause that goes on looks at the room first: a file that does not fit would be written in part, over and over.
Result<int64_t> DiskTier::try_write(const SessionImage& image, int64_t bytes) {
  bool paused = false;
  {
    const std::lock_guard lock(mutex_);
    paused = paused_;
  }
  if (paused && !has_room(bytes)) return int64_t(0);
  return write_session(path(name_of(image)), image, c_.whose);
}

bool DiskTier::has_room(int64_t bytes) {
  constexpr int64_t kSpare = 1 << 16;  // for the folder
  if (check_room(path("x"), uint64_t(bytes + kSpare))) return true;
  const std::lock_guard lock(mutex_);
  retry_at_ = std::chrono::steady_clock::now() + kFirstWait;
  return false;
}

void DiskTier::look_for_room() {
  {
    const std::lock_guard lock(mutex_);
    if (!paused_ || !may_write()) return;
    retry_at_ = std::chrono::steady_clock::now() + kFirstWait;  // nobody else looks meanwhile
  }
  writer_.push([this] {
    int64_t bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      bytes = wanted_;
    }
    if (!has_room(bytes)) return;
    {
      const std::lock_guard lock(mutex_);
      if (!std::exchange(paused_, false)) return;
    }
    note(kGoesOn);
  });
}

std::string DiskTier::pause(const Error& e, int64_t bytes) {
  const bool first = !std::exchange(paused_, true);
  ++counts_.dropped;
  wanted_ = bytes;
  retry_at_ = std::chrono::steady_clock::now() + wait_;
  wait_ = std::min(2 * wait_, kMostWait);
  return first ? fmt::format("{}; nothing is written there until there is room", e.message()) : "";
}

void DiskTier::drop_oldest(int64_t bytes) {
  while (bytes_ + bytes > c_.most && !entries_.empty()) {
    ::unlink(path(entries_.back().name).c_str());
    bytes_ -= entries_.back().bytes;
    entries_.pop_back();
    ++counts_.evictions;
  }
}

void DiskTier::write(const ImagePtr& image, int64_t bytes) {
  const std::string name = name_of(*image);
  const int64_t file_bytes = session_file_bytes(*image);
  bool possible = true;
  {
    const std::lock_guard lock(mutex_);
    possible = may_write() && file_bytes <= c_.most;
    if (possible) drop_oldest(file_bytes);
  }
  const auto written = possible ? try_write(*image, file_bytes) : Result<int64_t>(int64_t(0));
  std::string report;
  {
    const std::lock_guard lock(mutex_);
    waiting_ -= bytes;
    std::erase(queued_, name);
    if (!written) {
      report = pause(written.error(), file_bytes);
    } else if (*written > 0) {
      if (std::exchange(paused_, false)) report = kGoesOn;
      wait_ = kFirstWait;
      mark_used(name);
      bytes_ += *written;
      entries_.push_front({.name = name,
                           .bytes = *written,
                           .ours = true,
                           .salt = image->salt,
                           .tokens = image->tokens,
                           .states = image->states()});
    }
  }
  if (!report.empty()) note(report);
}

DiskTier::Found DiskTier::find(std::span<const int32_t> tokens, const std::string& salt, int least,
                               const Reaches& reaches) {
  const std::lock_guard lock(mutex_);
  auto best = entries_.end();
  int longest = least;
  for (auto e = entries_.begin(); e != entries_.end(); ++e) {
    if (!e->ours || e->salt != salt) continue;
    const int len = soft_token_border(tokens, int(std::min(shared_prefix(e->tokens, tokens), tokens.size() - 1)));
    if (len < longest || len <= least || !reaches(e->states, len)) continue;
    if (best != entries_.end() && len == longest && e->bytes >= best->bytes) continue;
    best = e, longest = len;
  }
  if (best == entries_.end()) return {};
  entries_.splice(entries_.begin(), entries_, best);
  mark_used(best->name);
  return {best->name, longest, best->bytes};
}

std::shared_ptr<DiskRead> DiskTier::read(const std::string& name) {
  auto r = std::make_shared<DiskRead>();
  reader_.push([this, name, r] {
    const auto start = std::chrono::steady_clock::now();
    auto image = read_session(path(name), c_.whose);
    r->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (image)
      r->image = std::make_shared<const SessionImage>(std::move(*image));
    else
      forget(name), note(fmt::format("{}; it is deleted", image.error().message()));
    r->done = true;
  });
  return r;
}

void DiskTier::forget(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.name == name; });
  if (at == entries_.end()) return;
  ++counts_.errors;
  ::unlink(path(name).c_str());
  bytes_ -= at->bytes;
  entries_.erase(at);
}

void DiskTier::finish_reads() { finish(reader_); }
void DiskTier::finish_writes() { finish(writer_); }

void DiskTier::look_for(Nearest& nearest, std::span<const int32_t> tokens, const std::string& salt) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& e : entries_)
    if (e.ours && e.salt == salt) nearest.look_at(e.tokens, tokens);
}

DiskTier::Counts DiskTier::counts() const {
  const std::lock_guard lock(mutex_);
  Counts c = counts_;
  c.bytes = bytes_, c.entries = int64_t(entries_.size()), c.paused = paused_;
  return c;
}

}  // namespace facet
