#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>

namespace facet::test {

// A copy of bytes that ends where a page begins that cannot be read: whoever reads behind it ends the process.
class BeforeGuardPage {
 public:
  explicit BeforeGuardPage(std::span<const std::byte> bytes) {
    const size_t page = size_t(::sysconf(_SC_PAGESIZE)), used = (bytes.size() + page - 1) / page * page;
    size_ = used + page;
    map_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map_ == MAP_FAILED) std::abort();
    std::byte* end = static_cast<std::byte*>(map_) + used;
    if (::mprotect(end, page, PROT_NONE) != 0) std::abort();
    data_ = end - bytes.size();
    std::memcpy(data_, bytes.data(), bytes.size());
  }
  ~BeforeGuardPage() { ::munmap(map_, size_); }
  BeforeGuardPage(const BeforeGuardPage&) = delete;
  BeforeGuardPage& operator=(const BeforeGuardPage&) = delete;
  std::byte* data() const { return data_; }

 private:
  void* map_;
  size_t size_;
  std::byte* data_;
};

}  // namespace facet::test
