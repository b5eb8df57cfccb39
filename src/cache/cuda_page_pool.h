#pragma once
#include <memory>
#include <vector>

#include "backend/cuda/device.h"
#include "cache/page_pool.h"

namespace facet {

// Pages of a GPU's memory, by CUDA's virtual memory management (cuMemCreate, cuMemMap). The driver's functions are
// looked up when the first pool is made, so that the program starts without a driver. A page that was made is kept for
// the next that wants one.
class CudaPagePool final : public PagePool {
 public:
  static constexpr int64_t kPage = 2 << 20;  // the granularity of every GPU that is supported
  // Attention reads whole tiles of rows and masks what lies behind a sequence's end.
  static constexpr int64_t kReadBeyond = 256;
  // Copies to memory that is not page-locked go through buffers that are. One thread moves some 8 GB/s through its
  // buffer, a PCIe 5 link 50.
  static constexpr int kCopyEngines = 4;
  static constexpr int64_t kCopyEngineBytes = 8 << 20;
  // One takes 45 to 100 us, a step of a large model 5 ms and more.
  static constexpr int64_t kPagesAStep = 64;

  // budget: bytes. The device outlives the pool.
  static Result<std::unique_ptr<CudaPagePool>> create(cuda::Device& d, int64_t budget);
  ~CudaPagePool() override;

  Result<std::byte*> reserve(int64_t bytes) override;
  void unmap(std::byte* at, int64_t n_pages) override;
  void fresh(std::byte* at, int64_t bytes) override;
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override;
  void wait() override;
  std::unique_ptr<CopyEngine> copy_engine() override;
  Mark mark() override;
  int copy_engines() const override { return kCopyEngines; }
  int64_t copy_engine_bytes() const override { return kCopyEngineBytes; }
  int64_t pages_a_step() const override { return kPagesAStep; }
  int64_t left_beside_a_step() const override { return kPagesAStep; }  // the caller looks at the time
  // Rings of a few hundred MB: mapping them anew for every fork takes longer than a step.
  int64_t most_spare() const override { return budget() * kPage / 4; }
  // A fork takes the engine's thread about a millisecond.
  int worth_a_fork() const override { return 16; }
  int64_t rows_read_beyond() const override { return kReadBeyond; }
  void fill_random() { random_ = true; }  // benches: fresh pages hold random rows instead of zeros

 private:
  CudaPagePool(cuda::Device& d, int64_t budget) : PagePool(kPage, (budget + kPage - 1) / kPage), device_(d) {}
  Status map_pages(std::byte* at, std::span<const PageId> pages) override;
  Status make(PageId p) override;
  void give_up(PageId) override {}

  cuda::Device& device_;
  bool random_ = false;
  std::vector<unsigned long long> handle_;  // by page; 0: not made
  struct Range {
    std::byte* p;
    int64_t bytes;
  };
  std::vector<Range> ranges_;
};

}  // namespace facet
