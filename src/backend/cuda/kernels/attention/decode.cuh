// attend, short sequences -- decode, chain and tree verification, draft blocks, heads on another cache
// Long: one kernel, whose parts share the registers of a warp and a stage of shared memory.
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees, one partial result per split of the rows
//
// Shapes     q [T, Hq * E] f32; K, V rows as cached (device_kv_layout.cuh), E = 256 or 512; partials f16, divided by
//            their sums
// Bytes      each visible row of K and V once per block of 8 NT G query rows (query heads of the K/V head x tokens)
// Launch     G E / 2 threads per (block of query rows, K/V head, split; sequence); geometry from the shape. Surplus
//            blocks leave; they come first, or last where they would take a place on every multiprocessor before the
//            others do. The longest splits start first; further paths of trees (tree.cuh) come last
// Order      split borders and the tiles of 32 rows inside are fixed positions; every query row is a column of its own
//            in all products; so its bits depend on it, the rows it sees and nothing else. A tile in which it sees
//            nothing changes nothing
// Reference  CpuRef::attend    Test tests/kernels/cuda_attention_test.cpp    Bench bench/verbs/cuda_attention_bench.cu
//
// A block runs over the tiles of its split: S^T = K Q^T (a warp: 16 keys, 128 values), partial sums and softmax through
// shared memory, O^T += V^T P^T (a warp: 64 values, 32 keys). Products and sums that the compiler may fuse or not are
// written out, so that kernels for more query rows round as those for fewer do. Rows stream through a ring of
// stages in shared memory, K and V tiles in turn, and are expanded from their codes as the fragments are made.
//
// Shared rows (kShared, E = 512) are one tile: K and V are its first and its last 512 values. Queries and results pass
// through registers in the order of its channels (shared_block in head_rows.cuh).
//
// q, k and v may still be the projections', where no sequence is a tree: blocks norm and rotate their queries, and a
// block whose split rows of the step's own tokens fall into writes these first (head_rows.cuh), to the cache and to
// where it reads them itself.
#pragma once
#include <algorithm>
#include <type_traits>

#include "backend/cuda/kernels/attention/decode_codes.cuh"
#include "backend/cuda/kernels/attention/fragments.cuh"
#include "backend/cuda/kernels/attention/head_rows.cuh"
#include "backend/cuda/kernels/attention/params.cuh"
#include "backend/cuda/kernels/attention/tree.cuh"
#include "backend/cuda/kernels/common/fast_div.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {

constexpr int kTileKeys = 32;
// What a kernel does beside attention: trees; or norms, RoPE and the append of sequences with one token.
enum class Also { kNothing, kTrees, kHeads };
// Probabilities are kept as f16 multiples of 2^-6 of their size, so that the small ones keep their precision beside
// scales; the sum has the same factor.
template <KvType V>
constexpr float kProbLog2 = V == KvType::kTQ3_0 ? 3.f : 6.f;

// Stages of the ring, as many as shared memory has room for: of shared rows, which are one tile, 2 to 4; of K and V
// apart 3 or 4; 2 on cards with little shared memory.
constexpr int decode_stages(bool two, bool shared, int stage_bytes) {
  if (two) return 2;
  if (shared) return stage_bytes > 32 * 1024 ? 2 : stage_bytes > 16 * 1024 ? 3 : 4;
  return stage_bytes > 32 * 1024 ? 3 : 4;
}

// Shared rows that go to the tensor cores as codes. Rows of Q8_0 are too long for two tiles of 128 keys beside another
// block.
constexpr bool takes_codes(KvType t) { return t == KvType::kQ4_0 || t == KvType::kTQ3_0; }

