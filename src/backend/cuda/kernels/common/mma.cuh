#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/kernels/common/register_hold.cuh"

namespace facet::cuda {

// d = a b + c: m16n8k16, bf16 times bf16 in f32. Lane 4 g + t: a = rows g, g + 8, g, g + 8 and columns 2 t, 2 t, 2 t +
// 8, 2 t + 8 (pairs); b = rows 2 t, 2 t + 8 (pairs) of column g; c and d = (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g +
// 8, 2 t + 1).
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, float c0,
                                         float c1, float c2, float c3) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1), "f"(c2), "f"(c3));
}
__device__ __forceinline__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_bf16(d, a, b0, b1, d[0], d[1], d[2], d[3]);
}

// The same with integers: d = a b, m16n8k32. Lane 4 g + t: a = rows g, g + 8, g, g + 8 and columns 4 t, 4 t, 16 + 4 t,
// 16 + 4 t (four bytes each); b = rows 4 t, 16 + 4 t of column g; d as above.
__device__ __forceinline__ void mma_u8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
// m16n8k16: a = rows g, g + 8 of columns 4 t..; b = rows 4 t.. of column g.
__device__ __forceinline__ void mma_u8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}
__device__ __forceinline__ void mma_s8(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// Four matrices of 8 x 8 16-bit values from shared memory, lane l giving the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], const void* p) { ldmatrix4(r, shared_address(p)); }
__device__ __forceinline__ void ldmatrix4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

__device__ __forceinline__ uint32_t as_word(__nv_bfloat162 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ __nv_bfloat162 as_bf16x2(uint32_t v) { return *reinterpret_cast<__nv_bfloat162*>(&v); }
__device__ __forceinline__ uint32_t as_word(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ __half2 as_half2(uint32_t v) { return *reinterpret_cast<__half2*>(&v); }
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) { return as_word(__floats2bfloat162_rn(lo, hi)); }
// Two numbers in f16, as large as it has them at most.
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  const __half2 most = __float2half2_rn(65504.f);
  return as_word(__hmax2_nan(__hmin2_nan(__floats2half2_rn(lo, hi), most), __hneg2(most)));
}

// 16 bytes from global to shared memory without registers.
__device__ __forceinline__ void copy16_async_at(uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
__device__ __forceinline__ void copy16_async(void* shared, const void* global) {
  copy16_async_at(uint32_t(__cvta_generic_to_shared(shared)), global);
}
// The same, or 16 bytes of zeros without reading.
__device__ __forceinline__ void copy16_async_or_zero(void* shared, const void* global, bool read) {
  const uint32_t to = uint32_t(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(read ? 16 : 0) : "memory");
}
// A load of data that is read once a step, as bulk_load_once.
__device__ __forceinline__ float4 load_once(const float4* p) {
  float4 v;
  asm("{\n.reg .b64 once;\ncreatepolicy.fractional.L2::evict_first.b64 once, 1.0;\n"
      "ld.global.nc.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], once;\n}"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "l"(p));
  return v;
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
// All but the newest `pending` (at most 7) groups of copies have arrived.
__device__ __forceinline__ void copies_wait(int pending) {
  switch (pending) {
    case 0:
      return copies_wait<0>();
    case 1:
      return copies_wait<1>();
    case 2:
      return copies_wait<2>();
    case 3:
      return copies_wait<3>();
    case 4:
      return copies_wait<4>();
    case 5:
      return copies_wait<5>();
    case 6:
      return copies_wait<6>();
    default:
      return copies_wait<7>();
  }
}

__device__ __forceinline__ float half_at(uint32_t word, int hi) {
  return __half2float(__ushort_as_half(uint16_t(hi ? word >> 16 : word & 0xFFFF)));
}

}  // namespace facet::cuda
