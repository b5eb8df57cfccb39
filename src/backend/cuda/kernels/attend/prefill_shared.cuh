// attend, long chunks over shared rows -- K and V are the first and the last 512 of a row's 640 values
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * 512] f32; shared rows as cached (planar.cuh), full layers alone
// Flops      2048 per query row and visible row
// Launch     as prefill.cuh and prefill_mma.cuh at E = 512: 64 query rows a block of 256 threads
// Order      keys in ascending order in tiles of 48 (wgmma) or 32. Not row-invariant, as prefill.cuh
// Reference  CpuRef::attend    Test tests/kernels/cuda_attend_test.cpp    Bench bench/verbs/cuda_attend_bench.cu
//
// One tile of f16 rows serves both products: ten panels of 64 values, of which K are the first eight and V the last
// eight. On Hopper there are two tiles: while one is multiplied, the next arrives (F16) or is expanded from its codes,
// half of its rows beside either product; a half's codes are loaded again as soon as they are expanded.
#pragma once
#include "backend/cuda/kernels/attend/prefill_mma.cuh"
#include "backend/cuda/kernels/attend/prefill_tile.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace facet::cuda {

template <KvType T>
struct SharedPrefillShape {
  static constexpr int E = kSharedHead, kFirstV = (kSharedCols - E) / 64;  // panel where V begins
  static constexpr bool kRaw = planar_scaled(T);
  static constexpr int kRows = 64, kKeys = 48, kHalf = kKeys / 2;
  static constexpr int kRow = 2 * kSharedCols, kTile = kKeys * kRow;  // bytes of an f16 row, of a tile
  static constexpr int kRawRow = planar_bytes(T, kSharedCols);
  static constexpr int kAtTile = kRows * 2 * E;
  static constexpr int kAtP = kAtTile + 2 * kTile;  // [rows][keys] f16
  static constexpr int kAtRaw = kAtP + kRows * 128;
  static constexpr int kAtM = kAtRaw + (kRaw ? kKeys * kRawRow : 0);  // [2][rows] f32
  static constexpr int kStrideO = 4 * E + 32;                         // the output passes through the same memory
  static constexpr int kWork = kAtM + 2 * kRows * 4, kOut = kRows * kStrideO;
  static constexpr int kBytes = kWork > kOut ? kWork : kOut;
};

// n rows of a tile of cached rows, from row `first` of it on, to `to`; place(row, byte) says where in there.
template <int kRowBytes, class Place>
__device__ __forceinline__ void load_shared_rows(const AttendParams& p, const PrefillTile& t,
                                                 const SharedSource& source, int row0, int first, int n, char* to,
                                                 Place place) {
  const int tid = threadIdx.x;
  for (int r = first + tid / 8; r < first + n; r += kPrefillThreads / 8) {
    bool there;
    const char* from = source.at(p, t, row0 + r, there);
#pragma unroll
    for (int i = 0; i < (kRowBytes / 16 + 7) / 8; ++i) {
      const int byte = 16 * (tid % 8 + 8 * i);
      if (byte < kRowBytes) copy16_async_or_zero(to + place(r, byte), from + byte, there);
    }
  }
}

