// attend, long chunks on every card -- a tile of query rows walks over the rows its tokens see, with mma.sync
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * E] f32; K, V rows as cached (planar.cuh): ring, staging area or committed; E = 256 or 512
// Flops      4 E per query row and visible row; rows that a window hides are not visited
// Launch     256 threads per (tile of 128 (256) or 64 (512) query rows, K/V head), 98 KB of shared memory at most: one
//            block a multiprocessor of an RTX 30 or 40
// Order      keys in ascending order in tiles of 32. Not row-invariant, as prefill.cuh
// Reference  CpuRef::attend    Test tests/kernels/cuda_attend_test.cpp    Bench bench/verbs/cuda_attend_bench.cu
//
// A warp has 16 query rows and keeps them in registers: 64 of each thread's. At E = 512 two warps share the rows: each
// takes half of the values of Q and K, which gives it a part of every score, they exchange these parts, and each sums
// half of the values of V. So shared memory holds one tile of K and one of V in f16 and nothing else is read from it
// but the fragments of B. Each tile is loaded while the other one is multiplied; quantised rows arrive as they are in
// one area for both and are expanded from there. Bytes of shared memory a multiply-add: 1/16 of a fragment of B, twice
// what wgmma kernels read and a third of what an RTX 3090 could.
#pragma once
#include "backend/cuda/kernels/attend/prefill_tile.cuh"

namespace facet::cuda {

template <KvType K, KvType V, int E>
struct PrefillMmaShape {
  static constexpr bool kRaw = planar_scaled(K) || planar_scaled(V);
  static constexpr int kPair = E / 256;  // warps per 16 query rows
  static constexpr int kRows = 128 / kPair, kKeys = 32, kRow = 2 * E;
  static constexpr int kRowK = planar_bytes(K, E), kRowV = planar_bytes(V, E);
  static constexpr int kAtV = kKeys * kRow, kAtParts = 2 * kKeys * kRow;
  static constexpr int kParts = kPair == 2 ? 8 * 32 * kKeys / 8 * 16 : 0;  // [warps][tiles of 8 keys][lanes][4] f32
  static constexpr int kAtRaw = kAtParts + kParts;
  static constexpr int kStrideO = 4 * E + 32, kPassRows = kRows / 2;  // the output leaves in two passes
  static constexpr int kWork = kAtRaw + (kRaw ? kKeys * (kRowK > kRowV ? kRowK : kRowV) : 0);
  static constexpr int kQueries = kRows * kRow, kOut = kPassRows * kStrideO;
  static constexpr int kMost = kWork > kQueries ? kWork : kQueries;
  static constexpr int kBytes = kMost > kOut ? kMost : kOut;
  static_assert(kBytes <= 99 * 1024, "shared memory of a block on sm_86");
};

// B fragments for steps of m16n8k16 products, each loaded one step before it is multiplied: f(i, b) multiplies step i.
template <int kSteps, class At, class Load, class F>
__device__ __forceinline__ void pipelined(At&& at, Load&& load, F&& f) {
  uint32_t b[2][4];
  load(b[0], at(0));
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if (i + 1 < kSteps) load(b[(i + 1) % 2], at(i + 1));
    f(i, b[i % 2]);
  }
}

// score = q k^T of a warp's 16 rows and the tile's 32 keys, over 256 values; panels: the 128-byte panels of K.
__device__ __forceinline__ void score_keys(float (&score)[4][4], const uint32_t (&q)[16][4], const char* panels) {
  const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
  pipelined<32>([&](int i) { return panels + tile_at(32, i % 2 * 16 + row, i / 2 * 32 + chunk * 16); },
                [](uint32_t(&b)[4], const char* p) { ldmatrix4(b, p); },
                [&](int i, const uint32_t(&b)[4]) {
                  mma_f16(score[i % 2 * 2], q[i / 2], b[0], b[1]);
                  mma_f16(score[i % 2 * 2 + 1], q[i / 2], b[2], b[3]);
                });
}

