// attend, long chunks of heads of 512 with K and V apart, on Hopper
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * 512] f32; K, V rows as cached (device_kv_layout.cuh): ring, staging area or committed
// Flops      2048 per query row and visible row; rows that a window hides are not visited
// Launch     256 threads per (tile of 64 query rows, K/V head); a tile is the query heads of one K/V head times some
//            tokens of one sequence; geometry from the shape, surplus blocks leave; the last tokens start first
// Order      keys in ascending order in tiles of 48 or 32. Not row-invariant: only sequences of more than kSmallT
//            tokens come here, and a chunk's tiles begin at its first token
// Reference  CpuRef::attend    Test tests/kernels/cuda_attention_test.cpp    Bench bench/verbs/cuda_attention_bench.cu
//
// Products are wgmma's. Quantised rows arrive by asynchronous copies while the tile before them is multiplied, and are
// expanded to f16 in shared memory once per block. Values stay in the order of their codes ("places"), Q in the same
// order as K; the output is put right at the end. Two warpgroups share 64 rows: each scores half of the keys and
// accumulates half of the values. Heads of 256: prefill_256.cuh; shared rows: prefill_shared_wgmma.cuh; other cards:
// prefill_mma.cuh.
#pragma once
#include "backend/cuda/kernels/attention/prefill_256.cuh"
#include "backend/cuda/kernels/attention/prefill_mma.cuh"
#include "backend/cuda/kernels/attention/prefill_tile.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace facet::cuda {

template <KvType K, KvType V>
struct PrefillShape {
  static constexpr bool kRaw = device_kv_has_scales(K) || device_kv_has_scales(V);
  static constexpr int E = 512, kRows = 64, kKeys = kRaw ? 48 : 32;
  static constexpr int kStages = kRaw ? 1 : 2;
  static constexpr int kRow = 2 * E;  // bytes of an f16 row
  static constexpr int kRawK = kKeys * device_kv_bytes(K, E), kRawV = kKeys * device_kv_bytes(V, E);
  static constexpr int kAtK = kRows * kRow, kAtV = kAtK + kStages * kKeys * kRow;
  static constexpr int kAtP = kAtV + kStages * kKeys * kRow;  // [rows][keys] f16
  static constexpr int kAtRawK = kAtP + kRows * 128;
  static constexpr int kAtRawV = kAtRawK + (kRaw ? kRawK : 0);
  static constexpr int kAtM = kAtRawV + (kRaw ? kRawV : 0);  // [2][rows] f32
  static constexpr int kStrideO = 4 * E + 32;                // the output passes through the same memory
  static constexpr int kBytes = kAtM + 2 * kRows * 4 > kRows* kStrideO ? kAtM + 2 * kRows * 4 : kRows* kStrideO;
};

