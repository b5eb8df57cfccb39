#include "base/host_bytes.h"

#include <sys/mman.h>

namespace facet {

HostBytes::HostBytes(size_t n) {
  if (n == 0) return;
  void* p = ::mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return;
#ifdef MADV_HUGEPAGE
  ::madvise(p, n, MADV_HUGEPAGE);
#endif
  data_ = static_cast<std::byte*>(p), size_ = n;
}

HostBytes::~HostBytes() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace facet