// out += p v of a warp's 16 rows: 32 keys, 256 values; panels: those of V.
__device__ __forceinline__ void add_values(float (&out)[32][4], const uint32_t (&prob)[4][2], const char* panels) {
  const int lane = threadIdx.x % 32, row = lane / 8 % 2 * 8 + lane % 8, chunk = lane / 16;
  pipelined<32>([&](int i) { return panels + tile_at(32, i / 16 * 16 + row, i % 16 * 32 + chunk * 16); },
                [](uint32_t(&b)[4], const char* p) { ldmatrix4_transposed(b, p); },
                [&](int i, const uint32_t(&b)[4]) {
                  const int ks = i / 16, n = i % 16;
                  const uint32_t a[4] = {prob[2 * ks][0], prob[2 * ks][1], prob[2 * ks + 1][0], prob[2 * ks + 1][1]};
                  mma_f16(out[2 * n], a, b[0], b[1]);
                  mma_f16(out[2 * n + 1], a, b[2], b[3]);
                });
}

// Adds the scores of the other warp of a pair; parts: [2 warps][4][32] float4 of the pair. Both get the same bits.
__device__ __forceinline__ void add_other_half(float (&score)[4][4], float4* parts, int half, int pair) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 4; ++n)
    parts[(half * 4 + n) * 32 + lane] = make_float4(score[n][0], score[n][1], score[n][2], score[n][3]);
  asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory");
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float4 f = parts[((1 - half) * 4 + n) * 32 + lane];
    score[n][0] += f.x, score[n][1] += f.y, score[n][2] += f.z, score[n][3] += f.w;
  }
}

// The end of a kernel: divides, puts the values in order, rotates back, writes whole rows, kPassRows of them at a time.
template <KvType V, int E, int kRows, int kPassRows, int kStrideO, bool kShared = false>
__device__ __forceinline__ void store_in_passes(float (&out)[32][4], const PrefillLane& lane, char* shared,
                                                const AttendParams& p, const SeqRows& s, int head, int strip,
                                                int half) {
  const int tid = threadIdx.x, warp = tid / 32;
  float inv[2];
  PrefillLane all = lane;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = lane.sum[h];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    inv[h] = sum > 0 ? 1.f / sum : 0.f;
    all.sum[h] = sum;
  }
  if (p.blocks.lse && half == 0 && tid % 4 == 0) all.leave_lse(p, s, head, strip);
  if (!p.blocks.writes) return;
  scale_rows(out, inv);
  for (int first = 0; first < kRows; first += kPassRows) {
    __syncthreads();
    if (strip / kPassRows == first / kPassRows) {
      float* to =
          reinterpret_cast<float*>(shared + (strip - first + tid % 32 / 4) * kStrideO) + half * 256 + 2 * (tid % 4);
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        *reinterpret_cast<float2*>(to + 8 * n) = make_float2(out[n][0], out[n][1]);
        *reinterpret_cast<float2*>(to + 8 * n + 8 * kStrideO / 4) = make_float2(out[n][2], out[n][3]);
      }
    }
    __syncthreads();
    for (int r = first + warp; r < first + kPassRows && s.j0 + r / p.group < s.j1; r += 8)
      store_output<V, E, kShared>(shared + (r - first) * kStrideO, p, s.begin + s.j0 + r / p.group,
                                  head * p.group + r % p.group);
  }
}

