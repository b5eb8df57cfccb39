#include "base/files.h"

#include "base/own_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

namespace facet {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISLNK(mode)) return "a link";
  return "something else";
}

// ---- temporary files, removed when a signal ends the program

constexpr int kMaxTemporaries = 8;  // more are not removed by signals
struct Temporary {
  std::atomic<bool> taken{false}, named{false};
  char path[PATH_MAX];
};
Temporary g_temporaries[kMaxTemporaries];
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler reads it");

extern "C" void remove_temporaries_and_end(int signal) {
  for (const Temporary& t : g_temporaries)
    if (t.named) ::unlink(t.path);
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // ends the program when this handler returns
}

void watch_signals() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction now {};
      if (::sigaction(s, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;  // someone else decides
      struct sigaction a {};
      a.sa_handler = remove_temporaries_and_end;
      ::sigaction(s, &a, nullptr);
    }
  });
}

int remember(const std::string& path) {
  if (path.size() >= PATH_MAX) return -1;
  watch_signals();
  for (int i = 0; i < kMaxTemporaries; ++i) {
    Temporary& t = g_temporaries[i];
    if (t.taken.exchange(true)) continue;
    std::memcpy(t.path, path.c_str(), path.size() + 1);
    t.named = true;
    return i;
  }
  return -1;
}
void forget(int slot) {
  if (slot < 0) return;
  g_temporaries[slot].named = false;
  g_temporaries[slot].taken = false;
}

// ---- names

// Where a link leads, so that the file there is replaced and not the link.
std::string followed(const std::string& path) {
  char* p = ::realpath(path.c_str(), nullptr);
  if (!p) return path;
  std::string s = p;
  std::free(p);
  return s;
}

Status check_name(const std::string& path, bool follow, std::span<const std::string> inputs) {
  struct stat st {};
  if ((follow ? ::stat(path.c_str(), &st) : ::lstat(path.c_str(), &st)) != 0) return Ok{};  // a new name
  if (!S_ISREG(st.st_mode))
    return Error{path, fmt::format("expected a new name or a regular file to write, found {}", kind_of(st.st_mode)),
                 "give the result another name"};
  for (const std::string& in : inputs) {
    struct stat other {};
    if (::stat(in.c_str(), &other) == 0 && other.st_dev == st.st_dev && other.st_ino == st.st_ino)
      return Error{path, fmt::format("expected a new file, found {}, which is read", in),
                   "give the result another name"};
  }
  return Ok{};
}

std::string amount(uint64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.2f} GB", double(n) / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.2f} MB", double(n) / 1e6);
  return fmt::format("{:.1f} kB", double(n) / 1e3);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// The name is on the disk, too. A file system that cannot do it has its own order.
