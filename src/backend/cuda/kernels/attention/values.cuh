#pragma once
#include <cuda_fp16.h>

#include "backend/cuda/kernels/attention/device_kv_layout.cuh"

// Values of rows in device layout, one lane at a time: for kernels that take every type.
namespace facet::cuda {

constexpr int kDims = 16;  // of a lane, side by side

// Value d of a head vector, in the rotated domain if its type is.
static __device__ __noinline__ float device_kv_value(KvType t, const std::byte* p, int d, int E) {
  if (t == KvType::kF32) return reinterpret_cast<const float*>(p)[d];
  if (t == KvType::kF16) return __half2float(reinterpret_cast<const __half*>(p)[d]);
  const float scale = __half2float(reinterpret_cast<const __half*>(p + device_kv_code_bytes(t, E))[d / 32]);
  const int code = device_kv_code(t, reinterpret_cast<const uint8_t*>(p), d, E);
  if (t == KvType::kQ8_0) return scale * float(code - 128);
  if (t == KvType::kQ4_0) return scale * float(code - 8);
  const int m = code < 4 ? 3 - code : code - 4;
  const float c = m == 0 ? 0.021460f : m == 1 ? 0.065717f : m == 2 ? 0.117832f : 0.190685f;
  return scale * (code < 4 ? -c : c);
}

// Values d.. d + 15 of a head vector; d is a multiple of 16.
__device__ __forceinline__ void load_values(float (&v)[kDims], KvType t, const std::byte* p, int d, int E) {
  if (t == KvType::kF16) {
#pragma unroll
    for (int i = 0; i < kDims; i += 8) {
      const uint4 u = *reinterpret_cast<const uint4*>(p + 2 * (d + i));
      const uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&w[j]));
        v[i + 2 * j] = f.x, v[i + 2 * j + 1] = f.y;
      }
    }
  } else if (t == KvType::kQ8_0) {
    const float scale = __half2float(reinterpret_cast<const __half*>(p + device_kv_code_bytes(t, E))[d / 32]);
#pragma unroll
    for (int i = 0; i < kDims; i += 4) {
      const uint32_t w = *reinterpret_cast<const uint32_t*>(p + q8_at(d + i));
#pragma unroll
      for (int j = 0; j < 4; ++j) v[i + j] = scale * float(int(w >> (8 * j) & 255) - 128);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kDims; ++i) v[i] = device_kv_value(t, p, d + i, E);
  }
}

}  // namespace facet::cuda
