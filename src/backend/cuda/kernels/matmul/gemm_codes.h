#pragma once
#include <cuda.h>

#include "backend/cuda/kernels/matmul/gemm.h"
#include "backend/cuda/kernels/matmul/layout.h"

namespace facet::cuda {

struct GemmCodesArgs {
  CUtensorMap x;
  const uint8_t* w[2];  // strips of W, or of gate and up
  int64_t strip_bytes;
  int n_strip, n_block;  // strips, blocks of 64 columns
  int n_tok, n_out;
  int tok, n_high, n_wide;  // rows of a block: 64 to 256; blocks of rows; pairs of blocks of outputs
  bool aligned;             // outputs: for four at once
  bool times;               // y has the activation's input: results are its activation times them
  facet::Act act;
  float *y, *y_also;
  __nv_bfloat16* y_bf;
  int64_t y_stride, y_bf_stride;
};
template <Tile kTile>
void launch_gemm_codes(cudaStream_t, const GemmCodesArgs&, bool gated);

}  // namespace facet::cuda
