// grouped_gemm -- products of many tokens with their experts' weights, in bf16 panels (moe.h)
//
//   up    hidden = act(gate rows) * (up rows)      M tiles of 64 gate and 64 up rows
//   down  out    = down hidden                     M tiles of 128 rows
//
// Shapes     weights [expert, M tile, block of 64 columns][128, 64]; in and out [N tile, block][width, 64], width <=
//            256
// Bytes      weights once per N tile, rows once per M tile, mostly from L2
// Launch     one block per multiprocessor takes work items (N tile, M tile) from a counter; the lists are in device
//            memory, so the launch depends on shapes alone. sm_90a: one warp loads panels by the copy engine (TMA), two
//            warpgroups multiply. Elsewhere: eight warps, mma.sync, N tiles of 128
// Order      columns from the left, f32 sums; bf16 out
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"
#include "backend/cuda/kernels/moe/grouped.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {

namespace {

struct GroupedArgs {
  const __nv_bfloat16 *weights, *in;
  __nv_bfloat16* out;
  const int4* tile;           // of tiles: expert, first row, width
  const int32_t* tile_first;  // of experts
  unsigned* next;
  int expert0, n_expert;  // in the panel of weights
  int n_m, n_block;       // M tiles, blocks of 64 columns of the inner dimension
  int n_out_block;        // blocks of 64 columns of the output
  Act act;
};

constexpr int kStripElements = kMoeStrip * 64, kStripBytes = kStripElements * 2;

// --- sm_90a

template <bool kUp>
struct Warpgroups {
  // Columns of up are long: four stages. Down's outputs are as wide as its tile: 64 columns for either warpgroup.
  static constexpr int kStages = kUp ? 4 : 3, kRowBytes = kMoeTile * 128;
  static constexpr int kStage = kStripBytes + kRowBytes;
  static constexpr int kAtOut = kStages * kStage, kOutBytes = (kUp ? 1 : 2) * kRowBytes;
  static constexpr int kAtBars = kAtOut + kOutBytes, kAtInfo = kAtBars + kStages * 16;
  static constexpr int kBytes = kAtInfo + kStages * 16;
  static constexpr int kThreads = 288;
};

#if defined(FACET_WGMMA)
// One item, by two warpgroups: multiplies and writes. width = 16 kSixteens tokens; the first stage has arrived.
template <bool kUp, int kSixteens>
__device__ __forceinline__ void consume(const GroupedArgs& a, char* shared, RingPosition& state, int m, int first_row) {
  using W = Warpgroups<kUp>;
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + W::kAtBars);
  uint64_t* const empty = full + W::kStages;
  const int thread = int(threadIdx.x), warp = thread / 32, group = warp / 4, lane = thread % 32;
  float d[2 * kSixteens][4] = {};
  int before = -1;
  for (int kb = 0; kb < a.n_block; ++kb) {
    barrier_wait(full + state.stage, state.phase);
    const char* at = shared + state.stage * W::kStage;
    const uint64_t wa = rows_operand(at + group * 8192), wb = rows_operand(at + kStripBytes);
    wgmma_begin();
#pragma unroll
    for (int ks = 0; ks < 4; ++ks) wgmma_bf16(d, wa + ks * 2, wb + ks * 2, kb > 0 || ks > 0);
    wgmma_commit();
    if (kb > 0) {
      wgmma_wait_older();
      if (lane == 0) barrier_arrive(empty + before);
    }
    before = state.stage;
    state.advance(W::kStages);
  }
  wgmma_wait(d);
  if (lane == 0) barrier_arrive(empty + before);