template <KvType T>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    attend_prefill_shared_kernel(const __grid_constant__ AttendParams p) {
#if defined(FACET_WGMMA)
  using Shape = SharedPrefillShape<T>;
  constexpr int E = Shape::E, kRows = Shape::kRows, kKeys = Shape::kKeys, kHalf = Shape::kHalf;
  constexpr int kScoreTiles = kHalf / 8, kOutTiles = 256 / 8;
  extern __shared__ __align__(1024) char shared[];
  const int tid = threadIdx.x, warp = tid / 32, g = tid % 32 / 4, c = tid % 4;
  const int head = blockIdx.y;

  wait_for_previous();
  let_next_start();
  const PrefillTile t = find_prefill_tile(p, kRows / p.group);
  if (t.seq < 0) {
    if (blockIdx.x == 0 && p.blocks.writes) clear_prefill_padding(p, head, E);
    return;
  }
  const SeqRows& s = t.rows;
  __shared__ KeyTiles<kKeys> tiles;
  if (tid == 0) tiles = KeyTiles<kKeys>(p, t, head);
  __syncthreads();
  const int n_tile = tiles.n;
  if (p.blocks.count && n_tile == 0) return leave_empty<kRows>(p, s, head);

  const SharedSource source(p, t.seq, head, Shape::kRawRow);
  auto tile_of = [&](int tile) { return shared + Shape::kAtTile + tile % 2 * Shape::kTile; };
  char* const raw = shared + Shape::kAtRaw;
  // A tile's rows from `first` on: half of them as they are cached, or all of them to their tile.
  auto load = [&](int tile, int first) {
    if (tile < n_tile) {
      if constexpr (Shape::kRaw)
        load_shared_rows<Shape::kRawRow>(p, t, source, tiles.row(tile), first, kHalf, raw,
                                         [](int r, int byte) { return r * Shape::kRawRow + byte; });
      else
        load_shared_rows<Shape::kRow>(p, t, source, tiles.row(tile), 0, kKeys, tile_of(tile),
                                      [](int r, int byte) { return tile_at(kKeys, r, byte); });
    }
    copies_commit();
  };
  auto expand = [&](int tile, int first, int n) {
    if (tile < n_tile) expand_rows<T, kSharedCols, kKeys>(tile_of(tile), raw, first, n);
  };
  load(0, 0);
  if constexpr (Shape::kRaw) load(0, kHalf);
  load_queries<T, E, kRows, true>(shared, p, s, head);

  // First row of the warp, and its share; a warpgroup of four warps has one share of 64 rows.
  const int strip = warp % (kRows / 16) * 16, half = warp / (kRows / 16);
  PrefillLane lane(s, p.group, strip);
  const float scale = p.scale * 1.4426950408889634f;
  float out[kOutTiles][4] = {};
  float* maxima = reinterpret_cast<float*>(shared + Shape::kAtM);

  if constexpr (Shape::kRaw) {
    copies_wait<0>();
    __syncthreads();
    expand(0, 0, kKeys);
    __syncthreads();
    load(1, 0);
  }
  for (int tile = 0; tile < n_tile; ++tile) {
    copies_wait<0>();
    publish_to_products();  // the copies or expanded rows, and before the first tile Q
    __syncthreads();
    load(tile + 1, kHalf);
    const char* rows = tile_of(tile);
    const int tile_row = tiles.row(tile);

    float score[kScoreTiles][4] = {};
    {
      const uint64_t a = rows_operand(shared), b = rows_operand(rows + half * kHalf * 128);
      wgmma_begin();
#pragma unroll
      for (int ks = 0; ks < E / 16; ++ks)
        wgmma_rows(score, a + (ks / 4 * kRows * 128 + ks % 4 * 32) / 16, b + (ks / 4 * kKeys * 128 + ks % 4 * 32) / 16,
                   ks > 0);
      wgmma_commit();
      if constexpr (Shape::kRaw) expand(tile + 1, 0, kHalf);
      wgmma_wait(score);
    }

    const bool whole = sees_whole_tile(p, t, s.j0 + strip / p.group, tile_row, kKeys);
    float most[2], alpha[2];
    mask_scores(score, most, p, t, lane, tile_row + half * kHalf, scale, whole);
    if (c == 0) maxima[half * kRows + strip + g] = most[0], maxima[half * kRows + strip + g + 8] = most[1];
    asm volatile("bar.sync %0, 64;" ::"r"(1 + strip / 16) : "memory");
    most[0] = fmaxf(most[0], maxima[(1 - half) * kRows + strip + g]);
    most[1] = fmaxf(most[1], maxima[(1 - half) * kRows + strip + g + 8]);
    uint32_t prob[kScoreTiles][2];
    const bool moved = softmax_scores(score, most, lane, prob, alpha);
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint32_t*>(
            shared + Shape::kAtP + tile_at(kRows, strip + g + 8 * h, (half * kHalf + 8 * n + 2 * c) * 2)) = prob[n][h];
    if constexpr (Shape::kRaw) copies_wait<0>();
    publish_to_products();
    __syncthreads();
    if constexpr (Shape::kRaw) load(tile + 2, 0);
    if (moved) scale_rows(out, alpha);
    {
      const uint64_t b = columns_operand(rows + (Shape::kFirstV + half * 4) * kKeys * 128, kKeys * 128);
      wgmma_begin();
#pragma unroll
      for (int ks = 0; ks < kKeys / 16; ++ks)
        wgmma_columns(out, rows_operand(shared + Shape::kAtP) + ks * 32 / 16, b + ks * 2048 / 16, 1);
      wgmma_commit();
      if constexpr (Shape::kRaw) expand(tile + 1, kHalf, kHalf);
      wgmma_wait(out);
    }
  }

  // Divide, put the values in order, rotate back, write whole rows.
  copies_wait<0>();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 1);
    lane.sum[h] += __shfl_xor_sync(~0u, lane.sum[h], 2);
  }
  __syncthreads();
  if (c == 0) maxima[half * kRows + strip + g] = lane.sum[0], maxima[half * kRows + strip + g + 8] = lane.sum[1];
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) lane.sum[h] = maxima[strip + g + 8 * h] + maxima[kRows + strip + g + 8 * h];
  if (p.blocks.lse && half == 0 && c == 0) lane.leave_lse(p, s, head, strip);
  if (!p.blocks.writes) return;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float inv = lane.sum[h] > 0 ? 1.f / lane.sum[h] : 0.f;
    float* to = reinterpret_cast<float*>(shared + (strip + g + 8 * h) * Shape::kStrideO) + half * 256 + 2 * c;
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[n][2 * h] * inv, out[n][2 * h + 1] * inv);
  }
  __syncthreads();
  for (int r = warp; r < kRows && s.j0 + r / p.group < s.j1; r += 8)
    store_output<T, E, true>(shared + r * Shape::kStrideO, p, s.begin + s.j0 + r / p.group,
                             head * p.group + r % p.group);
