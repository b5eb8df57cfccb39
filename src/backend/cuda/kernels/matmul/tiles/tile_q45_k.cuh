#pragma once
#include "backend/cuda/kernels/matmul/tiles/tile.cuh"

// Q4_K and Q5_K, 256 columns.
//   Q4_K  nibbles [j][lane][e] | row: d, dmin, M[4], S[8]
//         S[i] bits 0-5: scale i; M[i]: low nibbles of minima i (lo) and i + 4 (hi), their top bits in S[i] and S[i +
//         4] bits 6-7
//   Q5_K  nibbles as Q4_K | fifth bits [lane][j] words, a byte a column: bit e first, bit 4 + e second half | rows as
//         Q4_K
namespace facet::cuda {

// Minima, integers as well: that of sub-blocks t and t + 4 times their sums, a step of tensor cores for the whole tile.
__device__ __forceinline__ void minima_k45(uint4 s, int t, uint32_t (&m)[4], int row) {
  constexpr uint32_t k128 = 0x43004300;  // two bf16 of 128: their last seven bits count
  const uint32_t low = and_or(s.z >> 2, 0x30303030, s.y & 0x0F0F0F0F),
                 high = and_or(s.w >> 2, 0x30303030, (s.y >> 4) & 0x0F0F0F0F);
  const uint32_t pick = 0x4040u | uint32_t(t) * 0x101u;
  m[row] = as_word(__hsub2(as_bf16x2(__byte_perm(low, 0x43, pick)), as_bf16x2(k128)));
  m[row + 2] = as_word(__hsub2(as_bf16x2(__byte_perm(high, 0x43, pick)), as_bf16x2(k128)));
}

// block: the tile's place in x, in blocks of 256 columns.
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
  uint32_t m[4];
  minima_k45(s0, t, m, 0), minima_k45(s1, t, m, 1);
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

template <bool kFifth>
struct TileQ45K {
  static constexpr bool kPerTile = true;
  static constexpr int kRows = kFifth ? 2560 : 2048;
  struct Head {
    uint2 scale[2];  // of rows g and g + 8
    uint4 fifth;
  };
  struct Group {
    uint32_t a0[4], a1[4];
    int r[2], u[2];
  };
  struct Tail {
    uint32_t m[4];
    float d[2], min[2];
  };
  static __device__ __forceinline__ Head head(const uint8_t* w, int lane) {
    Head h{};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      h.scale[i] = *reinterpret_cast<const uint2*>(w + kRows + (lane / 4 + 8 * i) * 16 + 8);
      h.scale[i].x &= 0x3F3F3F3F, h.scale[i].y &= 0x3F3F3F3F;
    }
    if (kFifth) h.fifth = shared16(w + 2048 + lane * 16);
    return h;
  }
  static __device__ __forceinline__ Group group(const uint8_t* w, const Head& h, int j, int lane) {
    const uint4 q = shared16(w + j * 512 + lane * 16);
    const uint32_t f = word_of(h.fifth, j);
    Group to;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const uint32_t v = word_of(q, e);
      to.a0[e] = v & 0x0F0F0F0F, to.a1[e] = v & 0xF0F0F0F0;
      if (kFifth)
        to.a0[e] = and_or(shifted(f, 4 - e), 0x10101010, to.a0[e]),
        to.a1[e] = and_or(f >> e, 0x10101010, to.a1[e] >> 4);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t s = j < 2 ? h.scale[i].x : h.scale[i].y;
      to.r[i] = byte_of(s, j % 2 * 2) * (kFifth ? 1 : 16), to.u[i] = byte_of(s, j % 2 * 2 + 1);
    }
    return to;
  }
  template <bool kTwo>
  static __device__ __forceinline__ void add(const Group& w, uint4 b, uint4 second, float2 scale, float (&part)[4]) {
    int c[4], d[4], c2[4] = {}, d2[4] = {};
    mma_u8(c, w.a0, b.x, b.y);
    mma_u8(d, w.a1, b.z, b.w);
    if (kTwo) mma_u8(c2, w.a0, second.x, second.y), mma_u8(d2, w.a1, second.z, second.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = w.r[i / 2], u = w.u[i / 2];
      float v = float(r * c[i] + u * d[i]);
      if (kTwo) v = fmaf(float(r * c2[i] + u * d2[i]), 1.f / kSecond, v);
      part[i] += (i % 2 ? scale.y : scale.x) * v;
    }
  }
  static __device__ __forceinline__ Tail tail(const uint8_t* w, int lane) {
    Tail to;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 s = shared16(w + kRows + (lane / 4 + 8 * i) * 16);
      minima_k45(s, lane % 4, to.m, i);
      to.d[i] = half_at(s.x, 0) * (kFifth ? 1.f : 1.f / 16), to.min[i] = half_at(s.x, 1);
    }
    return to;
  }
  static __device__ __forceinline__ void add_tail(const Tail& w, uint2 sums, const float (&part)[4], float (&acc)[4]) {
    float c[4];
    mma_bf16(c, w.m, sums.x, sums.y, 0.f, 0.f, 0.f, 0.f);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] += w.d[i / 2] * part[i] - w.min[i / 2] * c[i];
  }
  template <class Acts>
  static __device__ __forceinline__ void product(const uint8_t* w, const Acts& x, int at, int lane, AccOf<Acts>& acc) {
    product_k45<kFifth>(w, x, at, lane, acc);
  }
  static __device__ __forceinline__ void values(float (&v)[8], const uint8_t* w, int lane, int row, int j, int h) {
    const int r = lane / 4 + 8 * row;
    const TileCodes c{w, lane, row, h};
    const uint32_t f = kFifth ? c.word(2048 + lane * 16 + j * 4) : 0;
    const uint8_t* s = w + (kFifth ? 2560 : 2048) + r * 16;
    const int sub = 2 * j + h;
    const uint32_t dm = *reinterpret_cast<const uint32_t*>(s);
    const float scale = half_at(dm, 0) * float(s[8 + sub] & 63);
    const float min = half_at(dm, 1) * float(((s[4 + sub % 4] >> (sub < 4 ? 0 : 4)) & 15) | (s[8 + sub] >> 6) << 4);
    for (int i = 0; i < 8; ++i) v[i] = scale * float(c.nibble(j * 512, i) | c.fifth(f, i) << 4) - min;
  }
  static __device__ __forceinline__ void repack(const TileRepack& to) {
    const int qs = kFifth ? 48 : 16;
    for (int j = 0; j < 4; ++j) {
      uint32_t f = 0;
      for (int e = 0; e < 4; ++e) {
        to.put(j * 512 + to.lane * 16 + e * 4,
               to.bytes(e, [&](const uint8_t* b, int c) { return b[qs + 32 * j + c]; }));
        if (kFifth)
          f |= to.bytes(e, [&](const uint8_t* b, int c) {
            return ((b[16 + c] >> (2 * j)) & 1) | ((b[16 + c] >> (2 * j + 1)) & 1) << 4;
          }) << e;
      }
      if (kFifth) to.put(2048 + to.lane * 16 + j * 4, f);
    }
    if (to.lane >= 16) return;
    uint8_t* s = to.p + (kFifth ? 2560 : 2048) + to.lane * 16;
    if (to.lane >= to.n_row) {
      for (int i = 0; i < 16; ++i) s[i] = 0;
      return;
    }
    const uint8_t* b = to.row(to.lane);
    for (int i = 0; i < 4; ++i) s[i] = b[i];
    uint8_t scale[8], min[8];
    for (int i = 0; i < 8; ++i) {
      const uint8_t* q = b + 4;
      scale[i] = i < 4 ? q[i] & 63 : uint8_t((q[i + 4] & 15) | (q[i - 4] >> 6) << 4);
      min[i] = i < 4 ? q[i + 4] & 63 : uint8_t((q[i + 4] >> 4) | (q[i] >> 6) << 4);
    }
    for (int i = 0; i < 4; ++i) s[4 + i] = uint8_t((min[i] & 15) | (min[i + 4] & 15) << 4);
    for (int i = 0; i < 8; ++i) s[8 + i] = uint8_t(scale[i] | (min[i] >> 4) << 6);
  }
};
template <>
struct TileTraits<Tile::kQ4_K> : TileQ45K<false> {};
template <>
struct TileTraits<Tile::kQ5_K> : TileQ45K<true> {};

}  // namespace facet::cuda
