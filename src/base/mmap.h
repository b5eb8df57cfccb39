#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace facet {

// Lets go of the memory behind a piece of a MappedFile that will not be read again soon; reading it again is
// allowed and goes back to the file.
void release_pages(std::span<const std::byte> piece);

// Reads a piece of a MappedFile from its file where that has not happened, and maps it, so that reading it later does not
// wait page by page. A hint: a system that knows no such call leaves it as it is.
void populate_pages(std::span<const std::byte> piece);

// A file that is cut short, or whose disk fails, while it is mapped: from now on the process ends with one line that names
// it. For programs; a library leaves signals alone.
void tell_of_lost_mappings();

// A read-only private mapping of a whole file. Movable; unmaps on destruction.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept { swap(other); }
  MappedFile& operator=(MappedFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  void swap(MappedFile& other) {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(path_, other.path_);
  }
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace facet
