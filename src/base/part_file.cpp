// Files that are fetched in pieces, and the folders that they lie in.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/files.h"

namespace facet {
namespace {

Status make_folder(const std::string& path, bool may_be_link) {
  if (::mkdir(path.c_str(), 0755) != 0 && errno != EEXIST)
    return Error{path, std::string("cannot make this folder: ") + std::strerror(errno), "name one that can be made"};
  struct stat st {};
  if ((may_be_link ? ::stat(path.c_str(), &st) : ::lstat(path.c_str(), &st)) == 0 && S_ISDIR(st.st_mode)) return Ok{};
  return Error{path, fmt::format("expected a folder, found {}", S_ISLNK(st.st_mode) ? "a link" : "something else"),
               "move it away"};
}

Status make_each(const std::string& begin, const std::string& path, bool may_be_link) {
  for (size_t at = 0; at < path.size();) {
    at = std::min(path.find('/', at + 1), path.size());
    const std::string folder = begin + path.substr(0, at);
    if (folder.empty() || folder == "/") continue;
    if (auto ok = make_folder(folder, may_be_link); !ok) return ok;
  }
  return Ok{};
}

Error failed(const std::string& path, const char* what, int e) {
  const bool room = e == ENOSPC || e == EDQUOT || e == EFBIG;
  return {path, fmt::format("{}: {}", what, std::strerror(e)),
          room ? "free some space and try again: what there is stays" : "check the disk"};
}

}  // namespace

Status make_folders(const std::string& root, const std::string& below) {
  if (auto ok = make_each("", root, /*may_be_link=*/true); !ok) return ok;
  return make_each(root + "/", below, /*may_be_link=*/false);
}

Result<std::optional<uint64_t>> size_of_own_file(const std::string& path) {
  struct stat st {};
  if (::lstat(path.c_str(), &st) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<uint64_t>();
    return Error{path, std::string("cannot look at it: ") + std::strerror(errno), "check the folder's permissions"};
  }
  if (S_ISREG(st.st_mode)) return std::optional(uint64_t(st.st_size));
  return Error{path, fmt::format("expected a file, found {}", S_ISLNK(st.st_mode) ? "a link" : "something else"),
               "move it away"};
}

void close_file(int fd) { ::close(fd); }

void remove_file(const std::string& path) { ::unlink(path.c_str()); }

Result<PartFile> PartFile::open(const std::string& path) {
  PartFile f;
  f.path_ = path;
  const std::string part = path + ".part";
  f.fd_ = ::open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0644);
  if (f.fd_ < 0) {
    if (errno == ELOOP) return Error{part, "expected a file, found a link", "move it away"};
    return Error{part, std::string("cannot create: ") + std::strerror(errno), "check the folder and its permissions"};
  }
  struct stat st {};
  if (::fstat(f.fd_, &st) != 0 || !S_ISREG(st.st_mode))
    return Error{part, "expected a file, found something else", "move it away"};
  f.size_ = uint64_t(st.st_size);
  return f;
}

PartFile::~PartFile() {
  if (fd_ >= 0) ::close(fd_);
}

void PartFile::swap(PartFile& other) {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
}

Status PartFile::read(uint64_t offset, std::span<std::byte> to) const {
  return read_at(fd_, offset, to, path_ + ".part");
}

Status PartFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), off_t(size_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed(path_ + ".part", "cannot write", errno);
    bytes = bytes.subspan(size_t(n));
    size_ += uint64_t(n);
  }
  return Ok{};
}

Status PartFile::clear() {
  size_ = 0;
  if (::ftruncate(fd_, 0) != 0) return failed(path_ + ".part", "cannot begin again", errno);
  return Ok{};
}

Status PartFile::finish() {
  const std::string part = path_ + ".part";
  if (::fsync(fd_) != 0) return failed(part, "cannot write", errno);
  if (::rename(part.c_str(), path_.c_str()) != 0) return failed(path_, "cannot finish the file", errno);
  return Ok{};
}

void PartFile::drop() { ::unlink((path_ + ".part").c_str()); }

}  // namespace facet
