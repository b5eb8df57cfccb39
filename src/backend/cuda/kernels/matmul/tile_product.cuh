#pragma once
#include <type_traits>

#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"
#include "backend/cuda/kernels/matmul/layout.h"

// One tile of weights (layout.h) in shared memory times up to 16 rows of activations: the inner loop of every
// matrix product with few rows. Codes times codes is exact, in integers; the scales of sub-blocks multiply
// those integers, the activations' scales their sums over 64 columns, d the sum over a tile. Minima multiply
// sums of activations. An activation row's result does not depend on the other rows.
namespace facet::cuda {

__device__ __forceinline__ uint4 shared16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }
// (v & mask) | with, in one instruction.
__device__ __forceinline__ uint32_t and_or(uint32_t v, uint32_t mask, uint32_t with) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(v), "r"(mask), "r"(with));
  return d;
}
__device__ __forceinline__ uint32_t shifted(uint32_t w, int left) { return left >= 0 ? w << left : w >> -left; }
__device__ __forceinline__ int byte_of(uint32_t w, int i) { return int(__byte_perm(w, 0, 0x4440u | uint32_t(i))); }
__device__ __forceinline__ int signed_byte_of(uint32_t w, int i) {
  int d;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(d) : "r"(w), "r"(0x8880 | i * 0x1111));  // the sign three times
  return d;
}
__device__ __forceinline__ uint32_t word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Accumulators of rows g (0, 1) and g + 8 (2, 3); with one row of activations all columns of a product are the same,
// and 1 and 3 are not kept.
template <class Acts>
using AccOf = float[Acts::kTiles][4];
template <class Acts>
constexpr int kColStep = Acts::kN == 1 ? 2 : 1;

// acc[tile] += weights times activations; block: the tile's place in x, in blocks of 256 columns.
template <bool kFifth, class Acts>
__device__ __forceinline__ void product_k45(const uint8_t* w, const Acts& x, int block, int lane, AccOf<Acts>& acc) {
  constexpr bool kTwo = Acts::kTwoBytes, kBeside = kTwo && Acts::kN == 1;  // one row's two codes are two columns
  constexpr int kTiles = Acts::kTiles, kRows = kFifth ? 2560 : 2048;
  const int g = lane / 4, t = lane % 4;
  const uint4 s0 = shared16(w + kRows + g * 16), s1 = shared16(w + kRows + (g + 8) * 16);
  uint4 fifth = {};
  if (kFifth) fifth = shared16(w + 2048 + lane * 16);
  const uint32_t scale0[2] = {s0.z & 0x3F3F3F3F, s0.w & 0x3F3F3F3F}, scale1[2] = {s1.z & 0x3F3F3F3F, s1.w & 0x3F3F3F3F};
  float part[kTiles][4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 q = shared16(w + j * 512 + lane * 16);
    const uint32_t f = word_of(fifth, j);
    // Without fifth bits the second half's codes stay in the high halves of bytes: 16 times what they are.
    uint32_t a0[4], a1[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t v = word_of(q, e);
      a0[e] = v & 0x0F0F0F0F, a1[e] = v & 0xF0F0F0F0;
      if (kFifth) a0[e] = and_or(shifted(f, 4 - e), 0x10101010, a0[e]), a1[e] = and_or(f >> e, 0x10101010, a1[e] >> 4);
    }
    constexpr int kUnit = kFifth ? 1 : 16;
    const int r0 = byte_of(scale0[j / 2], j % 2 * 2) * kUnit, r1 = byte_of(scale1[j / 2], j % 2 * 2) * kUnit;
    const int u0 = byte_of(scale0[j / 2], j % 2 * 2 + 1), u1 = byte_of(scale1[j / 2], j % 2 * 2 + 1);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 b = x.codes(4 * block + j, g, t, n, kBeside ? g % 2 : 0);
      const float2 scale = x.scales(4 * block + j, t, n);
      int c[4], d[4], c2[4] = {}, d2[4] = {};
      mma_u8(c, a0, b.x, b.y);
      mma_u8(d, a1, b.z, b.w);
      if constexpr (kTwo && !kBeside) {
        const uint4 second = x.codes(4 * block + j, g, t, n, 1);
        mma_u8(c2, a0, second.x, second.y);
        mma_u8(d2, a1, second.z, second.w);
      }
#pragma unroll
      for (int i = 0; i < 4; i += kColStep<Acts>) {
        const int r = i < 2 ? r0 : r1, u = i < 2 ? u0 : u1;
        float v = float(r * c[i] + u * d[i]);
        if (kTwo) v = fmaf(float(kBeside ? r * c[i + 1] + u * d[i + 1] : r * c2[i] + u * d2[i]), 1.f / kSecond, v);
        part[n][i] += (i % 2 ? scale.y : scale.x) * v;
      }
    }
  }
  // Minima, integers as well: that of sub-blocks t and t + 4 times their sums, a step of tensor cores for the
  // whole tile.
  auto minima = [&](uint4 s, uint32_t(&m)[4], int row) {
    constexpr uint32_t k128 = 0x43004300;  // two bf16 of 128: their last seven bits count
    const uint32_t low = and_or(s.z >> 2, 0x30303030, s.y & 0x0F0F0F0F),
                   high = and_or(s.w >> 2, 0x30303030, (s.y >> 4) & 0x0F0F0F0F);
    const uint32_t pick = 0x4040u | uint32_t(t) * 0x101u;
    m[row] = as_word(__hsub2(as_bf16x2(__byte_perm(low, 0x43, pick)), as_bf16x2(k128)));
    m[row + 2] = as_word(__hsub2(as_bf16x2(__byte_perm(high, 0x43, pick)), as_bf16x2(k128)));
  };
  uint32_t m[4];
  minima(s0, m, 0), minima(s1, m, 1);
  constexpr float kPer = kFifth ? 1.f : 1.f / 16;
  const float d0 = half_at(s0.x, 0) * kPer, min0 = half_at(s0.x, 1), d1 = half_at(s1.x, 0) * kPer,
              min1 = half_at(s1.x, 1);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const uint2 b = x.sums(block, g, t, n);
    float c[4];
    mma_bf16(c, m, b.x, b.y, 0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < 4; i += kColStep<Acts>)
      acc[n][i] += (i < 2 ? d0 : d1) * part[n][i] - (i < 2 ? min0 : min1) * c[i];
  }
}

