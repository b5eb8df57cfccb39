#pragma once
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"
#include "backend/cuda/kernels/matmul/codes_loop.cuh"
#include "backend/cuda/kernels/moe/grouped.cuh"
#include "backend/cuda/kernels/moe/moe.h"

// The kernel of grouped_codes.cu; its instances are compiled apart from each other.
namespace facet::cuda {

// Shared memory: stages of rows; up: sums on their way out; outputs, 64 columns a warpgroup or of both.
template <bool kUp>
struct CodesBlock {
  static constexpr int kRing = 5 * kCodesStage, kAtSums = kRing, kAtOut = kAtSums + (kUp ? 2 * kSumsBytes : 0);
  static_assert(kMoeTile == kCodesTok);
  static constexpr int kAtInfo = kAtOut + (kUp ? 1 : 2) * kCodesStage;
  static constexpr int kAtBars = kAtInfo + kCodesStages * 16, kBytes = kAtBars + kCodesStages * 16;
  static constexpr int kThreads = 384;  // three warpgroups, for the split of registers
};

#if defined(FACET_WGMMA)
// 32 tokens of eight features: rows of 128 bytes, whose 16-byte chunks are exchanged.
__device__ __forceinline__ void stage_tokens(uint32_t base, int chunk, int tok, int lane, const uint32_t (&v)[4]) {
  store_transposed4(base + uint32_t((tok + lane) * 128 + ((chunk ^ (lane % 8)) * 16)), v[0], v[1], v[2], v[3]);
}

template <int kBlocks>
__device__ __forceinline__ void finish_up(const CodesArgs& a, const float (&d)[kBlocks][4], char* sums_at, char* staged,
                                          int width, int n_out) {
  each_sums<true>(d, sums_at, width, [&](int row0, const float* sums) {
#pragma unroll 1
    for (int at = int(threadIdx.x); at < kSumsTok * 8; at += 256) {
      const int row = at / 8, chunk = at % 8, tok = row0 + row;
      if (tok >= width) break;
      // Even columns of 16, then odd ones: expand_tiles.cuh.
      const float *g = sums + row * kSumsPitch + chunk / 2 * 16 + chunk % 2, *u = g + kSumsBytes / 4;
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w[i] = pack_f16(gated(g[4 * i], u[4 * i], a.act) * (1 / kMoeHiddenUnit),
                        gated(g[4 * i + 2], u[4 * i + 2], a.act) * (1 / kMoeHiddenUnit));
      if (8 * chunk >= n_out) w[0] = w[1] = w[2] = w[3] = 0;
      *reinterpret_cast<uint4*>(staged + tok * 128 + (chunk ^ (tok % 8)) * 16) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    publish_to_products();
  });
}
template <int kBlocks>
__device__ __forceinline__ void finish_down(const float (&d)[kBlocks][4], uint32_t base, int width) {
  const int thread = int(threadIdx.x), part = thread / 128, warp = thread / 32, lane = thread % 32;
  sync_some<128>(1 + part);
#pragma unroll
  for (int n = 0; n < kBlocks / 4; ++n) {
    if (32 * n >= width) break;
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&v)[4] = d[4 * n + i];
      low[i] = pack_bf16(v[0] * kMoeHiddenUnit, v[1] * kMoeHiddenUnit);
      high[i] = pack_bf16(v[2] * kMoeHiddenUnit, v[3] * kMoeHiddenUnit);
    }
    stage_tokens(base, warp % 4 * 2, 32 * n, lane, low), stage_tokens(base, warp % 4 * 2 + 1, 32 * n, lane, high);
  }
  publish_to_products();
  sync_some<128>(1 + part);
}

// One item, by two warpgroups.
template <bool kUp, Tile kTile, int kTok>
__device__ __forceinline__ void codes_item(const CodesArgs& a, char* shared, RingPosition& state, int4 item) {
  using B = CodesBlock<kUp>;
  const int m = item.x, first_row = item.y, width = item.z, thread = int(threadIdx.x), warp = thread / 32,
            part = warp / 4, lane = thread % 32, strip = kUp ? 4 * m + warp % 4 : 8 * m + warp, of = kUp ? part : 0;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  CodesLoop<kTile, kTok> x{
      .full = full,
      .empty = full + kCodesStages,
      .state = state,
      .w = a.w[of] + int64_t(item.w) * a.matrix_bytes[of] + min(strip, a.n_strip - 1) * a.strip_bytes,
      .rows = uint32_t(rows_operand(shared)),
      .stages = codes_stages(B::kRing, a.most_rows),
      .lane = lane,
      .n32 = (width + 31) / 32};
  x.run(a.n_block);

  const bool writes = kUp ? thread == 0 : thread % 128 == 0;
  char* const staged = shared + B::kAtOut + (kUp ? 0 : part * kCodesStage);
  if (writes) bulk_stores_read();
  if constexpr (kUp)
    finish_up(a, x.d, shared + B::kAtSums, staged, width, a.n_strip * 16 - 64 * m);
  else
    finish_down(x.d, shared_address(staged), width);
  const int block = kUp ? m : 2 * m + part;
  if (writes && block < a.n_out_block)
    bulk_store(static_cast<char*>(a.out) + (int64_t(first_row) * a.n_out_block + block * width) * 128, staged,
               unsigned(width) * 128);
}