template <KvType K, KvType V, int E>
__global__ void __launch_bounds__(kPrefillThreads, 1)
    attend_prefill_mma_kernel(const __grid_constant__ AttendParams p) {
  using Shape = PrefillMmaShape<K, V, E>;
  constexpr int kRows = Shape::kRows, kKeys = Shape::kKeys, kPair = Shape::kPair;
  extern __shared__ __align__(1024) char shared[];
  const int tid = threadIdx.x, warp = tid / 32, head = blockIdx.y;

  wait_for_previous();
  let_next_start();
  // What every tile of keys needs and no product: in shared memory, as registers are full of operands.
  __shared__ PrefillTile t;
  __shared__ PrefillSource<K, V, E> source;
  __shared__ KeyTiles<kKeys> tiles;
  if (warp == 0) {
    const PrefillTile found = find_prefill_tile(p, kRows / p.group);
    if (tid == 0) {
      t = found;
      if (t.seq >= 0) source = PrefillSource<K, V, E>(p, found, head), tiles = KeyTiles<kKeys>(p, found, head);
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
  const int strip = warp / kPair * 16, half = warp % kPair;
  uint32_t q[16][4];
  load_queries<K, E, kRows>(shared, p, s, head);
  __syncthreads();
#pragma unroll
  for (int ks = 0; ks < 16; ++ks)
    ldmatrix4(q[ks], shared + tile_at(kRows, strip + tid % 16, half * 512 + ks * 32 + tid % 32 / 16 * 16));
  __syncthreads();

  auto load = [&](int tile, auto is_k) {
    constexpr bool kIsK = decltype(is_k)::value;
    constexpr int kBytes = kIsK ? Shape::kRowK : Shape::kRowV;
    if (tile < tiles.n) {
      const int r = tid / 8;
      const auto from = source.at(p, t, tiles.row(tile) + r);
      const char* row = kIsK ? from.k : from.v;
      char* to = shared + (Shape::kRaw ? Shape::kAtRaw + r * kBytes : kIsK ? 0 : Shape::kAtV);
#pragma unroll
      for (int i = 0; i < (kBytes / 16 + 7) / 8; ++i) {
        const int byte = 16 * (tid % 8 + 8 * i);
        if (byte < kBytes)
          copy16_async_or_zero(to + (Shape::kRaw ? byte : tile_at(kKeys, r, byte)), row + byte, from.there);
      }
    }
    copies_commit();
  };
  // The rows last loaded are there, for all warps, and in f16; no warp reads the other operand any more.
  auto arrive = [&](auto is_k) {
    copies_wait<0>();
    __syncthreads();
    if constexpr (Shape::kRaw) {
      constexpr bool kIsK = decltype(is_k)::value;
      expand_rows<kIsK ? K : V, E, kKeys>(shared + (kIsK ? 0 : Shape::kAtV), shared + Shape::kAtRaw);
      __syncthreads();
    }
  };
  constexpr std::bool_constant<true> kKey;
  constexpr std::bool_constant<false> kValue;

  PrefillLane lane(s, p.group, strip);
  const float scale = p.scale * 1.4426950408889634f;
  float out[32][4] = {};
  load(0, kKey);
  for (int tile = 0; tile < tiles.n; ++tile) {
    arrive(kKey);
    load(tile, kValue);
    float score[4][4] = {};
    score_keys(score, q, shared + half * 4 * kKeys * 128);
    if constexpr (kPair == 2)
      add_other_half(score, reinterpret_cast<float4*>(shared + Shape::kAtParts) + warp / 2 * 256, half, warp / 2);
    const int tile_row = tiles.row(tile);
    float most[2], alpha[2];
    uint32_t prob[4][2];
    mask_scores(score, most, p, t, lane, tile_row, scale,
                sees_whole_tile(p, t, s.j0 + strip / p.group, tile_row, kKeys));
    if (softmax_scores(score, most, scale, lane, prob, alpha)) scale_rows(out, alpha);
    arrive(kValue);
    load(tile + 1, kKey);
    add_values(out, prob, shared + Shape::kAtV + half * 4 * kKeys * 128);
  }

  store_in_passes<V, E, kRows, Shape::kPassRows, Shape::kStrideO>(out, lane, shared, p, s, head, strip, half);
}

// False if a block needs more shared memory than the device has.
template <KvType K, KvType V, int E>
bool launch_prefill_mma(cudaStream_t stream, const AttendParams& p) {
  using Shape = PrefillMmaShape<K, V, E>;
  if (Shape::kBytes > device().shared) return false;
  auto* kernel = attend_prefill_mma_kernel<K, V, E>;
  allow_shared(kernel, size_t(Shape::kBytes));
  launch(kernel, prefill_grid(p, Shape::kRows), dim3(kPrefillThreads), size_t(Shape::kBytes), stream, p);
  return true;
}

}  // namespace facet::cuda
