#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"

// The rules for every file that somebody names, in one place.
//
// What is read is a regular file: a folder, a device or a pipe is refused and never waited for. What is read whole has
// a bound. What is written is a new name or a regular file, and none of the files that the work reads. It appears
// under its name when it is complete, NAME.part until then, which goes with an error, Ctrl-C, SIGTERM or SIGHUP.
namespace facet {

// A descriptor to read from; the caller closes it.
Result<int> open_regular(const std::string& path);
void close_file(int fd);

// The whole file; an error if it is larger than `most` bytes.
Result<std::string> read_file(const std::string& path, uint64_t most);
// The first bytes of a file of the system, as many as fit; none where it cannot be read. Takes no memory.
std::span<const char> read_start(const char* path, std::span<char> to);

// Whether `path` may be written by work that reads `inputs`. Early, so that nothing is computed in vain.
Status check_output(const std::string& path, std::span<const std::string> inputs = {});

// Whether the disk under `path` has room for `need` bytes.
Status check_room(const std::string& path, uint64_t need);

// The bytes from `offset` on, all of them or an error.
Status read_at(int fd, uint64_t offset, std::span<std::byte> to, const std::string& path);

// A folder that one process at a time works in. It is made where it is missing, for its owner alone.
class FolderLock {
 public:
  static Result<FolderLock> take(const std::string& folder);
  bool held() const { return fd_ >= 0; }  // false: another process has it
  FolderLock() = default;
  FolderLock(FolderLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FolderLock();

 private:
  int fd_ = -1;
};

// Makes `root`, with the folders above it, and the folders of `below` in it, which are to be no links.
Status make_folders(const std::string& root, const std::string& below);

// Bytes of a file that is no link; none: there is nothing of that name. Anything else there is an error.
Result<std::optional<uint64_t>> size_of_own_file(const std::string& path);

void remove_file(const std::string& path);

// A file that is fetched in pieces, over several runs if need be: PATH.part until it is complete. Whoever holds the
// folder's lock may open one.
class PartFile {
 public:
  static Result<PartFile> open(const std::string& path);
  PartFile() = default;
  PartFile(PartFile&& other) noexcept { swap(other); }
  PartFile& operator=(PartFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~PartFile();  // what there is stays
  uint64_t size() const { return size_; }
  Status read(uint64_t offset, std::span<std::byte> to) const;
  Status write(std::span<const std::byte> bytes);  // behind what there is
  Status clear();                                  // from the beginning
  Status finish();                                 // on the disk, then under its name
  void drop();

 private:
  void swap(PartFile& other);
  std::string path_;
  uint64_t size_ = 0;
  int fd_ = -1;
};

// A file that is being written.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path, std::span<const std::string> inputs = {});
  // For its owner alone and no link, and on the disk before it appears under its name: a machine that stops leaves all
  // of it or nothing.
  static Result<OutputFile> create_private(const std::string& path);
  OutputFile() = default;
  OutputFile(OutputFile&& other) noexcept { swap(other); }
  OutputFile& operator=(OutputFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~OutputFile();  // without finish() nothing stays
  bool is_open() const { return fd_ >= 0; }
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  Status finish();  // an error too if a write failed before

 private:
  void swap(OutputFile& other);
  static Result<OutputFile> create(const std::string& path, unsigned mode, bool durable);
  std::string part() const { return path_ + ".part"; }
  void drop();
  std::string path_;  // as it will be in the end; links are followed
  int fd_ = -1, slot_ = -1, failed_ = 0;
  bool durable_ = false;
};

}  // namespace facet