  // Through shared memory, as the blocks of the output: rows of 128 bytes by token.
  constexpr int kWriters = kUp ? 256 : 128;
  const bool writes = kUp ? thread == 0 : thread % 128 == 0;
  const int bar = kUp ? 1 : 1 + group;
  char* const staged = shared + W::kAtOut + (kUp ? 0 : group * W::kRowBytes);
  const uint32_t base = shared_address(staged);
  if (writes) bulk_stores_read();
  sync_some<kWriters>(bar);
  constexpr int kHalves = kUp ? 1 : 2;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
    auto value = [&](int n) {
      return kUp ? pack_bf16(gated(d[n][0], d[n][2], a.act), gated(d[n][1], d[n][3], a.act))
                 : pack_bf16(d[n][2 * half], d[n][2 * half + 1]);
    };
    const int chunk = kUp ? warp : 2 * (warp % 4) + half;
    const uint32_t to = base + uint32_t(lane * 128 + ((chunk ^ (lane % 8)) * 16));
#pragma unroll
    for (int n = 0; n + 4 <= 2 * kSixteens; n += 4)
      store_transposed4(to + n * 1024, value(n), value(n + 1), value(n + 2), value(n + 3));
    if (kSixteens % 2)
      store_transposed2(base + uint32_t((kSixteens / 2 * 32 + lane % 16) * 128 + ((chunk ^ (lane % 8)) * 16)),
                        value(2 * kSixteens - 2), value(2 * kSixteens - 1));
  }
  publish_to_products();
  sync_some<kWriters>(bar);
  const int block = kUp ? m : 2 * m + group;
  if (writes && block < a.n_out_block)
    bulk_store(a.out + (int64_t(first_row) * a.n_out_block + block * 16 * kSixteens) * 64, staged,
               16 * kSixteens * 128);
}
#endif

template <bool kUp>
__global__ void __launch_bounds__(Warpgroups<kUp>::kThreads, 1) grouped_kernel(const __grid_constant__ GroupedArgs a) {
#if defined(FACET_WGMMA)
  using W = Warpgroups<kUp>;
  extern __shared__ __align__(1024) char shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + W::kAtBars);
  uint64_t* const empty = full + W::kStages;
  int4* const info =
      reinterpret_cast<int4*>(shared + W::kAtInfo);  // of a stage that begins an item: M tile, first row, width
  const int thread = int(threadIdx.x);
  if (thread == 0) {
    for (int i = 0; i < W::kStages; ++i) barrier_init(full + i, 1), barrier_init(empty + i, 8);
    barriers_publish();
  }
  __syncthreads();
  pdl_wait();
  pdl_trigger();
  RingPosition state;
  if (thread >= 256) {
    if (thread > 256) return;
    const int tile0 = a.tile_first[a.expert0], n_item = (a.tile_first[a.expert0 + a.n_expert] - tile0) * a.n_m;
    int item = int(atomicAdd(a.next, 1u));
    int4 tile = item < n_item ? a.tile[tile0 + item / a.n_m] : int4{};
    while (item < n_item) {
      const int m = item % a.n_m;
      const __nv_bfloat16* w = a.weights + (int64_t(tile.x - a.expert0) * a.n_m + m) * a.n_block * kStripElements;
      const __nv_bfloat16* x = a.in + int64_t(tile.y) * a.n_block * 64;
      const int width = tile.z, first_row = tile.y;
      item = int(atomicAdd(a.next, 1u));  // the next one, while this one is brought in
      tile = item < n_item ? a.tile[tile0 + item / a.n_m] : int4{};
      for (int kb = 0; kb < a.n_block; ++kb) {
        barrier_wait(empty + state.stage, state.phase ^ 1);
        char* const at = shared + state.stage * W::kStage;
        if (kb == 0) info[state.stage] = make_int4(m, first_row, width, 0);
        barrier_arrive_expecting(full + state.stage, unsigned(kStripBytes + width * 128));
        bulk_load(at, w + int64_t(kb) * kStripElements, kStripBytes, full + state.stage);
        bulk_load(at + kStripBytes, x + int64_t(kb) * width * 64, unsigned(width * 128), full + state.stage);
        state.advance(W::kStages);
      }
    }
    barrier_wait(empty + state.stage, state.phase ^ 1);
    info[state.stage] = make_int4(0, 0, 0, 0);
    barrier_arrive(full + state.stage);
    return;
  }
  for (;;) {
    barrier_wait(full + state.stage, state.phase);
    // The lane that releases the stage reads it.
    int4 i{};
    if (thread % 32 == 0) i = info[state.stage];
    i.x = __shfl_sync(~0u, i.x, 0), i.y = __shfl_sync(~0u, i.y, 0), i.z = __shfl_sync(~0u, i.z, 0);
    switch (i.z / 16) {
      case 0:
        if (thread % 128 == 0) bulk_stores_done();
        return;
// clang-format off
#define FACET_WIDTH(n) \
  case n: \
    consume<kUp, n>(a, shared, state, i.x, i.y); \
    break;
        FACET_WIDTH(1) FACET_WIDTH(2) FACET_WIDTH(3) FACET_WIDTH(4) FACET_WIDTH(5) FACET_WIDTH(6) FACET_WIDTH(7) FACET_WIDTH(8)
        FACET_WIDTH(9) FACET_WIDTH(10) FACET_WIDTH(11) FACET_WIDTH(12) FACET_WIDTH(13) FACET_WIDTH(14) FACET_WIDTH(15) FACET_WIDTH(16)
#undef FACET_WIDTH
        // clang-format on
    }
  }
