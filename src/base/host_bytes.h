#pragma once
#include <cstddef>
#include <span>
#include <utility>

namespace facet {

// Memory for large copies: in large pages where the system has them, and not cleared by us first. Movable.
class HostBytes {
 public:
  HostBytes() = default;
  explicit HostBytes(size_t n);  // empty when there is no memory
  HostBytes(HostBytes&& o) noexcept { swap(o); }
  HostBytes& operator=(HostBytes&& o) noexcept {
    swap(o);
    return *this;
  }
  ~HostBytes();
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  void swap(HostBytes& o) {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
  }
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace facet
