#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "base/result.h"

#define FACET_CUDA_CHECK(expr)                                                           \
  do {                                                                                   \
    const cudaError_t facet_error = (expr);                                              \
    CHECK(facet_error == cudaSuccess, "{}: {}", #expr, cudaGetErrorString(facet_error)); \
  } while (0)

namespace facet::cuda {

// GPUs with less, about 100 KB a block, take fewer warps, columns and rows.
constexpr int kMuchShared = 160 * 1024;

// A GPU's properties, by which launches and plans are sized. Host code that chooses a kernel or a launch reads it
// here and nowhere else.
//
// Tests: FACET_CUDA_LIMITS=86 in the environment imposes what an RTX 3090 has on whatever GPU there is, but for its
// number of multiprocessors and its memory: compute capability 8.6, 99 KB of shared memory a block and 100 KB a
// multiprocessor, no wgmma, bulk copies, PDL, clusters or cuBLASLt, prompts in int8. What device code chooses by
// __CUDA_ARCH__ (bulk copies, waits) follows the machine code, not this: for all of it the program has to be built with
// -DCMAKE_CUDA_ARCHITECTURES=86-virtual, which newer GPUs run through the driver's compiler.
struct DeviceInfo {
  int id = 0;
  std::string name, pci_bus_id;  // "00000000:1b:00.0"
  int major = 0, minor = 0;      // compute capability
  int n_sm = 0;                  // multiprocessors
  int shared = 0;                // bytes of shared memory a block may have
  int shared_sm = 0;   // bytes of shared memory of a multiprocessor; each block there takes 1,024 more than it asks for
  int window = 0;      // bytes of memory that a launch may have a policy for
  int64_t l2 = 0;      // bytes
  int64_t memory = 0;  // bytes, of all of it
  // What the GPU has and this program's machine code for it uses.
  bool bulk_copies = false;  // the copy engine of sm_90
  bool wgmma = false;        // warpgroup products; kernels with them may be missing all the same (has_warpgroups)
  bool pdl = false;          // a kernel may start while the one before it drains
  bool clusters = false;
  bool int8_prompts = false;  // int8 mma.sync is several times as fast as products in bf16: consumer cards
  bool gemm = false;          // products of many rows by gemm.cu, of experts from codes: Hopper
  bool cublaslt = false;  // without either other products of many rows go through the kernels for few: slow, and the
                          // same bits for a row as in a short step
};
// An error when there is no such GPU, or no machine code for it in this program. Any thread; what is current stays so.
Result<DeviceInfo> device_info(int id);

// One GPU for one backend: what it can do, a stream, memory, and what kernels have been set up on it. Several may exist
// in a process, also of one GPU. Only one thread at a time works with one.
//
// Kernel launches need the device to be current on their thread: make_current() tells CUDA, and keeps a pointer for the
// thread that launch code reads (device(), Device::current()). So launchers need no parameter for it, and hot paths pay
// a load. Code that begins work calls it: the constructor, an engine's tick, score and destructor. The pointer is one
// per thread and not a static, because engines on several GPUs run side by side, and the thread that ticks need not
// be the one that constructed.
class Device {
 public:
  explicit Device(int id, int64_t fail_at = -1);  // fail_at: the allocation of this number fails, for tests
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  void make_current();
  static Device& current() {
    CHECK(current_ != nullptr, "no GPU is current on this thread: make_current() comes first");
    return *current_;
  }
  static bool is_any_current() { return current_ != nullptr; }
  const DeviceInfo& info() const { return info_; }
  // Waits for nothing but its own work: other streams of the GPU, also the default one, are not ordered with it.
  cudaStream_t stream() const { return stream_; }

  // Null when there is no memory, or was none before: status() says what for. Nothing is allocated after a failure.
  void* allocate(size_t bytes, std::string_view what);
  void* pinned(size_t bytes, std::string_view what);  // of the host, page-locked; the caller frees it
  void release(void* p);                              // of allocate(); null: nothing
  // At least `bytes` at p. What is too small is freed first; its contents are lost. True when p is new memory.
  bool grow(void*& p, size_t bytes, std::string_view what);
  Status status() const { return failed_ ? Status(*failed_) : Status(Ok{}); }
  void fail(std::string_view what, size_t bytes);  // a library had no memory
  int64_t allocations() const { return n_allocated_; }

  // A kernel is told once how much shared memory it may ask for; the first number counts.
  void allow_shared(const void* kernel, size_t bytes);
  int registers(const void* kernel);  // of a thread
  // Tests and benches: kernels of older GPUs where newer ones could run.
  void use_wgmma(bool on) { info_.wgmma = on && has_wgmma_; }
  void use_gemm(bool on);  // gemm.cu in place of cuBLASLt; without what it needs neither

 private:
  struct Kernel {
    bool allowed = false;
    int registers = -1;
  };
  static constinit thread_local Device* current_;
  bool may_allocate(size_t bytes, std::string_view what);
  Error out_of_memory(std::string_view what, size_t bytes);

  DeviceInfo info_;
  bool has_wgmma_ = false;
  cudaStream_t stream_ = nullptr;
  std::map<void*, size_t> memory_;  // bytes by address
  std::optional<Error> failed_;
  int64_t fail_at_ = -1, n_asked_ = 0, n_allocated_ = 0;
  std::unordered_map<const void*, Kernel> kernels_;
};

// Device::grow of n elements.
template <class T>
bool grow(Device& device, T*& p, size_t n, std::string_view what = "scratch") {
  void* q = p;
  const bool is_new = device.grow(q, n * sizeof(T), what);
  p = static_cast<T*>(q);
  return is_new;
}

inline const DeviceInfo& device() { return Device::current().info(); }

}  // namespace facet::cuda