#endif
}

// --- other GPUs

constexpr int kMmaTile = 128, kMmaStages = 3, kMmaStage = kStripBytes + kMmaTile * 128, kMmaThreads = 256;

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const char* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(uint32_t(__cvta_generic_to_shared(p)))
               : "memory");
}
__device__ __forceinline__ uint32_t transposed(uint32_t v) {
  uint32_t r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

// Warp w: rows 32 (w / 2).. of the M tile, tokens 64 (w % 2)..
// Long: one pipeline over a ring in shared memory, whose fragments stay in registers from load to store.
template <bool kUp>
__global__ void __launch_bounds__(kMmaThreads) grouped_mma_kernel(const __grid_constant__ GroupedArgs a) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ int taken;
  pdl_wait();
  pdl_trigger();
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32, strip = warp / 2 * 32,
            token0 = warp % 2 * 64;
  const int tile0 = a.tile_first[a.expert0], n_item = (a.tile_first[a.expert0 + a.n_expert] - tile0) * a.n_m;
  for (;;) {
    __syncthreads();
    if (thread == 0) taken = int(atomicAdd(a.next, 1u));
    __syncthreads();
    const int item = taken;
    if (item >= n_item) return;
    const int4 tile = a.tile[tile0 + item / a.n_m];
    const int m = item % a.n_m, width = tile.z;
    const char* w = reinterpret_cast<const char*>(a.weights + (int64_t(tile.x - a.expert0) * a.n_m + m) * a.n_block *
                                                                  kStripElements);
    const char* x = reinterpret_cast<const char*>(a.in + int64_t(tile.y) * a.n_block * 64);
    auto load = [&](int kb) {
      if (kb < a.n_block) {
        char* const at = shared + kb % kMmaStages * kMmaStage;
        for (int i = thread * 16; i < kStripBytes; i += kMmaThreads * 16)
          copy16_async(at + i, w + int64_t(kb) * kStripBytes + i);
        for (int i = thread * 16; i < width * 128; i += kMmaThreads * 16)
          copy16_async(at + kStripBytes + i, x + int64_t(kb) * width * 128 + i);
      }
      copies_commit();
    };
    for (int i = 0; i + 1 < kMmaStages; ++i) load(i);
    const int n_n = max(0, min(64, width - token0)) / 8;  // even
    float d[2][8][4] = {};
    for (int kb = 0; kb < a.n_block; ++kb) {
      copies_wait<kMmaStages - 2>();
      __syncthreads();
      load(kb + kMmaStages - 1);
      const char* const at = shared + kb % kMmaStages * kMmaStage;
#pragma unroll
      for (int ks = 0; ks < 4; ++ks) {
        uint32_t wa[2][4];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = strip + 16 * i + lane % 16;
          load_matrices(wa[i], at + row * 128 + ((2 * ks + lane / 16) ^ (row % 8)) * 16);
        }
#pragma unroll
        for (int n = 0; n < 8; n += 2) {
          if (n >= n_n) break;
          const int row = token0 + n * 8 + lane / 16 * 8 + lane % 8;
          uint32_t b[4];
          load_matrices(b, at + kStripBytes + row * 128 + ((2 * ks + lane / 8 % 2) ^ (row % 8)) * 16);
#pragma unroll
          for (int i = 0; i < 2; ++i) mma_bf16(d[i][n], wa[i], b[0], b[1]), mma_bf16(d[i][n + 1], wa[i], b[2], b[3]);
        }
      }
    }
    copies_wait<0>();
    __syncthreads();
    // Blocks of the output, as in memory.
    const int t = lane % 4;
    auto put = [&](int block, int chunk, int token, uint32_t v) {
      *reinterpret_cast<uint32_t*>(shared + (block * kMmaTile + token) * 128 + ((chunk ^ (token % 8)) * 16) + 4 * t) =
          transposed(v);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        // 16 rows are chunk s of gated rows, or two chunks.
        const int token = token0 + n * 8 + lane / 4, s = strip / 16 + i;
        const float(&v)[4] = d[i][n];
        if (kUp) {
          put(0, s, token, pack_bf16(gated(v[0], v[2], a.act), gated(v[1], v[3], a.act)));
        } else {
          put(s / 4, s % 4 * 2, token, pack_bf16(v[0], v[1]));
          put(s / 4, s % 4 * 2 + 1, token, pack_bf16(v[2], v[3]));
        }
      }
    __syncthreads();
    constexpr int kBlocks = kUp ? 1 : 2;
    for (int block = 0; block < kBlocks && kBlocks * m + block < a.n_out_block; ++block) {
      char* const to =
          reinterpret_cast<char*>(a.out + (int64_t(tile.y) * a.n_out_block + (kBlocks * m + block) * width) * 64);
      for (int i = thread * 16; i < width * 128; i += kMmaThreads * 16)
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(shared + block * kMmaTile * 128 + i);
    }
  }
}

