// select_blocks -- which blocks of cached rows a tile of tokens reads (backend/select.h)
//
// Shapes     q [T, Hq * E] f32, E 256 or 512; K as cached (device_kv_layout.cuh), full layers
// Bytes      means: every row of K once; scores: the means once per 64 (E = 512) or 128 (E = 256) query rows
// Flops      2 E per query row and mean, with mma.sync
// Launch     means: a warp per mean (E = 512) or per two. Scores: 256 threads per (query rows, K/V head, 64 tiles of 32
//            means). Choice: 256 threads per (tile, K/V head), a sort in shared memory. As many tokens at a time as
//            there is room for scores
// Order      sums of a mean in the order of its rows. Choices may differ from the reference's where weights are nearly
//            equal
// Reference  CpuRef::select_blocks
// Test       tests/kernels/cuda_select_test.cpp
#include "backend/cuda/kernels/attention/select.h"

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/attention/prefill_mma.cuh"
#include "backend/cuda/kernels/attention/values.cuh"

namespace facet::cuda {
namespace {

constexpr size_t kMostScores = size_t(256) << 20;
constexpr int kSetBlocks = kSampleBlocks / kSampleSets;
constexpr size_t align_up(size_t n) { return (n + 255) / 256 * 256; }

// Tokens [j0, j1) of one sequence whose tiles select.
struct SelectParams {
  const float* q = nullptr;
  int64_t q_stride = 0;
  KvLayer kv;
  SelectSpec spec;
  SelectBuffers to;
  int begin = 0, n = 0, len = 0, slot = 0, seq = 0;  // of the sequence in the step
  int j0 = 0, j1 = 0;
  int n_mean = 0;
  int group = 0, n_q_head = 0, n_tok = 0;
  float scale = 1;
};

__device__ __forceinline__ int place_at(KvType type, int d) {
  return type == KvType::kQ8_0   ? place_of<KvType::kQ8_0>(d)
         : type == KvType::kQ4_0 ? place_of<KvType::kQ4_0>(d)
                                 : place_of<KvType::kF16>(d);
}

__global__ void __launch_bounds__(256) means_kernel(const __grid_constant__ SelectParams p) {
  pdl_wait();
  pdl_trigger();
  const int E = p.kv.head_dim, lanes = E / kDims, lane = threadIdx.x % lanes, head = blockIdx.y;
  const int mean = blockIdx.x * (256 / lanes) + threadIdx.x / lanes, cols = p.kv.shared ? kSharedCols : E;
  if (mean >= p.n_mean) return;
  const std::byte* row = p.kv.k + p.slot * p.kv.k_slot + int64_t(mean) * kMeanRows * p.kv.k_row +
                         head * device_kv_bytes(p.kv.k_type, cols);
  float sum[kDims] = {};
  for (int r = 0; r < kMeanRows; ++r, row += p.kv.k_row) {
    float v[kDims];
    load_values(v, p.kv.k_type, row, lane * kDims, cols);
#pragma unroll
    for (int i = 0; i < kDims; ++i) sum[i] += v[i];
  }
  __half* to = p.to.mean + (int64_t(head) * p.to.cap * kBlockMeans + mean) * E;
#pragma unroll
  for (int i = 0; i < kDims; ++i)
    to[place_at(p.kv.k_type, lane * kDims + i)] = __float2half(sum[i] * (1.f / kMeanRows));
}

template <int E>
struct ScoreShape {
  static constexpr int kPair = E / 256, kRows = 128 / kPair, kMeans = 32, kTile = kMeans * 2 * E;
  static constexpr int kAtParts = 2 * kTile, kParts = kPair == 2 ? 8 * 32 * kMeans / 8 * 16 : 0;
  static constexpr int kQueries = kRows * 2 * E;
  static constexpr int kBytes = kAtParts + kParts > kQueries ? kAtParts + kParts : kQueries;
};
constexpr int kTilesAtOnce = 48;  // of means, by one block of threads
static_assert(kTilesAtOnce * 32 % kBlockMeans == 0 && kBlockMeans % 8 == 0, "which meet where blocks end");

// Query rows in f16 in the places of K's values; r: of the rows of one K/V head, token after token.
template <int E, bool kShared>
__device__ __forceinline__ void load_rows(char* shared, const SelectParams& p, int row0, int head) {
  constexpr int kPerLane = E / 32, kRows = ScoreShape<E>::kRows;
  const int lane = threadIdx.x % 32;
  for (int r = threadIdx.x / 32; r < kRows; r += 8) {
    const int row = row0 + r, j = p.j0 + row / p.group;
    float x[kPerLane] = {};
    if (j < p.j1) {
      const int first = kShared ? shared_channel(lane * kPerLane, true) : lane * kPerLane;
      const float* from = p.q + (p.begin + j) * p.q_stride + (head * p.group + row % p.group) * E + first;
#pragma unroll
      for (int i = 0; i < kPerLane; i += 4) {
        const float4 f = *reinterpret_cast<const float4*>(from + i);
        x[i] = f.x, x[i + 1] = f.y, x[i + 2] = f.z, x[i + 3] = f.w;
      }
      if (device_kv_has_scales(p.kv.k_type)) warp_rotate<kPerLane>(x, lane, false);
    }
#pragma unroll
    for (int i = 0; i < kPerLane; i += 4) {
      const __half2 a = __floats2half2_rn(x[i], x[i + 1]), b = __floats2half2_rn(x[i + 2], x[i + 3]);
      *reinterpret_cast<uint2*>(shared + tile_at(kRows, r, place_at(p.kv.k_type, lane * kPerLane + i) * 2)) =
          make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
    }
  }
}

// score = q k^T of a warp's 16 rows and the tile's 32 keys, over 256 values; panels: the 128-byte panels of K.
__device__ __forceinline__ void score_keys(float (&score)[4][4], const uint32_t (&q)[16][4], const char* panels) {
  const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, chunk = lane / 8 % 2;
  auto load = [&](uint32_t(&b)[4], int i) {
    ldmatrix4(b, panels + tile_at(32, i % 2 * 16 + row, i / 2 * 32 + chunk * 16));
  };
  uint32_t b[2][4];
  load(b[0], 0);
  pipelined<32>(b, load, [&](int i, const uint32_t(&b)[4]) {
    mma_f16(score[i % 2 * 2], q[i / 2], b[0], b[1]);
    mma_f16(score[i % 2 * 2 + 1], q[i / 2], b[2], b[3]);
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

// score[row][block] = scale * the largest q . mean of the block's means that lie before the row's tile; else -inf.
template <int E, bool kShared>
__global__ void __launch_bounds__(256) scores_kernel(const __grid_constant__ SelectParams p) {
  using Shape = ScoreShape<E>;
  constexpr int kRows = Shape::kRows, kPair = Shape::kPair, kMeans = Shape::kMeans;
  extern __shared__ __align__(1024) char shared[];
  const int tid = threadIdx.x, warp = tid / 32, g = tid % 32 / 4, c = tid % 4, head = blockIdx.y;
  pdl_wait();
  pdl_trigger();
  const int row0 = int(blockIdx.x) * kRows, n_row = (p.j1 - p.j0) * p.group;
  const int strip = warp / kPair * 16, half = warp % kPair;
  uint32_t q[16][4];
  load_rows<E, kShared>(shared, p, row0, head);
  __syncthreads();
#pragma unroll
  for (int ks = 0; ks < 16; ++ks)
    ldmatrix4(q[ks], shared + tile_at(kRows, strip + tid % 16, half * 512 + ks * 32 + tid % 32 / 16 * 16));
  __syncthreads();

  // Rows of the last tile see most.
  const int last = min(row0 + kRows, n_row) - 1;
  const int last_tile = (p.j0 + last / p.group) / kSelectTokens * kSelectTokens;
  const int n_seen = select_blocks_to(p.len + min(last_tile + kSelectTokens, p.n) - 1);
  const int first_tile = int(blockIdx.z) * kTilesAtOnce,
            end_tile = min(first_tile + kTilesAtOnce, (n_seen * kBlockMeans + kMeans - 1) / kMeans);
  int before[2];  // means that a row may use
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = row0 + strip + g + 8 * h;
    before[h] = select_means_before(p.len + (p.j0 + row / p.group) / kSelectTokens * kSelectTokens);
  }
  const __half* means = p.to.mean + int64_t(head) * p.to.cap * kBlockMeans * E;
  auto load = [&](int tile) {
    if (tile < end_tile) {
      char* to = shared + tile % 2 * Shape::kTile;
      for (int i = tid; i < kMeans * (E / 8); i += 256) {
        const int m = i / (E / 8), byte = i % (E / 8) * 16, mean = tile * kMeans + m;
        copy16_async_or_zero(to + tile_at(kMeans, m, byte), means + int64_t(mean < p.n_mean ? mean : 0) * E + byte / 2,
                             mean < p.n_mean);
      }
    }
    copies_commit();
  };
  load(first_tile);
  float best[2] = {-INFINITY, -INFINITY};
  for (int tile = first_tile; tile < end_tile; ++tile) {
    copies_wait<0>();
    __syncthreads();
    load(tile + 1);
    float score[4][4] = {};
    score_keys(score, q, shared + tile % 2 * Shape::kTile + half * 4 * kMeans * 128);
    if constexpr (kPair == 2)
      add_other_half(score, reinterpret_cast<float4*>(shared + Shape::kAtParts) + warp / 2 * 256, half, warp / 2);
#pragma unroll
    for (int n = 0; n < kMeans / 8; ++n) {  // a block's means may lie in two tiles
      const int eighth = tile * (kMeans / 8) + n, block = eighth / (kBlockMeans / 8);
      const bool last = eighth % (kBlockMeans / 8) == kBlockMeans / 8 - 1;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (eighth * 8 + 2 * c + e < before[h]) best[h] = fmaxf(best[h], score[n][2 * h + e] * p.scale);
        if (!last) continue;
        best[h] = fmaxf(best[h], __shfl_xor_sync(~0u, best[h], 1));
        best[h] = fmaxf(best[h], __shfl_xor_sync(~0u, best[h], 2));
        const int row = row0 + strip + g + 8 * h;
        if (c == 0 && half == 0 && row < n_row && block < p.to.cap)
          p.to.score[(int64_t(head) * n_row + row) * p.to.cap + block] = best[h];
        best[h] = -INFINITY;
      }
    }
  }
}

// Ascending order of n (a power of two) keys in shared memory.
__device__ __forceinline__ void sort_keys(uint64_t* key, int n) {
  for (int size = 2; size <= n; size *= 2)
    for (int stride = size / 2; stride > 0; stride /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
        const int a = i / stride * 2 * stride + i % stride, b = a + stride;
        const uint64_t x = key[a], y = key[b];
        if ((x > y) == ((a & size) == 0)) key[a] = y, key[b] = x;
      }
    }
  __syncthreads();
}

inline int sort_size(int n_block) {
  int n = 32;
  while (n < n_block) n *= 2;
  return n;
}
constexpr size_t kChooseShared = 96 * 1024;
inline size_t choose_shared(int n_block, int n_row) {
  return size_t(sort_size(n_block)) * 8 + size_t(n_row) * 12 + align_up(size_t(n_block));
}

// Long: three walks over the scores of a tile, with what they find in the same shared memory.
__global__ void __launch_bounds__(256) choose_kernel(const __grid_constant__ SelectParams p, int n_sort) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ int need_all;
  const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32, head = blockIdx.y;
  const int j0 = p.j0 + int(blockIdx.x) * kSelectTokens, j1 = min(j0 + kSelectTokens, p.n), n_row = (j1 - j0) * p.group;
  const int row0 = p.len + j0, n_block = select_blocks_to(p.len + j1 - 1);
  uint64_t* key = reinterpret_cast<uint64_t*>(shared);
  float* top = reinterpret_cast<float*>(key + n_sort);
  float *sum = top + n_row, *sharp = sum + n_row;
  uint8_t* kept = reinterpret_cast<uint8_t*>(sharp + n_row);
  pdl_wait();
  pdl_trigger();
  const float* score = p.to.score + (int64_t(head) * (p.j1 - p.j0) * p.group + int64_t(j0 - p.j0) * p.group) * p.to.cap;
  auto warp_all = [](float v, auto f) {
    for (int m = 16; m > 0; m /= 2) v = f(v, __shfl_xor_sync(~0u, v, m));
    return v;
  };
  auto add = [](float a, float b) { return a + b; };
  if (tid == 0) need_all = 0;

