#include "cache/cuda_page_pool.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/kernels/probe.h"

namespace facet {
namespace {

// Of the driver, by cudaGetDriverEntryPointByVersion.
struct Driver {
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) free = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  bool found = true;
};

const Driver& driver() {
  static const Driver d = [] {
    Driver x;
    auto find = [&](const char* name, auto& f) {
      void* p = nullptr;
      cudaDriverEntryPointQueryResult how{};
      const bool ok = cudaGetDriverEntryPointByVersion(name, &p, 12000, cudaEnableDefault, &how) == cudaSuccess &&
                      how == cudaDriverEntryPointSuccess && p;
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(p);
      x.found = x.found && ok;
    };
    find("cuMemAddressReserve", x.reserve), find("cuMemAddressFree", x.free), find("cuMemCreate", x.create);
    find("cuMemRelease", x.release), find("cuMemMap", x.map), find("cuMemUnmap", x.unmap);
    find("cuMemSetAccess", x.set_access);
    return x;
  }();
  return d;
}

CUdeviceptr at(const std::byte* p) { return reinterpret_cast<CUdeviceptr>(p); }

void must(CUresult r, const char* what) { CHECK(r == CUDA_SUCCESS, "{}: error {} of the driver", what, int(r)); }

}  // namespace

Result<std::unique_ptr<CudaPagePool>> CudaPagePool::create(cuda::Device& d, int64_t budget) {
  if (!driver().found)
    return Error{"the GPU's driver", "expected cuMemCreate and cuMemMap, found none", "use driver 525 or newer"};
  return std::unique_ptr<CudaPagePool>(new CudaPagePool(d, std::max<int64_t>(budget, 1)));
}

CudaPagePool::~CudaPagePool() {
  device_.make_current();
  wait();
  for (const unsigned long long h : handle_)
    if (h) driver().release(h);
  for (const Range& r : ranges_) driver().free(at(r.p), size_t(r.bytes));
}

Result<std::byte*> CudaPagePool::reserve(int64_t bytes) {
  bytes = std::max<int64_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  CUdeviceptr p = 0;
  if (driver().reserve(&p, size_t(bytes), size_t(kPage), 0, 0) != CUDA_SUCCESS)
    return Error{"memory", fmt::format("cannot reserve {} bytes of the GPU's address space", bytes),
                 "lower the context (-c) or the number of sequences (--parallel)"};
  ranges_.push_back({reinterpret_cast<std::byte*>(p), bytes});
  return ranges_.back().p;
}

Status CudaPagePool::make(PageId p) {
  device_.make_current();
  if (size_t(p) >= handle_.size()) handle_.resize(size_t(p) + 1);
  unsigned long long& h = handle_[size_t(p)];
  if (h) return Ok{};
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_.info().id};
  if (driver().create(&h, size_t(kPage), &prop, 0) == CUDA_SUCCESS) return Ok{};
  h = 0;
  return Error{"memory", "the GPU has no memory for another page of K/V rows",
               "close what else uses the GPU, or plan with less (--memory)"};
}

Status CudaPagePool::map_pages(std::byte* to, std::span<const PageId> pages) {
  if (pages.empty()) return Ok{};
  for (size_t i = 0; i < pages.size(); ++i)
    if (driver().map(at(to) + i * size_t(kPage), size_t(kPage), 0, handle_[size_t(pages[i])], 0) != CUDA_SUCCESS) {
      unmap(to, int64_t(i));
      return Error{"memory", fmt::format("the driver cannot map {} pages", pages.size()), "use a newer driver"};
    }
  CUmemAccessDesc access{};
  access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device_.info().id};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (driver().set_access(at(to), pages.size() * size_t(kPage), &access, 1) == CUDA_SUCCESS) return Ok{};
  unmap(to, int64_t(pages.size()));
  return Error{"memory", fmt::format("the driver gives no access to {} pages", pages.size()), "use a newer driver"};
}

void CudaPagePool::unmap(std::byte* p, int64_t n_pages) {
  if (n_pages > 0) must(driver().unmap(at(p), size_t(n_pages * kPage)), "cuMemUnmap");
}

void CudaPagePool::fresh(std::byte* p, int64_t bytes) {
  device_.make_current();
  if (random_)
    cuda::fill_random_rows(device_.stream(), p, bytes, 7);
  else
    FACET_CUDA_CHECK(cudaMemsetAsync(p, 0, size_t(bytes), device_.stream()));
}
void CudaPagePool::copy(std::byte* to, const std::byte* from, int64_t bytes) {
  device_.make_current();
  FACET_CUDA_CHECK(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, device_.stream()));
}
PagePool::Mark CudaPagePool::mark() {
  device_.make_current();
  cudaEvent_t event{};
  FACET_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  FACET_CUDA_CHECK(cudaEventRecord(event, device_.stream()));
  return Mark(event, [](void* e) { cudaEventDestroy(static_cast<cudaEvent_t>(e)); });
}

std::unique_ptr<PagePool::CopyEngine> CudaPagePool::copy_engine() {
  class OverStream final : public CopyEngine {
   public:
    explicit OverStream(int device) : device_(device) {
      FACET_CUDA_CHECK(cudaSetDevice(device));
      FACET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
      if (cudaMallocHost(&locked_, size_t(kCopyEngineBytes)) != cudaSuccess) {  // slower without
        cudaGetLastError();
        locked_ = nullptr;
      }
    }
    ~OverStream() override {
      cudaSetDevice(device_);
      cudaFreeHost(locked_);
      cudaStreamDestroy(stream_);
    }
    void after(const Mark& mark) override {
      FACET_CUDA_CHECK(cudaSetDevice(device_));
      if (mark != after_) FACET_CUDA_CHECK(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(mark.get())));
      after_ = mark;
    }
    void to_host(std::byte* to, const std::byte* from, int64_t bytes) override {
      move(locked_ ? locked_ : to, from, bytes, cudaMemcpyDeviceToHost);
      if (locked_) std::memcpy(to, locked_, size_t(bytes));
    }
    void from_host(std::byte* to, const std::byte* from, int64_t bytes) override {
      if (locked_) std::memcpy(locked_, from, size_t(bytes));
      move(to, locked_ ? locked_ : from, bytes, cudaMemcpyHostToDevice);
    }

   private:
    void move(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
      FACET_CUDA_CHECK(cudaMemcpyAsync(to, from, size_t(bytes), kind, stream_));
      FACET_CUDA_CHECK(cudaStreamSynchronize(stream_));
    }
    int device_;
    cudaStream_t stream_{};
    void* locked_ = nullptr;
    Mark after_;
  };
  return std::make_unique<OverStream>(device_.info().id);
}

void CudaPagePool::wait() { FACET_CUDA_CHECK(cudaStreamSynchronize(device_.stream())); }

}  // namespace facet
