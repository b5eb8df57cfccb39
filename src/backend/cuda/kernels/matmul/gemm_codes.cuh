#pragma once
#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/codes_loop.cuh"
#include "backend/cuda/kernels/matmul/gemm_codes.h"
#include "backend/cuda/kernels/matmul/put_results.cuh"

// The kernel of gemm_codes.cu; its instances are compiled apart from each other.
namespace facet::cuda {

// Shared memory: stages of rows; sums on their way out; barriers; whether parts are complete.
struct GemmCodesBlock {
  static constexpr int kRing = 6 * kCodesStage, kAtSums = kRing, kAtBars = kAtSums + 2 * kSumsBytes;
  static constexpr int kAtLast = kAtBars + kCodesStages * 16, kBytes = kAtLast + 16;
  static constexpr int kThreads = 384;  // three warpgroups, for the split of registers
};
constexpr int kCodesHigh = 8;   // blocks of rows that share weights at a time
constexpr int kCodesAhead = 2;  // so many times 256 columns of codes come into the L2 before rows do

#if defined(FACET_WGMMA)
// A work item: rows from `tok0` on, block m of outputs, blocks [kb, end) of 64 columns.
struct CodesWork {
  int tok0, high, m, part, kb, end;
  __device__ CodesWork(const GemmCodesArgs& a, int i) {
    const WorkPlace place(kCodesHigh, a.n_high, a.n_wide * a.n_part, i);
    high = place.high, tok0 = high * a.tok, m = place.wide / a.n_part, part = place.wide - m * a.n_part;
    const int n = (a.n_block + 3) / 4;  // of 256 columns, as the largest tiles have
    kb = part * n / a.n_part * 4, end = min((part + 1) * n / a.n_part * 4, a.n_block);
  }
};

// Adds up what parts have, in their order, by the block that comes last: whether this is it.
template <int kBlocks>
__device__ __forceinline__ bool join_parts(const GemmCodesArgs& a, const CodesWork& at, char* shared, int n_tok,
                                           float (&d)[kBlocks][4]) {
  constexpr int kBarrier = 3;
  const int thread = int(threadIdx.x);
  volatile int* const last = reinterpret_cast<int*>(shared + GemmCodesBlock::kAtLast);
  float4* const sums = a.partial + int64_t(at.m) * (kPartBytes / 16) + at.tok0 * 32 + thread;
  const int64_t apart = int64_t(a.n_wide) * (kPartBytes / 16);
  float4* const own = sums + at.part * apart;
#pragma unroll
  for (int n = 0; n < kBlocks; ++n)
    if (8 * n < n_tok) __stcg(own + n * 256, make_float4(d[n][0], d[n][1], d[n][2], d[n][3]));
  __threadfence();
  sync_some<256>(kBarrier);
  if (thread == 0) {
    unsigned* const counter = a.counter + at.m * kPartHigh + at.high;
    *last = atomicAdd(counter, 1u) + 1 == unsigned(a.n_part);
    if (*last) *counter = 0;
  }
  sync_some<256>(kBarrier);
  if (!*last) return false;
  __threadfence();
#pragma unroll 1
  for (int k = 0; k < a.n_part; ++k) {
    const float4* const from = sums + k * apart;
#pragma unroll
    for (int n0 = 0; n0 < kBlocks; n0 += 8) {
      if (8 * n0 >= n_tok) break;
      float4 v[8];
#pragma unroll
      for (int n = 0; n < 8; ++n) v[n] = 8 * (n0 + n) < n_tok ? __ldcg(from + (n0 + n) * 256) : float4{};
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        float(&to)[4] = d[n0 + n];
        to[0] = k > 0 ? to[0] + v[n].x : v[n].x, to[1] = k > 0 ? to[1] + v[n].y : v[n].y;
        to[2] = k > 0 ? to[2] + v[n].z : v[n].z, to[3] = k > 0 ? to[3] + v[n].w : v[n].w;
      }
    }
  }
  return true;
}

template <bool kGated, int kBlocks>
__device__ __forceinline__ void finish(const GemmCodesArgs& a, const float (&d)[kBlocks][4], char* shared, int tok0,
                                       int n_tok, int m) {
  const int thread = int(threadIdx.x), part = thread / 128;
  const int feat = kGated ? m * 64 : m * 128 + part * 64;
  constexpr int kThreads = kGated ? 256 : 128;
  each_sums<kGated>(d, shared + GemmCodesBlock::kAtSums, n_tok, [&](int row0, const float* sums) {
#pragma unroll 1
    for (int at = kGated ? thread : thread % 128; at < kSumsTok * 16; at += kThreads) {
      const int row = at / 16, r = at % 16 * 4, tok = tok0 + row0 + row;
      if (row0 + row >= n_tok) break;
      if (feat + r >= a.n_out) continue;
      const float unit = a.unit[tok];
      const float* const from = sums + row * kSumsPitch + r;
      float4 v = four(from);
      v.x *= unit, v.y *= unit, v.z *= unit, v.w *= unit;
      if constexpr (kGated) {
        float4 u = four(from + kSumsBytes / 4);
        const auto join = [&](float& g, float up) {
          g = a.y ? activate(g, a.act) * (up * unit) : gated(g, up * unit, a.act);
        };
        join(v.x, u.x), join(v.y, u.y), join(v.z, u.z), join(v.w, u.w);
      }
      put_results(a, tok, feat + r, v);
    }
  });
}