  // Each row's softmax, of its scores and of these kMeanRows times.
  for (int r = warp; r < n_row; r += 8) {
    const float* z = score + int64_t(r) * p.to.cap;
    float most = -INFINITY, s = 0, t = 0;
    for (int b = lane; b < n_block; b += 32) most = fmaxf(most, z[b]);
    most = warp_all(most, [](float a, float b) { return fmaxf(a, b); });
    for (int b = lane; b < n_block; b += 32)
      s += expf(kSelectSpread * (z[b] - most)), t += expf(kMeanRows * (z[b] - most));
    s = warp_all(s, add), t = warp_all(t, add);
    if (lane == 0) top[r] = most, sum[r] = s, sharp[r] = t;
  }
  __syncthreads();
  // Weights, largest first; blocks that are read anyway come last.
  const int near = max(0, row0 - kSelectNear) / kSelectRows, n_always = n_block - near + (near > 0);
  const int n_free = n_block - n_always;
  for (int b = tid; b < n_sort; b += 256) {
    float mean = 0, alone = 0;
    const bool is_free = b < n_block && !select_always(b, row0);
    if (is_free && n_free > 0)
      for (int r = 0; r < n_row; ++r) {
        const float z = score[int64_t(r) * p.to.cap + b] - top[r];
        mean += expf(kSelectSpread * z) / sum[r];
        alone = fmaxf(alone, expf(kMeanRows * z) / sharp[r]);
      }
    const float weight = fmaxf(mean / float(n_row), kSelectAlone * alone);
    key[b] = is_free ? uint64_t(~__float_as_uint(weight)) << 32 | unsigned(b) : ~uint64_t(0);
    if (b < n_block) kept[b] = !is_free;
  }
  sort_keys(key, n_sort);
  // How many of them every row needs.
  const float target = p.spec.gamma;
  for (int r = warp; r < n_row && n_free > 0; r += 8) {
    const float* z = score + int64_t(r) * p.to.cap;
    float mass = 0;
    for (int b = lane; b < n_block; b += 32)
      if (kept[b]) mass += expf(kSelectSpread * (z[b] - top[r])) / sum[r];
    mass = warp_all(mass, add);
    int need = target >= 1 ? n_free : 0;
    for (int k0 = 0; need == 0 && mass < target && k0 < n_free; k0 += 32) {
      float upto = k0 + lane < n_free ? expf(kSelectSpread * (z[uint32_t(key[k0 + lane])] - top[r])) / sum[r] : 0.f;
      for (int m = 1; m < 32; m *= 2) {
        const float before = __shfl_up_sync(~0u, upto, m);
        if (lane >= m) upto += before;
      }
      const uint32_t there = __ballot_sync(~0u, mass + upto >= target);
      if (there)
        need = min(n_free, k0 + __ffs(there));
      else if (k0 + 32 >= n_free)
        need = n_free;
      mass += __shfl_sync(~0u, upto, 31);
    }
    if (lane == 0) atomicMax(&need_all, need);
  }
  __syncthreads();
  const int need = select_count(p.spec, need_all, n_always, n_free);
  for (int k = tid; k < need; k += 256) kept[uint32_t(key[k])] = 1;
  __syncthreads();
  const int tile = select_tile(p.begin, p.seq, j0), at = tile * p.kv.n_head + head;
  if (warp == 0) {
    int n = 0;
    for (int b0 = 0; b0 < n_block; b0 += 32) {
      const bool mine = b0 + lane < n_block && kept[b0 + lane];
      const uint32_t there = __ballot_sync(~0u, mine);
      if (mine) p.to.index[int64_t(at) * p.to.cap + n + __popc(there & ((1u << lane) - 1))] = b0 + lane;
      n += __popc(there);
    }
    if (lane == 0) p.to.count[at] = n;
  }
  if (tid >= 32 && tid < 32 + kSampleSets && p.spec.check) {
    const int set = tid - 32;
    const int64_t in = int64_t(set) * p.to.most_tile * p.kv.n_head + at;
    int32_t* to = p.to.sample_index + in * kSetBlocks;
    int n = 0;
    for (int i = set; i < kSampleBlocks; i += kSampleSets) {
      const int k = select_sample(i, n_free - need, row0, head);
      if (k < 0) continue;
      const int block = int(uint32_t(key[need + k]));
      int place = n++;
      for (; place > 0 && to[place - 1] > block; --place) to[place] = to[place - 1];
      to[place] = block;
    }
    p.to.sample_count[in] = n;
  }
}

__global__ void __launch_bounds__(128) settle_kernel(const __grid_constant__ SelectParams p) {
  __shared__ int repair;
  __shared__ float out;
  pdl_wait();
  pdl_trigger();
  const int j0 = int(blockIdx.x) * kSelectTokens, j1 = min(j0 + kSelectTokens, p.n), head = blockIdx.y;
  const int at = select_tile(p.begin, p.seq, j0) * p.kv.n_head + head, n = p.to.count[at];
  const int n_block = select_blocks_to(p.len + j1 - 1), n_out = n == kAllBlocks ? 0 : n_block - n;
  const int n_row = (j1 - j0) * p.group;
  const int64_t n_lse = int64_t(p.n_tok) * p.n_q_head;
  if (threadIdx.x == 0) repair = 0, out = 0;
  __syncthreads();
  if (n_out > 0 && p.spec.check) {
    float estimate = 0;
    for (int r = threadIdx.x; r < n_row; r += 128) {
      const float* lse = p.to.lse + int64_t(p.begin + j0 + r / p.group) * p.n_q_head + head * p.group + r % p.group;
      float set[kSampleSets];
#pragma unroll
      for (int i = 0; i < kSampleSets; ++i) set[i] = lse[(i + 1) * n_lse];
      const LeftOut left = left_out(lse[0], set, n_out);
      estimate += left.estimate;
      if (!(left.bound <= 1 - p.spec.gamma)) repair = 1;
    }
    atomicAdd(&out, estimate);
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  p.to.repair[at] = repair ? kAllBlocks : 0;
  auto add = [](int64_t& to, int64_t v) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(v));
  };
  Selected& s = p.to.sum[p.slot];
  add(s.blocks, repair ? n_block : n_block - n_out), add(s.seen, n_block);
  add(s.rows, n_row), add(s.tiles, 1), add(s.repaired, repair);
  if (!repair) atomicAdd(&s.left_out, double(out));
}

