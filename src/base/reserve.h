#pragma once
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "base/result.h"

namespace facet {

// Address space for the largest size a buffer can have; pages of it become memory when they are committed.
// Bytes of committed pages are zero at first. Movable.
class ReservedMemory {
 public:
  static Result<ReservedMemory> create(size_t bytes);
  ReservedMemory() = default;
  ReservedMemory(ReservedMemory&& o) noexcept { swap(o); }
  ReservedMemory& operator=(ReservedMemory&& o) noexcept {
    swap(o);
    return *this;
  }
  ~ReservedMemory();
  // Makes [begin, end) usable and present, widened to whole pages; bytes committed before keep their values.
  Status commit(size_t begin, size_t end);
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void swap(ReservedMemory& o) {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Bytes this process may still use: what the kernel calls available, or what the cgroup leaves, and no more than the
// address space it may have. 0 if unknown.
uint64_t available_memory();

// For errors: "3.1 of 100.0 MiB of address space are left", where it is limited, or "512.0 MiB of memory are free".
std::string memory_left();
// After a call of the system failed for errno. doing: "map".
Error cannot_have(std::string where, const char* doing, uint64_t bytes, std::string hint);
// What an exception says; of memory and threads that ran out, with what there was.
Error error_of(const std::exception& e);

}  // namespace facet
