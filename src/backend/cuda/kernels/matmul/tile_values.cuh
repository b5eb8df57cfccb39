#pragma once
#include "backend/cuda/kernels/matmul/tiles/all.cuh"

namespace facet::cuda {

// scale * code + offset of four columns, the codes in a word's bytes, below 128; not kExact: within 2^-17 of a scale.
template <bool kExact = false>
__device__ __forceinline__ void codes_to_values(float* v, uint32_t codes, float scale, float offset) {
  const float base = kExact ? offset : offset - 128.f * scale, less = kExact ? 128.f : 0.f;
#pragma unroll
  for (int k = 0; k < 2; ++k) {  // two at a time become bf16 numbers 128 + code
    const uint32_t w = __byte_perm(codes, 0x43434343u, k == 0 ? 0x4140 : 0x4342);
    v[2 * k] = fmaf(scale, __uint_as_float(w << 16) - less, base);
    v[2 * k + 1] = fmaf(scale, __uint_as_float(w & 0xFFFF0000u) - less, base);
  }
}

// The eight weights of row g + 8 * row that lane 4 g + t holds in columns 64 j + 32 h.. of a tile, and their
// columns.
__device__ __forceinline__ int tile_column(Tile tile, int j, int h, int t, int i) {
  return 64 * j + 32 * h + (is_float(tile) ? 8 * t + i : 16 * (i / 4) + 4 * t + i % 4);
}
__device__ __forceinline__ void tile_values(float (&v)[8], Tile tile, const uint8_t* w, int lane, int row, int j,
                                            int h) {
  with_tile(tile, [&](auto kind) { TileTraits<decltype(kind)::value>::values(v, w, lane, row, j, h); });
}

// All values of a tile that a lane holds: put(j, h, row, v) for groups of 64 columns j, halves h, rows g and g + 8.
// kExact: as the file's format says to the last bit, for an addition a value.
template <Tile T, bool kExact = false, class Put>
__device__ __forceinline__ void each_value(const uint8_t* w, int lane, Put&& put) {
  auto words = [&](int at) { return __ldg(reinterpret_cast<const uint4*>(w + at)); };
  auto word = [&](int at) { return __ldg(reinterpret_cast<const uint32_t*>(w + at)); };
  const int g = lane / 4;
  float v[8];
  // Nibbles of a half, and their fifth bits.
  auto nibbles = [&](uint4 q, uint32_t fifths, int h, int row, uint32_t flip, float scale, float offset) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const uint32_t e = part == 0 ? (row == 0 ? q.x : q.y) : (row == 0 ? q.z : q.w);
      const uint32_t codes =
          (((e >> (4 * h)) & 0x0F0F0F0Fu) | ((fifths >> (4 * h + 2 * part + row)) & 0x01010101u) << 4) ^ flip;
      codes_to_values<kExact>(v + 4 * part, codes, scale, offset);
    }
  };
  if constexpr (T == Tile::kQ4_K || T == Tile::kQ5_K) {
    constexpr bool five = T == Tile::kQ5_K;
    const uint4 fifths = five ? words(2048 + lane * 16) : uint4{};
    uint4 codes[4], head[2];
    for (int j = 0; j < 4; ++j) codes[j] = words(j * 512 + lane * 16);
    for (int row = 0; row < 2; ++row) head[row] = words((five ? 2560 : 2048) + (g + 8 * row) * 16);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float d = half_at(head[row].x, 0), dmin = half_at(head[row].x, 1);
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int sub = 2 * j + h;
          const uint32_t s = (sub < 4 ? head[row].z : head[row].w) >> (8 * (sub % 4)) & 255,
                         m = head[row].y >> (8 * (sub % 4) + (sub < 4 ? 0 : 4)) & 15;
          const uint32_t f = j == 0 ? fifths.x : j == 1 ? fifths.y : j == 2 ? fifths.z : fifths.w;
          nibbles(codes[j], f, h, row, 0, d * float(s & 63), -dmin * float(m | s >> 6 << 4));
          put(j, h, row, v);
        }
    }
  } else if constexpr (T == Tile::kQ4_0 || T == Tile::kQ5_0) {
    constexpr bool five = T == Tile::kQ5_0;
    const uint4 codes = words(lane * 16);
    const uint32_t f = five ? word(512 + lane * 4) : 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t d2 = word((five ? 640 : 512) + (g + 8 * row) * 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float d = half_at(d2, h);
        nibbles(codes, f, h, row, five ? 0x10101010u : 0x08080808u, d, d * (five ? -16.f : -8.f));
        put(0, h, row, v);
      }
    }
  } else if constexpr (T == Tile::kQ8_0) {
    uint4 codes[2];
    for (int h = 0; h < 2; ++h) codes[h] = words(h * 512 + lane * 16);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const uint32_t d2 = word(1024 + (g + 8 * row) * 4);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float d = half_at(d2, h);
        const uint32_t q[2] = {row == 0 ? codes[h].x : codes[h].y, row == 0 ? codes[h].z : codes[h].w};
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] = d * float(int8_t(q[i / 4] >> (8 * (i % 4))));
        put(0, h, row, v);
      }
    }
  } else {
    for (int j = 0; j < tile_cols(T) / 64; ++j)
      for (int h = 0; h < 2; ++h)
        for (int row = 0; row < 2; ++row) {
          tile_values(v, T, w, lane, row, j, h);
          put(j, h, row, v);
        }
  }
}

}  // namespace facet::cuda
