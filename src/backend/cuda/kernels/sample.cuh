#pragma once
#include <cstdint>

#include "backend/cuda/kernels/sample.h"

// Shared by draw and top_k: a logit and its token as one number, and the signal to the host that results are written.
namespace facet::cuda {

// Larger for larger logits, and among equal ones for lower ids.
__device__ __forceinline__ uint64_t key_of(float v, int id) {
  const uint32_t b = __float_as_uint(v + 0.f);  // -0 is 0
  const uint32_t ordered = b & 0x80000000u ? ~b : b | 0x80000000u;
  return uint64_t(ordered) << 32 | uint32_t(~id);
}
__device__ __forceinline__ float logit_of(uint64_t key) {
  const uint32_t o = uint32_t(key >> 32);
  return __uint_as_float(o & 0x80000000u ? o & 0x7FFFFFFFu : ~o);
}
__device__ __forceinline__ int id_of(uint64_t key) { return int(~uint32_t(key)); }
constexpr uint64_t kNone = 0;  // below every key

// Called when a row's results are written: the last row signals the host.
__device__ __forceinline__ void tell(const Done& d) {
  if (!d.flag) return;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x > 0) return;
  if (gridDim.x > 1) {
    if (atomicAdd(d.n_row, 1u) + 1 < gridDim.x) return;
    *d.n_row = 0;
    __threadfence_system();
  }
  *reinterpret_cast<volatile uint32_t*>(d.flag) = d.number;
}

}  // namespace facet::cuda
