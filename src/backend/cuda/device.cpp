#include "backend/cuda/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/kernels/probe.h"
#include "backend/cuda/tensor_map.h"

namespace facet::cuda {

constinit thread_local Device* Device::current_ = nullptr;

namespace {

// 8.6, 8.9 and 12.x: tensor cores there have a fourth of the rate in bf16 with f32 sums, and memory is scarce.
bool is_consumer(int major, int minor) { return (major == 8 && minor > 0) || major == 12; }

// code: warpgroup products are in the machine code.
bool may_gemm(const DeviceInfo& d, bool code) { return d.wgmma && code && has_tensor_maps(); }

// What FACET_CUDA_LIMITS imposes (device.h).
Status impose_limits(DeviceInfo& d) {
  const char* limits = std::getenv("FACET_CUDA_LIMITS");
  if (!limits || !*limits) return Ok{};
  if (std::string_view(limits) != "86")
    return Error{"FACET_CUDA_LIMITS", fmt::format("expected 86, found {:.20}", limits), "unset it outside of tests"};
  d.major = 8, d.minor = 6;
  d.shared = std::min(d.shared, 99 * 1024), d.shared_sm = std::min(d.shared_sm, 100 * 1024);
  d.bulk_copies = d.wgmma = d.pdl = d.clusters = d.gemm = d.cublaslt = false;
  d.int8_prompts = true;
  return Ok{};
}
// What products of many rows are by. cuBLASLt is not opened for Hopper's.
void choose_products(DeviceInfo& d, bool gemm) {
  d.gemm = gemm, d.cublaslt = !gemm && has_cublas_lt();
  d.int8_prompts = is_consumer(d.major, d.minor) || !(d.gemm || d.cublaslt);
}

}  // namespace

Result<DeviceInfo> device_info(int id) {
  auto failed = [&](cudaError_t e) {
    cudaGetLastError();
    return Error{fmt::format("GPU {}", id), fmt::format("cannot be used: {}", cudaGetErrorString(e)),
                 "nvidia-smi lists the GPUs; or use --backend cpu"};
  };
  int before = -1;
  if (cudaGetDevice(&before) != cudaSuccess) before = -1;
  cudaDeviceProp p;
  if (const cudaError_t e = cudaGetDeviceProperties(&p, id); e != cudaSuccess) return failed(e);
  if (const cudaError_t e = cudaSetDevice(id); e != cudaSuccess) return failed(e);
  const int code = code_version();
  const bool warpgroup_code = has_warpgroup_code();
  if (before != id && Device::is_any_current()) cudaSetDevice(before);
  if (code == 0)
    return Error{
        fmt::format("GPU {}", id),
        fmt::format("{}: this program has no machine code for compute capability {}.{}", p.name, p.major, p.minor),
        fmt::format("build it with -DCMAKE_CUDA_ARCHITECTURES={}{}, or use --backend cpu", p.major, p.minor)};
  const bool hopper_code = p.major >= 9 && code >= 90;
  DeviceInfo d{.id = id,
               .name = p.name,
               .pci_bus_id = fmt::format("{:08x}:{:02x}:{:02x}.0", p.pciDomainID, p.pciBusID, p.pciDeviceID),
               .major = p.major,
               .minor = p.minor,
               .n_sm = p.multiProcessorCount,
               .shared = int(p.sharedMemPerBlockOptin),
               .shared_sm = int(p.sharedMemPerMultiprocessor),
               .window = p.accessPolicyMaxWindowSize,
               .l2 = p.l2CacheSize,
               .memory = int64_t(p.totalGlobalMem),
               .bulk_copies = hopper_code,
               .wgmma = hopper_code && p.major == 9,
               .pdl = hopper_code,
               .clusters = hopper_code};
  choose_products(d, may_gemm(d, warpgroup_code));
  if (auto ok = impose_limits(d); !ok) return ok.error();
  return d;
}

Device::Device(int id, int64_t fail_at) : fail_at_(fail_at) {
  auto info = device_info(id);
  CHECK(bool(info), "{}", info.error().message());
  info_ = std::move(*info);
  has_wgmma_ = info_.wgmma;
  make_current();
  FACET_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

Device::~Device() {
  cudaSetDevice(info_.id);
  cudaStreamSynchronize(stream_);
  for (const auto& [p, bytes] : memory_) cudaFree(p);
  cudaStreamDestroy(stream_);
  if (current_ == this) current_ = nullptr;
}

void Device::use_gemm(bool on) { choose_products(info_, on && may_gemm(info_, has_warpgroup_code())); }

void Device::make_current() {
  FACET_CUDA_CHECK(cudaSetDevice(info_.id));
  current_ = this;
}

Error Device::out_of_memory(std::string_view what, size_t bytes) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  constexpr double kMiB = 1 << 20;
  return {fmt::format("GPU {}", info_.id),
          fmt::format("{}: expected {:.1f} MiB of free memory, found {:.1f} of {:.1f} MiB", what, double(bytes) / kMiB,
                      double(free) / kMiB, double(total) / kMiB),
          "use a smaller -c, --kv-k q8_0 --kv-v q8_0 or a smaller model, or end other programs on this GPU (nvidia-smi "
          "lists them)"};
}
void Device::fail(std::string_view what, size_t bytes) {
  if (!failed_) failed_ = out_of_memory(what, bytes);
}
bool Device::may_allocate(size_t bytes, std::string_view what) {
  if (n_asked_++ == fail_at_) fail(what, bytes);
  return !failed_;
}
void* Device::allocate(size_t bytes, std::string_view what) {
  if (!may_allocate(bytes, what)) return nullptr;
  void* p = nullptr;
  if (const cudaError_t e = cudaMalloc(&p, std::max<size_t>(bytes, 16)); e == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is not the device that failed
    fail(what, bytes);
    return nullptr;
  } else {
    FACET_CUDA_CHECK(e);
  }
  memory_.emplace(p, bytes);
  ++n_allocated_;
  return p;
}
void* Device::pinned(size_t bytes, std::string_view what) {
  if (!may_allocate(bytes, what)) return nullptr;
  void* p = nullptr;
  if (const cudaError_t e = cudaMallocHost(&p, bytes); e != cudaSuccess) {
    cudaGetLastError();
    failed_ =
        Error{"memory",
              fmt::format("{}: {} bytes that a GPU can reach cannot be had: {}", what, bytes, cudaGetErrorString(e)),
              "end other programs, or raise the limit of locked memory (ulimit -l)"};
    return nullptr;
  }
  return p;
}
void Device::release(void* p) {
  if (!p) return;
  CHECK(memory_.erase(p) == 1, "memory of another GPU, or freed before: {}", p);
  FACET_CUDA_CHECK(cudaFree(p));
}
bool Device::grow(void*& p, size_t bytes, std::string_view what) {
  if (const auto at = memory_.find(p); at != memory_.end() && at->second >= bytes) return false;
  release(p);
  p = allocate(bytes, what);
  return p != nullptr;
}

void Device::allow_shared(const void* kernel, size_t bytes) {
  Kernel& k = kernels_[kernel];
  if (k.allowed) return;
  FACET_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
  k.allowed = true;
}
int Device::registers(const void* kernel) {
  Kernel& k = kernels_[kernel];
  if (k.registers < 0) {
    cudaFuncAttributes a{};
    FACET_CUDA_CHECK(cudaFuncGetAttributes(&a, kernel));
    k.registers = a.numRegs;
  }
  return k.registers;
}

}  // namespace facet::cuda
