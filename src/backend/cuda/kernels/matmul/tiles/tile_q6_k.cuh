#pragma once
#include "backend/cuda/kernels/matmul/tiles/tile.cuh"

// Q6_K, 256 columns: nibbles as Q4_K | top pairs [j / 2][lane][j % 2][row] words, a byte a column, bits 2 s of columns
// 16 s..; the upper bit inverted: the sign of code - 32 | scales [row][16] | d [row]
namespace facet::cuda {

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

template <>
struct TileTraits<Tile::kQ6_K> {
  static constexpr bool kPerTile = true;
  struct Head {};
  struct Group {
    uint32_t a[4][2];
    uint32_t scale[2];  // of rows g and g + 8, a byte for 16 columns
  };
  struct Tail {
    float d[2];
  };
  static __device__ __forceinline__ Head head(const uint8_t*, int) { return {}; }
  static __device__ __forceinline__ Group group(const uint8_t* w, const Head&, int j, int lane) {
    const uint4 q = shared16(w + j * 512 + lane * 16);
    const uint2 top = *reinterpret_cast<const uint2*>(w + 2048 + (j / 2) * 512 + lane * 16 + (j % 2) * 8);
    Group to;
#pragma unroll
    for (int s = 0; s < 4; ++s) {  // as in product_k6
      const uint32_t v0 = s % 2 ? q.z : q.x, v1 = s % 2 ? q.w : q.y;
      to.a[s][0] = and_or(top.x << (6 - 2 * s), 0xC0C0C0C0, (s < 2 ? v0 << 2 : v0 >> 2) & 0x3C3C3C3C);
      to.a[s][1] = and_or(top.y << (6 - 2 * s), 0xC0C0C0C0, (s < 2 ? v1 << 2 : v1 >> 2) & 0x3C3C3C3C);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      to.scale[i] = *reinterpret_cast<const uint32_t*>(w + 3072 + (lane / 4 + 8 * i) * 16 + 4 * j);
    return to;
  }
  template <bool kTwo>
  static __device__ __forceinline__ void add(const Group& w, uint4 b, uint4 second, float2 scale, float (&part)[4]) {
    int sum[4] = {}, sum2[4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const int r[2] = {signed_byte_of(w.scale[0], s), signed_byte_of(w.scale[1], s)};
      int c[4];
      mma_s8(c, w.a[s][0], w.a[s][1], word_of(b, s));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[i] += r[i / 2] * c[i];
      if (!kTwo) continue;
      mma_s8(c, w.a[s][0], w.a[s][1], word_of(second, s));
#pragma unroll
      for (int i = 0; i < 4; ++i) sum2[i] += r[i / 2] * c[i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float v = float(sum[i]);
      if (kTwo) v = fmaf(float(sum2[i]), 1.f / kSecond, v);
      part[i] += (i % 2 ? scale.y : scale.x) * v;
    }
  }
  static __device__ __forceinline__ Tail tail(const uint8_t* w, int lane) {
    const uint16_t* d = reinterpret_cast<const uint16_t*>(w + 3328);
    return {{half_at(d[lane / 4], 0) * .25f, half_at(d[lane / 4 + 8], 0) * .25f}};
  }
  static __device__ __forceinline__ void add_tail(const Tail& w, uint2, const float (&part)[4], float (&acc)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] += w.d[i / 2] * part[i];
  }
  template <class Acts>
  static __device__ __forceinline__ void product(const uint8_t* w, const Acts& x, int at, int lane, AccOf<Acts>& acc) {
    product_k6(w, x, at, lane, acc);
  }
  static __device__ __forceinline__ void values(float (&v)[8], const uint8_t* w, int lane, int row, int j, int h) {
    const int r = lane / 4 + 8 * row;
    const TileCodes c{w, lane, row, h};
    const uint32_t top = c.word(2048 + (j / 2) * 512 + lane * 16 + (j % 2) * 8 + row * 4);
    const float d = half_at(*reinterpret_cast<const uint16_t*>(w + 3328 + r * 2), 0);
    const int8_t* s = reinterpret_cast<const int8_t*>(w + 3072 + r * 16) + 4 * j + 2 * h;
    for (int i = 0; i < 8; ++i)
      v[i] = d * float(s[i / 4]) *
             float(((c.nibble(j * 512, i) | int((top >> (8 * (i % 4) + 4 * h + 2 * (i / 4))) & 3) << 4) ^ 32) - 32);
  }
  static __device__ __forceinline__ void repack(const TileRepack& to) {
    auto code = [](const uint8_t* b, int i) {
      const int h = i / 128, l = i % 32, quarter = i % 128 / 32;
      return ((b[64 * h + quarter % 2 * 32 + l] >> (quarter / 2 * 4)) & 15) |
             ((b[128 + 32 * h + l] >> (2 * quarter)) & 3) << 4;
    };
    for (int j = 0; j < 4; ++j) {
      for (int e = 0; e < 4; ++e)
        to.put(j * 512 + to.lane * 16 + e * 4, to.bytes(e, [&](const uint8_t* b, int c) {
          return (code(b, 64 * j + c) & 15) | (code(b, 64 * j + 32 + c) & 15) << 4;
        }));
      for (int rr = 0; rr < 2; ++rr) {
        uint32_t top = 0;
        for (int s = 0; s < 4; ++s)
          top |= to.bytes(rr, [&](const uint8_t* b, int c) { return code(b, 64 * j + 16 * s + c) >> 4 ^ 2; })
                 << (2 * s);
        to.put(2048 + (j / 2) * 512 + to.lane * 16 + (j % 2) * 8 + rr * 4, top);
      }
    }
    if (to.lane >= 16) return;
    for (int i = 0; i < 16; ++i) to.p[3072 + to.lane * 16 + i] = to.lane < to.n_row ? to.row(to.lane)[192 + i] : 0;
    *reinterpret_cast<uint16_t*>(to.p + 3328 + to.lane * 2) = to.lane < to.n_row ? u16(to.row(to.lane) + 208) : 0;
  }
};

}  // namespace facet::cuda
