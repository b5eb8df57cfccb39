// attend, long chunks over shared rows on Hopper
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     as prefill_shared.cuh; rows in f16, 640 values: the cache's, or a copy of quantised ones (expand_shared)
// Flops      2048 per query row and visible row
// Bytes      a block reads 1280 per visible row, for 64 query rows: 102 flops a byte, of the L2
// Launch     384 threads per (tile of 64 query rows, K/V head): two warpgroups that multiply, one that loads
// Order      keys in ascending order in tiles of 48. Not row-invariant, as prefill.cuh
// Reference  CpuRef::attend    Test tests/kernels/cuda_attention_test.cpp    Bench bench/verbs/cuda_attention_bench.cu
//
// The multiplying warpgroups take the tiles in turn: one scores a tile (all 64 rows by 48 keys, 512 values deep) and
// makes its probabilities while the other does so with the tile before or after it. Each sums half of the values (256
// columns) of every tile, with the probabilities of both, which pass through shared memory with the rows' largest
// scores. So the tensor cores have the products of one warpgroup while the other takes exponents.
//
// A tile is ten panels of 64 values: K is the first eight, V the last eight. They arrive in three stages: panels 0 and
// 1 (K alone), 2 to 5 (V of the first warpgroup) and 6 to 9 (V of the second). There are two places for the former and
// five for the latter: a stage is loaded again as soon as the one warpgroup that reads it last is done with it.
#pragma once
#include <type_traits>

#include "backend/cuda/kernels/attention/prefill_tile.cuh"
#include "backend/cuda/kernels/common/bulk.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace facet::cuda {

struct SharedWgmmaShape {
  static constexpr int E = kSharedHead, kRows = 64, kKeys = 48, kThreads = kPrefillThreads + 128;
  static constexpr int kPanel = kKeys * 128, kPairs = 2, kFours = 5;
  static constexpr int kAtPairs = kRows * 2 * E;
  static constexpr int kAtFours = kAtPairs + kPairs * 2 * kPanel;
  static constexpr int kAtP = kAtFours + kFours * 4 * kPanel;  // [2][rows][keys] f16
  static constexpr int kAtTop = kAtP + 2 * kRows * 128;        // [2][rows] f32: largest scores, at the end sums
  static constexpr int kBytes = kAtTop + 2 * kRows * 4;
  static constexpr int kStrideO = 4 * E + 32;  // the output passes through the same memory
  static_assert(kRows * kStrideO <= kAtTop && kBytes + 1024 <= 227 * 1024, "shared memory of a block on sm_90");
};

// Copies of quantised rows: [K/V head of the launch][row][640] f16 (expanded_rows).
template <KvType T>
__global__ void __launch_bounds__(256) expand_shared_kernel(const __grid_constant__ AttendParams p) {
  pdl_wait();
  pdl_trigger();
  const int at = int(blockIdx.x) * kExpandRows;
  const ExpandedPlace place(p, at);
  const int seq = place.seq;
  if (seq < 0) return;
  const int n = p.step.q_begin[seq + 1] - p.step.q_begin[seq], row0 = at - place.before;
  const int head = p.f16.head0 + int(blockIdx.y);
  const char* raw = reinterpret_cast<const char*>(p.kv.k + p.step.slot[seq] * p.kv.k_slot) +
                    head * device_kv_bytes(T, kSharedCols) + row0 * p.kv.k_row;
  char* to = reinterpret_cast<char*>(p.f16.rows + (int64_t(blockIdx.y) * p.f16.cap + at) * kSharedCols);
  expand_device_rows<T, kSharedCols>(
      [&](int row) { return raw + row * p.kv.k_row; }, 0, min(kExpandRows, p.step.kv_len[seq] + n - row0),
      [&](int row, int byte, uint4 v) { *reinterpret_cast<uint4*>(to + row * 2 * kSharedCols + byte) = v; });
}

#if defined(FACET_WGMMA)
// Barriers between the warpgroups of a block. Full: loaded; empty: its last reader is done. A multiplying warpgroup
// arrives by one lane of each of its four warps.
struct SharedWgmmaBarriers {
  uint64_t pair_full[2], pair_empty[2], four_full[5], four_empty[5], p_full[2], p_empty[2];
};