// G groups of warps share the tiles of K and V; each has NT blocks of eight query rows. kTwoStages: for blocks of
// little shared memory.
template <KvType K, KvType V, int E, int NT, int G, Also kAlso, bool kShared, bool kTwoStages = false>
struct DecodeShape {
  static_assert(!kShared || (K == V && E == 512));
  static constexpr bool kTrees = kAlso == Also::kTrees, kHeads = kAlso == Also::kHeads;
  // Shared rows in codes: tiles of 128 keys (decode_codes.cuh).
  static constexpr bool kIsShared = kShared, kCodes = kShared && takes_codes(K);
  static constexpr int kKeys = kCodes ? kCodeTileKeys : kTileKeys;
  static constexpr bool kPacked = kShared && is_packed(K);  // whole tiles come by a tensor map
  struct Nothing {};
  using Map = std::conditional_t<kPacked, PackedMap, Nothing>;
  // The key of row r < 8 of a fragment of 16 keys of K; that of row r + 8 is 8 further. What places of a row's chunks
  // are exchanged by, where its scales lie, and those of a group.
  __device__ static int k_key(int r) { return kPacked ? packed_key<K>(r) : r; }
  __device__ static int k_swap(int row) { return kPacked ? 0 : kShared ? shared_xor<K>(row) : (row & 1) << 2; }
  __device__ static int v_swap(int row) { return kPacked ? 0 : shared_xor<V>(row); }
  template <class T>
  __device__ static int scales_at(T, int stride, int row) {
    return kPacked ? row * stride + T::kCodes : kKeys * stride + row * T::kScales;
  }
  template <class T>
  __device__ static uint32_t scale_pair(T, const char* base, int stride, int row, int group) {
    return *reinterpret_cast<const uint32_t*>(base + scales_at(T{}, stride, row) + group * 4);
  }
  template <KvType T>
  using SharedRows =
      std::conditional_t<kPacked, PackedRows<T>, std::conditional_t<kCodes, CodeTile<T>, SharedShape<T>>>;
  using KT = typename std::conditional_t<kShared, std::type_identity<SharedRows<K>>,
                                         std::type_identity<TileShape<K, E>>>::type;
  using VT = typename std::conditional_t<kShared, std::type_identity<SharedRows<V>>,
                                         std::type_identity<TileShape<V, E>>>::type;
  static constexpr int kFirstV = kShared ? (kSharedCols - E) / 64 : 0;  // group of 64 where V begins
  static constexpr int kGroupWarps = E / 64, kWarps = G * kGroupWarps, kThreads = 32 * kWarps, kParts = E / 128,
                       kCols = 8 * NT * G;
  static constexpr int kBytesK = kKeys * (KT::kStrideK + (kPacked ? 0 : KT::kScales)),
                       kBytesV = kKeys * (VT::kStrideV + (kPacked ? 0 : VT::kScales));
  static constexpr int kStageBytes = kBytesK > kBytesV ? kBytesK : kBytesV;
  static constexpr int kStages = kCodes ? (kTwoStages ? 1 : 2) : decode_stages(kTwoStages, kShared, kStageBytes);
  static constexpr int kStrideS = kTileKeys + 4, kStrideP = kKeys + 8;
  static constexpr int kAtQ = kStages * kStageBytes;    // B fragments of Q
  static constexpr int kAtInit = kAtQ + kCols * E * 2;  // [E / 32][cols] f32: what sums of codes begin at
  static constexpr int kAtS = kAtInit + (kCodes ? kCols * E / 32 * 4 : 0);
  // [parts][cols][keys] f32; of codes [warps of a group][cols] f32, maxima and later sums
  static constexpr int kBytesS = (kCodes ? kGroupWarps : kParts * kStrideS) * kCols * 4;
  // Before the first scores this memory holds rope_cos_sin [E] f32 of the sequence's token, then for each warp the
  // codes of a row and the row as it is cached.
  static constexpr int kCols640 = kShared ? kSharedCols : E;  // of a row
  static constexpr int kHeadK = device_kv_bytes(K, kCols640), kHeadV = device_kv_bytes(V, kCols640);
  static constexpr int kRow = kHeadK > kHeadV ? kHeadK : kHeadV;
  // Of codes it is that of the last stage, which nothing is copied to before the loop; a single one is filled first,
  // but where memory is scarce.
  static constexpr bool kLateFirst = kCodes && kTwoStages;
  static constexpr int kAtHeads = kCodes && (kStages > 1 || kLateFirst) ? (kStages - 1) * kStageBytes : kAtS;
  static constexpr int kHeadsBytes = kAtHeads + E * 4 + kWarps * (kCols640 + kRow);
  static constexpr int first_tiles(bool is_k) {  // whose copies start before the loop
    return kCodes ? !kLateFirst : kShared ? kStages - 1 : (kStages + is_k) / 2;
  }
  static constexpr int kAtP = kAtS + kBytesS;                   // [cols][keys] f16
  static constexpr int kAtAlpha = kAtP + kCols * kStrideP * 2;  // [cols] f32
  static constexpr int kAtPath = kAtAlpha + kCols * 4;          // TreePath::nodes
  static constexpr int kAtBars = kAtPath + (kTrees ? 8 : 0);    // of stages that tensor maps fill
  static constexpr int kBytes = kAtBars + (kPacked ? kStages * 8 : 0);
  static constexpr int kLoaders = kThreads / kTileKeys > 8 ? kThreads / kTileKeys : 8;  // threads that copy a row
  // Rows of these begin anywhere in a line of 128 bytes, and lanes take them line by line.
  static constexpr bool kByLine = kCodes || (K == KvType::kQ8_0 && V == KvType::kQ8_0 && NT == 1);
  // Blocks hide each other's latencies; 80 registers a thread do for Q4_0 and one block of query rows, and cost the
  // other types more than a third block gives.
  static constexpr int kBlocksPerSm = (G * NT == 1 && K == KvType::kQ4_0 && !kTrees && !kCodes ? 768 : 512) / kThreads;
  // Loads before the wait; not where they would cost registers that the loop needs.
  static constexpr bool kEarly = NT < 4 && kBlocksPerSm * kThreads <= 512;
};

template <KvType K, KvType V, int E, int NT, int G, Also kAlso, bool kShared, bool kTwoStages>
using DecodeMap = typename DecodeShape<K, V, E, NT, G, kAlso, kShared, kTwoStages>::Map;

// Where a tile's row keeps a 16-byte chunk.
template <class Shape, KvType T>
__device__ __forceinline__ int tile_chunk(bool is_k, int chunk, int row) {
  if constexpr (Shape::kPacked || Shape::kCodes)
    return chunk;
  else if constexpr (Shape::kIsShared)
    return shared_chunk<T>(chunk, row);
  else
    return is_k ? k_chunk<T>(chunk, row) : chunk;
}

// Q as B fragments: [n tile][group of 64][pair of steps][lane][step, b0 b1]. Rotated if K is. x: a lane's values of
// column col.
template <class Shape, KvType K, int E>
__device__ __forceinline__ void put_query(char* shared, const float (&x)[E / 32], int col, int lane) {
  constexpr float kUpper = Shape::kCodes ? kUpperMask<K> : 1.f;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < E / 32; i += 4) {
    const unsigned d = unsigned(lane) * (E / 32) + unsigned(i), r = d % 64, t = unsigned(k_step<K>(int(r)));
    const unsigned to_lane = unsigned(col) % 8 * 4 + unsigned(k_lane<K>(int(r)));
    const __half2 lo = __floats2half2_rn(x[i], x[i + 1]), hi = __floats2half2_rn(x[i + 2] * kUpper, x[i + 3] * kUpper);
    *reinterpret_cast<uint2*>(shared + Shape::kAtQ +
                              (((unsigned(col) / 8 * (E / 64) + d / 64) * 2 + t / 2) * 32 + to_lane) * 16 + t % 2 * 8) =
        make_uint2(*reinterpret_cast<const uint32_t*>(&lo), *reinterpret_cast<const uint32_t*>(&hi));
    const float2 a = __half22float2(lo), b = __half22float2(hi);
    sum = (sum + a.x + a.y) + (b.x + b.y) / kUpper;
  }
  if constexpr (Shape::kCodes) {  // two lanes have a block of 32
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (lane % 2 == 0)
      reinterpret_cast<float*>(shared + Shape::kAtInit)[lane / 2 * Shape::kCols + col] = kCodeStart<K> * sum;
  }
}

// The query rows of a warp in tiles of codes: columns 2 c and 2 c + 1 of NT blocks.
template <class Shape, KvType T, int NT>
struct CodeColumns {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, g = lane / 4, c = lane % 4;
  const int of_group = warp % Shape::kGroupWarps, n0 = warp / Shape::kGroupWarps * NT, key0 = 16 * of_group;
  float top[NT][2], sum[NT][2];

