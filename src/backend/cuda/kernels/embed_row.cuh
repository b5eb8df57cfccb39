#pragma once
#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/tile_values.cuh"

// A row of an embedding table, and rows beside it, by all threads of a block; also four columns of a row.
namespace facet::cuda {

__device__ __forceinline__ void put_bf(__nv_bfloat16* p, float4 v) {
  *reinterpret_cast<uint2*>(p) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
}
__device__ __forceinline__ float4 get(const Mat& m, int t, int c) {
  return *reinterpret_cast<const float4*>(m.p + t * m.stride + c);
}
__device__ __forceinline__ void put(const Mat& m, int t, int c, float4 v) {
  if (m.p) *reinterpret_cast<float4*>(m.p + t * m.stride + c) = v;
  if (m.bf) put_bf(m.bf + t * m.bf_stride + c, v);
}

// x[t] = table[id] * scale_by. An item is eight columns: a lane's share of half a group.
__device__ __forceinline__ void embed_row(const Mat& x, const TiledMatrix& table, int t, int id, float scale_by) {
  const int row = id % kTileRows, cols = tile_cols(table.tile), n_item = table.n_tile() * cols / 8;
  const uint8_t* strip = table.strip(0, id / kTileRows);
  for (int i = int(threadIdx.x); i < n_item; i += int(blockDim.x)) {
    const int tile = i / (cols / 8), r = i % (cols / 8), j = r / 8, h = r / 4 % 2, lane_t = r % 4;
    if (tile * cols + 64 * j + 32 * h >= table.n_in) continue;
    float v[8];
    tile_values(v, table.tile, strip + int64_t(tile) * tile_bytes(table.tile), row % 8 * 4 + lane_t, row / 8, j, h);
    for (int k = 0; k < 8; k += 4) {
      const int c = tile * cols + tile_column(table.tile, j, h, lane_t, k);
      // The last half group may be wider than the row; behind it stands the next one.
      if (c < table.n_in)
        put(x, t, c, {v[k] * scale_by, v[k + 1] * scale_by, v[k + 2] * scale_by, v[k + 3] * scale_by});
    }
  }
}
// y[t][at + i] = x[t][i]
__device__ __forceinline__ void copy_row(const Mat& y, int at, const Mat& x, int t) {
  for (int c = int(threadIdx.x) * 4; c < x.cols; c += int(blockDim.x) * 4) put(y, t, at + c, get(x, t, c));
}

}  // namespace facet::cuda
