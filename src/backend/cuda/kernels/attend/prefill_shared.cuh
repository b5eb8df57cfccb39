// attend, long chunks over shared rows on every card -- K and V are the first and the last 512 of a row's 640 values
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * 512] f32; shared rows as cached (planar.cuh), full layers alone
// Flops      2048 per query row and visible row
// Launch     as prefill_mma.cuh at E = 512: 64 query rows a block of 256 threads. Hopper: prefill_shared_wgmma.cuh
// Order      keys in ascending order in tiles of 32. Not row-invariant, as prefill.cuh
// Reference  CpuRef::attend    Test tests/kernels/cuda_attend_test.cpp    Bench bench/verbs/cuda_attend_bench.cu
//
// One tile of f16 rows serves both products: ten panels of 64 values, of which K are the first eight and V the last
// eight.
#pragma once
#include "backend/cuda/kernels/attend/prefill_mma.cuh"
#include "backend/cuda/kernels/attend/prefill_shared_wgmma.cuh"
#include "backend/cuda/kernels/attend/prefill_tile.cuh"

namespace facet::cuda {

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
    if (softmax_scores(score, most, scale, lane, prob, alpha)) scale_rows(out, alpha);
    add_values(out, prob, rows + (Shape::kFirstV + half * 4) * kKeys * 128);
  }
  store_in_passes<T, E, Shape::kRows, Shape::kPassRows, Shape::kStrideO, true>(out, lane, shared, p, s, head, strip,
                                                                               half);
}

template <KvType T>
bool attend_prefill_shared(cudaStream_t stream, const AttendParams& p) {
  if (attend_prefill_shared_wgmma<T>(stream, p)) return true;
  using Shape = SharedPrefillMmaShape<T>;
  if (Shape::kBytes > device().shared) return false;
  auto* kernel = attend_prefill_shared_mma_kernel<T>;
  allow_shared(kernel, size_t(Shape::kBytes));
  launch(kernel, prefill_grid(p, Shape::kRows), dim3(kPrefillThreads), size_t(Shape::kBytes), stream, p);
  return true;
}

}  // namespace facet::cuda