template <int E, bool kShared>
void launch_scores(cudaStream_t stream, const SelectParams& p) {
  using Shape = ScoreShape<E>;
  auto* kernel = scores_kernel<E, kShared>;
  allow_shared(kernel, size_t(Shape::kBytes));
  const int rows = (p.j1 - p.j0) * p.group;
  const int tiles = (select_blocks_to(p.len + p.j1 - 1) * kBlockMeans + Shape::kMeans - 1) / Shape::kMeans;
  launch(kernel,
         dim3(unsigned((rows + Shape::kRows - 1) / Shape::kRows), unsigned(p.kv.n_head),
              unsigned((tiles + kTilesAtOnce - 1) / kTilesAtOnce)),
         dim3(256), size_t(Shape::kBytes), stream, p);
}

SelectParams params_of(const SelectBuffers& b, const KvLayer& kv, const Step& host, const AttnSpec& spec, int seq) {
  return {.kv = kv,
          .spec = host.select,
          .to = b,
          .begin = host.q_begin[seq],
          .n = host.q_begin[seq + 1] - host.q_begin[seq],
          .len = host.kv_len[seq],
          .slot = host.slot[seq],
          .seq = seq,
          .group = spec.n_q_head / kv.n_head,
          .n_q_head = spec.n_q_head,
          .n_tok = host.shape.n_tok,
          .scale = spec.scale};
}
// Whether the tiles of a prefill kernel lie in those of a list.
bool takes(const KvLayer& kv, int group) {
  const int rows = kv.head_dim == 512 ? 64 : 128;
  return (kv.head_dim == 256 || kv.head_dim == 512) && kv.k_type != KvType::kF32 && kv.v_type != KvType::kF32 &&
         64 % group == 0 && rows / group <= kSelectTokens;
}

