#pragma once
#include "backend/cuda/kernels/matmul/tiles/all.cuh"

// Tiles as prompt.cuh multiplies them: straight from memory, a group of 64 columns after another. A tensor core adds
// its integers to the bits of kMagic, so that they come out as floats, kMagic more than what they are: no conversions,
// and all sums here are less than 2^22.
//
//   PromptTile<tile>::Source(w, lane)     where a lane reads in a strip that begins at w; go_on(last): a group on, the
//                                         last of a tile behind
//   PromptTile<tile>::load(raw, from, j, lane)   group j of a tile, as it lies in memory; d of group 0 is the tile's
//   PromptTile<tile>::operand(raw)        codes as tensor cores take them, kSub times so many columns with a scale each
//   PromptTile<tile>::mma(c, codes, b, s) the s-th part of 64 columns times eight rows
namespace facet::cuda {

constexpr float kMagic = 12582912.f;  // 1.5 * 2^23
constexpr uint32_t kMagicBits = 0x4B400000;

__device__ __forceinline__ void magic_u8(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kMagicBits));
}
__device__ __forceinline__ void magic_s8(uint32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kMagicBits));
}
__device__ __forceinline__ void magic_s8(uint32_t (&d)[4], const uint32_t (&a)[2], uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b), "r"(kMagicBits));
}

// Weights that only one warp of a multiprocessor reads.
__device__ __forceinline__ uint4 load16(const uint8_t* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}
template <class T>
__device__ __forceinline__ T load_as(const uint8_t* p) {
  return __ldg(reinterpret_cast<const T*>(p));
}
// Byte i of w as a float, less `from`.
__device__ __forceinline__ float byte_less(uint32_t w, int i, int from) {
  return __fadd_rn(__uint_as_float(__byte_perm(w, 0x4B000000, 0x7440u | uint32_t(i))), -8388608.f - float(from));
}

// Scales [part][row g or g + 8], of at most 19 bits.
template <int kSub, int kWords>
struct PromptOperand {
  uint32_t a[kSub][kWords];
  float scale[kSub][2];
};
// Where a tile is all that there is to know.
template <Tile kTile>
struct PromptSource {
  const uint8_t* tile;
  __device__ __forceinline__ PromptSource(const uint8_t* w, int) : tile(w) {}
  __device__ __forceinline__ void go_on(bool last) {
    if (tile_cols(kTile) == 64 || last) tile += tile_bytes(kTile);
  }
};

template <Tile tile>
struct PromptTile;

template <bool kFifth>
struct PromptQ45K {
  static constexpr int kSub = 2, kRows = kFifth ? 2560 : 2048;
  static constexpr bool kMinima = true;
  using Operand = PromptOperand<2, 4>;
  static constexpr int kBytes = kFifth ? 16 * 176 : 16 * 144;
  struct Raw {
    uint4 q;
    uint32_t fifth;
    uint32_t scale[2], d[2];
  };
  struct Source {
    const uint8_t *codes, *scales, *fifth;
    __device__ __forceinline__ Source(const uint8_t* w, int lane)
        : codes(w + lane * 16), scales(w + kRows + lane / 4 * 16 + 8), fifth(w + 2048 + lane * 16) {}
    __device__ __forceinline__ void go_on(bool last) {
      codes += last ? kBytes - 3 * 512 : 512;
      scales += last ? kBytes - 3 * 2 : 2;
      if (kFifth) fifth += last ? kBytes - 3 * 4 : 4;
    }
    // Row g of the tile whose last group was multiplied; on: another one is on its way.
    __device__ __forceinline__ const uint8_t* row_behind(bool on) const { return scales - 8 - (on ? kBytes : 3 * 2); }
  };
  static __device__ __forceinline__ void load(Raw& raw, const Source& from, int j, int) {
    raw.q = load16(from.codes);
    raw.fifth = kFifth ? load_as<uint32_t>(from.fifth) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw.scale[i] = load_as<uint16_t>(from.scales + 128 * i);
      if (j == 0) raw.d[i] = load_as<uint16_t>(from.scales + 128 * i - 8);
    }
  }
  static __device__ __forceinline__ Operand operand(const Raw& raw) {
    Operand to;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t v = word_of(raw.q, e);
      to.a[0][e] = v & 0x0F0F0F0F, to.a[1][e] = v & 0xF0F0F0F0;  // the second 16 times what they are
      if (kFifth) {
        to.a[0][e] = and_or(shifted(raw.fifth, 4 - e), 0x10101010, to.a[0][e]);
        to.a[1][e] = and_or(raw.fifth >> e, 0x10101010, to.a[1][e] >> 4);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float d = half_at(raw.d[i], 0);
      const uint32_t s = raw.scale[i] & 0x3F3F;
      to.scale[0][i] = d * byte_less(s, 0, 0);
      to.scale[1][i] = (kFifth ? d : d * (1.f / 16)) * byte_less(s, 1, 0);
    }
    return to;
  }
  static __device__ __forceinline__ void mma(uint32_t (&c)[4], const uint32_t (&a)[4], uint4 b, int s) {
    magic_u8(c, a, s ? b.z : b.x, s ? b.w : b.y);
  }
};
template <>
struct PromptTile<Tile::kQ4_K> : PromptQ45K<false> {};
template <>
struct PromptTile<Tile::kQ5_K> : PromptQ45K<true> {};

