#pragma once
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"

// Warpgroup products of integers: D [64, N] = A [64, 32] B [32, N], codes of eight bits, exact. A in registers as
// mma.sync has it (warp w of the four has rows 16 w ..), D as its accumulators; B in shared memory in pieces of 8
// columns by 16 of the inner dimension, whose bytes lie together for each column, without swizzle. N is 32 or 64.
namespace facet::cuda {

#if defined(FACET_WGMMA)
// B: pieces of the same inner bytes lie one after another, and those of the next 16 bytes `next` bytes on.
__device__ __forceinline__ uint64_t pieces_operand(const void* p, int next) {
  const uint64_t at = uint64_t(__cvta_generic_to_shared(p)) >> 4 & 0x3FFF;
  return at | uint64_t(next >> 4) << 16 | uint64_t(128 >> 4) << 32;
}

#define FACET_S(i)                                                                                   \
  "=r"(d[2 * i][0]), "=r"(d[2 * i][1]), "=r"(d[2 * i][2]), "=r"(d[2 * i][3]), "=r"(d[2 * i + 1][0]), \
      "=r"(d[2 * i + 1][1]), "=r"(d[2 * i + 1][2]), "=r"(d[2 * i + 1][3])
#define FACET_S_2 FACET_S(0), FACET_S(1)
#define FACET_S_4 FACET_S_2, FACET_S(2), FACET_S(3)
#define FACET_WGMMA_INT8(name, type, sixteens, n, a0, a1, a2, a3, b_at)                                           \
  __device__ __forceinline__ void name(int(&d)[2 * sixteens][4], const uint32_t(&a)[4], uint64_t b) {              \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #n "k32.s32." type       \
                 ".s8 {" FACET_N_##sixteens "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", p; }"        \
                 : FACET_S_##sixteens                                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
  }
FACET_WGMMA_INT8(wgmma_u8, "u8", 2, 32, 16, 17, 18, 19, 20)
FACET_WGMMA_INT8(wgmma_s8, "s8", 2, 32, 16, 17, 18, 19, 20)
FACET_WGMMA_INT8(wgmma_u8, "u8", 4, 64, 32, 33, 34, 35, 36)
FACET_WGMMA_INT8(wgmma_s8, "s8", 4, 64, 32, 33, 34, 35, 36)
#undef FACET_WGMMA_INT8

// No use of these is moved to before this.
template <int N>
__device__ __forceinline__ void wgmma_has(int (&d)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])::"memory");
}
__device__ __forceinline__ void wgmma_wait_all() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
#endif

}  // namespace facet::cuda
