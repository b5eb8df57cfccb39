#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "backend/cuda/device.h"
#include "base/check.h"

namespace facet::cuda {

using bf16 = __nv_bfloat16;

// Programmatic dependent launch (PDL): kernels are launched so that the next one starts while this one drains.
//
// pdl_wait() waits for the end of the kernel before this one. Every kernel calls it before it reads or writes anything
// that an earlier kernel of the step touches, and at least one block calls it before the last block ends. Weights, the
// step's arrays and the cache rows of earlier steps may be read before it, because the copy of the arrays waits for
// everything; the step's tokens may not, because top_k may choose them. A kernel that needs nothing of the one before
// it may call pdl_wait() last, if the one before triggers after its own wait: the two then run side by side, and a
// kernel that waits for the second waits for both.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// pdl_trigger() lets the next kernel of the stream start; that kernel waits for this one's end in its own pdl_wait().
// If it is called before this kernel's pdl_wait(), several kernels are in flight at once. If it is called after it, all
// kernels before this one have ended when the next one starts. Products and norms call it after the wait, except those
// of small models (small_model.h): the weights that a third kernel prefetches would compete for bandwidth with what the
// first two are waiting for.
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// warm_icache() calls f(real): with real = true once the input has arrived; and before that with real = false, if
// kWarmIcache, so that the instruction cache holds f's code when the input arrives. The kernel would only wait in that
// time. f must neither read input nor write anything unless it is real. It is for steps of one row: with more rows,
// some blocks start after the wait of the first ones, and the loop costs registers. Before sm_90, where kernels do not
// overlap, f is called once.
template <bool kWarmIcache, class F>
__device__ __forceinline__ void warm_icache(F&& f) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kWarmIcache) {
#pragma unroll 1
    for (bool real = false;; real = true) {
      if (real) {
        pdl_wait();
        pdl_trigger();
      }
      f(real);
      if (real) return;
    }
  }
#endif
  pdl_wait();
  pdl_trigger();
  f(true);
}

// Memory that a kernel reads once a step, for kernels whose loads cannot carry an L2 hint of their own (as
// bulk_load_once does): the launch gets an access-policy window. bytes: at most device().window of them count.
struct ReadOnce {
  void* p = nullptr;
  int64_t bytes = 0;
};
// Launches kernel<<<grid, block, shared, stream>>>(args...) so that it may overlap the end of the kernel before it
// (PDL). All kernels ask for the largest shared-memory carveout: a kernel with another carveout would wait until a
// multiprocessor is empty.
template <class... Params, class... Args>
void launch_reading(ReadOnce once, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                    Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute[3] = {};
  attribute[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attribute[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  config.attrs = attribute;
  config.numAttrs = 1;
  if (device().pdl) {
    attribute[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (once.p && device().window > 0) {
    cudaAccessPolicyWindow w{};
    w.base_ptr = once.p, w.num_bytes = size_t(std::min<int64_t>(once.bytes, device().window));
    w.hitRatio = 1, w.hitProp = cudaAccessPropertyStreaming, w.missProp = cudaAccessPropertyNormal;
    attribute[config.numAttrs].id = cudaLaunchAttributeAccessPolicyWindow;
    attribute[config.numAttrs++].val.accessPolicyWindow = w;
  }
  FACET_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(args)...));
}
template <class... Params, class... Args>
void launch(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, Args&&... args) {
  launch_reading({}, kernel, grid, block, shared, stream, std::forward<Args>(args)...);
}

// Shared memory beyond 48 KB has to be asked for, once a kernel and device.
template <class... Params>
void allow_shared(void (*kernel)(Params...), size_t bytes) {
  if (bytes > 48 * 1024) Device::current().allow_shared(reinterpret_cast<const void*>(kernel), bytes);
}
// Whether a kernel with warpgroup products may run: the device has them, and the kernel a body in its machine code.
template <class... Params>
bool has_warpgroups(void (*kernel)(Params...)) {
  return device().wgmma && Device::current().registers(reinterpret_cast<const void*>(kernel)) > 64;
}

}  // namespace facet::cuda