  __device__ int col(int nt, int e) const { return 8 * (n0 + nt) + 2 * c + e; }
  // [warp of the group][col]
  __device__ float* of_warp(char* shared, int w, int nt) const {
    return reinterpret_cast<float*>(shared + Shape::kAtS) + w * Shape::kCols + col(nt, 0);
  }
  // The largest of a warp's scores of each column, for all warps of the group. sees(j, nt): whether that score counts.
  template <class Sees>
  __device__ __forceinline__ void put_most(float (&x)[NT][4], char* shared, float scale, Sees&& sees) const {
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[nt][j] = sees(j, nt) ? __fmul_rn(x[nt][j], scale) : -INFINITY;
        most[j % 2] = fmaxf(most[j % 2], x[nt][j]);
      }
#pragma unroll
      for (int m = 4; m < 32; m *= 2)
#pragma unroll
        for (int e = 0; e < 2; ++e) most[e] = fmaxf(most[e], __shfl_xor_sync(~0u, most[e], m));
      if (g == 0) *reinterpret_cast<float2*>(of_warp(shared, of_group, nt)) = make_float2(most[0], most[1]);
    }
  }
  // Scores become probabilities, in shared memory; alpha: what sums so far are multiplied by.
  __device__ __forceinline__ void put_probabilities(float (&x)[NT][4], char* shared, float (&alpha)[NT][2]) {
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      float next[2] = {top[nt][0], top[nt][1]};
#pragma unroll
      for (int w = 0; w < Shape::kGroupWarps; ++w) {
        const float2 of = *reinterpret_cast<const float2*>(of_warp(shared, w, nt));
        next[0] = fmaxf(next[0], of.x), next[1] = fmaxf(next[1], of.y);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float base = next[e] == -INFINITY ? 0.f : next[e];
        alpha[nt][e] = exp2_approx(top[nt][e] - base), top[nt][e] = next[e];
        const __half p0 = __float2half_rn(exp2_approx(__fadd_rn(__fsub_rn(x[nt][e], base), kProbLog2<T>)));
        const __half p1 = __float2half_rn(exp2_approx(__fadd_rn(__fsub_rn(x[nt][2 + e], base), kProbLog2<T>)));
        sum[nt][e] = __fmaf_rn(sum[nt][e], alpha[nt][e], __half2float(p0) + __half2float(p1));
        __half* to = reinterpret_cast<__half*>(shared + Shape::kAtP) + col(nt, e) * Shape::kStrideP + key0;
        if constexpr (CodeTile<T>::kPacked)
          *reinterpret_cast<__half2*>(to + packed_key<T>(g)) = __halves2half2(p0, p1);
        else
          to[packed_key<T>(g)] = p0, to[packed_key<T>(g + 8)] = p1;
      }
    }
  }
  // Sums of all keys instead of a lane's.
  __device__ __forceinline__ void add_sums(char* shared) {
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
#pragma unroll
      for (int m = 4; m < 32; m *= 2)
#pragma unroll
        for (int e = 0; e < 2; ++e) sum[nt][e] += __shfl_xor_sync(~0u, sum[nt][e], m);
      if (g == 0) *reinterpret_cast<float2*>(of_warp(shared, of_group, nt)) = make_float2(sum[nt][0], sum[nt][1]);
    }
    __syncthreads();
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        sum[nt][e] = 0;
        for (int w = 0; w < Shape::kGroupWarps; ++w) sum[nt][e] += of_warp(shared, w, nt)[e];
      }
  }
};

// The tiles of a block of shared rows in codes, and its results. position(col): of a query, -1: none; is_whole(row):
// every token sees all rows of the tile that begins there; load(tile): begins its copy, nothing behind the last;
// mapped: that of whole tiles may be one of it; part_at(col): where a query's partial results go.
template <class Shape, KvType T, int NT, class Position, class Whole, class Load, class Mapped, class PartAt>
__device__ __forceinline__ void attend_codes(const AttendParams& p, const SeqRows& s, char* shared, int row0, int hi,
                                             Position&& position, Whole&& is_whole, Load&& load, Mapped& mapped,
                                             PartAt&& part_at) {
  using Tile = CodeTile<T>;
  constexpr int kKeys = Shape::kKeys;
  CodeColumns<Shape, T, NT> col;
  const float scale = p.scale * 1.4426950408889634f / Tile::kUnit;
  float acc[4][NT][4] = {}, off[NT][4] = {};
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int e = 0; e < 2; ++e) col.top[nt][e] = -INFINITY, col.sum[nt][e] = 0;

  if constexpr (Shape::kLateFirst) {
    __syncthreads();
    load(0);
  }
  const int n_tile = (hi - row0 + kKeys - 1) / kKeys;
#pragma unroll 1
  for (int tile = 0; tile < n_tile; ++tile) {
    copies_wait<0>();
    __syncthreads();
    if constexpr (Shape::kStages == 2) load(tile + 1);
    const int stage = tile % Shape::kStages, row = row0 + tile * kKeys;
    const char* base = shared + stage * Shape::kStageBytes;
    if (mapped.on && is_whole(row)) mapped.wait(stage);
    float x[NT][4], alpha[NT][2];
    code_scores<T, NT>(x, base, col.key0, shared + Shape::kAtQ, reinterpret_cast<const float*>(shared + Shape::kAtInit),
                       Shape::kCols, col.n0, col.lane);
    if (is_whole(row)) {  // of columns without a query, too: nobody reads them
      col.put_most(x, shared, scale, [](int, int) { return true; });
    } else {
      col.put_most(x, shared, scale, [&](int j, int nt) {
        const int at = row + col.key0 + packed_key<T>(col.g + j / 2 * 8), own = position(col.col(nt, j % 2));
        return own >= 0 && at < hi && sees_position(p, s, own, at);
      });
    }
    __syncthreads();
    col.put_probabilities(x, shared, alpha);
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int m = 0; m < 4; ++m) acc[m][nt][j] *= alpha[nt][j % 2];
        if constexpr (Tile::kOffset > 0) off[nt][j] *= alpha[nt][j % 2];
      }
    __syncthreads();
    // Steps of keys that are not there have probabilities of 0, which add nothing.
    code_values<T, NT, Shape::kStrideP>(acc, off, base, shared + Shape::kAtP, SharedShape<T>::kFirstV + col.of_group,
                                        col.n0, min(kKeys / 16, (hi - row + 15) / 16), col.lane);
    if constexpr (Shape::kStages == 1) {
      __syncthreads();
      load(tile + 1);
    }
  }

  __syncthreads();
  col.add_sums(shared);
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if (position(col.col(nt, e)) < 0) continue;
      const float l = col.sum[nt][e], inverse = l > 0 ? 1.f / l / Tile::kUnit : 0.f;
      const int64_t at = part_at(col.col(nt, e));
      if (col.warp % Shape::kGroupWarps == 0 && col.g == 0) p.part_ml[at] = make_float2(col.top[nt][e], l);
      put_code_values<T>(p.part_o + at * 512 + col.of_group * 64, acc, off, nt, e, inverse, col.g);
    }
}