// The warpgroup that loads.
template <class Rows>
__device__ __forceinline__ void load_stages(SharedWgmmaBarriers& bar, char* shared, const KeyTiles<48>& tiles, int lo,
                                            int hi, const Rows& rows) {
  using Shape = SharedWgmmaShape;
  const int r0 = int(threadIdx.x) % 128 / 8, chunk = int(threadIdx.x) % 8;
  const int place = r0 * 128 + (chunk ^ r0 % 8) * 16;
  for (int tile = 0; tile < tiles.n; ++tile) {
    const int row = tiles.row(tile) + r0;
    auto load = [&](char* to, int first, int n_panel) {
#pragma unroll
      for (int k = 0; k < Shape::kKeys / 16; ++k) {
        const bool there = row + 16 * k >= lo && row + 16 * k < hi;
        const char* from = rows(there ? row + 16 * k : lo) + first * 128 + chunk * 16;
#pragma unroll
        for (int i = 0; i < n_panel; ++i)
          copy16_async_or_zero(to + i * Shape::kPanel + place + k * 2048, from + i * 128, there);
      }
    };
    const int pair = tile % Shape::kPairs;
    barrier_wait(&bar.pair_empty[pair], (tile / Shape::kPairs + 1) & 1);
    load(shared + Shape::kAtPairs + pair * 2 * Shape::kPanel, 0, 2);
    barrier_arrive_with_copies(&bar.pair_full[pair]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = 2 * tile + h, four = i % Shape::kFours;
      barrier_wait(&bar.four_empty[four], (i / Shape::kFours + 1) & 1);
      load(shared + Shape::kAtFours + four * 4 * Shape::kPanel, 2 + 4 * h, 4);
      barrier_arrive_with_copies(&bar.four_full[four]);
    }
  }
  copies_commit();
  copies_wait<0>();
}
#endif