template <class Acts>
__device__ __forceinline__ void product_k6(const uint8_t* w, const Acts& x, int block, int lane, AccOf<Acts>& acc) {
  constexpr bool kTwo = Acts::kTwoBytes, kBeside = kTwo && Acts::kN == 1;  // one row's two codes are two columns
  constexpr int kTiles = Acts::kTiles;
  const int g = lane / 4, t = lane % 4;
  const uint4 s0 = shared16(w + 3072 + g * 16), s1 = shared16(w + 3072 + (g + 8) * 16);
  float part[kTiles][4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 q = shared16(w + j * 512 + lane * 16);
    const uint2 top = *reinterpret_cast<const uint2*>(w + 2048 + (j / 2) * 512 + lane * 16 + (j % 2) * 8);
    uint4 b[kTiles], b2[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      b[n] = x.codes(4 * block + j, g, t, n, kBeside ? g % 2 : 0);
      if (kTwo && !kBeside) b2[n] = x.codes(4 * block + j, g, t, n, 1);
    }
    int sum[kTiles][4] = {}, sum2[kTiles][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {  // 16 columns with one scale; four times code - 32 is a signed byte
      const uint32_t v0 = s % 2 ? q.z : q.x, v1 = s % 2 ? q.w : q.y;
      const uint32_t a0 = and_or(top.x << (6 - 2 * s), 0xC0C0C0C0, (s < 2 ? v0 << 2 : v0 >> 2) & 0x3C3C3C3C);
      const uint32_t a1 = and_or(top.y << (6 - 2 * s), 0xC0C0C0C0, (s < 2 ? v1 << 2 : v1 >> 2) & 0x3C3C3C3C);
      const int r0 = signed_byte_of(word_of(s0, j), s), r1 = signed_byte_of(word_of(s1, j), s);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        int c[4];
        mma_s8(c, a0, a1, word_of(b[n], s));
#pragma unroll
        for (int i = 0; i < 4; i += kBeside ? 1 : kColStep<Acts>) sum[n][i] += (i < 2 ? r0 : r1) * c[i];
        if constexpr (kTwo && !kBeside) {
          mma_s8(c, a0, a1, word_of(b2[n], s));
#pragma unroll
          for (int i = 0; i < 4; ++i) sum2[n][i] += (i < 2 ? r0 : r1) * c[i];
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float2 scale = x.scales(4 * block + j, t, n);
#pragma unroll
      for (int i = 0; i < 4; i += kColStep<Acts>) {
        float v = float(sum[n][i]);
        if (kTwo) v = fmaf(float(kBeside ? sum[n][i + 1] : sum2[n][i]), 1.f / kSecond, v);
        part[n][i] += (i % 2 ? scale.y : scale.x) * v;
      }
    }
  }
  const uint16_t* d = reinterpret_cast<const uint16_t*>(w + 3328);
  const float d0 = half_at(d[g], 0) * .25f, d1 = half_at(d[g + 8], 0) * .25f;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int i = 0; i < 4; i += kColStep<Acts>) acc[n][i] += (i < 2 ? d0 : d1) * part[n][i];
}

// Types with one scale for 32 columns, in tiles of 64; group: the tile's place in x, in groups of 64 columns.
// a[h]: the codes of each half, times 1 / unit. Where activations have two codes, those of one row are two columns of a
// product.
template <class Acts>
__device__ __forceinline__ void product_64(const uint32_t (&a)[2][4], uint32_t w0, uint32_t w1, float unit,
                                           const Acts& x, int group, int lane, AccOf<Acts>& acc) {
  const int g = lane / 4, t = lane % 4;
  const float d0[2] = {half_at(w0, 0), half_at(w0, 1)}, d1[2] = {half_at(w1, 0), half_at(w1, 1)};
#pragma unroll
  for (int n = 0; n < Acts::kTiles; ++n) {
    constexpr bool kTwo = Acts::kTwoBytes, kBeside = kTwo && Acts::kN == 1;
    constexpr int kFirst = kTwo ? kSecond : 1;
    const uint4 b = x.codes(group, g, t, n, kBeside ? g % 2 : 0);
    float2 scale = x.scales(group, t, n);
    if (unit / kFirst != 1.f) scale.x *= unit / kFirst, scale.y *= unit / kFirst;
    int c[4], d[4], c2[4] = {}, d2[4] = {};
    mma_s8(c, a[0], b.x, b.y);
    mma_s8(d, a[1], b.z, b.w);
    if constexpr (kTwo && !kBeside) {
      const uint4 second = x.codes(group, g, t, n, 1);
      mma_s8(c2, a[0], second.x, second.y);
      mma_s8(d2, a[1], second.z, second.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i += kColStep<Acts>) {
      const int first = c[i] * kFirst + (kBeside ? c[i + 1] : c2[i]),
                last = d[i] * kFirst + (kBeside ? d[i + 1] : d2[i]);
      acc[n][i] += (i % 2 ? scale.y : scale.x) *
                   ((i < 2 ? d0[0] : d1[0]) * float(first) + (i < 2 ? d0[1] : d1[1]) * float(last));
    }
  }
}
template <class Acts>
__device__ __forceinline__ void product_4_0(const uint8_t* w, const Acts& x, int group, int lane, AccOf<Acts>& acc) {
  const uint4 q = shared16(w + lane * 16);
  const uint32_t* d = reinterpret_cast<const uint32_t*>(w + 512);
  uint32_t a[2][4];
#pragma unroll
  for (int e = 0; e < 4; ++e) a[0][e] = (word_of(q, e) << 4) & 0xF0F0F0F0, a[1][e] = word_of(q, e) & 0xF0F0F0F0;
  product_64(a, d[lane / 4], d[lane / 4 + 8], 1.f / 16, x, group, lane, acc);
}
template <class Acts>
__device__ __forceinline__ void product_5_0(const uint8_t* w, const Acts& x, int group, int lane, AccOf<Acts>& acc) {
  const uint4 q = shared16(w + lane * 16);
  const uint32_t f = *reinterpret_cast<const uint32_t*>(w + 512 + lane * 4);
  const uint32_t* d = reinterpret_cast<const uint32_t*>(w + 640);
  uint32_t a[2][4];
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    a[0][e] = and_or(f << (7 - e), 0x80808080, (word_of(q, e) << 3) & 0x78787878);
    a[1][e] = and_or(f << (3 - e), 0x80808080, (word_of(q, e) >> 1) & 0x78787878);
  }
  product_64(a, d[lane / 4], d[lane / 4 + 8], 1.f / 8, x, group, lane, acc);
}
template <class Acts>
__device__ __forceinline__ void product_8_0(const uint8_t* w, const Acts& x, int group, int lane, AccOf<Acts>& acc) {
  const uint4 q0 = shared16(w + lane * 16), q1 = shared16(w + 512 + lane * 16);
  const uint32_t* d = reinterpret_cast<const uint32_t*>(w + 1024);
  const uint32_t a[2][4] = {{q0.x, q0.y, q0.z, q0.w}, {q1.x, q1.y, q1.z, q1.w}};
  product_64(a, d[lane / 4], d[lane / 4 + 8], 1.f, x, group, lane, acc);
}

template <class Acts>
__device__ __forceinline__ void product_bf16(const uint8_t* w, const Acts& x, int group, int lane, AccOf<Acts>& acc) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 r0 = shared16(w + h * 1024 + lane * 16), r1 = shared16(w + h * 1024 + 512 + lane * 16);
    const uint32_t a0[4] = {r0.x, r1.x, r0.y, r1.y}, a1[4] = {r0.z, r1.z, r0.w, r1.w};
#pragma unroll
    for (int n = 0; n < Acts::kTiles; ++n) {
      const uint4 b = x.chunk(8 * group + 4 * h + t, g, n);
      mma_bf16(acc[n], a0, b.x, b.y);
      mma_bf16(acc[n], a1, b.z, b.w);
    }
  }
}

