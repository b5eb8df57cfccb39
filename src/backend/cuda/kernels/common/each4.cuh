#pragma once
#include <algorithm>
#include <cstdint>

#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {

// Element-wise verbs: f(t, c) for four columns from c of row t, a thread each.
template <class F>
__global__ void each4_kernel(int rows, int cols, F f) {
  pdl_wait();
  pdl_trigger();
  const int per_row = cols / 4;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < int64_t(rows) * per_row;
       i += int64_t(gridDim.x) * blockDim.x)
    f(int(i / per_row), int(i % per_row) * 4);
}
template <class F>
void each4(cudaStream_t stream, int rows, int cols, F f) {
  CHECK(cols % 4 == 0, "{} columns", cols);
  const int64_t n = int64_t(rows) * cols / 4;
  if (n == 0) return;
  launch(each4_kernel<F>, dim3(unsigned(std::min<int64_t>((n + 255) / 256, 4096))), dim3(256), 0, stream, rows, cols,
         f);
}

}  // namespace facet::cuda
