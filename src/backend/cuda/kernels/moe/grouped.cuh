#pragma once
#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/bulk.cuh"
#include "backend/cuda/kernels/common/tensor_load.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

// What the kernels of grouped products share.
namespace facet::cuda {

#if defined(FACET_WGMMA)
// Four 8 x 8 matrices from registers, transposed; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_transposed4(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_transposed2(uint32_t at, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
}
#endif

}  // namespace facet::cuda
