#pragma once
#include <cstdint>

#include "backend/cuda/kernels/moe/panel_rows.h"

namespace facet::cuda {

// Where 16 bytes of a row are in a panel of activations (moe.h): chunk c (eight columns) of row `row` of an N tile.
__device__ __forceinline__ int64_t chunk_at(int4 tile, int row, int n_block, int c) {
  return (int64_t(tile.y) * n_block + c / 8 * tile.z + row) * 64 + ((c % 8) ^ (row % 8)) * 8;
}

}  // namespace facet::cuda
