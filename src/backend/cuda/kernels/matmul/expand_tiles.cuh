#pragma once
#include "backend/cuda/kernels/matmul/prompt_tiles.cuh"

// Weights of a strip of 16 rows in bf16, straight from the codes of a tile, as products take them from registers: 64
// columns at a time, as four operands A of m16n8k16, lane 4 g + t with columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16
// of rows g and g + 8. In a tile it has columns 4 t.. of them: lanes of a row exchange halves of their words.
//
//   ExpandTile<tile>::load(raw, w, j, lane)     group j of the tile at w, as it lies in memory; what all groups of a
//                                               tile need comes with the first two, which two raws in turn keep
//   ExpandTile<tile>::operand(a, raw, j, lane)  a[k]: columns 16 k.. of the group
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

// Of words with the codes of columns 4 t.. a byte each, those of this lane's columns.
__device__ __forceinline__ uint32_t exchange_codes(uint32_t w, int lane) {
  const int from = (lane & ~3) + lane % 4 / 2;
  const uint32_t a = __shfl_sync(~0u, w, from), b = __shfl_sync(~0u, w, from + 2);
  return __byte_perm(a, b, lane % 2 ? 0x7632 : 0x5410);
}
// Row g + 8 r of 16 columns.
__device__ __forceinline__ void put_operand(uint32_t (&a)[4], int r, const float (&v)[4]) {
  a[r] = pack_bf16(v[0], v[1]), a[2 + r] = pack_bf16(v[2], v[3]);
}
__device__ __forceinline__ void put_codes(uint32_t (&a)[4], int r, uint32_t codes, float scale, float offset) {
  float v[4];
  codes_to_values(v, codes, scale, offset);
  put_operand(a, r, v);
}
// Codes of 16 columns: word 2 p + r of a group has columns 16 p.. of its first half in low nibbles, of its second in
// high ones; of the fifth bits of a column bit 4 h + 2 p + r.
template <bool kFifth>
__device__ __forceinline__ uint32_t nibble_codes(const uint32_t (&q)[4], uint32_t fifth, int h, int p, int r) {
  const uint32_t codes = (q[2 * p + r] >> (4 * h)) & 0x0F0F0F0F;
  return kFifth ? codes | ((fifth >> (4 * h + 2 * p + r)) & 0x01010101) << 4 : codes;
}

template <Tile tile>
struct ExpandTile;

template <bool kFifth>
struct ExpandQ45K {
  struct Raw {
    uint4 q;
    uint32_t fifth;
    uint4 row[2];  // of rows g and g + 8: d, dmin, minima, scales
  };
  static __device__ __forceinline__ void load(Raw& raw, const uint8_t* w, int j, int lane) {
    raw.q = load16(w + j * 512 + lane * 16);
    raw.fifth = kFifth ? load_as<uint32_t>(w + 2048 + lane * 16 + j * 4) : 0;
    if (j > 1) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) raw.row[r] = load_as<uint4>(w + (kFifth ? 2560 : 2048) + (lane / 4 + 8 * r) * 16);
  }
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int j, int lane) {
    uint32_t q[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) q[e] = exchange_codes(word_of(raw.q, e), lane);
    const uint32_t fifth = kFifth ? exchange_codes(raw.fifth, lane) : 0;
    const int at = j % 2 * 16;  // bits of sub-blocks 2 j, 2 j + 1 in words of four
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 row = raw.row[r];
      const float d = half_at(row.x, 0), dmin = half_at(row.x, 1);
      const uint32_t s = (j < 2 ? row.z : row.w) >> at, m = row.y >> (at + (j < 2 ? 0 : 4));
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t top = s >> (8 * h + 6) & 3;
        const float scale = d * float(s >> (8 * h) & 63), offset = -dmin * float((m >> (8 * h) & 15) | top << 4);
#pragma unroll
        for (int p = 0; p < 2; ++p) put_codes(a[2 * h + p], r, nibble_codes<kFifth>(q, fifth, h, p, r), scale, offset);
      }
    }
  }
};
template <>
struct ExpandTile<Tile::kQ4_K> : ExpandQ45K<false> {};
template <>
struct ExpandTile<Tile::kQ5_K> : ExpandQ45K<true> {};

template <>
struct ExpandTile<Tile::kQ6_K> {
  using Raw = PromptTile<Tile::kQ6_K>::Raw;
  static __device__ __forceinline__ void load(Raw& raw, const uint8_t* w, int j, int lane) {
    PromptTile<Tile::kQ6_K>::load<1>(raw, {w, lane}, j, lane);
  }
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int, int lane) {
    uint32_t q[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) q[e] = exchange_codes(word_of(raw.q, e), lane);
    const uint32_t top[2] = {exchange_codes(raw.top.x, lane), exchange_codes(raw.top.y, lane)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float d = half_at(raw.d[r], 0);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float scale = d * float(signed_byte_of(raw.scale[r], k));
        const uint32_t high = ((top[r] >> (2 * k)) & 0x03030303) << 4;
        put_codes(a[k], r, (nibble_codes<false>(q, 0, k / 2, k % 2, r) | high) ^ 0x20202020, scale, -32.f * scale);
      }
    }
  }
};

template <bool kFifth>
struct ExpandQ45 {
  struct Raw {
    uint4 q;
    uint32_t fifth, d[2];
  };
  static __device__ __forceinline__ void load(Raw& raw, const uint8_t* w, int, int lane) {
    raw.q = load16(w + lane * 16);
    raw.fifth = kFifth ? load_as<uint32_t>(w + 512 + lane * 4) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) raw.d[r] = load_as<uint32_t>(w + (kFifth ? 640 : 512) + (lane / 4 + 8 * r) * 4);
  }
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int, int lane) {
    uint32_t q[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) q[e] = exchange_codes(word_of(raw.q, e), lane);
    const uint32_t fifth = kFifth ? exchange_codes(raw.fifth, lane) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float d = half_at(raw.d[r], h);
#pragma unroll
        for (int p = 0; p < 2; ++p)
          put_codes(a[2 * h + p], r, nibble_codes<kFifth>(q, fifth, h, p, r) ^ (kFifth ? 0x10101010 : 0x08080808), d,
                    d * (kFifth ? -16.f : -8.f));
      }
  }
};
template <>
struct ExpandTile<Tile::kQ4_0> : ExpandQ45<false> {};
template <>
struct ExpandTile<Tile::kQ5_0> : ExpandQ45<true> {};

template <>
struct ExpandTile<Tile::kQ8_0> {
  struct Raw {
    uint4 q[2];
    uint32_t d[2];
  };
  static __device__ __forceinline__ void load(Raw& raw, const uint8_t* w, int, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw.q[i] = load16(w + i * 512 + lane * 16);
      raw.d[i] = load_as<uint32_t>(w + 1024 + (lane / 4 + 8 * i) * 4);
    }
  }
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t codes = exchange_codes(word_of(raw.q[h], e), lane) ^ 0x80808080;
        const float d = half_at(raw.d[e % 2], h);
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = d * byte_less(codes, i, 128);
        put_operand(a[2 * h + e / 2], e % 2, v);
      }
  }
};

}  // namespace facet::cuda
