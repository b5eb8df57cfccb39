#pragma once
#include "backend/cuda/kernels/matmul/tiles/tile.cuh"

// BF16 and F16, 64 columns: [h][row][lane][i]
namespace facet::cuda {

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

struct TileFloat {
  static __device__ __forceinline__ void repack(const TileRepack& to) {
    const int g = to.lane / 4, t = to.lane % 4;
    for (int h = 0; h < 2; ++h)
      for (int rr = 0; rr < 2; ++rr)
        for (int i = 0; i < 8; ++i) {
          const int r = g + 8 * rr, c = 32 * h + 8 * t + i;
          *reinterpret_cast<uint16_t*>(to.p + h * 1024 + rr * 512 + to.lane * 16 + i * 2) =
              r < to.n_row && c < to.n_col ? u16(to.row(r) + 2 * c) : 0;
        }
  }
};
template <>
struct TileTraits<Tile::kBF16> : TileFloat {
  template <class Acts>
  static __device__ __forceinline__ void product(const uint8_t* w, const Acts& x, int at, int lane, AccOf<Acts>& acc) {
    product_bf16(w, x, at, lane, acc);
  }
  static __device__ __forceinline__ void values(float (&v)[8], const uint8_t* w, int lane, int row, int j, int h) {
    const __nv_bfloat16* q = reinterpret_cast<const __nv_bfloat16*>(w + h * 1024 + row * 512 + lane * 16);
    for (int i = 0; i < 8; ++i) v[i] = __bfloat162float(q[i]);
  }
};
template <>
struct TileTraits<Tile::kF16> : TileFloat {
  template <class Acts>
  static __device__ __forceinline__ void product(const uint8_t* w, const Acts& x, int at, int lane, AccOf<Acts>& acc) {
    product_f16(w, x, at, lane, acc);
  }
  static __device__ __forceinline__ void values(float (&v)[8], const uint8_t* w, int lane, int row, int j, int h) {
    const __half* q = reinterpret_cast<const __half*>(w + h * 1024 + row * 512 + lane * 16);
    for (int i = 0; i < 8; ++i) v[i] = __half2float(q[i]);
  }
};

}  // namespace facet::cuda
