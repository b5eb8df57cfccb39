#pragma once
#include <cstdint>

namespace facet::cuda {

// As mma_u8 and mma_s8 (mma.cuh), as floats kIntegers + a b: integers below 2^22 are in their low bits, and kIntegers
// away. That costs one instruction of the full rate, or none (scaled_integer); a conversion takes as long as two.
constexpr float kIntegers = 12582912.f;        // 1.5 * 2^23
constexpr uint32_t kIntegerBits = 0x4B400000;  // its bits
__device__ __forceinline__ void mma_u8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  uint32_t v[4];
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kIntegerBits));
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(v[i]);
}
__device__ __forceinline__ void mma_s8(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  uint32_t v[4];
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(kIntegerBits));
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(v[i]);
}
__device__ __forceinline__ void mma_s8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  uint32_t v[4];
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(kIntegerBits));
#pragma unroll
  for (int i = 0; i < 4; ++i) d[i] = __uint_as_float(v[i]);
}
// The integer of such a float; it times a small integer, of which by = scaled_by(r). Exact where that is below 2^24.
__device__ __forceinline__ float integer_of(float v) { return v - kIntegers; }
struct ScaledBy {
  float r, away;
};
__device__ __forceinline__ ScaledBy scaled_by(float r) { return {r, -r * kIntegers}; }
__device__ __forceinline__ float scaled_integer(float v, ScaledBy by) { return fmaf(v, by.r, by.away); }

}  // namespace facet::cuda
