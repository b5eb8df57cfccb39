#pragma once
#include "backend/cuda/kernels/matmul/tiles/product_64.cuh"
#include "backend/cuda/kernels/matmul/tiles/tile.cuh"

// Q8_0, 64 columns: codes [h][lane][e] | d [row][h]
namespace facet::cuda {

template <class Acts>
__device__ __forceinline__ void product_8_0(const uint8_t* w, const Acts& x, int group, int lane, AccOf<Acts>& acc) {
  const uint4 q0 = shared16(w + lane * 16), q1 = shared16(w + 512 + lane * 16);
  const uint32_t* d = reinterpret_cast<const uint32_t*>(w + 1024);
  const uint32_t a[2][4] = {{q0.x, q0.y, q0.z, q0.w}, {q1.x, q1.y, q1.z, q1.w}};
  product_64(a, d[lane / 4], d[lane / 4 + 8], 1.f, x, group, lane, acc);
}

template <>
struct TileTraits<Tile::kQ8_0> {
  template <class Acts>
  static __device__ __forceinline__ void product(const uint8_t* w, const Acts& x, int at, int lane, AccOf<Acts>& acc) {
    product_8_0(w, x, at, lane, acc);
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
