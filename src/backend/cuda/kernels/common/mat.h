#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace facet::cuda {

// f32 activations [rows, cols] with a row stride in elements, and the same rounded to bf16 for tensor cores when a
// kernel is asked to write that too (bf == nullptr: not wanted; it has its own stride).
struct Mat {
  float* p = nullptr;
  int rows = 0, cols = 0;
  int64_t stride = 0;
  __nv_bfloat16* bf = nullptr;
  int64_t bf_stride = 0;
  uint8_t* image = nullptr;  // int8 activations of the rows (matmul/acts.cuh); kernels that write them say so
};

}  // namespace facet::cuda