// Long: the tiles of two warpgroups over the same registers, operands and barriers.
template <KvType T>
__global__ void __launch_bounds__(SharedWgmmaShape::kThreads, 1)
    attend_prefill_shared_kernel(const __grid_constant__ AttendParams p) {
#if defined(FACET_WGMMA)
  using Shape = SharedWgmmaShape;
  constexpr int E = Shape::E, kRows = Shape::kRows, kKeys = Shape::kKeys, kPanel = Shape::kPanel;
  constexpr int kScoreTiles = kKeys / 8, kOutTiles = 256 / 8;
  extern __shared__ __align__(1024) char shared[];
  const int tid = threadIdx.x, warp = tid / 32, g = tid % 32 / 4, c = tid % 4;
  const int head = p.f16.head0 + int(blockIdx.y);

  pdl_wait();
  pdl_trigger();
  __shared__ PrefillTile t;
  __shared__ KeyTiles<kKeys> tiles;
  __shared__ SharedWgmmaBarriers bar;
  if (warp == 0) {
    const PrefillTile found = find_prefill_tile(p, kRows / p.group);
    if (tid == 0) {
      t = found;
      if (t.seq >= 0) tiles = KeyTiles<kKeys>(p, found, head);
      for (int i = 0; i < 2; ++i) {
        barrier_init(&bar.pair_full[i], 128), barrier_init(&bar.pair_empty[i], 4);
        barrier_init(&bar.p_full[i], 4), barrier_init(&bar.p_empty[i], 4);
      }
      for (int i = 0; i < Shape::kFours; ++i) barrier_init(&bar.four_full[i], 128), barrier_init(&bar.four_empty[i], 4);
      barriers_publish();
    }
  }
  __syncthreads();
  if (t.seq < 0) {
    if (blockIdx.x == 0 && p.blocks.writes) clear_prefill_padding(p, head, E);
    return;
  }
  const int n_tile = tiles.n;
  if (p.blocks.count && n_tile == 0) return leave_empty<kRows>(p, t.rows, head);

  if (warp >= 8) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const char* base;
    int64_t stride = 2 * kSharedCols;
    if constexpr (device_kv_has_scales(T)) {
      const int before = expanded_before(p, t.seq);
      base = reinterpret_cast<const char*>(p.f16.rows + (int64_t(blockIdx.y) * p.f16.cap + before) * kSharedCols);
    } else {
      base = reinterpret_cast<const char*>(p.kv.k + p.step.slot[t.seq] * p.kv.k_slot) + head * 2 * kSharedCols;
      stride = p.kv.k_row;
    }
    load_stages(bar, shared, tiles, t.lo, t.hi, [&](int row) { return base + row * stride; });
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const SeqRows& s = t.rows;
  load_queries<T, E, kRows, true>(shared, p, s, head);
  publish_to_products();
  auto both = [] { asm volatile("bar.sync 1, 256;" ::: "memory"); };
  both();

  const int strip = warp % 4 * 16, half = warp / 4;
  PrefillLane lane(s, p.group, strip);
  const float scale = p.scale * 1.4426950408889634f;
  float out[kOutTiles][4] = {};
  float* const top = reinterpret_cast<float*>(shared + Shape::kAtTop);
  auto arrive = [&](uint64_t* b) {
    if (tid % 32 == 0) barrier_arrive(b);
  };
  auto four_of = [&](int i) { return shared + Shape::kAtFours + i % Shape::kFours * 4 * kPanel; };
  auto wait_four = [&](int i) { barrier_wait(&bar.four_full[i % Shape::kFours], i / Shape::kFours & 1); };
  // Values of a tile by its probabilities.
  auto begin_values = [&](int tile) {
    const uint64_t b = columns_operand(four_of(2 * tile + half), kPanel);
    const uint64_t a = rows_operand(shared + Shape::kAtP + tile % 2 * kRows * 128);
    wgmma_begin(out);
#pragma unroll
    for (int ks = 0; ks < kKeys / 16; ++ks) wgmma_columns(out, a + ks * 32 / 16, b + ks * 2048 / 16, 1);
    wgmma_commit();
  };
  // Panels [from, to) of 64 values, which begin at `stage`.
  auto score_panels = [&](float(&score)[kScoreTiles][4], const char* stage, int from, int to) {
    const uint64_t a = rows_operand(shared), b = rows_operand(stage);
#pragma unroll
    for (int panel = from; panel < to; ++panel)
#pragma unroll
      for (int ks = 0; ks < 4; ++ks)
        wgmma_rows(score, a + (panel * kRows * 128 + ks * 32) / 16, b + ((panel - from) * kPanel + ks * 32) / 16,
                   panel + ks > 0);
  };

  // process_tile(): scores and probabilities of the warpgroup's own tile, beside the values of the two before it: its
  // own, if this is not its first tile (again), and the other's, if there is one. Nothing is in flight between tiles.
  auto process_tile = [&](int own, auto again, auto other) {
    const int pair = own % 2;
    float score[kScoreTiles][4] = {};
    if constexpr (again) {
      barrier_wait(&bar.p_full[pair], (own - 2) / 2 & 1);
      begin_values(own - 2);
    }
    barrier_wait(&bar.pair_full[pair], own / 2 & 1);
    wait_four(2 * own);
    publish_to_products();
    wgmma_begin(score);
    score_panels(score, shared + Shape::kAtPairs + pair * 2 * kPanel, 0, 2);
    score_panels(score, four_of(2 * own), 2, 6);
    wgmma_commit();
    if constexpr (again) {
      wgmma_wait_older(out);
      arrive(&bar.four_empty[(2 * (own - 2) + half) % Shape::kFours]);
    }
    wait_four(2 * own + 1);
    publish_to_products();
    wgmma_begin();
    score_panels(score, four_of(2 * own + 1), 6, 8);
    wgmma_commit();
    if constexpr (other) {
      barrier_wait(&bar.p_full[1 - pair], (own - 1) / 2 & 1);
      float by[2];
      bool moved = false;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float next = top[(1 - pair) * kRows + strip + g + 8 * h];
        moved |= next != lane.top[h];
        by[h] = shrinks(lane.top[h], next);
        lane.top[h] = next, lane.sum[h] *= by[h];
      }
      if (__any_sync(~0u, moved)) scale_rows(out, by);
      begin_values(own - 1);
    } else {
      wgmma_commit();
    }
    wgmma_wait_older(score);
    arrive(&bar.pair_empty[pair]);

    const int row = tiles.row(own);
    float most[2], alpha[2];
    uint32_t prob[kScoreTiles][2];
    mask_scores(score, most, p, t, lane, row, scale, sees_whole_tile(p, t, s.j0 + strip / p.group, row, kKeys));
    const bool moved = softmax_scores(score, most, scale, lane, prob, alpha);
    barrier_wait(&bar.p_empty[pair], (own / 2 + 1) & 1);
    char* const probs = shared + Shape::kAtP + pair * kRows * 128;
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint32_t*>(probs + tile_at(kRows, strip + g + 8 * h, (8 * n + 2 * c) * 2)) = prob[n][h];
    if (c == 0)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[pair * kRows + strip + g + 8 * h] = lane.top[h];
    publish_to_products();
    __syncwarp();
    arrive(&bar.p_full[pair]);

    wgmma_wait(out);
    if constexpr (other) {
      arrive(&bar.four_empty[(2 * (own - 1) + half) % Shape::kFours]);
      arrive(&bar.p_empty[1 - pair]);
    }
    if (moved) scale_rows(out, alpha);
  };
  const std::true_type yes;
  const std::false_type no;
  int own = half;
  if (own < n_tile) {
    own == 0 ? process_tile(0, no, no) : process_tile(1, no, yes);
    for (own += 2; own < n_tile; own += 2) process_tile(own, yes, yes);
    barrier_wait(&bar.p_full[half], (own - 2) / 2 & 1);
    begin_values(own - 2);
    wgmma_wait(out);
  }
  if (own == n_tile && own > 0) {  // the last tile was the other's
    const int last = own - 1;
    barrier_wait(&bar.p_full[last % 2], last / 2 & 1);
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float next = top[last % 2 * kRows + strip + g + 8 * h];
      by[h] = shrinks(lane.top[h], next);
      lane.top[h] = next, lane.sum[h] *= by[h];
    }
    scale_rows(out, by);
    wait_four(2 * last + half);
    publish_to_products();
    begin_values(last);
    wgmma_wait(out);
  }

  // Divide, put the values in order, rotate back, write whole rows.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 1);
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 2);
  }
  both();
  if (c == 0) top[half * kRows + strip + g] = lane.sum[0], top[half * kRows + strip + g + 8] = lane.sum[1];
  both();
