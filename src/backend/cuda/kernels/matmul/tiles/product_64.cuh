#pragma once
#include "backend/cuda/kernels/matmul/tiles/tile.cuh"

namespace facet::cuda {

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

// The same in parts (tile.cuh). Type: operand(w, lane, a) and its unit, kUnit; where d is, kScales.
template <class Type>
struct Groups64 {
  static constexpr bool kPerTile = false;
  struct Head {};
  struct Group {
    uint32_t a[2][4];
    float d[2][2];  // [row][half]
  };
  static __device__ __forceinline__ Head head(const uint8_t*, int) { return {}; }
  static __device__ __forceinline__ Group group(const uint8_t* w, const Head&, int, int lane) {
    Group to;
    Type::operand(w, lane, to.a);
    const uint32_t* d = reinterpret_cast<const uint32_t*>(w + Type::kScales);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t v = d[lane / 4 + 8 * i];
      to.d[i][0] = half_at(v, 0), to.d[i][1] = half_at(v, 1);
    }
    return to;
  }
  template <bool kTwo>
  static __device__ __forceinline__ void add(const Group& w, uint4 b, uint4 second, float2 scale, float (&acc)[4]) {
    constexpr int kFirst = kTwo ? kSecond : 1;
    if (Type::kUnit / kFirst != 1.f) scale.x *= Type::kUnit / kFirst, scale.y *= Type::kUnit / kFirst;
    int c[4], d[4], c2[4] = {}, d2[4] = {};
    mma_s8(c, w.a[0], b.x, b.y);
    mma_s8(d, w.a[1], b.z, b.w);
    if (kTwo) mma_s8(c2, w.a[0], second.x, second.y), mma_s8(d2, w.a[1], second.z, second.w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = c[i] * kFirst + c2[i], last = d[i] * kFirst + d2[i];
      acc[i] += (i % 2 ? scale.y : scale.x) * (w.d[i / 2][0] * float(first) + w.d[i / 2][1] * float(last));
    }
  }
};
}  // namespace facet::cuda