// The lane that brings rows in, and says which item they are of.
template <bool kUp>
__device__ __forceinline__ void codes_feed(const CodesArgs& a, char* shared) {
  using B = CodesBlock<kUp>;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  uint64_t* const empty = full + kCodesStages;
  const CodesStages stages = codes_stages(B::kRing, a.most_rows);
  int4* const info = reinterpret_cast<int4*>(shared + B::kAtInfo);
  RingPosition state;
  const int n_item = a.tile_first[a.n_expert] * a.n_m;
  int item = int(atomicAdd(a.next, 1u));
  int4 tile = item < n_item ? a.tile[item / a.n_m] : int4{};
  while (item < n_item) {
    const int4 now = make_int4(item % a.n_m, tile.y, tile.z, tile.x);
    const char* const x = static_cast<const char*>(a.in) + int64_t(now.y) * a.n_block * 128;
    item = int(atomicAdd(a.next, 1u));  // the next one, while this one is brought in
    tile = item < n_item ? a.tile[item / a.n_m] : int4{};
    for (int kb = 0; kb < a.n_block; ++kb) {
      barrier_wait(empty + state.stage, state.phase ^ 1);
      if (kb == 0) info[state.stage] = now;
      barrier_arrive_expecting(full + state.stage, unsigned(now.z) * 128);
      bulk_load(shared + state.stage * stages.bytes, x + int64_t(kb) * now.z * 128, unsigned(now.z) * 128,
                full + state.stage);
      state.advance(stages.n);
    }
  }
  barrier_wait(empty + state.stage, state.phase ^ 1);
  info[state.stage] = make_int4(0, 0, 0, 0);
  barrier_arrive(full + state.stage);
}
#endif

template <bool kUp, Tile kTile, int kTok>
__global__ void __launch_bounds__(CodesBlock<kUp>::kThreads, 1)
    grouped_codes_kernel(const __grid_constant__ CodesArgs a) {
#if defined(FACET_WGMMA)
  using B = CodesBlock<kUp>;
  extern __shared__ __align__(1024) char shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + B::kAtBars);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kCodesStages; ++i) barrier_init(full + i, 1), barrier_init(full + kCodesStages + i, 8);
    barriers_publish();
  }
  __syncthreads();
  pdl_wait();
  pdl_trigger();
  if (threadIdx.x >= 256) {
    give_registers<40>();
    if (threadIdx.x == 256) codes_feed<kUp>(a, shared);
    return;
  }
  take_registers<232>();
  RingPosition state;
  for (;;) {
    barrier_wait(full + state.stage, state.phase);
    // The lane that releases the stage reads it.
    int4 i{};
    if (threadIdx.x % 32 == 0) i = reinterpret_cast<const int4*>(shared + B::kAtInfo)[state.stage];
    i.x = __shfl_sync(~0u, i.x, 0), i.y = __shfl_sync(~0u, i.y, 0);
    i.z = __shfl_sync(~0u, i.z, 0), i.w = __shfl_sync(~0u, i.w, 0);
    if (i.z == 0) break;
    codes_item<kUp, kTile, kTok>(a, shared, state, i);
  }
  if (threadIdx.x % 128 == 0) bulk_stores_done();
#endif
}

template <Tile kTile>
void launch_grouped_codes(cudaStream_t stream, const CodesArgs& a, int items, bool up) {
  const dim3 grid = dim3(unsigned(std::max(1, std::min(device().n_sm, items))));
  const auto go = [&]<bool kUp, int kTok>(std::bool_constant<kUp>, std::integral_constant<int, kTok>) {
    using B = CodesBlock<kUp>;
    allow_shared(grouped_codes_kernel<kUp, kTile, kTok>, size_t(B::kBytes));
    launch(grouped_codes_kernel<kUp, kTile, kTok>, grid, dim3(B::kThreads), size_t(B::kBytes), stream, a);
  };
  const auto rows = [&](auto is_up) {
    a.most_rows <= 128 ? go(is_up, std::integral_constant<int, 128>{})
                       : go(is_up, std::integral_constant<int, kCodesTok>{});
  };
  up ? rows(std::true_type{}) : rows(std::false_type{});
}

}  // namespace facet::cuda
