#pragma once
#include <cstdint>

#include "backend/cuda/kernels/common/register_hold.cuh"

// Barriers in shared memory: threads arrive without waiting, and wait for others without arriving. From sm_80 on. A
// barrier completes a phase when all of its arrivals have come; phases alternate, the first is 0.
namespace facet::cuda {

// at: shared_address of 8 bytes. One thread calls barrier_init(); the others use the barrier after a __syncthreads().
__device__ __forceinline__ void barrier_init(uint32_t at, unsigned arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t at) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(at) : "memory");
}
// Arrives when the copies that this thread has asked for (copy16_async) are there.
__device__ __forceinline__ void barrier_arrive_with_copies(uint32_t at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
}
// Whether the phase is complete.
__device__ __forceinline__ bool barrier_test(uint32_t at, uint32_t phase) {
  uint32_t done;
  asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(at), "r"(phase)
               : "memory");
  return done;
}
__device__ __forceinline__ void barrier_wait(uint32_t at, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra "
      "again;\ndone:\n}" ::"r"(at),
      "r"(phase)
      : "memory");
#else
  while (!barrier_test(at, phase)) {
  }
#endif
}

__device__ __forceinline__ void barrier_init(uint64_t* bar, unsigned arrivals) {
  barrier_init(shared_address(bar), arrivals);
}
__device__ __forceinline__ void barrier_arrive(uint64_t* bar) { barrier_arrive(shared_address(bar)); }
__device__ __forceinline__ void barrier_arrive_with_copies(uint64_t* bar) {
  barrier_arrive_with_copies(shared_address(bar));
}
__device__ __forceinline__ void barrier_wait(uint64_t* bar, uint32_t phase) {
  barrier_wait(shared_address(bar), phase);
}

}  // namespace facet::cuda
