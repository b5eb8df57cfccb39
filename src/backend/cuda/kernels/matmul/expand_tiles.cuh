#pragma once
#include "backend/cuda/kernels/matmul/prompt_tiles.cuh"

// Weights of a strip of 16 rows in f16, straight from the codes of a tile, as products take them from registers: 64
// columns at a time, as four operands A of m16n8k16. Lane 4 g + t has columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of 16
// of rows g and g + 8 there, in a tile columns 4 t.. of them. The order of columns is that of neither, so that each
// lane has its own: the even ones of 16 come first, then the odd ones, in operand B as well.
//
//   ExpandTile<tile>::load(raw, w, j, lane)  group j of the tile at w, as it lies in memory; what all groups of a tile
//                                            need comes with the first two, which two raws in turn keep
//   ExpandTile<tile>::operand(a, raw, j)     a[k]: columns 16 k.. of the group
//
// A code becomes a number without a conversion, two at a time: the last bits of 1024, or 16 times as far left those of
// 64. Scales are rounded to f16, and so is a weight, once. Scales of a file are clamped where weights would not be
// finite in f16: beyond any that a model has.
namespace facet::cuda {

// The scale of a block in f16, such that `most` times it is finite.
__device__ __forceinline__ __half2 clamped_scale(uint32_t d, float most) {
  const __half2 limit = __float2half2_rn(65504.f / most);
  return __hmax2(__hmin2(as_half2(d), limit), __hneg2(limit));
}
// (v & mask) ^ with, in one instruction.
__device__ __forceinline__ uint32_t and_xor(uint32_t v, uint32_t mask, uint32_t with) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(d) : "r"(v), "r"(mask), "r"(with));
  return d;
}
// Both halves of one.
__device__ __forceinline__ __half2 twice(__half2 v, int high) { return high ? __high2half2(v) : __low2half2(v); }

// Codes of a word of nibbles, bytes 0 and 2: of the first half of 64 columns (h 0) or of the second. `top` has their
// bits beyond nibbles, kTop of ones, at 4 + 4 h; code ^ kFlip is kFlip more than what is meant.
template <int kTop, int kFlip>
__device__ __forceinline__ __half2 nibble_codes(uint32_t q, uint32_t top, int h) {
  constexpr uint32_t kBoth = 0x00010001;
  const int up = 4 * h;
  uint32_t with = (h ? 0x54005400 : 0x64006400) + (kBoth * kFlip << up);
  if (kTop) with = and_xor(top, kBoth * kTop << (4 + up), with);
  return __hsub2(as_half2(and_xor(q, kBoth * 15 << up, with)), __float2half2_rn((h ? 64.f : 1024.f) + kFlip));
}
// put(h, i, codes): columns of 16 that an operand has at 2 t (i 0) or 2 t + 8, of both halves; top: of h 0 at bit 4.
template <int kTop, int kFlip, class Put>
__device__ __forceinline__ void each_nibbles(uint32_t q, uint32_t top, uint32_t top_odd, Put&& put) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    put(h, 0, nibble_codes<kTop, kFlip>(q, top, h));
    put(h, 1, nibble_codes<kTop, kFlip>(q >> 8, top_odd, h));
  }
}

template <Tile tile>
struct ExpandTile;

// Word 2 p + r of a group's nibbles has columns 16 p.. of both halves, of rows g + 8 r; its fifth bits are bits 2 p + r
// and, of the second half, 4 further.
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
    const uint8_t* const row = w + lane / 4 * 16 + (kFifth ? 2560 : 2048);
    raw.row[0] = load_as<uint4>(row), raw.row[1] = load_as<uint4>(row + 128);
  }
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int j) {
    constexpr uint32_t k1024 = 0x64006400;
    const int of_both = j % 2 ? 0x4342 : 0x4140;  // bytes of sub-blocks 2 j and 2 j + 1 in words of four
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 row = raw.row[r];
      const uint32_t s = __byte_perm(j < 2 ? row.z : row.w, 0, of_both),
                     m = __byte_perm(row.y >> (j < 2 ? 0 : 4), 0, of_both);
      const __half2 d = clamped_scale(row.x, 2048.f), less = __hmul2(d, __float2half2_rn(-1024.f));
      const __half2 scales = __hfma2(as_half2(and_or(s, 0x003F003F, k1024)), twice(d, 0), twice(less, 0));
      const __half2 minima =
          __hfma2(as_half2(and_or(s >> 2, 0x00300030, and_or(m, 0x000F000F, k1024))), twice(d, 1), twice(less, 1));
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int bit = 2 * p + r;
        each_nibbles<kFifth, 0>(
            word_of(raw.q, bit), shifted(raw.fifth, 4 - bit), raw.fifth >> (4 + bit), [&](int h, int i, __half2 codes) {
              a[2 * h + p][2 * i + r] = as_word(__hfma2(codes, twice(scales, h), __hneg2(twice(minima, h))));
            });
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
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const __half2 d = twice(clamped_scale(raw.d[r], 4096.f), 0);
      const uint32_t bytes = raw.scale[r] ^ 0x80808080, top = r ? raw.top.y : raw.top.x;
      __half2 scales[2];  // of 16 columns each, of half h
#pragma unroll
      for (int h = 0; h < 2; ++h)
        scales[h] =
            __hmul2(d, __hsub2(as_half2(__byte_perm(bytes, 0x64, h ? 0x4342 : 0x4140)), __float2half2_rn(1152.f)));
#pragma unroll
      for (int p = 0; p < 2; ++p)
        each_nibbles<3, 32>(word_of(raw.q, 2 * p + r), top << (4 - 2 * p), top >> (4 + 2 * p),
                            [&](int h, int i, __half2 codes) {
                              a[2 * h + p][2 * i + r] = as_word(__hmul2(codes, twice(scales[h], p)));
                            });
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
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const __half2 d = clamped_scale(raw.d[r], kFifth ? 16.f : 8.f);
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const int bit = 2 * p + r;
        each_nibbles<kFifth, kFifth ? 16 : 8>(
            word_of(raw.q, bit), shifted(raw.fifth, 4 - bit), raw.fifth >> (4 + bit),
            [&](int h, int i, __half2 codes) { a[2 * h + p][2 * i + r] = as_word(__hmul2(codes, twice(d, h))); });
      }
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
  static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const Raw& raw, int) {
    const __half2 d[2] = {clamped_scale(raw.d[0], 128.f), clamped_scale(raw.d[1], 128.f)};
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const uint32_t bytes = word_of(raw.q[h], e) ^ 0x80808080;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const __half2 codes =
              __hsub2(as_half2(__byte_perm(bytes, 0x64, i ? 0x4341 : 0x4240)), __float2half2_rn(1152.f));
          a[2 * h + e / 2][2 * i + e % 2] = as_word(__hmul2(codes, twice(d[e % 2], h)));
        }
      }
  }
};

}  // namespace facet::cuda
