#pragma once
#include "backend/cuda/kernels/matmul/tiles/product_64.cuh"
#include "backend/cuda/kernels/matmul/tiles/tile.cuh"

// Q8_0, 64 columns: codes [h][lane][e] | d [row][h]
namespace facet::cuda {

struct Operand8 {
  static constexpr float kUnit = 1;
  static constexpr int kScales = 1024;
  static __device__ __forceinline__ void operand(const uint8_t* w, int lane, uint32_t (&a)[2][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 q = shared16(w + h * 512 + lane * 16);
      a[h][0] = q.x, a[h][1] = q.y, a[h][2] = q.z, a[h][3] = q.w;
    }
  }
};

template <>
struct TileTraits<Tile::kQ8_0> : Groups64<Operand8> {
  template <class Acts>
  static __device__ __forceinline__ void product(const uint8_t* w, const Acts& x, int at, int lane, AccOf<Acts>& acc) {
    uint32_t a[2][4];
    Operand8::operand(w, lane, a);
    const uint32_t* d = reinterpret_cast<const uint32_t*>(w + Operand8::kScales);
    product_64(a, d[lane / 4], d[lane / 4 + 8], Operand8::kUnit, x, at, lane, acc);
  }
  static __device__ __forceinline__ void values(float (&v)[8], const uint8_t* w, int lane, int row, int j, int h) {
    const int r = lane / 4 + 8 * row;
    const TileCodes c{w, lane, row, h};
    const float d = half_at(c.word(1024 + r * 4), h);
    for (int i = 0; i < 8; ++i) v[i] = d * float(int8_t(c.byte(h * 512, i)));
  }
  static __device__ __forceinline__ void repack(const TileRepack& to) {
    for (int h = 0; h < 2; ++h)
      for (int e = 0; e < 4; ++e)
        to.put(h * 512 + to.lane * 16 + e * 4,
               32 * h < to.n_col ? to.bytes(e, [&](const uint8_t* b, int c) { return b[h * 34 + 2 + c]; }) : 0);
    *reinterpret_cast<uint16_t*>(to.p + 1024 + to.lane * 2) =
        to.lane / 2 < to.n_row && 32 * (to.lane % 2) < to.n_col ? u16(to.row(to.lane / 2) + to.lane % 2 * 34) : 0;
  }
};

}  // namespace facet::cuda