template <KvType K, KvType V, int E, int NT, int G, Also kAlso, bool kShared, bool kTwoStages>
__global__ void __launch_bounds__(DecodeShape<K, V, E, NT, G, kAlso, kShared, kTwoStages>::kThreads,
                                  DecodeShape<K, V, E, NT, G, kAlso, kShared, kTwoStages>::kBlocksPerSm)
    attend_decode_kernel(const __grid_constant__ AttendParams p,
                         const __grid_constant__ DecodeMap<K, V, E, NT, G, kAlso, kShared, kTwoStages> map) {
  using Shape = DecodeShape<K, V, E, NT, G, kAlso, kShared, kTwoStages>;
  using KT = typename Shape::KT;
  using VT = typename Shape::VT;
  constexpr bool kTrees = Shape::kTrees;
  constexpr int kStages = Shape::kStages, kKeys = Shape::kKeys, kCols = Shape::kCols, kWarps = Shape::kWarps,
                kLoaders = Shape::kLoaders;
  extern __shared__ __align__(128) char shared[];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, c = lane % 4;
  const KvSplitPolicy policy = policy_of(K, p.window, p.kv.n_head);

  // Nothing before pdl_wait() touches more than the step's arrays, which the host copied, and committed rows,
  // which an earlier step wrote. The next kernel starts after the wait: before it, its blocks would gather where those
  // of the product before are done, and later take the place of those behind them.
  if constexpr (!Shape::kEarly) pdl_wait(), pdl_trigger();
  const int seq = blockIdx.y;
  const int at_head = fast_div(int(blockIdx.x), p.n_col_block), at_split = fast_div(at_head, p.kv.n_head);
  const int col_block = int(blockIdx.x) - at_head * p.n_col_block, head = at_head - at_split * p.kv.n_head;
  int partial = p.n_split - 1 - at_split, path_number = 0;
  const int cache_slot = p.step.slot[seq];
  SeqRows s = seq_rows(p, seq);
  if constexpr (!kTrees) {
    const int more = p.n_split - 1 -
                     (split_index(policy, s.len + s.in_step - 1) -
                      split_index(policy, s.first));  // splits of the grid that are not there
    if (more * p.n_col_block * p.kv.n_head >= p.n_sm) partial -= more;
  }
  const int n_col = (s.j1 - s.j0) * p.group - col_block * kCols;  // query rows of this block, or more
  const int split0 = split_index(policy, s.first);
  if (kTrees && partial < 0) {
    path_number = 1 + (-1 - partial) / kTailSplits;
    partial = split_index(policy, s.len) + (-1 - partial) % kTailSplits - split0;
  }
  const int split = split0 + partial;
  auto token_of = [&](int col) { return s.j0 + fast_div(col_block * kCols + col, p.group); };
  uint32_t writes = path_number == 0 ? ~0u : 0;  // bit j: the block has the sequence's token j
  if (kTrees && s.mask == Mask::kTree && n_col > 0 && split_begin(policy, split + 1) > s.len) {
    const TreePath path = tree_path(p.step, s.begin, s.n, path_number);
    const int j = token_of(0), last = token_of(min(n_col, kCols) - 1);
    writes = path.tokens & ((2u << last) - (1u << j));
    s.in_step = path.n;
    if (tid == 0) *reinterpret_cast<uint64_t*>(shared + Shape::kAtPath) = path.nodes;
    __syncthreads();
  }
  const int lo = max(split_begin(policy, split), s.first), hi = min(split_begin(policy, split + 1), s.len + s.in_step);
  if (n_col <= 0 || writes == 0 || partial < 0 || lo >= hi) {
    if constexpr (Shape::kEarly) pdl_wait();  // a grid of such blocks would let the next kernel run ahead
    return;
  }
  const int row0 = lo / kTileKeys * kTileKeys;  // splits begin at multiples of it
  const int n_tile = (hi - row0 + kKeys - 1) / kKeys;

  // The row of the step's token if this block writes it; one of the first tiles goes to its stage as it is made, others
  // are copied.
  const bool appends = Shape::kHeads && p.heads.k && hi > s.len;
  const int own0 = appends ? max(lo, s.len) : INT_MAX;

  // Loads. Eight threads share a row, so that a warp reads whole lines.
  const bool staged = kv_staged(p.kv, s.n);
  const char* k_ring = reinterpret_cast<const char*>(p.kv.k + cache_slot * p.kv.k_slot) + head * Shape::kHeadK;
  const char* v_ring = reinterpret_cast<const char*>(p.kv.v + cache_slot * p.kv.v_slot) + head * Shape::kHeadV;
  const char* k_stage = reinterpret_cast<const char*>(p.kv.k_stage) + head * Shape::kHeadK;
  const char* v_stage = reinterpret_cast<const char*>(p.kv.v_stage) + head * Shape::kHeadV;
  const int ring_cap = p.kv.window > 0 ? int(p.kv.cap) : INT_MAX;
  const int place0 =
      p.kv.window > 0 ? int(unsigned(row0) % unsigned(ring_cap)) : row0;  // of row0; later rows follow it
  auto is_whole = [&](int row) { return row >= lo && row + kKeys <= min(hi, s.len); };
  MappedStages<K, kKeys, kStages> mapped(map, shared + Shape::kAtBars);
  auto load_rows = [&](auto is_k, auto at_once, auto shape, int stride, char* to, int tile, const char* ring,
                       const char* stage, int64_t row_bytes) {
    using T = decltype(shape);
    constexpr int kTimes = kKeys * kLoaders / Shape::kThreads, kUnroll = at_once() && !Shape::kCodes ? kTimes : 1;
    constexpr int kChunks = T::kCodes / 16, kAll = kChunks + T::kScales / 16;
    if (tile >= n_tile) return;
    const int first = row0 + tile * kKeys;
    if (mapped.load(to, map, head, first, cache_slot, tile % kStages, is_whole(first))) return;
#pragma unroll kUnroll
    for (int i = 0; i < kTimes; ++i) {
      const int sub = tid % kLoaders, r = tid / kLoaders + i * (Shape::kThreads / kLoaders), after = tile * kKeys + r,
                row = row0 + after;
      const bool there = row >= lo && row < hi;
      if (Shape::kHeads && there && row >= own0 && tile < Shape::first_tiles(is_k)) continue;
      int stored = after;
      if (kTrees && s.mask == Mask::kTree && row >= s.len)  // not in the order of positions
        stored = s.len - row0 + node_at(*reinterpret_cast<const uint64_t*>(shared + Shape::kAtPath), row - s.len);
      int at = place0 + stored;
      if (at >= ring_cap) at -= fast_div(at, ring_cap) * ring_cap;
      if (staged && row >= s.len) ring = stage, at = s.begin + row0 + stored - s.len;
      const char* from = ring + (there ? at : place0) * row_bytes;
      if constexpr (Shape::kByLine) {
        const int chunk = sub - (int(reinterpret_cast<uintptr_t>(from) >> 4) & (kLoaders - 1));
        char* const code = to + r * stride + 16 * tile_chunk<Shape, K>(is_k, chunk, r);
        char* const scale = to + Shape::scales_at(T{}, stride, r) + 16 * (chunk - kChunks);
#pragma unroll
        for (int j = 0; j < (kAll + 2 * kLoaders - 2) / kLoaders; ++j) {
          const int n = chunk + kLoaders * j;
          if (j > 0 && kLoaders * (j + 1) <= kChunks)
            copy16_async_or_zero(code + 16 * kLoaders * j, from + 16 * n, there);
          else if (n >= 0 && n < kAll)
            copy16_async_or_zero((n < kChunks ? code : scale) + 16 * kLoaders * j, from + 16 * n, there);
        }
        continue;
      }
      char* const row_to = to + r * stride;
#pragma unroll
      for (int j = 0; j < (kChunks + kLoaders - 1) / kLoaders; ++j) {
        const int chunk = sub + kLoaders * j;
        if (kChunks % kLoaders == 0 || chunk < kChunks)
          copy16_async_or_zero(row_to + 16 * tile_chunk<Shape, K>(is_k, chunk, r), from + 16 * chunk, there);
      }
      if (T::kScales > 0 && sub < T::kScales / 16)
        copy16_async_or_zero(to + Shape::scales_at(T{}, stride, r) + 16 * sub, from + T::kCodes + 16 * sub, there);
    }
  };
  auto load_k = [&](int tile, int item) {
    load_rows(std::true_type{}, std::true_type{}, KT{}, KT::kStrideK, shared + item % kStages * Shape::kStageBytes,
              tile, k_ring, k_stage, p.kv.k_row);
    copies_commit();
  };
  auto load_v = [&](int tile, int item) {
    load_rows(std::false_type{}, std::true_type{}, VT{}, VT::kStrideV, shared + item % kStages * Shape::kStageBytes,
              tile, v_ring, v_stage, p.kv.v_row);
    copies_commit();
  };
  // The first items are on their way before the wait if this step writes none of their rows, or this block does.
  const bool own_rows = Shape::kHeads && p.heads.k;
  const auto load_first = [&](bool early) {
#pragma unroll 1
    for (int item = 0; item < (kShared ? Shape::first_tiles(true) : kStages); ++item) {
      const int tile = kShared ? item : item / 2;
      if (Shape::kEarly && (own_rows || min(row0 + (tile + 1) * kKeys, hi) <= s.len) != early) continue;
      if constexpr (kShared) {
        load_k(tile, item);
      } else if constexpr (K == V &&
                           E == 256) {  // one copy of the code; in a large grid later blocks would wait longer for it
        const bool is_k = item % 2 == 0;
        load_rows(is_k, std::false_type{}, KT{}, is_k ? KT::kStrideK : KT::kStrideV, shared + item * Shape::kStageBytes,
                  tile, is_k ? k_ring : v_ring, is_k ? k_stage : v_stage, is_k ? p.kv.k_row : p.kv.v_row);
        copies_commit();
      } else if (item % 2 == 0) {
        load_k(tile, item);
      } else {
        load_v(tile, item);
      }
    }
  };
  if constexpr (Shape::kEarly) load_first(true);

  // Softmax works on four columns a warp, eight lanes each, four keys a lane.
  constexpr int kPasses = (kCols / 4 + kWarps - 1) / kWarps;
  float top[kPasses], sum[kPasses];
  int pos[kPasses];  // -1: no query row
  auto position = [&](int col) {
    return col < min(n_col, kCols) && (writes >> token_of(col) & 1) ? p.step.pos[s.begin + token_of(col)] : -1;
  };
  auto find_columns = [&] {
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int col = (i * kWarps + warp) * 4 + lane / 8;
      top[i] = -INFINITY, sum[i] = 0, pos[i] = position(col);
    }
  };
  float* const rope_cos_sin = reinterpret_cast<float*>(shared + Shape::kAtHeads);
  auto compute_rope_of_token = [&] {
    if constexpr (Shape::kHeads) {
      if (n_col < kCols)  // columns without a query
        for (int i = tid; i < (Shape::kAtS - Shape::kAtQ) / 16; i += Shape::kThreads)
          reinterpret_cast<uint4*>(shared + Shape::kAtQ)[i] = uint4{};
      for (int pair = tid; pair < E / 2; pair += Shape::kThreads)
        compute_rope<E>(rope_cos_sin, pair, p.heads.work.freqs.p[pair], p.step.pos[s.begin]);
      __syncthreads();
    }
  };
  // The cache row of a sequence's only token that this warp makes: its first job.
  std::byte* only_row = nullptr;
  if constexpr (Shape::kHeads) {
    if (appends && warp >= kWarps - (kShared ? 1 : 2)) {
      const KvRow cached = kv_row(p.kv, p.step, seq, s.len);
      only_row = kShared || warp == kWarps - 2 ? cached.k + head * Shape::kHeadK : cached.v + head * Shape::kHeadV;
    }
  }
  if constexpr (Shape::kEarly) {
    find_columns();
    compute_rope_of_token();
    if constexpr (Shape::kHeads) {
      const float* gain = warp == 0 ? p.heads.work.q_gain : appends && warp == 1 ? p.heads.work.k_gain : nullptr;
      if (gain && lane < E / 32) asm volatile("prefetch.global.L1 [%0];" ::"l"(gain + lane * 32));
    }
    pdl_wait();
    pdl_trigger();
  } else {
    compute_rope_of_token();
  }
  if (!Shape::kEarly || !own_rows) load_first(false);

  // Heads, a warp each: rows of the step's tokens in this split, which go to the cache, K and V (blocks of further
  // query rows write the same), then the queries. What they have in common is here once: its instructions come from far
  // away.
  uint8_t* const codes = reinterpret_cast<uint8_t*>(rope_cos_sin + E) + warp * (Shape::kCols640 + Shape::kRow);
  std::byte* const made = reinterpret_cast<std::byte*>(codes + Shape::kCols640);
  // The row in `made` to its row of the cache, and to its place in the tile if that is one of the first.
  auto put_row = [&](auto type, bool is_k, int row) {
    constexpr KvType kType = decltype(type)::value;
    using T = std::conditional_t<kShared, KT, TileShape<kType, E>>;
    __syncwarp();
    const int tile = (row - row0) / kKeys, r = (row - row0) % kKeys,
              stride = is_k ? Shape::KT::kStrideK : Shape::VT::kStrideV;
    const bool first = tile < Shape::first_tiles(is_k);
    char* const stage_at = shared + (kShared ? tile : 2 * tile + !is_k) % kStages * Shape::kStageBytes;
#pragma unroll 1
    for (int chunk = lane; chunk < (T::kCodes + T::kScales) / 16; chunk += 32) {
      const uint4 v = *reinterpret_cast<const uint4*>(made + 16 * chunk);
      *reinterpret_cast<uint4*>(only_row + 16 * chunk) = v;
      const int place = tile_chunk<Shape, kType>(is_k, chunk, r);
      char* const code = stage_at + r * stride + 16 * place;
      char* const scale = stage_at + Shape::scales_at(T{}, stride, r) + 16 * chunk - T::kCodes;
      if (first) *reinterpret_cast<uint4*>(chunk < T::kCodes / 16 ? code : scale) = v;
    }
    __syncwarp();  // the row's place is used again
  };
  // x, as it is cached.
  auto append = [&](auto type, const float(&x)[E / 32], float norm, bool is_k, int row) {
    constexpr KvType kType = decltype(type)::value;
    if constexpr (device_kv_has_scales(kType))
      encode_rotated<E>(kType, x, norm, codes, made, lane);
    else
      encode_plain<E>(kType, x, made, lane);
    put_row(type, is_k, row);
  };
  const int n_row = appends ? (kShared ? 1 : 2) : 0;
