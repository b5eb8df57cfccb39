#pragma once
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/layout.h"

namespace facet::cuda {

// The eight weights of row g + 8 * row that lane 4 g + t holds in columns 64 j + 32 h.. of a tile, and their columns:
// 32 h + 8 t + i, or tile_column for Q6_K.
__device__ __forceinline__ int tile_column(Tile tile, int j, int h, int t, int i) {
  return 64 * j + 32 * h + (tile == Tile::kQ6_K ? 16 * (i / 4) + 4 * t + i % 4 : 8 * t + i);
}
__device__ __forceinline__ void tile_values(float (&v)[8], Tile tile, const uint8_t* w, int lane, int row, int j, int h) {
  const int r = lane / 4 + 8 * row, e = 2 * h + row;
  auto word = [&](int at) { return *reinterpret_cast<const uint32_t*>(w + at); };
  auto nibble = [&](uint32_t x, int i) { return int((x >> (4 * (i / 2) + 16 * (i % 2))) & 15); };
  switch (tile) {
    case Tile::kQ4_K:
    case Tile::kQ5_K: {
      const uint32_t q = word(j * 512 + lane * 16 + e * 4), f = tile == Tile::kQ5_K ? word(2048 + lane * 16 + j * 4) : 0;
      const uint8_t* s = w + (tile == Tile::kQ5_K ? 2560 : 2048) + r * 16;
      const int sub = 2 * j + h;
      const uint32_t dm = *reinterpret_cast<const uint32_t*>(s);
      const float scale = half_at(dm, 0) * float(s[8 + sub] & 63);
      const float min = half_at(dm, 1) * float(((s[4 + sub % 4] >> (sub < 4 ? 0 : 4)) & 15) | (s[8 + sub] >> 6) << 4);
      for (int i = 0; i < 8; ++i) v[i] = scale * float(nibble(q, i) | int((f >> (8 * h + 4 * row + i / 2 + 16 * (i % 2))) & 1) << 4) - min;
      return;
    }
    case Tile::kQ6_K: {
      const uint32_t q = word(j * 512 + lane * 16 + e * 4), top = word(2048 + (j / 2) * 512 + lane * 16 + (j % 2) * 8 + row * 4);
      const float d = half_at(*reinterpret_cast<const uint16_t*>(w + 3328 + r * 2), 0);
      const int8_t* s = reinterpret_cast<const int8_t*>(w + 3072 + r * 16) + 4 * j + 2 * h;
      for (int i = 0; i < 8; ++i)
        v[i] = d * float(s[i / 4]) * float((nibble(q, i) | int((top >> (8 * h + 2 * (i / 2) + 16 * (i % 2))) & 3) << 4) - 32);
      return;
    }
    case Tile::kQ4_0:
    case Tile::kQ5_0: {
      const bool five = tile == Tile::kQ5_0;
      const uint32_t q = word(lane * 16 + e * 4), f = five ? word(512 + lane * 4) : 0;
      const float d = half_at(word((five ? 640 : 512) + r * 4), h);
      for (int i = 0; i < 8; ++i)
        v[i] = d * float((nibble(q, i) | int((f >> (8 * h + 4 * row + i / 2 + 16 * (i % 2))) & 1) << 4) - (five ? 16 : 8));
      return;
    }
    case Tile::kQ8_0: {
      const int8_t* q = reinterpret_cast<const int8_t*>(w + h * 512 + lane * 16 + row * 8);
      const float d = half_at(word(1024 + r * 4), h);
      for (int i = 0; i < 8; ++i) v[i] = d * float(q[i]);
      return;
    }
    case Tile::kBF16: {
      const __nv_bfloat16* q = reinterpret_cast<const __nv_bfloat16*>(w + h * 1024 + row * 512 + lane * 16);
      for (int i = 0; i < 8; ++i) v[i] = __bfloat162float(q[i]);
      return;
    }
    case Tile::kF16: {
      const __half* q = reinterpret_cast<const __half*>(w + h * 1024 + row * 512 + lane * 16);
      for (int i = 0; i < 8; ++i) v[i] = __half2float(q[i]);
      return;
    }
  }
}

}  // namespace facet::cuda
