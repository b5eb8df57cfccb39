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

// Every kernel calls this before it reads or writes anything that an earlier kernel of the step touches (weights, the
// step's arrays and cache rows of earlier steps may be read before: the copy of the arrays waits for everything; not
// its tokens, which top_k may choose), and some block before the last one ends. A kernel that needs nothing of the one
// before it may call it last, if that one lets it start after its own wait: the two run side by side, and whoever waits
// for the second waits for both. Kernels are launched so that the next one starts while this one drains.
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel of the stream may start (it waits for this one's end in pdl_wait). Called before this
// kernel's own wait, several kernels are under way at once; called after it, the next one finds everything before this
// kernel ended. Products and norms that are not narrow (small_model.h) call it after: weights that a third kernel fetches
// come in the way of what two wait for.
__device__ __forceinline__ void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Calls f(real): with real once the input is there, and before that, if kWarmIcache, without: the instruction cache is
// warm then, which costs nothing while the kernel would only wait. f reads no input and writes nothing unless it is
// real. For steps of one row: with more, blocks of others start when nobody waits any more, and it takes registers. Nor
// where kernels do not overlap.
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

// Memory that a kernel reads once a step (bulk_load_once), where its loads cannot say so themselves.
struct ReadOnce {
  void* p = nullptr;
  int64_t bytes = 0;
};
// Launches kernel<<<grid, block, shared, stream>>>(args...) so that it may overlap the end of the one before it. All
// kernels ask for the most shared memory: those that want other splits of it and the L1 wait until a multiprocessor is
// empty.
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