#pragma unroll 1
  for (int job = kWarps - 1 - warp; job < n_row + (Shape::kHeads ? min(n_col, kCols) : kCols); job += kWarps) {
    constexpr int V_ = E / 32;
    const int col = job - n_row;
    float x[V_] = {};
    if constexpr (Shape::kHeads) {
      const FusedQkNormRope& in = p.heads;
      if constexpr (kShared) {
        if (col < 0) {
          float k[V_];
          make_head<E>(k, in.k + s.begin * in.k_stride + head * E, true, in.work.eps, in.work.k_gain, rope_cos_sin,
                       lane);
          make_head<E>(x, in.v + s.begin * in.v_stride + head * E, in.work.norm_v, in.work.eps, nullptr, nullptr, lane);
          encode_shared(K, k, x, codes, made, lane);
          put_row(std::integral_constant<KvType, K>{}, true, s.len);
          continue;
        }
      }
      const bool is_k = job % 2;
      const float *from, *gain;
      if (col >= 0) {
        from = p.q + s.begin * p.q_stride + (head * p.group + col_block * kCols + col) * E, gain = in.work.q_gain;
      } else {
        from = (is_k ? in.k + s.begin * in.k_stride : in.v + s.begin * in.v_stride) + head * E,
        gain = is_k ? in.work.k_gain : nullptr;
      }
      const bool is_v = col < 0 && !is_k;
      make_head<E>(x, from, !is_v || in.work.norm_v, in.work.eps, gain, is_v ? nullptr : rope_cos_sin, lane);
      if constexpr (kShared) to_shared_order(x, lane, true);
      static_assert(device_kv_has_scales(K) == device_kv_has_scales(V), "of one type, or both with scales");
      float norm = 0;
      if ((K == KvType::kTQ3_0 || V == KvType::kTQ3_0) && col < 0) norm = before_rotation<E>(is_k ? K : V, x);
      if (device_kv_has_scales(K)) warp_rotate<V_>(x, lane, false);
      if (col < 0) {
        const int row = s.len;
        if (K == V || is_k)
          append(std::integral_constant<KvType, K>{}, x, norm, is_k, row);
        else
          append(std::integral_constant<KvType, V>{}, x, norm, false, row);
        continue;
      }
    } else if (col < n_col) {
      const int at = col_block * kCols + col, j = fast_div(at, p.group), t = s.begin + s.j0 + j;
      load_values<V_>(x, p.q + t * p.q_stride + (head * p.group + at - j * p.group) * E +
                             (kShared ? shared_channel(lane * V_, true) : lane * V_));
      if (device_kv_has_scales(K)) warp_rotate<V_>(x, lane, false);
    }
    put_query<Shape, K, E>(shared, x, col, lane);
  }

  auto part_at = [&](int col) {
    const int at = col_block * kCols + col, j = fast_div(at, p.group);
    const int64_t t = s.begin + s.j0 + j - p.t_begin;
    return (t * p.n_q_head + head * p.group + at - j * p.group) * p.n_split + partial;
  };
  if constexpr (Shape::kCodes)
    return attend_codes<Shape, K, NT>(
        p, s, shared, row0, hi, position, is_whole, [&](int t) { load_k(t, t); }, mapped, part_at);

  if constexpr (!Shape::kEarly) find_columns();
  const float scale = p.scale * 1.4426950408889634f / kOverscale<K>;
  float acc[4][NT][4] = {};
  const int of_group = warp % Shape::kGroupWarps, n0 = warp / Shape::kGroupWarps * NT;  // first block of query rows
  const int key_half = of_group % 2, part = of_group / 2;                               // of S^T

  for (int tile = 0; tile < n_tile; ++tile) {
    // Items (2 t: K of tile t, 2 t + 1: V; t: a shared tile) are loaded kStages ahead, into the stage of the one used
    // last.
    if (!kShared && tile == 0)
      copies_wait<kStages - 1>();
    else
      copies_wait<kStages - 2>();
    __syncthreads();
    if constexpr (kShared) {
      load_k(tile + kStages - 1, tile + kStages - 1);
      if (mapped.on && is_whole(row0 + tile * kKeys)) mapped.wait(tile % kStages);
    } else if (tile > 0) {
      if constexpr (kStages == 4)
        load_v(tile + 1, 2 * tile + 3);
      else if constexpr (kStages == 3)
        load_k(tile + 1, 2 * tile + 2);
      else
        load_v(tile, 2 * tile + 1);
    }

    {
      const char* base = shared + (kShared ? tile : 2 * tile) % kStages * Shape::kStageBytes;
      const int key = 16 * key_half + Shape::k_key(g);
      const char* row = base + key * KT::kStrideK;
      float score[NT][4] = {};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int group = 2 * part + i;
        uint32_t a[4][4];
        k_fragments<K, kShared>(a, row, row + 8 * KT::kStrideK, group, c, Shape::k_swap(g));
        float d[2][2];
        if constexpr (device_kv_has_scales(K)) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t pair = Shape::scale_pair(KT{}, base, KT::kStrideK, key + 8 * h, group);
            d[h][0] = half_at(pair, 0), d[h][1] = half_at(pair, 1);
          }
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          const uint4* b =
              reinterpret_cast<const uint4*>(shared + Shape::kAtQ) + ((n0 + nt) * (E / 64) + group) * 64 + lane;
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint4 q = b[32 * h];
            if constexpr (device_kv_has_scales(K)) {
              float block[4] = {};
              mma_f16(block, a[2 * h], q.x, q.y);
              mma_f16(block, a[2 * h + 1], q.z, q.w);
#pragma unroll
              for (int j = 0; j < 4; ++j) score[nt][j] = __fmaf_rn(d[j / 2][h], block[j], score[nt][j]);
            } else {
              mma_f16(score[nt], a[2 * h], q.x, q.y);
              mma_f16(score[nt], a[2 * h + 1], q.z, q.w);
            }
          }
        }
      }
      float* to = reinterpret_cast<float*>(shared + Shape::kAtS) + part * kCols * Shape::kStrideS + key;
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        float* at = to + (8 * (n0 + nt) + 2 * c) * Shape::kStrideS;
        at[0] = score[nt][0], at[Shape::kStrideS] = score[nt][1];
        at[8] = score[nt][2], at[Shape::kStrideS + 8] = score[nt][3];
      }
    }
    __syncthreads();
    if constexpr (!kShared) {
      if constexpr (kStages == 4)
        load_k(tile + 2, 2 * tile + 4);
      else if constexpr (kStages == 3)
        load_v(tile + 1, 2 * tile + 3);
      else
        load_k(tile + 1, 2 * tile + 2);
    }

    // A tile that every token sees whole needs no tests.
    const int tile_row = row0 + tile * kTileKeys;
    const bool whole = tile_row >= lo && tile_row + kTileKeys <= min(hi, s.len) &&
                       (policy != KvSplitPolicy::kWindow || s.most_pos - tile_row < p.window);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
      const int col = (i * kWarps + warp) * 4 + lane / 8, key = lane % 8 * 4;
      if (kPasses * kWarps * 4 > kCols && col >= kCols) break;
      float4 v = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int j = 0; j < Shape::kParts; ++j) {
        const float4 f =
            *reinterpret_cast<const float4*>(shared + Shape::kAtS + ((j * kCols + col) * Shape::kStrideS + key) * 4);
        v.x += f.x, v.y += f.y, v.z += f.z, v.w += f.w;
      }
      float x[4] = {__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale), __fmul_rn(v.w, scale)};
      if (pos[i] < 0) {
#pragma unroll
        for (float& e : x) e = -INFINITY;
      } else if (!whole) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = tile_row + key + j;
          if (row < lo || row >= hi || !sees_position(p, s, pos[i], row)) x[j] = -INFINITY;
        }
      }
      float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
