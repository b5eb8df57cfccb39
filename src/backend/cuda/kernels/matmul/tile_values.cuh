#pragma once
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/layout.h"

namespace facet::cuda {

// The eight weights of row g + 8 * row that lane 4 g + t holds in columns 64 j + 32 h.. of a tile, and their
// columns.
__device__ __forceinline__ int tile_column(Tile tile, int j, int h, int t, int i) {
  return 64 * j + 32 * h + (tile < Tile::kBF16 ? 16 * (i / 4) + 4 * t + i % 4 : 8 * t + i);
}
__device__ __forceinline__ void tile_values(float (&v)[8], Tile tile, const uint8_t* w, int lane, int row, int j,
                                            int h) {
  const int r = lane / 4 + 8 * row;
  auto byte = [&](int at, int i) { return int(w[at + lane * 16 + (2 * (i / 4) + row) * 4 + i % 4]); };
  auto nibble = [&](int at, int i) { return (byte(at, i) >> (4 * h)) & 15; };
  auto fifth = [&](uint32_t f, int i) { return int(f >> (8 * (i % 4) + 4 * h + 2 * (i / 4) + row)) & 1; };
  auto word = [&](int at) { return *reinterpret_cast<const uint32_t*>(w + at); };
  switch (tile) {
    case Tile::kQ4_K:
    case Tile::kQ5_K: {
      const bool five = tile == Tile::kQ5_K;
      const uint32_t f = five ? word(2048 + lane * 16 + j * 4) : 0;
      const uint8_t* s = w + (five ? 2560 : 2048) + r * 16;
      const int sub = 2 * j + h;
      const uint32_t dm = *reinterpret_cast<const uint32_t*>(s);
      const float scale = half_at(dm, 0) * float(s[8 + sub] & 63);
      const float min = half_at(dm, 1) * float(((s[4 + sub % 4] >> (sub < 4 ? 0 : 4)) & 15) | (s[8 + sub] >> 6) << 4);
      for (int i = 0; i < 8; ++i) v[i] = scale * float(nibble(j * 512, i) | fifth(f, i) << 4) - min;
      return;
    }
    case Tile::kQ6_K: {
      const uint32_t top = word(2048 + (j / 2) * 512 + lane * 16 + (j % 2) * 8 + row * 4);
      const float d = half_at(*reinterpret_cast<const uint16_t*>(w + 3328 + r * 2), 0);
      const int8_t* s = reinterpret_cast<const int8_t*>(w + 3072 + r * 16) + 4 * j + 2 * h;
      for (int i = 0; i < 8; ++i)
        v[i] = d * float(s[i / 4]) *
               float(((nibble(j * 512, i) | int((top >> (8 * (i % 4) + 4 * h + 2 * (i / 4))) & 3) << 4) ^ 32) - 32);
      return;
    }
    case Tile::kQ4_0: {
      const float d = half_at(word(512 + r * 4), h);
      for (int i = 0; i < 8; ++i) v[i] = d * float((nibble(0, i) ^ 8) - 8);
      return;
    }
    case Tile::kQ5_0: {
      const uint32_t f = word(512 + lane * 4);
      const float d = half_at(word(640 + r * 4), h);
      for (int i = 0; i < 8; ++i) v[i] = d * float(nibble(0, i) - 16 * fifth(f, i));
      return;
    }
    case Tile::kQ8_0: {
      const float d = half_at(word(1024 + r * 4), h);
      for (int i = 0; i < 8; ++i) v[i] = d * float(int8_t(byte(h * 512, i)));
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
