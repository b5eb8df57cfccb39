#pragma once
#include <cstdint>

// Values that are to be in registers when they are wanted.
namespace facet::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
// v in a register from here on, by all lanes: otherwise the compiler finds it where it is used, after a wait that it
// could have been found before, or again and again (addresses of shared memory take a special register that takes long
// to read).
__device__ __forceinline__ uint32_t hold_in_register(uint32_t v) { return __shfl_sync(~0u, v, int(threadIdx.x) % 32); }
// p is in shared memory.
template <class T>
__device__ __forceinline__ T* hold_shared(T* p) {
  return static_cast<T*>(__cvta_shared_to_generic(hold_in_register(shared_address(p))));
}

}  // namespace facet::cuda
