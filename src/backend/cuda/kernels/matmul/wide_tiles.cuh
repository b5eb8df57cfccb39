#pragma once
#include "backend/cuda/kernels/common/wgmma_int8.cuh"
#include "backend/cuda/kernels/matmul/tiles/all.cuh"

// Tiles as wide_wgmma.cuh multiplies them: 64 columns of a warp's strip times N rows, sums in the order of the tiles'
// own products. WideTile<tile>::add(group, rows, sum): sum += group (TileTraits') times the rows' codes, with all scales.
namespace facet::cuda {

#if defined(FACET_WGMMA)
// 64 columns of N rows in shared memory: their codes as operands, 32 columns each, and the lane's scales.
struct WideRows64 {
  uint64_t codes;  // of the first 32 columns
  uint32_t half;   // what the next 32 add
  const uint8_t* scales;
  __device__ uint64_t operand(int h) const { return codes + uint64_t(h * half); }
  __device__ float2 scale(int n) const { return *reinterpret_cast<const float2*>(scales + n * 32); }
};

template <Tile tile>
struct WideTile;

template <bool kFifth>
struct WideQ45K {
  using Traits = TileQ45K<kFifth>;
  template <int N>
  static __device__ __forceinline__ void add(const typename Traits::Group& w, const WideRows64& x, float (&sum)[N][4]) {
    int c[N][4], d[N][4];
    wgmma_begin();
    wgmma_u8(c, w.a0, x.operand(0));
    wgmma_u8(d, w.a1, x.operand(1));
    wgmma_commit();
    wgmma_wait_all();
    wgmma_has(c), wgmma_has(d);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 scale = x.scale(n);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[n][i] += (i % 2 ? scale.y : scale.x) * float(w.r[i / 2] * c[n][i] + w.u[i / 2] * d[n][i]);
    }
  }
};
template <>
struct WideTile<Tile::kQ4_K> : WideQ45K<false> {};
template <>
struct WideTile<Tile::kQ5_K> : WideQ45K<true> {};

// 16 columns have a scale: the other 16 of a product are zeros.
template <>
struct WideTile<Tile::kQ6_K> {
  using Group = TileTraits<Tile::kQ6_K>::Group;
  template <int N>
  static __device__ __forceinline__ void add(const Group& w, const WideRows64& x, float (&sum)[N][4]) {
    int c[N][4], d[N][4];
    auto product = [&](int s, int (&to)[N][4]) {
      const uint32_t a[4] = {s % 2 ? 0 : w.a[s][0], s % 2 ? 0 : w.a[s][1], s % 2 ? w.a[s][0] : 0,
                             s % 2 ? w.a[s][1] : 0};
      wgmma_s8(to, a, x.operand(s / 2));
    };
    int r[4][2];
#pragma unroll
    for (int s = 0; s < 4; ++s) r[s][0] = signed_byte_of(w.scale[0], s), r[s][1] = signed_byte_of(w.scale[1], s);
    wgmma_begin();
    product(0, c), product(1, d);
    wgmma_commit();
    wgmma_wait_all();
    wgmma_has(c), wgmma_has(d);
#pragma unroll
    for (int s = 1; s < 4; ++s) {
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][i] = (s == 1 ? r[0][i / 2] * c[n][i] : c[n][i]) + r[s][i / 2] * d[n][i];
      if (s == 3) break;
      wgmma_begin();
      product(s + 1, d);
      wgmma_commit();
      wgmma_wait_all();
      wgmma_has(d);
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 scale = x.scale(n);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum[n][i] += (i % 2 ? scale.y : scale.x) * float(c[n][i]);
    }
  }
};

// Types with a scale for 32 columns.
template <class Type>
struct Wide64 {
  using Group = typename Groups64<Type>::Group;
  template <int N>
  static __device__ __forceinline__ void add(const Group& w, const WideRows64& x, float (&sum)[N][4]) {
    int c[N][4], d[N][4];
    wgmma_begin();
    wgmma_s8(c, w.a[0], x.operand(0));
    wgmma_s8(d, w.a[1], x.operand(1));
    wgmma_commit();
    wgmma_wait_all();
    wgmma_has(c), wgmma_has(d);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float2 scale = x.scale(n);
      if (Type::kUnit != 1.f) scale.x *= Type::kUnit, scale.y *= Type::kUnit;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sum[n][i] += (i % 2 ? scale.y : scale.x) *
                     (w.d[i / 2][0] * float(c[n][i]) + w.d[i / 2][1] * float(d[n][i]));
    }
  }
};
template <>
struct WideTile<Tile::kQ4_0> : Wide64<Operand45<false>> {};
template <>
struct WideTile<Tile::kQ5_0> : Wide64<Operand45<true>> {};
template <>
struct WideTile<Tile::kQ8_0> : Wide64<Operand8> {};
#endif

}  // namespace facet::cuda
