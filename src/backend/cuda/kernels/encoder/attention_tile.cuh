#pragma once
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/encoder/encoder.h"

// What both kernels of encoder_attend do between their products: 16 queries of a warp and 64 keys, as mma.sync leaves
// them. Lane 4 g + t has rows g and g + 8, columns 2 t and 2 t + 1 of every eight.
namespace facet::cuda {

constexpr int kTile = 64;

// Keys of which `left` are there.
__device__ __forceinline__ void mask_tile(float (&p)[kTile / 8][4], int left, int t) {
  if (left >= kTile) return;
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (j * 8 + 2 * t + i % 2 >= left) p[j][i] = -INFINITY;
}

// p = exp(scale * (p - top)) of 16 queries; what was summed before is scaled to the new maxima.
template <int EP>
__device__ __forceinline__ void tile_softmax(float (&p)[kTile / 8][4], float (&top)[2], float (&sum)[2],
                                             float (&acc)[EP / 8][4], float to_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // rows g and g + 8
    float most = top[r];
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) most = fmaxf(most, fmaxf(p[j][2 * r], p[j][2 * r + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float rescale = exp2f((top[r] - most) * to_log2), base = most * to_log2;
    top[r] = most;
    float own = 0;
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) own += p[j][i] = exp2f(p[j][i] * to_log2 - base);
    sum[r] = sum[r] * rescale + own;
#pragma unroll
    for (int e = 0; e < EP / 8; ++e) acc[e][2 * r] *= rescale, acc[e][2 * r + 1] *= rescale;
  }
}

// o of 16 queries, row by row over their sums.
template <int EP>
__device__ __forceinline__ void write_rows(const Mat& o, const float (&acc)[EP / 8][4], const float (&sum)[2],
                                           int64_t begin, int row, int n, int at, int E) {
  const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float all = sum[r];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    const float inverse = 1.f / all;
    const int64_t at_row = begin + row + g + 8 * r;
    if (row + g + 8 * r >= n) continue;
#pragma unroll
    for (int e = 0; e < EP / 8; ++e) {
      const int c = e * 8 + 2 * t;
      if (c >= E) continue;
      const float2 y = {acc[e][2 * r] * inverse, acc[e][2 * r + 1] * inverse};
      if (o.p) *reinterpret_cast<float2*>(o.p + at_row * o.stride + at + c) = y;
      if (o.bf) *reinterpret_cast<uint32_t*>(o.bf + at_row * o.bf_stride + at + c) = pack_bf16(y.x, y.y);
    }
  }
}

}  // namespace facet::cuda
