#pragma once
#include <cuda.h>

#include "backend/cuda/kernels/common/bulk.cuh"

// Copies of boxes of a matrix to shared memory by tensor maps (tensor_map.h), on sm_90, by one thread; and rings of
// stages that they fill. Copies to several blocks of a cluster at once (multicast) are slower there, not faster.
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

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void tensor_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// The box whose first element is in this row and column; it reports its bytes to bar.
__device__ __forceinline__ void tensor_load(void* shared, const CUtensorMap* map, int row, int col, uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(
          shared_address(shared)),
      "l"(map), "r"(shared_address(bar)), "r"(col), "r"(row)
      : "memory");
}
// Of an array of matrices.
__device__ __forceinline__ void tensor_load(void* shared, const CUtensorMap* map, int matrix, int row, int col,
                                            uint64_t* bar) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(bar)), "r"(col), "r"(row), "r"(matrix)
      : "memory");
}
#endif

}  // namespace facet::cuda