#pragma unroll
      for (int m = 1; m < 8; m *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
      const float next = fmaxf(top[i], most), base = next == -INFINITY ? 0.f : next;
      const float alpha = exp2_approx(top[i] - base);
#pragma unroll
      for (float& e : x) e = exp2_approx(__fadd_rn(__fsub_rn(e, base), kProbLog2<V>));
      const __half2 p01 = __floats2half2_rn(x[0], x[1]), p23 = __floats2half2_rn(x[2], x[3]);
      const float2 f01 = __half22float2(p01), f23 = __half22float2(p23);
      sum[i] = __fmaf_rn(sum[i], alpha, (f01.x + f01.y) + (f23.x + f23.y));
      top[i] = next;
      *reinterpret_cast<uint2*>(shared + Shape::kAtP + (col * Shape::kStrideP + key) * 2) =
          make_uint2(*reinterpret_cast<const uint32_t*>(&p01), *reinterpret_cast<const uint32_t*>(&p23));
      if (lane % 8 == 0) reinterpret_cast<float*>(shared + Shape::kAtAlpha)[col] = alpha;
    }
    if constexpr (!kShared) copies_wait<kStages - 1>();
    __syncthreads();

    {
      const char* base = shared + (kShared ? tile : 2 * tile + 1) % kStages * Shape::kStageBytes;
      const int group = Shape::kFirstV + of_group;
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const float2 alpha = *reinterpret_cast<const float2*>(shared + Shape::kAtAlpha + (8 * (n0 + nt) + 2 * c) * 4);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          acc[m][nt][0] *= alpha.x, acc[m][nt][1] *= alpha.y;
          acc[m][nt][2] *= alpha.x, acc[m][nt][3] *= alpha.y;
        }
      }