// Has bytes, a multiple of 16, brought into the L2.
__device__ __forceinline__ void prefetch_l2(const void* p, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}
// Strip s of the eight that a block has.
template <bool kGated>
__device__ __forceinline__ const uint8_t* strip_at(const GemmCodesArgs& a, int m, int s) {
  const int strip = kGated ? 4 * m + s % 4 : 8 * m + s;
  return a.w[kGated ? s / 4 : 0] + int64_t(min(strip, a.n_strip - 1)) * a.strip_bytes;
}
// Has 256 columns of a strip brought into the L2.
template <bool kGated, Tile kTile>
__device__ __forceinline__ void bring_codes(const GemmCodesArgs& a, int m, int s, int columns) {
  constexpr int kBytes = tile_bytes(kTile) * (256 / tile_cols(kTile));
  const int64_t at = int64_t(columns) * kBytes;
  prefetch_l2(strip_at<kGated>(a, m, s) + at, unsigned(min(int64_t(kBytes), a.strip_bytes - at)));
}
template <bool kGated, Tile kTile>
__device__ __forceinline__ void bring_first(const GemmCodesArgs& a, const CodesWork& at) {
#pragma unroll 1
  for (int i = 0; i < 8 * kCodesAhead; ++i)
    if (const int columns = at.kb / 4 + i / 8; columns * 4 < at.end)
      bring_codes<kGated, kTile>(a, at.m, i % 8, columns);
}

// The lane that brings stages in.
template <bool kGated, Tile kTile>
__device__ __forceinline__ void feed(const GemmCodesArgs& a, char* shared) {
  using B = GemmCodesBlock;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  uint64_t* const empty = full + kCodesStages;
  const CodesStages stages = codes_stages(B::kRing, a.tok);
  RingPosition state;
  for (int i = int(blockIdx.x); i < a.n_high * a.n_wide * a.n_part; i += int(gridDim.x)) {
    const CodesWork at(a, i);
    if (i != int(blockIdx.x)) bring_first<kGated, kTile>(a, at);
#pragma unroll 1
    for (int kb = at.kb; kb < at.end; ++kb) {
      if (const int columns = kb / 4 + kCodesAhead; columns * 4 < at.end) {
        bring_codes<kGated, kTile>(a, at.m, kb % 4 * 2, columns);
        bring_codes<kGated, kTile>(a, at.m, kb % 4 * 2 + 1, columns);
      }
      barrier_wait(empty + state.stage, state.phase ^ 1);
      barrier_arrive_expecting(full + state.stage, unsigned(a.tok) * 128);
      tensor_load(shared + state.stage * stages.bytes, &a.x, at.tok0, kb * 64, full + state.stage);
      state.advance(stages.n);
    }
  }
}

template <bool kGated, Tile kTile, int kTok>
__device__ __forceinline__ void multiply(const GemmCodesArgs& a, char* shared) {
  using B = GemmCodesBlock;
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  RingPosition state;
  for (int i = int(blockIdx.x); i < a.n_high * a.n_wide * a.n_part; i += int(gridDim.x)) {
    const CodesWork at(a, i);
    CodesLoop<kTile, kTok> x{
        .full = full,
        .empty = full + kCodesStages,
        .state = state,
        .w = strip_at<kGated>(a, at.m, warp) + int64_t(at.kb / (tile_cols(kTile) / 64)) * tile_bytes(kTile),
        .rows = uint32_t(rows_operand(shared)),
        .stages = codes_stages(B::kRing, a.tok),
        .lane = int(threadIdx.x) % 32,
        .n32 = a.tok / 32};
    x.run(at.end - at.kb);
    const int n_tok = min(a.tok, a.n_tok - at.tok0);
    if (a.n_part > 1 && !join_parts(a, at, shared, n_tok, x.d)) continue;
    finish<kGated>(a, x.d, shared, at.tok0, n_tok, at.m);
  }
}
#endif

template <bool kGated, Tile kTile, int kTok>
__global__ void __launch_bounds__(GemmCodesBlock::kThreads, 1)
    gemm_codes_kernel(const __grid_constant__ GemmCodesArgs a) {
#if defined(FACET_WGMMA)
  using B = GemmCodesBlock;
  extern __shared__ __align__(1024) char shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kCodesStages; ++i) barrier_init(full + i, 1), barrier_init(full + kCodesStages + i, 8);
    barriers_publish();
  }
  if (threadIdx.x == 256) tensor_prefetch(&a.x), bring_first<kGated, kTile>(a, CodesWork(a, int(blockIdx.x)));
  __syncthreads();
  // Products side by side: the first one's wait is for x's rows, so the late ones may begin. Nothing may after the last
  // one, before all of them have ended.
  if (!a.late) pdl_wait();
  if (!a.late || a.more) pdl_trigger();
  if (threadIdx.x >= 256) {
    give_registers<40>();
    if (threadIdx.x == 256) feed<kGated, kTile>(a, shared);
  } else {
    take_registers<232>();
    multiply<kGated, kTile, kTok>(a, shared);
  }
  if (a.late) pdl_wait();
#endif
}

template <Tile kTile>
void launch_gemm_codes(cudaStream_t stream, const GemmCodesArgs& a, bool gated) {
  const dim3 grid(unsigned(std::min(device().n_sm, a.n_high * a.n_wide * a.n_part)));
  const auto go = [&]<bool kGated, int kTok>(std::bool_constant<kGated>, std::integral_constant<int, kTok>) {
    using B = GemmCodesBlock;
    allow_shared(gemm_codes_kernel<kGated, kTile, kTok>, size_t(B::kBytes));
    launch(gemm_codes_kernel<kGated, kTile, kTok>, grid, dim3(B::kThreads), size_t(B::kBytes), stream, a);
  };
  const auto rows = [&](auto is_gated) {
    a.tok <= 128 ? go(is_gated, std::integral_constant<int, 128>{})
                 : go(is_gated, std::integral_constant<int, kCodesTok>{});
  };
  gated ? rows(std::true_type{}) : rows(std::false_type{});
}

}  // namespace facet::cuda