void sync_folder(const std::string& path) {
  const int fd = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

namespace {

Result<int> open_to_read(const std::string& path, int more_flags) {
  // O_NONBLOCK: a pipe without a writer would be waited for. It means nothing to a regular file.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | more_flags);
  if (fd < 0 && errno == ELOOP && more_flags != 0) return Error{path, "expected a file, found a link", "move it away"};
  if (fd < 0)
    return Error{path, std::string("cannot open: ") + std::strerror(errno), "check the path and its permissions"};
  struct stat st {};
  if (::fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) return fd;
  ::close(fd);
  return Error{path, fmt::format("expected a regular file, found {}", kind_of(st.st_mode)), "give the path of a file"};
}

}  // namespace

Result<int> open_regular(const std::string& path) { return open_to_read(path, 0); }
Result<int> open_own(const std::string& path) { return open_to_read(path, O_NOFOLLOW); }

Result<std::string> read_file(const std::string& path, uint64_t most) {
  auto fd = open_regular(path);
  if (!fd) return fd.error();
  std::string text;
  int failed = 0;
  for (char buffer[65536]; text.size() <= most;) {
    const ssize_t n = ::read(*fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed = errno;
    if (n <= 0) break;
    text.append(buffer, size_t(n));
  }
  ::close(*fd);
  if (failed) return Error{path, std::string("cannot read: ") + std::strerror(failed), "check the disk"};
  if (text.size() > most)
    return Error{path, fmt::format("expected at most {}, found more", amount(most)), "check that it is the right file"};
  return text;
}

std::span<const char> read_start(const char* path, std::span<char> to) {
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  size_t n = 0;
  for (ssize_t got = 1; got != 0 && n < to.size();) {
    got = ::read(fd, to.data() + n, to.size() - n);
    if (got < 0 && errno != EINTR) break;
    if (got > 0) n += size_t(got);
  }
  ::close(fd);
  return to.first(n);
}

Status read_at(int fd, uint64_t offset, std::span<std::byte> to, const std::string& path) {
  while (!to.empty()) {
    const ssize_t n = ::pread(fd, to.data(), std::min(to.size(), size_t(1) << 30), off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Error{path, std::string("cannot read: ") + std::strerror(errno), "check the disk"};
    if (n == 0) return Error{path, fmt::format("expected {} more bytes, found none", to.size()), "it was cut short"};
    to = to.subspan(size_t(n));
    offset += uint64_t(n);
  }
  return Ok{};
}

Result<FolderLock> FolderLock::take(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return Error{folder, std::string("cannot make this folder: ") + std::strerror(errno), "name one that can be made"};
  FolderLock lock;
  lock.fd_ =
      ::open((folder + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
  if (lock.fd_ < 0)
    return Error{folder, std::string("cannot write here: ") + std::strerror(errno),
                 "name a folder of this user's, on a disk that can be written"};
  if (::flock(lock.fd_, LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno == EWOULDBLOCK) return FolderLock();
  return Error{folder, std::string("cannot lock it: ") + std::strerror(errno), "name a folder on another disk"};
}
FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);  // the lock goes with it
}

Status check_output(const std::string& path, std::span<const std::string> inputs) {
  if (path.empty()) return Error{"output", "expected the name of a file, found none", "name the file to write"};
  if (auto ok = check_name(path, /*follow=*/true, inputs); !ok) return ok;
  return check_name(followed(path) + ".part", /*follow=*/false, inputs);  // written until it is complete
}

Status check_room(const std::string& path, uint64_t need) {
  const std::string folder = folder_of(path);
  struct statvfs v {};
  if (::statvfs(folder.c_str(), &v) != 0)
    return Error{folder, std::string("cannot read its free space: ") + std::strerror(errno),
                 "check that the folder exists"};
  const uint64_t available = uint64_t(v.f_bavail) * v.f_frsize;
  if (available < need)
    return Error{path, fmt::format("disk space; needed {}, free {}", amount(need), amount(available)),
                 "free some space or write to another disk"};
  return Ok{};
}

Result<OutputFile> OutputFile::create(const std::string& path, std::span<const std::string> inputs) {
  if (auto ok = check_output(path, inputs); !ok) return ok.error();
  return create(path, 0644, false);
}

Result<OutputFile> OutputFile::create_private(const std::string& path) {
  for (const std::string& name : {path, path + ".part"})
    if (auto ok = check_name(name, /*follow=*/false, {}); !ok) return ok.error();
  return create(path, 0600, true);
}

Result<OutputFile> OutputFile::create(const std::string& path, unsigned mode, bool durable) {
  OutputFile f;
  f.durable_ = durable;
  f.path_ = durable ? path : followed(path);
  f.slot_ = remember(f.part());
  f.fd_ = ::open(f.part().c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode);
  // A file that was left there keeps its mode otherwise.
  if (f.fd_ >= 0 && (!durable || ::fchmod(f.fd_, mode) == 0)) return f;
  const int e = errno;
  if (f.fd_ >= 0) ::close(std::exchange(f.fd_, -1));
  forget(std::exchange(f.slot_, -1));
  return Error{f.part(), std::string("cannot create: ") + std::strerror(e), "check the folder and its permissions"};
}

OutputFile::~OutputFile() { drop(); }

void OutputFile::swap(OutputFile& other) {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(slot_, other.slot_);
  std::swap(failed_, other.failed_);
  std::swap(durable_, other.durable_);
}

void OutputFile::drop() {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(part().c_str());
  forget(std::exchange(slot_, -1));
}

Status OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty() && failed_ == 0) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), size_t(1) << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      failed_ = errno;
    else
      bytes = bytes.subspan(size_t(n));
  }
  if (failed_)
    return Error{part(), std::string("cannot write: ") + std::strerror(failed_), "check the free space of the disk"};
  return Ok{};
}

Status OutputFile::finish() {
  int failed = failed_;
  if (durable_ && failed == 0 && ::fsync(fd_) != 0) failed = errno;
  if (::close(std::exchange(fd_, -1)) != 0 && failed == 0) failed = errno;
  if (failed == 0 && ::rename(part().c_str(), path_.c_str()) != 0) failed = errno;
  if (failed) ::unlink(part().c_str());
  if (durable_ && failed == 0) sync_folder(path_);
  forget(std::exchange(slot_, -1));
  if (failed)
    return Error{path_, std::string("cannot finish the file: ") + std::strerror(failed),
                 "check the free space of the disk"};
  return Ok{};
}

}  // namespace facet
