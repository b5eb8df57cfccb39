#include "cache/page_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/reserve.h"

namespace facet {
namespace {
constexpr int64_t kGrow = 64;  // pages by which the file grows
}

Result<PageId> PagePool::take() {
  for (size_t i = 0; used_ == budget_ && i < holders_.size(); ++i) holders_[i].second();
  if (used_ == budget_)
    return Error{"memory", fmt::format("all {} pages of {} KiB for K/V rows are in use", budget_, page_bytes_ >> 10),
                 "give it more memory, use fewer sequences at once, or a smaller --kv-k/--kv-v type"};
  PageId p;
  if (free_.empty()) {
    p = PageId(refs_.size());
    refs_.push_back(0);
  } else {
    p = free_.back();
    free_.pop_back();
    kept_ = std::max<int64_t>(0, kept_ - 1);
  }
  if (auto ok = make(p); !ok) {
    free_.push_front(p);
    return ok.error();
  }
  refs_[size_t(p)] = 1;
  peak_ = std::max(peak_, ++used_);
  return p;
}

void PagePool::drop(PageId p) {
  CHECK(refs_[size_t(p)] > 0, "page {} has no reference", p);
  if (--refs_[size_t(p)] > 0) return;
  --used_;
  if ((kept_ + 1) * page_bytes_ <= kKeep) {
    free_.push_back(p);
    ++kept_;
  } else {
    give_up(p);
    free_.push_front(p);
  }
}

Result<std::unique_ptr<HostPagePool>> HostPagePool::create(int64_t budget, int64_t page_bytes) {
  const int fd = ::memfd_create("facet-kv", MFD_CLOEXEC);
  if (fd < 0)
    return Error{"memory", fmt::format("cannot make shared memory for K/V rows: {}", std::strerror(errno)),
                 "raise the limit of open files (ulimit -n)"};
  return std::unique_ptr<HostPagePool>(
      new HostPagePool(fd, page_bytes, std::max<int64_t>(1, (budget + page_bytes - 1) / page_bytes)));
}

HostPagePool::~HostPagePool() {
  for (const Range& r : ranges_) ::munmap(r.p, size_t(r.bytes));
  ::close(fd_);
}

Result<std::byte*> HostPagePool::reserve(int64_t bytes) {
  bytes = std::max<int64_t>(bytes, 1);
  void* p = ::mmap(nullptr, size_t(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED)
    return cannot_have("memory", "reserve", uint64_t(bytes),
                       "lower the context (-c), or raise the address-space limit (ulimit -v)");
  ranges_.push_back({static_cast<std::byte*>(p), bytes});
  return ranges_.back().p;
}

Status HostPagePool::map_pages(std::byte* at, std::span<const PageId> pages) {
  for (size_t i = 0; i < pages.size();) {
    size_t n = 1;  // neighbours in the file are one mapping
    while (i + n < pages.size() && pages[i + n] == pages[i] + PageId(n)) ++n;
    void* p = ::mmap(at + int64_t(i) * page_bytes(), n * size_t(page_bytes()), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_FIXED, fd_, off_t(pages[i]) * page_bytes());
    if (p == MAP_FAILED) {
      const int error = errno;
      unmap(at, int64_t(i));
      return Error{"memory", fmt::format("cannot map {} pages of K/V rows: {}", n, std::strerror(error)),
                   "raise vm.max_map_count (sysctl), or serve fewer sequences"};
    }
#ifdef MADV_POPULATE_WRITE
    // Present now rather than at the first touch inside a step; kernels before 5.14 answer EINVAL and fault later.
    if (::madvise(p, n * size_t(page_bytes()), MADV_POPULATE_WRITE) != 0 && errno == ENOMEM) {
      unmap(at, int64_t(i + n));
      return Error{"memory", fmt::format("no memory for {} pages of K/V rows", n),
                   "lower the context (-c), choose a smaller --kv-k/--kv-v type, or close other programs"};
    }
#endif
    i += n;
  }
  return Ok{};
}

void HostPagePool::unmap(std::byte* at, int64_t n_pages) {
  if (n_pages == 0) return;
  void* p = ::mmap(at, size_t(n_pages * page_bytes()), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  CHECK(p != MAP_FAILED, "unmapping {} pages: {}", n_pages, std::strerror(errno));
}

void HostPagePool::copy(std::byte* to, const std::byte* from, int64_t bytes) { std::memcpy(to, from, size_t(bytes)); }

std::unique_ptr<PagePool::CopyEngine> HostPagePool::copy_engine() {
  class Plain final : public CopyEngine {
   public:
    explicit Plain(std::chrono::microseconds delay) : delay_(delay) {}
    void to_host(std::byte* to, const std::byte* from, int64_t bytes) override { move(to, from, bytes); }
    void from_host(std::byte* to, const std::byte* from, int64_t bytes) override { move(to, from, bytes); }

   private:
    void move(std::byte* to, const std::byte* from, int64_t bytes) {
      if (delay_.count() > 0) std::this_thread::sleep_for(delay_);
      std::memcpy(to, from, size_t(bytes));
    }
    std::chrono::microseconds delay_;
  };
  return std::make_unique<Plain>(copy_delay_);
}

Status HostPagePool::make(PageId p) {
  if (p < made_) return Ok{};
  const int64_t pages = std::min(std::max<int64_t>(made_ + kGrow, p + 1), std::max<int64_t>(budget(), p + 1));
  if (::ftruncate(fd_, off_t(pages) * page_bytes()) != 0)
    return Error{"memory",
                 fmt::format("cannot grow shared memory to {} bytes: {}", pages * page_bytes(), std::strerror(errno)),
                 "raise the limit of file sizes (ulimit -f)"};
  made_ = pages;
  return Ok{};
}

// The memory goes back to the system; the page is a hole of zeros.
void HostPagePool::give_up(PageId p) {
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(p) * page_bytes(), page_bytes());
}

}  // namespace facet
