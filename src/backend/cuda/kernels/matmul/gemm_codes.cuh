#pragma once
#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/codes_loop.cuh"
#include "backend/cuda/kernels/matmul/gemm.h"
#include "backend/cuda/kernels/matmul/put_results.cuh"

// The kernel of gemm_codes.cu; its instances are compiled apart from each other.
namespace facet::cuda {

// Shared memory: stages; gated: what the warpgroups exchange; 32 rows of 64 results of each.
template <bool kGated>
struct GemmCodesBlock {
  static constexpr int kStages = 4, kExchange = kGated ? kMeetingBytes : 0, kPitch = 68;
  static constexpr int kOut = 32 * kPitch * 4;
  static constexpr int kAtExchange = kStages * kCodesStage, kAtOut = kAtExchange + kExchange;
  static constexpr int kAtBars = kAtOut + 2 * kOut, kBytes = kAtBars + kStages * 16;
  static constexpr int kThreads = 384;  // three warpgroups, for the split of registers
};
constexpr int kGemmHigh = 8;  // blocks of rows that share weights at a time

#if defined(FACET_WGMMA)
// 64 results of 32 rows from tok0 on, by a warpgroup; v(n, i): as products have them, of the warp's strip.
template <class Values>
__device__ __forceinline__ void put_tokens(const GemmCodesArgs& a, float* out, int part, int tok0, int feat,
                                           Values&& v) {
  constexpr int kPitch = GemmCodesBlock<false>::kPitch;
  const int thread = int(threadIdx.x) % 128, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
#pragma unroll
  for (int n = 0; n < 4; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) out[(8 * n + 2 * t + i % 2) * kPitch + 16 * warp + g + i / 2 * 8] = v(n, i);
  sync_some<128>(1 + part);
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int row = thread / 16 + 8 * i, r = thread % 16 * 4;
    if (tok0 + row < a.n_tok && feat + r < a.n_out)
      put_results(a, tok0 + row, feat + r, *reinterpret_cast<const float4*>(out + row * kPitch + r));
  }
  sync_some<128>(1 + part);
}

template <bool kGated>
__device__ __forceinline__ void finish(const GemmCodesArgs& a, const float (&d)[kCodesTok / 8][4], char* shared,
                                       int tok0, int n_tok, int m) {
  using B = GemmCodesBlock<kGated>;
  constexpr int kTurns = kCodesTok / 32;
  const int part = int(threadIdx.x) / 128;
  float* const out = reinterpret_cast<float*>(shared + B::kAtOut + part * B::kOut);
  if constexpr (!kGated) {
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
      if (32 * n >= n_tok) break;
      put_tokens(a, out, part, tok0 + 32 * n, m * 128 + part * 64, [&](int k, int i) { return d[4 * n + k][i]; });
    }
  } else {
    gate_meets_up(d, shared + B::kAtExchange, n_tok, [&](int n, const float(&gate)[4][4], const float(&up)[4][4]) {
      put_tokens(a, out, part, tok0 + 32 * n, m * 64, [&](int k, int i) {
        return a.y ? activate(gate[k][i], a.act) * up[k][i] : gated(gate[k][i], up[k][i], a.act);
      });
    });
    sync_some<256>(kMeetingBarrier);  // all has been taken
  }
}

// The lane that brings stages in.
template <bool kGated>
__device__ __forceinline__ void feed(const GemmCodesArgs& a, char* shared) {
  using B = GemmCodesBlock<kGated>;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  uint64_t* const empty = full + B::kStages;
  RingPosition state;
  for (int i = int(blockIdx.x); i < a.n_high * a.n_wide; i += int(gridDim.x)) {
    const int row = WorkPlace(kGemmHigh, a.n_high, a.n_wide, i).high * a.tok;
    for (int kb = 0; kb < a.n_block; ++kb) {
      barrier_wait(empty + state.stage, state.phase ^ 1);
      barrier_arrive_expecting(full + state.stage, unsigned(a.tok) * 128);
      tensor_load(shared + state.stage * kCodesStage, &a.x, row, kb * 64, full + state.stage);
      state.advance(B::kStages);
    }
  }
}

template <bool kGated, Tile kTile>
__device__ __forceinline__ void multiply(const GemmCodesArgs& a, char* shared) {
  using B = GemmCodesBlock<kGated>;
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), part = warp / 4;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  RingPosition state;
  for (int i = int(blockIdx.x); i < a.n_high * a.n_wide; i += int(gridDim.x)) {
    const WorkPlace place(kGemmHigh, a.n_high, a.n_wide, i);
    const int m = place.wide, strip = kGated ? 4 * m + warp % 4 : 8 * m + warp;
    CodesLoop<kTile, B::kStages> x{
        .rows = shared,
        .full = full,
        .empty = full + B::kStages,
        .state = state,
        .w = a.w[kGated ? part : 0] + int64_t(min(strip, a.n_strip - 1)) * a.strip_bytes,
        .lane = int(threadIdx.x) % 32,
        .n64 = a.tok / 64};
    x.run(a.n_block);
    finish<kGated>(a, x.d, shared, place.high * a.tok, a.tok, m);
  }
}
#endif

template <bool kGated, Tile kTile>
__global__ void __launch_bounds__(GemmCodesBlock<kGated>::kThreads, 1)
    gemm_codes_kernel(const __grid_constant__ GemmCodesArgs a) {
#if defined(FACET_WGMMA)
  using B = GemmCodesBlock<kGated>;
  extern __shared__ __align__(1024) char shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  if (threadIdx.x == 0) {
    tensor_prefetch(&a.x);
    for (int i = 0; i < B::kStages; ++i) barrier_init(full + i, 1), barrier_init(full + B::kStages + i, 8);
    barriers_publish();
  }
  __syncthreads();
  pdl_wait();
  pdl_trigger();
  if (threadIdx.x >= 256) {
    give_registers<40>();
    if (threadIdx.x == 256) feed<kGated>(a, shared);
  } else {
    take_registers<232>();
    multiply<kGated, kTile>(a, shared);
  }
#endif
}

template <Tile kTile>
void launch_gemm_codes(cudaStream_t stream, const GemmCodesArgs& a, bool gated) {
  const dim3 grid(unsigned(std::min(device().n_sm, a.n_high * a.n_wide)));
  const auto go = [&]<bool kGated>(std::bool_constant<kGated>) {
    using B = GemmCodesBlock<kGated>;
    allow_shared(gemm_codes_kernel<kGated, kTile>, size_t(B::kBytes));
    launch(gemm_codes_kernel<kGated, kTile>, grid, dim3(B::kThreads), size_t(B::kBytes), stream, a);
  };
  gated ? go(std::true_type{}) : go(std::false_type{});
}

}  // namespace facet::cuda
