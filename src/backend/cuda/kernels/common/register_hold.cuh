#pragma once
#include <cstdint>

// Values that the compiler has to keep in registers.
namespace facet::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
// The shuffle holds v in a register from here on; all lanes of the warp call it. Otherwise the compiler computes v
// where it is used: behind a wait that could have hidden the latency, or again and again (an address of shared memory
// takes a special register that is slow to read).
__device__ __forceinline__ uint32_t hold_in_register(uint32_t v) { return __shfl_sync(~0u, v, int(threadIdx.x) % 32); }
// The same for a pointer into shared memory.
template <class T>
__device__ __forceinline__ T* hold_shared(T* p) {
  return static_cast<T*>(__cvta_shared_to_generic(hold_in_register(shared_address(p))));
}

}  // namespace facet::cuda