#pragma unroll
      for (int ks = 0; ks < kTileKeys / 16; ++ks) {
        const char* at = base + (16 * ks + 2 * c) * VT::kStrideV;
        const char* const rows[4] = {at, at + VT::kStrideV, at + 8 * VT::kStrideV, at + 9 * VT::kStrideV};
        uint32_t a[4][4];
        if constexpr (kShared)
          v_fragments<V, true>(a, rows, group, g, Shape::v_swap(2 * c), Shape::v_swap(2 * c + 1));
        else
          v_fragments<V>(a, rows, group, g);
        uint32_t d[2][2];  // [block][b0, b1]: scales of the pairs of keys
        if constexpr (device_kv_has_scales(V)) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t x = Shape::scale_pair(VT{}, base, VT::kStrideV, 16 * ks + 2 * c + 8 * h, group);
            const uint32_t y = Shape::scale_pair(VT{}, base, VT::kStrideV, 16 * ks + 2 * c + 8 * h + 1, group);
            d[0][h] = __byte_perm(x, y, 0x5410), d[1][h] = __byte_perm(x, y, 0x7632);
          }
        }
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          const char* prob = shared + Shape::kAtP + ((8 * (n0 + nt) + g) * Shape::kStrideP + 16 * ks + 2 * c) * 2;
          const uint32_t b0 = *reinterpret_cast<const uint32_t*>(prob),
                         b1 = *reinterpret_cast<const uint32_t*>(prob + 16);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            uint32_t s0 = b0, s1 = b1;
            if constexpr (device_kv_has_scales(V)) s0 = expand::mul2(b0, d[h][0]), s1 = expand::mul2(b1, d[h][1]);
            // Tiles 2 h and 2 h + 1 lie in block h (in one rotation group, whose scales are equal, for TQ3_0).
            mma_f16(acc[2 * h][nt], a[2 * h], s0, s1);
            mma_f16(acc[2 * h + 1][nt], a[2 * h + 1], s0, s1);
          }
        }
      }
    }
  }

  // Sums and maxima out, then the partial output, divided so that it fits f16.
  __syncthreads();
  float* inverse = reinterpret_cast<float*>(shared + Shape::kAtAlpha);
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int col = (i * kWarps + warp) * 4 + lane / 8;
    if (kPasses * kWarps * 4 > kCols && col >= kCols) break;
    float l = sum[i];