#endif
}

// ---- every card

template <KvType T>
struct SharedPrefillMmaShape {
  static constexpr int E = kSharedHead, kFirstV = (kSharedCols - E) / 64;
  static constexpr bool kRaw = planar_scaled(T);
  static constexpr int kRows = 64, kKeys = 32, kRow = 2 * kSharedCols, kTile = kKeys * kRow;
  static constexpr int kRawRow = planar_bytes(T, kSharedCols);
  static constexpr int kStages = kRaw ? 1 : 2;
  static constexpr int kAtParts = kStages * kTile;  // [warps][tiles of 8 keys][lanes][4] f32
  static constexpr int kAtRaw = kAtParts + 8 * 32 * kKeys / 8 * 16;
  static constexpr int kStrideO = 4 * E + 32, kPassRows = kRows / 2;  // the output leaves in two passes
  static constexpr int kWork = kAtRaw + (kRaw ? kKeys * kRawRow : 0);
  static constexpr int kQueries = kRows * 2 * E, kOut = kPassRows * kStrideO;
  static constexpr int kMost = kWork > kQueries ? kWork : kQueries;
  static constexpr int kBytes = kMost > kOut ? kMost : kOut;
  static_assert(kBytes <= 99 * 1024, "shared memory of a block on sm_86");
};

