#pragma once
#include "backend/cuda/kernels/matmul/tiles/product_64.cuh"
#include "backend/cuda/kernels/matmul/tiles/tile.cuh"

// Q4_0 and Q5_0, 64 columns.
//   Q4_0  nibbles [lane][e], signed: code - 8 | d [row][h]
//   Q5_0  nibbles [lane][e] | fifth bits [lane] words as Q5_K's, inverted: the sign of code - 16 | d [row][h]
namespace facet::cuda {

// The product's operand, times 1 / kUnit.
template <bool kFifth>
struct Operand45 {
  static constexpr float kUnit = kFifth ? 1.f / 8 : 1.f / 16;
  static constexpr int kScales = kFifth ? 640 : 512;
  static __device__ __forceinline__ void operand(const uint8_t* w, int lane, uint32_t (&a)[2][4]) {
    codes(shared16(w + lane * 16), kFifth ? *reinterpret_cast<const uint32_t*>(w + 512 + lane * 4) : 0, a);
  }
  static __device__ __forceinline__ void codes(uint4 q, uint32_t f, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (kFifth) {
        a[0][e] = and_or(f << (7 - e), 0x80808080, (word_of(q, e) << 3) & 0x78787878);
        a[1][e] = and_or(f << (3 - e), 0x80808080, (word_of(q, e) >> 1) & 0x78787878);
      } else {
        a[0][e] = (word_of(q, e) << 4) & 0xF0F0F0F0, a[1][e] = word_of(q, e) & 0xF0F0F0F0;
      }
  }
};

template <bool kFifth>
struct TileQ45 : Groups64<Operand45<kFifth>> {
  template <class Acts>
  static __device__ __forceinline__ void product(const uint8_t* w, const Acts& x, int at, int lane, AccOf<Acts>& acc) {
    using Codes = Operand45<kFifth>;
    uint32_t a[2][4];
    Codes::operand(w, lane, a);
    const uint32_t* d = reinterpret_cast<const uint32_t*>(w + Codes::kScales);
    product_64(a, d[lane / 4], d[lane / 4 + 8], Codes::kUnit, x, at, lane, acc);
  }
  static __device__ __forceinline__ void repack(const TileRepack& to) {
    const int block = kFifth ? 22 : 18;
    uint32_t f = 0;
    // Beyond the matrix d is zero, whatever the codes stand for.
    for (int e = 0; e < 4; ++e) {
      to.put(to.lane * 16 + e * 4, to.bytes(e, [&](const uint8_t* b, int c) {
        int v = 0;
        for (int h = 0; h < 2; ++h)
          if (32 * h < to.n_col) v |= (code_half(b + h * block + (kFifth ? 6 : 2), c) ^ (kFifth ? 0 : 8)) << (4 * h);
        return v;
      }));
      if (kFifth)
        f |= to.bytes(e, [&](const uint8_t* b, int c) {
          int v = 0;
          for (int h = 0; h < 2; ++h)
            if (32 * h < to.n_col) v |= (~b[h * block + 2 + c / 8] >> (c % 8) & 1) << (4 * h);
          return v;
        }) << e;
    }
    if (kFifth) to.put(512 + to.lane * 4, f);
    *reinterpret_cast<uint16_t*>(to.p + (kFifth ? 640 : 512) + to.lane * 2) =
        to.lane / 2 < to.n_row && 32 * (to.lane % 2) < to.n_col ? u16(to.row(to.lane / 2) + to.lane % 2 * block) : 0;
  }
};
template <>
struct TileTraits<Tile::kQ4_0> : TileQ45<false> {
  static __device__ __forceinline__ void values(float (&v)[8], const uint8_t* w, int lane, int row, int j, int h) {
    const int r = lane / 4 + 8 * row;
    const TileCodes c{w, lane, row, h};
    const float d = half_at(c.word(512 + r * 4), h);
    for (int i = 0; i < 8; ++i) v[i] = d * float((c.nibble(0, i) ^ 8) - 8);
  }
};
template <>
struct TileTraits<Tile::kQ5_0> : TileQ45<true> {
  static __device__ __forceinline__ void values(float (&v)[8], const uint8_t* w, int lane, int row, int j, int h) {
    const int r = lane / 4 + 8 * row;
    const TileCodes c{w, lane, row, h};
    const uint32_t f = c.word(512 + lane * 4);
    const float d = half_at(c.word(640 + r * 4), h);
    for (int i = 0; i < 8; ++i) v[i] = d * float(c.nibble(0, i) - 16 * c.fifth(f, i));
  }
};

}  // namespace facet::cuda
