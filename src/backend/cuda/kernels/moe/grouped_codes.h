#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backend/backend.h"
#include "backend/cuda/kernels/matmul/layout.h"

namespace facet::cuda {

struct CodesArgs {
  const uint8_t* w[2];  // strips of gate and up, or of down twice
  int64_t matrix_bytes[2], strip_bytes;
  const __nv_bfloat16* in;
  __nv_bfloat16* out;
  const int4* tile;           // of N tiles: expert, first row, width
  const int32_t* tile_first;  // of experts
  unsigned* next;
  int n_expert, n_strip;
  int n_m, n_block;  // M tiles, blocks of 64 columns of the inner dimension
  int n_out_block;   // blocks of 64 columns of the output
  facet::Act act;
};
template <Tile kTile>
void launch_grouped_codes(cudaStream_t, const CodesArgs&, int items, bool up);

}  // namespace facet::cuda
