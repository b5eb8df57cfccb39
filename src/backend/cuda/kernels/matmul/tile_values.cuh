#pragma once
#include "backend/cuda/kernels/matmul/tiles/all.cuh"

namespace facet::cuda {

// The eight weights of row g + 8 * row that lane 4 g + t holds in columns 64 j + 32 h.. of a tile, and their
// columns.
__device__ __forceinline__ int tile_column(Tile tile, int j, int h, int t, int i) {
  return 64 * j + 32 * h + (is_float(tile) ? 8 * t + i : 16 * (i / 4) + 4 * t + i % 4);
}
__device__ __forceinline__ void tile_values(float (&v)[8], Tile tile, const uint8_t* w, int lane, int row, int j,
                                            int h) {
  with_tile(tile, [&](auto kind) { TileTraits<decltype(kind)::value>::values(v, w, lane, row, j, h); });
}

}  // namespace facet::cuda