int64_t scores_of(const BackendLimits& l, int cap) {
  const int64_t tile = int64_t(kSelectTokens) * l.n_q_head * cap;
  const int64_t all = int64_t(l.max_tok + kSelectTokens) * l.n_q_head * cap;
  return std::max(tile, std::min<int64_t>(all, int64_t(kMostScores / sizeof(float))));
}
// The parts of the memory, in order; p null: only their sizes.
size_t lay_out(SelectBuffers& b, char* p, const BackendLimits& l) {
  size_t at = 0;
  auto take = [&]<class T>(T*& to, int64_t n) {
    to = reinterpret_cast<T*>(p + at);
    at += align_up(size_t(n) * sizeof(T));
  };
  b.cap = select_blocks_to(int(l.max_rows)) + 1;
  b.most_tile = select_tiles(l.max_tok, l.n_select);
  const int64_t lists = int64_t(b.most_tile) * l.n_kv_head;
  b.n_score = scores_of(l, b.cap);
  take(b.mean, int64_t(l.n_kv_head) * b.cap * kBlockMeans * l.head_dim);
  take(b.score, b.n_score);
  take(b.count, lists), take(b.index, lists * b.cap);
  take(b.sample_count, lists * kSampleSets), take(b.sample_index, lists * kSampleBlocks);
  take(b.repair, lists);
  take(b.lse, int64_t(l.max_tok) * l.n_q_head * (1 + kSampleSets));
  take(b.sum, l.n_select);
  return at;
}

}  // namespace

