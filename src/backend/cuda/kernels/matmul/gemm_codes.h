#pragma once
#include <cuda.h>

#include <span>

#include "backend/cuda/kernels/matmul/gemm.h"
#include "backend/cuda/kernels/matmul/layout.h"

namespace facet::cuda {

// A product of many rows straight from codes: of W, or of gate and up, which are of one type and size. w and gated of
// `to` are not looked at.
struct CodesProduct {
  GemmWork to;
  TiledMatrix w;
  const TiledMatrix* up = nullptr;
};
// Products of the same x, side by side; room: gemm_codes_room() bytes of device memory. For GPUs of which
// DeviceInfo::gemm says so.
void gemm_codes(cudaStream_t, std::span<const CodesProduct>, void* room);
int64_t gemm_codes_room(int n_sm, int64_t n_tok, int64_t n_in);

// --- the kernel of gemm_codes.cu
constexpr int kPartTok = 256, kPartHigh = kPartTok / 32;  // rows of a launch whose columns are shared out
constexpr int kPartBytes = kPartTok * 128 * 4;            // partial sums of a part of a block of outputs

struct GemmCodesArgs {
  static constexpr bool times = false;  // put_results.cuh
  CUtensorMap x;                        // rows in f16
  const float* unit;                    // of rows: what their sums are multiplied by
  const uint8_t* w[2];                  // strips of W, or of gate and up
  int64_t strip_bytes;
  int n_strip, n_block;  // strips, blocks of 64 columns
  int n_tok, n_out;
  int tok, n_high, n_wide;  // rows of a block: 32 to 256; blocks of rows; blocks of outputs
  int n_part;               // columns are shared out to so many blocks
  float4* partial;          // [part][block of outputs][8 rows of kPartTok][thread]: sums, if n_part > 1
  unsigned* counter;        // [block of outputs][kPartHigh] of parts that are there, zeros
  bool late, more;          // side by side: needs nothing of the kernel before, and a late one follows
  bool wide;                // outputs: for four at once
  facet::Act act;
  float *y, *y_also;
  __nv_bfloat16* y_bf;
  int64_t y_stride, y_bf_stride;
};
template <Tile kTile>
void launch_gemm_codes(cudaStream_t, const GemmCodesArgs&, bool gated);

}  // namespace facet::cuda