// f16 has three more bits than bf16: a weight is the sum of two bf16.
template <class Acts>
__device__ __forceinline__ void product_f16(const uint8_t* w, const Acts& x, int group, int lane, AccOf<Acts>& acc) {
  const int g = lane / 4, t = lane % 4;
  auto split = [](uint32_t v, uint32_t& hi, uint32_t& lo) {
    const float2 f = __half22float2(*reinterpret_cast<__half2*>(&v));
    hi = pack_bf16(f.x, f.y);
    const float2 r = __bfloat1622float2(as_bf16x2(hi));
    lo = pack_bf16(f.x - r.x, f.y - r.y);
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 r0 = shared16(w + h * 1024 + lane * 16), r1 = shared16(w + h * 1024 + 512 + lane * 16);
    uint32_t hi0[4], lo0[4], hi1[4], lo1[4];
    split(r0.x, hi0[0], lo0[0]), split(r1.x, hi0[1], lo0[1]), split(r0.y, hi0[2], lo0[2]), split(r1.y, hi0[3], lo0[3]);
    split(r0.z, hi1[0], lo1[0]), split(r1.z, hi1[1], lo1[1]), split(r0.w, hi1[2], lo1[2]), split(r1.w, hi1[3], lo1[3]);
#pragma unroll
    for (int n = 0; n < Acts::kTiles; ++n) {
      const uint4 b = x.chunk(8 * group + 4 * h + t, g, n);
      mma_bf16(acc[n], hi0, b.x, b.y);
      mma_bf16(acc[n], lo0, b.x, b.y);
      mma_bf16(acc[n], hi1, b.z, b.w);
      mma_bf16(acc[n], lo1, b.z, b.w);
    }
  }
}