#pragma unroll
  for (int h = 0; h < 2; ++h) lane.sum[h] = top[strip + g + 8 * h] + top[kRows + strip + g + 8 * h];
  if (p.blocks.lse && half == 0 && c == 0) lane.leave_lse(p, s, head, strip);
  if (!p.blocks.writes) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inv = lane.sum[h] > 0 ? 1.f / lane.sum[h] : 0.f;
    float* to = reinterpret_cast<float*>(shared + (strip + g + 8 * h) * Shape::kStrideO) + half * 256 + 2 * c;
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[n][2 * h] * inv, out[n][2 * h + 1] * inv);
  }
  both();
  for (int r = warp; r < kRows && s.j0 + r / p.group < s.j1; r += 8)
    store_output<T, E, true>(shared + r * Shape::kStrideO, p, s.begin + s.j0 + r / p.group,
                             head * p.group + r % p.group);
#endif
}

// False: the copies have no room in p.f16, or the device has no such products.
template <KvType T>
bool attend_prefill_shared_wgmma(cudaStream_t stream, AttendParams p) {
  using Shape = SharedWgmmaShape;
  auto* kernel = attend_prefill_shared_kernel<T>;
  if (!has_warpgroups(kernel) || Shape::kBytes > device().shared) return false;
  int n_head = p.kv.n_head;  // of a pass
  if constexpr (device_kv_has_scales(T)) {
    const int64_t rows = p.step.shape.long_rows + int64_t(kExpandRows) * most_long(p);
    const int64_t room = p.f16.bytes / (2 * kSharedCols) / rows;
    if (p.step.shape.long_rows == 0 || room == 0) return false;
    n_head = int(std::min<int64_t>(n_head, room));
    p.f16.cap = rows;
  }
  allow_shared(kernel, size_t(Shape::kBytes));
  dim3 grid = prefill_grid(p, Shape::kRows);
  for (p.f16.head0 = 0; p.f16.head0 < p.kv.n_head; p.f16.head0 += n_head) {
    grid.y = unsigned(std::min(n_head, p.kv.n_head - p.f16.head0));
    if constexpr (device_kv_has_scales(T))
      launch(expand_shared_kernel<T>, dim3(unsigned((p.f16.cap + kExpandRows - 1) / kExpandRows), grid.y), dim3(256), 0,
             stream, p);
    launch(kernel, grid, dim3(Shape::kThreads), size_t(Shape::kBytes), stream, p);
  }
  return true;
}

}  // namespace facet::cuda