template <>
struct PromptTile<Tile::kQ6_K> {
  static constexpr int kSub = 4;
  static constexpr bool kMinima = false;
  using Operand = PromptOperand<4, 2>;
  struct Raw {
    uint4 q;
    uint2 top;
    uint32_t scale[2], d[2];
  };
  using Source = PromptSource<Tile::kQ6_K>;
  // kLastOfTile: the last group with which what all groups of a tile need comes.
  template <int kLastOfTile = 0>
  static __device__ __forceinline__ void load(Raw& raw, const Source& from, int j, int lane) {
    const uint8_t* const w = from.tile;
    raw.q = load16(w + j * 512 + lane * 16);
    raw.top = load_as<uint2>(w + 2048 + j / 2 * 512 + lane * 16 + j % 2 * 8);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = lane / 4 + 8 * i;
      raw.scale[i] = load_as<uint32_t>(w + 3072 + r * 16 + 4 * j);
      if (j <= kLastOfTile) raw.d[i] = load_as<uint16_t>(w + 3328 + r * 2);
    }
  }
  static __device__ __forceinline__ Operand operand(const Raw& raw) {
    Operand to;
#pragma unroll
    for (int s = 0; s < 4; ++s) {  // four times the codes, as product_k6 has them
      const uint32_t v0 = s % 2 ? raw.q.z : raw.q.x, v1 = s % 2 ? raw.q.w : raw.q.y;
      to.a[s][0] = and_or(raw.top.x << (6 - 2 * s), 0xC0C0C0C0, (s < 2 ? v0 << 2 : v0 >> 2) & 0x3C3C3C3C);
      to.a[s][1] = and_or(raw.top.y << (6 - 2 * s), 0xC0C0C0C0, (s < 2 ? v1 << 2 : v1 >> 2) & 0x3C3C3C3C);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float d = half_at(raw.d[i], 0) * .25f;
      const uint32_t scale = raw.scale[i] ^ 0x80808080;
#pragma unroll
      for (int s = 0; s < 4; ++s) to.scale[s][i] = d * byte_less(scale, s, 128);
    }
    return to;
  }
  static __device__ __forceinline__ void mma(uint32_t (&c)[4], const uint32_t (&a)[2], uint4 b, int s) {
    magic_s8(c, a, word_of(b, s));
  }
};

// Types with a scale for 32 columns, in tiles of 64.
struct Prompt64 {
  static constexpr int kSub = 2;
  static constexpr bool kMinima = false;
  using Operand = PromptOperand<2, 4>;
  static __device__ __forceinline__ void scales(Operand& to, const uint32_t (&d)[2], float unit) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int h = 0; h < 2; ++h) to.scale[h][i] = half_at(d[i], h) * unit;
  }
  static __device__ __forceinline__ void mma(uint32_t (&c)[4], const uint32_t (&a)[4], uint4 b, int s) {
    magic_s8(c, a, s ? b.z : b.x, s ? b.w : b.y);
  }
};
template <bool kFifth>
struct PromptQ45 : Prompt64 {
  using Codes = Operand45<kFifth>;
  struct Raw {
    uint4 q;
    uint32_t fifth, d[2];
  };
  using Source = PromptSource<kFifth ? Tile::kQ5_0 : Tile::kQ4_0>;
  static __device__ __forceinline__ void load(Raw& raw, const Source& from, int, int lane) {
    const uint8_t* const w = from.tile;
    raw.q = load16(w + lane * 16);
    raw.fifth = kFifth ? load_as<uint32_t>(w + 512 + lane * 4) : 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) raw.d[i] = load_as<uint32_t>(w + Codes::kScales + (lane / 4 + 8 * i) * 4);
  }
  static __device__ __forceinline__ Operand operand(const Raw& raw) {
    Operand to;
    Codes::codes(raw.q, raw.fifth, to.a);
    scales(to, raw.d, Codes::kUnit);
    return to;
  }
};
template <>
struct PromptTile<Tile::kQ4_0> : PromptQ45<false> {};
template <>
struct PromptTile<Tile::kQ5_0> : PromptQ45<true> {};

template <>
struct PromptTile<Tile::kQ8_0> : Prompt64 {
  struct Raw {
    uint4 q[2];
    uint32_t d[2];
  };
  using Source = PromptSource<Tile::kQ8_0>;
  static __device__ __forceinline__ void load(Raw& raw, const Source& from, int, int lane) {
    const uint8_t* const w = from.tile;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw.q[i] = load16(w + i * 512 + lane * 16);
      raw.d[i] = load_as<uint32_t>(w + Operand8::kScales + (lane / 4 + 8 * i) * 4);
    }
  }
  static __device__ __forceinline__ Operand operand(const Raw& raw) {
    Operand to;
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int e = 0; e < 4; ++e) to.a[h][e] = word_of(raw.q[h], e);
    scales(to, raw.d, Operand8::kUnit);
    return to;
  }
};

}  // namespace facet::cuda
