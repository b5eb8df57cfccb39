#pragma once
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"

namespace facet {

using PageId = int32_t;

// Physical memory in pages of one size, counted by reference, and the address ranges into which pages are mapped. One
// page may be mapped into several ranges: sequences share rows that way, and kernels see contiguous rows all the same
// (vAttention, arXiv 2405.04437).
//
// Who maps a page holds a reference to it. Nothing here is safe for several threads.
class PagePool {
 public:
  virtual ~PagePool() = default;
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int64_t page_bytes() const { return page_bytes_; }
  int64_t budget() const { return budget_; }  // pages that may be in use at once
  int64_t used() const { return used_ - spare_; }
  int64_t untaken() const { return budget_ - used_; }  // without those that lie spare
  int64_t peak() const { return peak_; }
  int refs(PageId p) const { return refs_[size_t(p)]; }

  // Address space, with nothing in it; it lasts as long as the pool.
  virtual Result<std::byte*> reserve(int64_t bytes) = 0;

  Result<PageId> take();  // one reference; fails when the budget is spent
  void share(PageId p) { ++refs_[size_t(p)]; }
  void drop(PageId p);

  // Pages that lie mapped where nothing is kept, for whoever comes next: they count as free, and whoever holds them
  // gives them back when they are short. Returns whether it gave any.
  using GiveBack = std::function<bool()>;
  void add_holder(const void* who, GiveBack give_back) { holders_.emplace_back(who, std::move(give_back)); }
  void remove_holder(const void* who) {
    std::erase_if(holders_, [&](const auto& h) { return h.first == who; });
  }
  bool may_spare(int64_t n) const { return (spare_ + n) * page_bytes_ <= most_spare(); }
  void add_spare(int64_t n) { spare_ += n; }

  // Maps pages one after another from `at` on. `unmap` takes whole mappings, after wait().
  Status map(std::byte* at, std::span<const PageId> pages) {
    mapped_ += int64_t(pages.size());
    return map_pages(at, pages);
  }
  virtual void unmap(std::byte* at, int64_t n_pages) = 0;
  // Pages were taken and mapped here: makes them zero, where they are not.
  virtual void fresh(std::byte*, int64_t) {}
  // In the order of the steps; `wait` until all that was given to the device before is done.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  virtual void wait() = 0;

  // For copies to the host's memory and back beside the steps (RowCopier): one copy engine a thread, made there. A mark
  // stands for all that was given to the device before; what a copy engine copies comes after its last mark. A copy is
  // done when the function returns.
  using Mark = std::shared_ptr<void>;
  class CopyEngine {
   public:
    virtual ~CopyEngine() = default;
    virtual void after(const Mark&) {}
    virtual void to_host(std::byte* to, const std::byte* from, int64_t bytes) = 0;
    virtual void from_host(std::byte* to, const std::byte* from, int64_t bytes) = 0;
  };
  virtual std::unique_ptr<CopyEngine> copy_engine() = 0;
  virtual Mark mark() { return {}; }
  virtual int copy_engines() const { return 1; }                 // threads that are worth it
  virtual int64_t copy_engine_bytes() const { return 4 << 20; }  // of one copy at most
  // Pages that are made and mapped between two steps without anybody noticing; how many of them are left; a step ran:
  // returns those that were mapped since the last.
  virtual int64_t pages_a_step() const { return 16; }
  int64_t left_a_step() const { return std::max<int64_t>(0, pages_a_step() - mapped_); }
  int64_t next_step() { return std::exchange(mapped_, 0); }
  // Those that may be mapped while a step computes. The host's are mapped when it has: they count as all others.
  virtual int64_t left_beside_a_step() const { return left_a_step(); }
  // Bytes that may lie mapped where nothing is kept.
  virtual int64_t most_spare() const { return kKeep; }
  // Tokens of a prompt that take longer than the fork of a sequence.
  virtual int worth_a_fork() const { return 1; }
  // Bytes beyond a sequence's rows that kernels may read, whatever is there.
  virtual int64_t rows_read_beyond() const { return 0; }

  // Of the caches beside the first (KvCache::mirror).
  PagePool* mirrored() const { return mirror_.get(); }
  void mirror(std::unique_ptr<PagePool> other) {
    if (mirror_)
      mirror_->mirror(std::move(other));
    else
      mirror_ = std::move(other);
  }

 protected:
  PagePool(int64_t page_bytes, int64_t budget) : page_bytes_(page_bytes), budget_(budget) {}
  virtual Status map_pages(std::byte* at, std::span<const PageId> pages) = 0;
  virtual Status make(PageId p) = 0;          // p was never made, or was given up
  virtual void give_up(PageId p) = 0;         // its memory goes back to the system
  static constexpr int64_t kKeep = 64 << 20;  // bytes of free pages that keep their memory, for whoever comes next

 private:
  int64_t page_bytes_, budget_;
  int64_t used_ = 0, peak_ = 0, spare_ = 0;
  int64_t mapped_ = 0;  // since next_step()
  std::vector<std::pair<const void*, GiveBack>> holders_;
  std::vector<int> refs_;
  std::deque<PageId> free_;  // behind those that were given up, `kept_` that still have their memory
  int64_t kept_ = 0;
  std::unique_ptr<PagePool> mirror_;
};

// Pages of anonymous shared memory (memfd_create), mapped with mmap.
class HostPagePool final : public PagePool {
 public:
  // budget: bytes that pages may take together. page_bytes: a power of two, at least the system's.
  static Result<std::unique_ptr<HostPagePool>> create(int64_t budget, int64_t page_bytes);
  ~HostPagePool() override;

  Result<std::byte*> reserve(int64_t bytes) override;
  void unmap(std::byte* at, int64_t n_pages) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void wait() override {}
  std::unique_ptr<CopyEngine> copy_engine() override;
  // Tests: every copy beside the steps takes at least so long.
  void slow_copies(std::chrono::microseconds t) { copy_delay_ = t; }

 private:
  HostPagePool(int fd, int64_t page_bytes, int64_t budget) : PagePool(page_bytes, budget), fd_(fd) {}
  Status map_pages(std::byte* at, std::span<const PageId> pages) override;
  Status make(PageId p) override;
  void give_up(PageId p) override;

  int fd_;
  int64_t made_ = 0;  // pages in the file
  std::chrono::microseconds copy_delay_{0};
  struct Range {
    std::byte* p;
    int64_t bytes;
  };
  std::vector<Range> ranges_;
};

}  // namespace facet
