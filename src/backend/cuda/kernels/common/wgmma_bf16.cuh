#pragma once
#include "backend/cuda/kernels/common/wgmma.cuh"

// Warpgroup products in bf16: D [64, N] += A [64, 16] B [16, N] in f32, both operands by rows_operand where nothing else
// is said; at the end some in f16. N is twice the accumulators' length, 16 to 256 in steps of 16.
namespace facet::cuda {

#if defined(FACET_WGMMA)

// Sixteen columns: registers in the instruction's list, and the accumulators behind them.
#define FACET_N0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FACET_N1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define FACET_N2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define FACET_N3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define FACET_N4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define FACET_N5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define FACET_N6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define FACET_N7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define FACET_N8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define FACET_N9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define FACET_N10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define FACET_N11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define FACET_N12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define FACET_N13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define FACET_N14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define FACET_N15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define FACET_D(i)                                                                                   \
  "+f"(d[2 * i][0]), "+f"(d[2 * i][1]), "+f"(d[2 * i][2]), "+f"(d[2 * i][3]), "+f"(d[2 * i + 1][0]), \
      "+f"(d[2 * i + 1][1]), "+f"(d[2 * i + 1][2]), "+f"(d[2 * i + 1][3])
// The first n sixteens.
#define FACET_N_1 FACET_N0
#define FACET_D_1 FACET_D(0)
#define FACET_N_2 FACET_N_1 ", " FACET_N1
#define FACET_D_2 FACET_D_1, FACET_D(1)
#define FACET_N_3 FACET_N_2 ", " FACET_N2
#define FACET_D_3 FACET_D_2, FACET_D(2)
#define FACET_N_4 FACET_N_3 ", " FACET_N3
#define FACET_D_4 FACET_D_3, FACET_D(3)
#define FACET_N_5 FACET_N_4 ", " FACET_N4
#define FACET_D_5 FACET_D_4, FACET_D(4)
#define FACET_N_6 FACET_N_5 ", " FACET_N5
#define FACET_D_6 FACET_D_5, FACET_D(5)
#define FACET_N_7 FACET_N_6 ", " FACET_N6
#define FACET_D_7 FACET_D_6, FACET_D(6)
#define FACET_N_8 FACET_N_7 ", " FACET_N7
#define FACET_D_8 FACET_D_7, FACET_D(7)
#define FACET_N_9 FACET_N_8 ", " FACET_N8
#define FACET_D_9 FACET_D_8, FACET_D(8)
#define FACET_N_10 FACET_N_9 ", " FACET_N9
#define FACET_D_10 FACET_D_9, FACET_D(9)
#define FACET_N_11 FACET_N_10 ", " FACET_N10
#define FACET_D_11 FACET_D_10, FACET_D(10)
#define FACET_N_12 FACET_N_11 ", " FACET_N11
#define FACET_D_12 FACET_D_11, FACET_D(11)
#define FACET_N_13 FACET_N_12 ", " FACET_N12
#define FACET_D_13 FACET_D_12, FACET_D(12)
#define FACET_N_14 FACET_N_13 ", " FACET_N13
#define FACET_D_14 FACET_D_13, FACET_D(13)
#define FACET_N_15 FACET_N_14 ", " FACET_N14
#define FACET_D_15 FACET_D_14, FACET_D(14)
#define FACET_N_16 FACET_N_15 ", " FACET_N15
#define FACET_D_16 FACET_D_15, FACET_D(15)

#define FACET_WGMMA_BF16(sixteens, n, a_at, b_at, add_at)                                                   \
  __device__ __forceinline__ void wgmma_bf16(float(&d)[2 * sixteens][4], uint64_t a, uint64_t b, int add) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n     \
                 "k16.f32.bf16.bf16 {" FACET_N_##sixteens "}, %" #a_at ", %" #b_at ", p, 1, 1, 0, 0; }"     \
                 : FACET_D_##sixteens                                                                       \
                 : "l"(a), "l"(b), "r"(add));                                                               \
  }
FACET_WGMMA_BF16(1, 16, 8, 9, 10)
FACET_WGMMA_BF16(2, 32, 16, 17, 18)
FACET_WGMMA_BF16(3, 48, 24, 25, 26)
FACET_WGMMA_BF16(4, 64, 32, 33, 34)
FACET_WGMMA_BF16(5, 80, 40, 41, 42)
FACET_WGMMA_BF16(6, 96, 48, 49, 50)
FACET_WGMMA_BF16(7, 112, 56, 57, 58)
FACET_WGMMA_BF16(8, 128, 64, 65, 66)
FACET_WGMMA_BF16(9, 144, 72, 73, 74)
FACET_WGMMA_BF16(10, 160, 80, 81, 82)
FACET_WGMMA_BF16(11, 176, 88, 89, 90)
FACET_WGMMA_BF16(12, 192, 96, 97, 98)
FACET_WGMMA_BF16(13, 208, 104, 105, 106)
FACET_WGMMA_BF16(14, 224, 112, 113, 114)
FACET_WGMMA_BF16(15, 240, 120, 121, 122)
FACET_WGMMA_BF16(16, 256, 128, 129, 130)
#undef FACET_WGMMA_BF16

// A in registers, as mma.sync has it, B by columns_operand; adds.
#define FACET_WGMMA_BF16(sixteens, n, a0, a1, a2, a3, b_at)                                                           \
  __device__ __forceinline__ void wgmma_bf16_columns(float(&d)[2 * sixteens][4], const uint32_t(&a)[4], uint64_t b) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" FACET_N_##sixteens                      \
                 "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, 1;"                               \
                 : FACET_D_##sixteens                                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                               \
  }
FACET_WGMMA_BF16(4, 64, 32, 33, 34, 35, 36)
FACET_WGMMA_BF16(5, 80, 40, 41, 42, 43, 44)
#undef FACET_WGMMA_BF16

// In f16: A in registers, B by rows_operand.
#define FACET_WGMMA_F16(sixteens, n, a0, a1, a2, a3, b_at, add_at)                                                    \
  __device__ __forceinline__ void wgmma_f16(float(&d)[2 * sixteens][4], const uint32_t(&a)[4], uint64_t b, int add) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #add_at ", 0; wgmma.mma_async.sync.aligned.m64n" #n               \
                 "k16.f32.f16.f16 {" FACET_N_##sixteens "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at        \
                                                        ", p, 1, 1, 0; }"                                             \
                 : FACET_D_##sixteens                                                                                 \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                     \
  }
FACET_WGMMA_F16(2, 32, 16, 17, 18, 19, 20, 21)
FACET_WGMMA_F16(4, 64, 32, 33, 34, 35, 36, 37)
FACET_WGMMA_F16(6, 96, 48, 49, 50, 51, 52, 53)
FACET_WGMMA_F16(8, 128, 64, 65, 66, 67, 68, 69)
FACET_WGMMA_F16(10, 160, 80, 81, 82, 83, 84, 85)
FACET_WGMMA_F16(12, 192, 96, 97, 98, 99, 100, 101)
FACET_WGMMA_F16(14, 224, 112, 113, 114, 115, 116, 117)
FACET_WGMMA_F16(16, 256, 128, 129, 130, 131, 132, 133)
#undef FACET_WGMMA_F16

// Waits for all products but the newest group.
__device__ __forceinline__ void wgmma_wait_older() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }
#endif

}  // namespace facet::cuda