#pragma unroll
    for (int m = 1; m < 8; m *= 2) l += __shfl_xor_sync(~0u, l, m);
    if (lane % 8 == 0) {
      inverse[col] = kTrees && pos[i] < 0 ? -1.f : l > 0 ? 1.f / l / kOverscale<V> : 0.f;
      if (pos[i] >= 0) p.part_ml[part_at(col)] = make_float2(top[i], l);
    }
  }
  __syncthreads();
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int col = 8 * (n0 + nt) + 2 * c + e;
      const float inv = inverse[col];
      if (kTrees ? inv < 0 : col >= n_col) continue;  // not this block's
      __half* to = p.part_o + part_at(col) * E + of_group * 64;
      uint32_t word[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const __half2 v = __floats2half2_rn(acc[m][nt][e] * inv, acc[m][nt][2 + e] * inv);
        word[m] = *reinterpret_cast<const uint32_t*>(&v);
      }
      if constexpr (V == KvType::kF16 || V == KvType::kTQ3_0) {
        *reinterpret_cast<uint4*>(to + v_value<V>(0, g)) = make_uint4(word[0], word[1], word[2], word[3]);
      } else {
        *reinterpret_cast<uint2*>(to + v_value<V>(0, g)) = make_uint2(word[0], word[1]);
        *reinterpret_cast<uint2*>(to + v_value<V>(1, g)) = make_uint2(word[2], word[3]);
      }
    }
}

template <class Shape>
typename Shape::Map packed_map(const AttendParams& p) {
  typename Shape::Map rows{};
  if constexpr (Shape::kPacked) {
    static_assert(Shape::kHeadK == Shape::KT::kStride, "rows lie in the cache as they do in a tile");
    rows.on = device().wgmma && p.kv.k_slot > 0 && has_tensor_maps();
    if (rows.on)
      rows.map = tensor_map_words({.p = p.kv.k,
                                   .row_bytes = p.kv.k_row,
                                   .rows = p.kv.k_slot / p.kv.k_row,
                                   .slot_bytes = p.kv.k_slot,
                                   .slots = 1 << 16,
                                   .box_bytes = Shape::kHeadK,
                                   .box_rows = Shape::kKeys});
  }
  return rows;
}

// False if a block needs more shared memory than the device has.
template <KvType K, KvType V, int E, int NT, int G, Also kAlso, bool kShared, bool kTwoStages = false>
bool launch_decode(cudaStream_t stream, AttendParams p, int n_cols) {
  using Shape = DecodeShape<K, V, E, NT, G, kAlso, kShared, kTwoStages>;
  constexpr int bytes = Shape::kHeads ? std::max(Shape::kBytes, Shape::kHeadsBytes) : Shape::kBytes;
  if (bytes > device().shared) return false;
  p.n_col_block = (n_cols + Shape::kCols - 1) / Shape::kCols, p.n_sm = device().n_sm;
  const int blocks = p.n_col_block * p.kv.n_head * (p.n_split + further_splits(p.n_path));
  CHECK(blocks < kFastDivMost && n_cols < kFastDivMost && (p.kv.window == 0 || p.kv.cap < kFastDivMost / 2),
        "{} blocks for {} query rows, a ring of {} rows", blocks, n_cols, p.kv.cap);
  auto* kernel = attend_decode_kernel<K, V, E, NT, G, kAlso, kShared, kTwoStages>;
  allow_shared(kernel, size_t(bytes));
  // A layer's V lies behind its K, for all slots (CudaKvCache); elsewhere they may lie anywhere.
  const int64_t k_bytes = p.kv.v - p.kv.k, n_slot = p.kv.k_slot > 0 ? k_bytes / p.kv.k_slot : 0;
  const ReadOnce rows = kShared      ? ReadOnce{p.kv.k, p.step.shape.n_seq * p.kv.k_slot}
                        : n_slot > 0 ? ReadOnce{p.kv.k, n_slot * (p.kv.k_slot + p.kv.v_slot)}
                                     : ReadOnce{};
  launch_reading(rows, kernel, dim3(unsigned(blocks), unsigned(p.step.shape.n_seq)), dim3(Shape::kThreads),
                 size_t(bytes), stream, p, packed_map<Shape>(p));
  return true;
}

// The kernel for the most query rows at a time that fits; all of them give the same bits.
template <KvType K, KvType V, int E, Also kAlso, bool kShared>
bool launch_decode(cudaStream_t stream, const AttendParams& p, int n_cols) {
  if constexpr (kAlso == Also::kNothing || kAlso == Also::kTrees) {
    if constexpr (E == 512 && !(kShared && K == KvType::kQ4_0))  // its sums of offsets want more registers
      if (n_cols > 32 && launch_decode<K, V, E, 4, 2, kAlso, kShared>(stream, p, n_cols)) return true;
    if (n_cols > 16 && launch_decode<K, V, E, 2, 2, kAlso, kShared>(stream, p, n_cols)) return true;
  }
  if (n_cols > 8 && launch_decode<K, V, E, 1, 2, kAlso, kShared>(stream, p, n_cols)) return true;
  if (launch_decode<K, V, E, 1, 1, kAlso, kShared>(stream, p, n_cols)) return true;
  if constexpr (kShared && takes_codes(K))
    if (n_cols > 8 && launch_decode<K, V, E, 1, 2, kAlso, kShared, true>(stream, p, n_cols)) return true;
  if constexpr (kShared ? takes_codes(K) : K == KvType::kF16 && E == 512)
    return launch_decode<K, V, E, 1, 1, kAlso, kShared, true>(stream, p, n_cols);
  return false;
}

template <KvType K, KvType V, int E, bool kShared = false>
bool launch_decode(cudaStream_t stream, const AttendParams& p, int n_cols) {
  if (p.n_path > 0) return launch_decode<K, V, E, Also::kTrees, kShared>(stream, p, n_cols);
  if (!p.heads.on) return launch_decode<K, V, E, Also::kNothing, kShared>(stream, p, n_cols);
  return launch_decode<K, V, E, Also::kHeads, kShared>(stream, p, n_cols);
}

template <KvType K, KvType V>
bool attend_decode(cudaStream_t stream, const AttendParams& p, int n_cols) {
  return p.kv.head_dim == 256 ? launch_decode<K, V, 256>(stream, p, n_cols)
                              : launch_decode<K, V, 512>(stream, p, n_cols);
}
template <KvType T>
bool attend_decode_shared(cudaStream_t stream, const AttendParams& p, int n_cols) {
  return launch_decode<T, T, 512, true>(stream, p, n_cols);
}

}  // namespace facet::cuda
