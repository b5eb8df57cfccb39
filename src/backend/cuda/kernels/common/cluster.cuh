#pragma once
#include <cuda.h>

#include "backend/cuda/kernels/common/bulk.cuh"

// Clusters of blocks on sm_90, rings of stages, and copies of boxes of a matrix by tensor maps (tensor_map.h), to one
// block's shared memory or the same place of several. One thread calls, but for cluster_sync().
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
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t r;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// All threads of all blocks of the cluster.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Arrives at the barrier that lies at this place in the shared memory of block `rank`.
__device__ __forceinline__ void barrier_arrive_of(uint64_t* bar, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
}
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
// The same to the blocks of the cluster whose bits are set: to this place, and reported to their own barriers there.
__device__ __forceinline__ void tensor_load_to(void* shared, const CUtensorMap* map, int row, int col, uint64_t* bar,
                                               uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(bar)), "r"(col), "r"(row), "h"(blocks)
      : "memory");
}
#endif

}  // namespace facet::cuda