template <bool kUp>
void grouped(cudaStream_t stream, const GroupedArgs& a, int items, bool warpgroups) {
  const dim3 grid = dim3(unsigned(std::max(1, std::min(device().n_sm, items))));
  if (warpgroups) {
    using W = Warpgroups<kUp>;
    allow_shared(grouped_kernel<kUp>, size_t(W::kBytes));
    launch(grouped_kernel<kUp>, grid, dim3(W::kThreads), size_t(W::kBytes), stream, a);
  } else {
    constexpr size_t kBytes = size_t(kMmaStages) * kMmaStage;
    allow_shared(grouped_mma_kernel<kUp>, kBytes);
    launch(grouped_mma_kernel<kUp>, grid, dim3(kMmaThreads), kBytes, stream, a);
  }
}

bool takes_warpgroups(const MoePass& p) { return p.tile > kMmaTile; }

}  // namespace

bool moe_has_warpgroups() { return has_warpgroups(grouped_kernel<true>); }

void moe_grouped_up(cudaStream_t stream, const MoePass& p, int expert0, int n, int launch_index) {
  const GroupedArgs a{.weights = p.b.weights,
                      .in = p.b.rows,
                      .out = p.b.hidden,
                      .tile = p.b.tile,
                      .tile_first = p.b.tile_first,
                      .next = p.b.next + launch_index,
                      .expert0 = expert0,
                      .n_expert = n,
                      .n_m = p.f_blocks(),
                      .n_block = p.d_blocks(),
                      .n_out_block = p.f_blocks(),
                      .act = p.w.act};
  grouped<true>(stream, a, p.tiles_most() * a.n_m, takes_warpgroups(p));
}
void moe_grouped_down(cudaStream_t stream, const MoePass& p, int expert0, int n, int launch_index) {
  const GroupedArgs a{.weights = p.b.weights,
                      .in = p.b.hidden,
                      .out = p.b.rows,
                      .tile = p.b.tile,
                      .tile_first = p.b.tile_first,
                      .next = p.b.next + launch_index,
                      .expert0 = expert0,
                      .n_expert = n,
                      .n_m = (p.d_blocks() + 1) / 2,
                      .n_block = p.f_blocks(),
                      .n_out_block = p.d_blocks(),
                      .act = p.w.act};
  grouped<false>(stream, a, p.tiles_most() * a.n_m, takes_warpgroups(p));
}

}  // namespace facet::cuda
