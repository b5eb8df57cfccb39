#pragma once
#include <cstdint>

#include "backend/cuda/kernels/common/barrier.cuh"

// The copy engine of sm_90 and later, one contiguous piece at a time; it reports to barriers, whose phases also wait
// for the bytes that arrivals announced. Addresses and sizes are multiples of 16 bytes. One thread calls.
namespace facet::cuda {

#if __CUDA_ARCH__ >= 900
// The thread that called barrier_init() calls this after it, before another thread uses the barriers.
__device__ __forceinline__ void barriers_publish() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t* bar, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void bulk_load(void* shared, const void* global, unsigned bytes, uint64_t* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(bar))
               : "memory");
}
// bulk_load() of data that is read once a step, such as weights: its lines are evicted from L2 before all others, so
// that a step's code and activations are still there when they are needed again.
__device__ __forceinline__ void bulk_load_once(void* shared, const void* global, unsigned bytes, uint64_t* bar) {
  asm volatile(
      "{\n.reg .b64 once;\ncreatepolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
      "once;\n}" ::"r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}
// The shared memory was written by this thread, or published to the copy engine before a barrier (publish_to_products).
__device__ __forceinline__ void bulk_store(void* global, const void* shared, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\ncp.async.bulk.commit_group;" ::"l"(global),
               "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
// Shared memory of this thread's stores may be written again.
__device__ __forceinline__ void bulk_stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void bulk_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
#endif

}  // namespace facet::cuda
