#pragma once
#include <cstdint>

// kv_codec's rotation R = S2 H S1 of groups of min(128, n) values, with the same order of additions, so that a vector
// rotated here has the bits of one rotated there.
namespace facet::cuda {

// The signs of kv_codec.cpp: bit set = negative.
__device__ __forceinline__ uint32_t sign_word(bool second, int w) {
  if (second) return w == 0 ? 0x16ACEE90u : w == 1 ? 0x3F628FDCu : w == 2 ? 0xB7A5357Au : 0xBEA56562u;
  return w == 0 ? 0xE46A0359u : w == 1 ? 0x42F85949u : w == 2 ? 0xA4C63BBBu : 0x49F250A9u;
}
__device__ __forceinline__ float hadamard_scale(int group) { return group == 128 ? 0.08838834764831845f : 0.125f; }

// x, with its sign changed if bit i of signs is set.
__device__ __forceinline__ float sign_if(float x, uint32_t signs, int i) {
  return __uint_as_float(__float_as_uint(x) ^ (signs << (31 - i) & 0x80000000u));
}

// A vector of 32 * V values held by a warp, values lane * V .. of it in each lane. inverse: R^-1.
template <int V>
__device__ __forceinline__ void warp_rotate(float (&x)[V], int lane, bool inverse) {
  constexpr int kGroup = 32 * V < 128 ? 32 * V : 128;
  const int d0 = lane * V % kGroup;
  const uint32_t first = sign_word(inverse, d0 / 32) >> (d0 % 32), last = sign_word(!inverse, d0 / 32) >> (d0 % 32);
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = sign_if(x[i], first, i);
#pragma unroll
  for (int stride = 1; stride < V; stride *= 2)
#pragma unroll
    for (int i = 0; i < V; ++i)
      if ((i & stride) == 0) {
        const float a = x[i], b = x[i + stride];
        x[i] = __fadd_rn(a, b);
        x[i + stride] = __fsub_rn(a, b);
      }
#pragma unroll 1  // fewer instructions mean fewer instruction-cache misses
  for (int m = 1; m < kGroup / V; m *= 2)
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const float other = __shfl_xor_sync(~0u, x[i], m);
      x[i] = (lane & m) ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
    }
  const float scale = hadamard_scale(kGroup);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    x[i] = sign_if(__fmul_rn(x[i], scale), last, i);
  }
}

// The same for n values in shared memory and all threads of a block; n is a multiple of the group.
__device__ inline void block_rotate(float* x, int n, int group, bool inverse) {
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const int d = i % group;
    if (sign_word(inverse, d / 32) >> (d % 32) & 1) x[i] = -x[i];
  }
  for (int stride = 1; stride < group; stride *= 2) {
    __syncthreads();
    for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
      const int at = i / stride * 2 * stride + i % stride;
      const float a = x[at], b = x[at + stride];
      x[at] = __fadd_rn(a, b);
      x[at + stride] = __fsub_rn(a, b);
    }
  }
  __syncthreads();
  const float scale = hadamard_scale(group);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const int d = i % group;
    const float v = __fmul_rn(x[i], scale);
    x[i] = (sign_word(!inverse, d / 32) >> (d % 32) & 1) ? -v : v;
  }
  __syncthreads();
}

}  // namespace facet::cuda
