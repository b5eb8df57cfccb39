#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backend/backend.h"

namespace facet::cuda {

// A product of many rows in bf16: y[t] = W x[t], or act(W0 x[t]) * (W1 x[t]). Everything is device memory.
struct GemmWork {
  const __nv_bfloat16* x = nullptr;  // [n_tok, n_in]
  int64_t x_stride = 0;              // elements, a multiple of 8
  int n_tok = 0;
  const __nv_bfloat16* w = nullptr;  // [n_out, n_in]; gated: as interleaved_row() has the rows of W0 and W1
  int n_out = 0, n_in = 0;
  bool gated = false;
  facet::Act act = facet::Act::kGelu;
  float* y = nullptr;             // [n_tok, n_out], if wanted
  float* y_also = nullptr;        // a second copy with the same stride, if wanted
  __nv_bfloat16* y_bf = nullptr;  // the same in bf16, if wanted
  int64_t y_stride = 0, y_bf_stride = 0;
};
// Where row r of W0 (which: 0) or W1 (1) lies among the rows of both: eight of either in turn, so that one thread has
// both sums.
constexpr int64_t interleaved_row(int64_t r, int which) { return r / 8 * 16 + which * 8 + r % 8; }
constexpr int64_t interleaved_rows(int64_t n_out) { return (n_out + 7) / 8 * 16; }

// For GPUs of which DeviceInfo::gemm says so, or may.
void gemm(cudaStream_t, const GemmWork&);

}  // namespace facet::cuda