// Long: loads, products and the softmax between them share barriers, registers and one layout of shared memory.
template <KvType K, KvType V>
__global__ void __launch_bounds__(kPrefillThreads, 1) attend_prefill_kernel(const __grid_constant__ AttendParams p) {
#if defined(FACET_WGMMA)
  using Shape = PrefillShape<K, V>;
  constexpr int E = Shape::E, kRows = Shape::kRows, kKeys = Shape::kKeys, kRow = Shape::kRow;
  constexpr int kScoreTiles = kKeys / 2 / 8, kOutTiles = 256 / 8;
  extern __shared__ __align__(1024) char shared[];
  const int tid = threadIdx.x, warp = tid / 32, g = tid % 32 / 4, c = tid % 4;
  const int head = blockIdx.y;

  pdl_wait();
  pdl_trigger();
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

  const PrefillSource<K, V, E> source(p, t, head);
  auto load = [&](int tile, bool want_k, bool want_v) {
    if (tile < n_tile) {
#pragma unroll
      for (int r = tid / 8; r < kKeys; r += 32) {
        const auto from = source.place(p, t, tiles.row(tile) + r);
        const char *from_k = source.k(p, from), *from_v = source.v(p, from);
        constexpr int kRowK = device_kv_bytes(K, E), kRowV = device_kv_bytes(V, E);
        char* to_k = shared + (Shape::kRaw ? Shape::kAtRawK + r * kRowK : Shape::kAtK + tile % 2 * kKeys * kRow);
        char* to_v = shared + (Shape::kRaw ? Shape::kAtRawV + r * kRowV : Shape::kAtV + tile % 2 * kKeys * kRow);
        auto place = [&](int byte) { return Shape::kRaw ? byte : tile_at(kKeys, r, byte); };
#pragma unroll
        for (int i = 0; i < (kRowK / 16 + 7) / 8; ++i) {
          const int byte = 16 * (tid % 8 + 8 * i);
          if (want_k && byte < kRowK) copy16_async_or_zero(to_k + place(byte), from_k + byte, from.there);
        }
#pragma unroll
        for (int i = 0; i < (kRowV / 16 + 7) / 8; ++i) {
          const int byte = 16 * (tid % 8 + 8 * i);
          if (want_v && byte < kRowV) copy16_async_or_zero(to_v + place(byte), from_v + byte, from.there);
        }
      }
    }
    copies_commit();
  };
  load(0, true, true);
  load_queries<K, E, kRows>(shared, p, s, head);

  // First row of the warp, and its share; a warpgroup of four warps has one share of 64 rows.
  const int strip = warp % (kRows / 16) * 16, half = warp / (kRows / 16);
  PrefillLane lane(s, p.group, strip);
  const float scale = p.scale * 1.4426950408889634f;
  float out[kOutTiles][4] = {};
  float* maxima = reinterpret_cast<float*>(shared + Shape::kAtM);

  // Products run beside the expansion of the next operand: V while scores are made, the next K while values are summed.
  // Either raw row is loaded again as soon as it is expanded. (V in TQ3_0 takes too many instructions to expand: its
  // products would wait.)
  constexpr bool kBeside = Shape::kRaw && V != KvType::kTQ3_0;
  if (kBeside) {
    copies_wait<0>();
    __syncthreads();
    expand_rows<K, E, kKeys>(shared + Shape::kAtK, shared + Shape::kAtRawK);
  }
  for (int tile = 0; tile < n_tile; ++tile) {
    copies_wait<0>();
    publish_to_products();  // the copies or expanded rows, and before the first tile Q
    __syncthreads();
    if constexpr (Shape::kRaw && !kBeside) {
      expand_rows<K, E, kKeys>(shared + Shape::kAtK, shared + Shape::kAtRawK);
      expand_rows<V, E, kKeys>(shared + Shape::kAtV, shared + Shape::kAtRawV);
      publish_to_products();
      __syncthreads();
    }
    load(tile + 1, true, !kBeside);
    const int stage = Shape::kRaw ? 0 : tile % 2;
    const char* keys = shared + Shape::kAtK + stage * kKeys * kRow;
    const char* values = shared + Shape::kAtV + stage * kKeys * kRow;
    const int tile_row = tiles.row(tile);

    float score[kScoreTiles][4] = {};
    {
      const uint64_t a = rows_operand(shared), b = rows_operand(keys + half * (kKeys / 2) * 128);
      wgmma_begin();
#pragma unroll
      for (int ks = 0; ks < E / 16; ++ks)
        wgmma_rows(score, a + (ks / 4 * kRows * 128 + ks % 4 * 32) / 16, b + (ks / 4 * kKeys * 128 + ks % 4 * 32) / 16,
                   ks > 0);
      wgmma_commit();
      if (kBeside) expand_rows<V, E, kKeys>(shared + Shape::kAtV, shared + Shape::kAtRawV);
      wgmma_wait(score);
    }

    const bool whole = sees_whole_tile(p, t, s.j0 + strip / p.group, tile_row, kKeys);
    float most[2], alpha[2];
    mask_scores(score, most, p, t, lane, tile_row + half * (kKeys / 2), scale, whole);
    if (c == 0) maxima[half * kRows + strip + g] = most[0], maxima[half * kRows + strip + g + 8] = most[1];
    asm volatile("bar.sync %0, 64;" ::"r"(1 + strip / 16) : "memory");
    most[0] = fmaxf(most[0], maxima[(1 - half) * kRows + strip + g]);
    most[1] = fmaxf(most[1], maxima[(1 - half) * kRows + strip + g + 8]);
    uint32_t prob[kScoreTiles][2];
    const bool moved = softmax_scores(score, most, scale, lane, prob, alpha);
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        *reinterpret_cast<uint32_t*>(shared + Shape::kAtP +
                                     tile_at(kRows, strip + g + 8 * h, (half * (kKeys / 2) + 8 * n + 2 * c) * 2)) =
            prob[n][h];
    if (kBeside) copies_wait<0>();
    publish_to_products();
    __syncthreads();
    if (kBeside) load(tile + 1, false, true);
    if (moved) scale_rows(out, alpha);
    {
      const uint64_t b = columns_operand(values + half * 4 * kKeys * 128, kKeys * 128);
      wgmma_begin();
#pragma unroll
      for (int ks = 0; ks < kKeys / 16; ++ks)
        wgmma_columns(out, rows_operand(shared + Shape::kAtP) + ks * 32 / 16, b + ks * 2048 / 16, 1);
      wgmma_commit();
      if (kBeside && tile + 1 < n_tile) expand_rows<K, E, kKeys>(shared + Shape::kAtK, shared + Shape::kAtRawK);
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
  __syncthreads();
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
  __syncthreads();
  for (int r = warp; r < kRows && s.j0 + r / p.group < s.j1; r += 8)
    store_output<V, E>(shared + r * Shape::kStrideO, p, s.begin + s.j0 + r / p.group, head * p.group + r % p.group);
#endif
}

template <KvType K, KvType V>
bool attend_prefill(cudaStream_t stream, const AttendParams& p) {
  using Shape = PrefillShape<K, V>;
  static_assert(Shape::kBytes <= 227 * 1024, "shared memory of a block on sm_90");
  if (p.kv.head_dim == 256) return attend_prefill_256<K, V>(stream, p) || launch_prefill_mma<K, V, 256>(stream, p);
  auto* kernel = attend_prefill_kernel<K, V>;
  if (!has_warpgroups(kernel)) return launch_prefill_mma<K, V, 512>(stream, p);
  allow_shared(kernel, size_t(Shape::kBytes));
  launch(kernel, prefill_grid(p, Shape::kRows), dim3(kPrefillThreads), size_t(Shape::kBytes), stream, p);
  return true;
}

}  // namespace facet::cuda