template <Tile tile>
using TileKind = std::integral_constant<Tile, tile>;

// What multiplies tiles of this kind: f(product, kind), where product(weights, place of the tile in x in tiles, acc)
// does it. The kind is looked at once for many tiles.
template <class Acts, class F>
__device__ __forceinline__ void with_product(Tile tile, const Acts& x, int lane, F&& f) {
  using Acc = AccOf<Acts>;
  if constexpr (Acts::kFloat) {
    if (tile == Tile::kBF16)
      return f([&](const uint8_t* w, int at, Acc& acc) { product_bf16(w, x, at, lane, acc); }, TileKind<Tile::kBF16>{});
    return f([&](const uint8_t* w, int at, Acc& acc) { product_f16(w, x, at, lane, acc); }, TileKind<Tile::kF16>{});
  } else {
    switch (tile) {
      case Tile::kQ4_K:
        return f([&](const uint8_t* w, int at, Acc& acc) { product_k45<false>(w, x, at, lane, acc); },
                 TileKind<Tile::kQ4_K>{});
      case Tile::kQ5_K:
        return f([&](const uint8_t* w, int at, Acc& acc) { product_k45<true>(w, x, at, lane, acc); },
                 TileKind<Tile::kQ5_K>{});
      case Tile::kQ6_K:
        return f([&](const uint8_t* w, int at, Acc& acc) { product_k6(w, x, at, lane, acc); }, TileKind<Tile::kQ6_K>{});
      case Tile::kQ4_0:
        return f([&](const uint8_t* w, int at, Acc& acc) { product_4_0(w, x, at, lane, acc); },
                 TileKind<Tile::kQ4_0>{});
      case Tile::kQ5_0:
        return f([&](const uint8_t* w, int at, Acc& acc) { product_5_0(w, x, at, lane, acc); },
                 TileKind<Tile::kQ5_0>{});
      default:
        return f([&](const uint8_t* w, int at, Acc& acc) { product_8_0(w, x, at, lane, acc); },
                 TileKind<Tile::kQ8_0>{});
    }
  }
}

}  // namespace facet::cuda