template <KvType T>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    attend_prefill_shared_mma_kernel(const __grid_constant__ AttendParams p) {
  using Shape = SharedPrefillMmaShape<T>;
  constexpr int E = Shape::E, kRows = Shape::kRows, kKeys = Shape::kKeys;
  extern __shared__ __align__(1024) char shared[];
  const int tid = threadIdx.x, warp = tid / 32, head = blockIdx.y;

  wait_for_previous();
  let_next_start();
  __shared__ PrefillTile t;
  __shared__ SharedSource source;
  __shared__ KeyTiles<kKeys> tiles;
  if (warp == 0) {
    const PrefillTile found = find_prefill_tile(p, kRows / p.group);
    if (tid == 0) {
      t = found;
      if (t.seq >= 0)
        source = SharedSource(p, found.seq, head, Shape::kRawRow), tiles = KeyTiles<kKeys>(p, found, head);
    }
  }
  __syncthreads();
  if (t.seq < 0) {
    if (blockIdx.x == 0 && p.blocks.writes) clear_prefill_padding(p, head, E);
    return;
  }
  const SeqRows& s = t.rows;
  if (p.blocks.count && tiles.n == 0) return leave_empty<kRows>(p, s, head);

  // Queries pass through the memory of the tiles into registers.
  const int strip = warp / 2 * 16, half = warp % 2;
  uint32_t q[16][4];
  load_queries<T, E, kRows, true>(shared, p, s, head);
  __syncthreads();
#pragma unroll
  for (int ks = 0; ks < 16; ++ks)
    ldmatrix4(q[ks], shared + tile_at(kRows, strip + tid % 16, half * 512 + ks * 32 + tid % 32 / 16 * 16));
  __syncthreads();

  auto load = [&](int tile) {
    if (tile < tiles.n) {
      if constexpr (Shape::kRaw)
        load_shared_rows<Shape::kRawRow>(p, t, source, tiles.row(tile), 0, kKeys, shared + Shape::kAtRaw,
                                         [](int r, int byte) { return r * Shape::kRawRow + byte; });
      else
        load_shared_rows<Shape::kRow>(p, t, source, tiles.row(tile), 0, kKeys, shared + tile % 2 * Shape::kTile,
                                      [](int r, int byte) { return tile_at(kKeys, r, byte); });
    }
    copies_commit();
  };

  PrefillLane lane(s, p.group, strip);
  const float scale = p.scale * 1.4426950408889634f;
  float out[32][4] = {};
  load(0);
  for (int tile = 0; tile < tiles.n; ++tile) {
    copies_wait<0>();
    __syncthreads();  // the rows are there for all warps, and nobody reads those before them
    if constexpr (Shape::kRaw) {
      expand_rows<T, kSharedCols, kKeys>(shared, shared + Shape::kAtRaw);
      __syncthreads();
    }
    load(tile + 1);
    const char* rows = shared + (Shape::kRaw ? 0 : tile % 2 * Shape::kTile);
    float score[4][4] = {};
    score_keys(score, q, rows + half * 4 * kKeys * 128);
    add_other_half(score, reinterpret_cast<float4*>(shared + Shape::kAtParts) + warp / 2 * 256, half, warp / 2);
    const int tile_row = tiles.row(tile);
    float most[2], alpha[2];
    uint32_t prob[4][2];
    mask_scores(score, most, p, t, lane, tile_row, scale,
                sees_whole_tile(p, t, s.j0 + strip / p.group, tile_row, kKeys));
    if (softmax_scores(score, most, lane, prob, alpha)) scale_rows(out, alpha);
    add_values(out, prob, rows + (Shape::kFirstV + half * 4) * kKeys * 128);
  }
  store_in_passes<T, E, Shape::kRows, Shape::kPassRows, Shape::kStrideO, true>(out, lane, shared, p, s, head, strip,
                                                                               half);
}

template <KvType T>
bool attend_prefill_shared(cudaStream_t stream, const AttendParams& p) {
  using Shape = SharedPrefillShape<T>;
  using Mma = SharedPrefillMmaShape<T>;
  static_assert(Shape::kBytes <= 227 * 1024, "shared memory of a block on sm_90");
  const bool hopper = has_warpgroups(attend_prefill_shared_kernel<T>);
  const int bytes = hopper ? Shape::kBytes : Mma::kBytes;
  if (bytes > device().shared) return false;
  auto* kernel = hopper ? attend_prefill_shared_kernel<T> : attend_prefill_shared_mma_kernel<T>;
  allow_shared(kernel, size_t(bytes));
  launch(kernel, prefill_grid(p, Shape::kRows), dim3(kPrefillThreads), size_t(bytes), stream, p);
  return true;
}

}  // namespace facet::cuda
