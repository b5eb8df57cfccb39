#pragma once
#include <cstdint>

namespace facet::cuda {

// Where a ring of stages is: both sides count alike.
struct RingPosition {
  int stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void advance(int n_stage) {
    if (++stage == n_stage) stage = 0, phase ^= 1;
  }
};

// kCount threads of the block, whole warps, meet; id: 1 to 15, 0 is __syncthreads()'s.
template <int kCount>
__device__ __forceinline__ void sync_some(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kCount) : "memory");
}

}  // namespace facet::cuda