size_t select_bytes(const BackendLimits& l) {
  SelectBuffers b;
  return l.n_select > 0 ? lay_out(b, nullptr, l) : 0;
}
SelectBuffers select_buffers(void* memory, const BackendLimits& l) {
  SelectBuffers b{.memory = memory};
  lay_out(b, static_cast<char*>(memory), l);
  return b;
}

bool select_blocks(cudaStream_t stream, const SelectBuffers& b, Mat q, const KvLayer& kv, const Step& host,
                   const AttnSpec& spec) {
  const int group = spec.n_q_head / kv.n_head;
  CHECK(b.memory && kv.window == 0, "blocks are selected of full layers, where it was planned; window", kv.window);
  if (!takes(kv, group)) return false;
  const size_t lists = size_t(b.most_tile) * size_t(kv.n_head) * sizeof(int32_t);
  FACET_CUDA_CHECK(cudaMemsetAsync(b.count, 0xFF, lists, stream));
  FACET_CUDA_CHECK(cudaMemsetAsync(b.sample_count, 0, lists * kSampleSets, stream));
  FACET_CUDA_CHECK(cudaMemsetAsync(b.repair, 0, lists, stream));
  for (int seq = 0; seq < host.shape.n_seq; ++seq) {
    SelectParams p = params_of(b, kv, host, spec, seq);
    p.q = q.p, p.q_stride = q.stride;
    const int asked = host.n_select[seq], end = asked >= p.n ? p.n : asked / kSelectTokens * kSelectTokens;
    if (end == 0) continue;
    p.n_mean = select_means_before(p.len + end);
    const int a_block = 256 / (kv.head_dim / kDims);
    if (p.n_mean > 0)
      launch(means_kernel, dim3(unsigned((p.n_mean + a_block - 1) / a_block), unsigned(kv.n_head)), dim3(256), 0,
             stream, p);
    const int n_block = select_blocks_to(p.len + end - 1), n_sort = sort_size(n_block);
    CHECK(n_block <= b.cap, "blocks, of a context planned for", n_block, b.cap);
    const int64_t room = b.n_score / (int64_t(spec.n_q_head) * b.cap) / kSelectTokens * kSelectTokens;
    for (int from = 0; end > from; from = p.j1) {
      p.j0 = from, p.j1 = int(std::min<int64_t>(end, from + room));
      if (kv.head_dim == 256)
        launch_scores<256, false>(stream, p);
      else if (kv.shared)
        launch_scores<512, true>(stream, p);
      else
        launch_scores<512, false>(stream, p);
      const size_t bytes = choose_shared(n_block, kSelectTokens * group);
      CHECK(bytes <= kChooseShared, "shared memory for the choice among blocks:", n_block);
      allow_shared(choose_kernel, kChooseShared);
      launch(choose_kernel, dim3(unsigned((p.j1 - p.j0 + kSelectTokens - 1) / kSelectTokens), unsigned(kv.n_head)),
             dim3(256), bytes, stream, p, n_sort);
    }
  }
  return true;
}

void settle_selected(cudaStream_t stream, const SelectBuffers& b, const KvLayer& kv, const Step& host,
                     const AttnSpec& spec) {
  for (int seq = 0; seq < host.shape.n_seq; ++seq) {
    if (host.n_select[seq] == 0) continue;
    const SelectParams p = params_of(b, kv, host, spec, seq);
    launch(settle_kernel, dim3(unsigned((p.n + kSelectTokens - 1) / kSelectTokens), unsigned(kv.n_head)), dim3(128), 0,
           stream, p);
  }
}

}  // namespace facet::cuda
