// route_large_batch -- which experts many tokens use, and where their rows go in the panels of the grouped products
//
// Shapes     r [T, D] f32, router [N, D] f32, N <= 256, n_used <= 16; T <= kMoeLargeBatchTokens
// Bytes      the router once per 128 tokens, r once per 128 experts, mostly from L2; partial logits once out, once in
// Launch     product: a block per 128 tokens (64 of few), 128 experts and an eighth of the columns; choose and place: a
//            block per 64 tokens; between them one block makes the lists
// Order      a logit is a sum of eight parts, each from the left in f32; pairs by expert, then token
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/cuda/kernels/route/choose.cuh"

namespace facet::cuda {
namespace {

constexpr int kThreads = 256, kSortThreads = 1024;
constexpr int kExperts = 128, kCols = 8;  // of a block of the product, of its stage

__device__ __forceinline__ float4 as_float4(const float* p) { return *reinterpret_cast<const float4*>(p); }
// Place of a row in a column of a stage: stores of 16 rows and two groups of four columns fall on all banks.
__device__ __forceinline__ int row_at(int col, int row) { return row ^ (col / 4 * 16); }

// A thread has kTokens / 64 times four tokens, 64 apart, by two times four experts, 64 apart.
template <int kTokens>
__global__ void __launch_bounds__(kThreads, 2)
    product_kernel(Mat r, const float* router, int n_expert, int part_cols, float* logits) {
  constexpr int kM = kTokens / 16, kN = kExperts / 16;
  __shared__ __align__(16) float a[2][kCols][kTokens], b[2][kCols][kExperts];
  const int thread = int(threadIdx.x), m0 = thread / 16 * 4, n0 = thread % 16 * 4;
  const int t0 = int(blockIdx.x) * kTokens, e0 = int(blockIdx.y) * kExperts, part = int(blockIdx.z);
  const int begin = part * part_cols, end = min(begin + part_cols, r.cols);
  // What the thread brings in: four columns of a token and of an expert. Two lanes read 32 bytes of a row.
  const int row = thread / 2, col = thread % 2 * 4;
  const float* const from_a = r.p + int64_t(min(t0 + row % kTokens, r.rows - 1)) * r.stride + col;
  const float* const from_b = router + int64_t(min(e0 + row, n_expert - 1)) * r.cols + col;
  float4 va, vb;
  auto fetch = [&](int c) {
    const bool in = c + col < end;
    va = in ? as_float4(from_a + c) : float4{}, vb = in ? __ldg(reinterpret_cast<const float4*>(from_b + c)) : float4{};
  };
  auto put = [&](int s) {
    const float x[4] = {va.x, va.y, va.z, va.w}, y[4] = {vb.x, vb.y, vb.z, vb.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (row < kTokens) a[s][col + i][row_at(col, row)] = x[i];
      b[s][col + i][row_at(col, row)] = y[i];
    }
  };
  pdl_wait();
  pdl_trigger();
  float sum[kM][kN] = {};
  if (begin < end) fetch(begin), put(0);
  __syncthreads();
  for (int c = begin, stage = 0; c < end; c += kCols, stage ^= 1) {
    if (c + kCols < end) fetch(c + kCols);
#pragma unroll
    for (int k = 0; k < kCols; ++k) {
      float4 x[kM / 4], y[kN / 4];
#pragma unroll
      for (int i = 0; i < kM / 4; ++i) x[i] = as_float4(&a[stage][k][row_at(k, 64 * i + m0)]);
#pragma unroll
      for (int j = 0; j < kN / 4; ++j) y[j] = as_float4(&b[stage][k][row_at(k, 64 * j + n0)]);
#pragma unroll
      for (int i = 0; i < kM; ++i)
#pragma unroll
        for (int j = 0; j < kN; ++j) sum[i][j] = __fmaf_rn((&x[i / 4].x)[i % 4], (&y[j / 4].x)[j % 4], sum[i][j]);
    }
    if (c + kCols < end) put(stage ^ 1);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kM; ++i) {
    const int t = t0 + i / 4 * 64 + m0 + i % 4;
    if (t >= r.rows) break;
#pragma unroll
    for (int j = 0; j < kN; ++j)
      if (const int e = e0 + j / 4 * 64 + n0 + j % 4; e < n_expert)
        logits[(int64_t(part) * r.rows + t) * n_expert + e] = sum[i][j];
  }
}

// Chooses, and counts the pairs of every expert in the block.
__global__ void __launch_bounds__(kSortThreads)
    choose_kernel(MoeLargeBatch o, const float* scale, int n_expert, int n_used, int n_tok) {
  __shared__ int count[kMaxExperts];
  const int thread = int(threadIdx.x), lane = thread % 32, first = int(blockIdx.x) * kMoeSortTokens,
            last = min(first + kMoeSortTokens, n_tok);
  if (thread < kMaxExperts) count[thread] = 0;
  __syncthreads();
  pdl_wait();
  pdl_trigger();
  const int64_t part = int64_t(n_tok) * n_expert;
  for (int t = first + thread / 32; t < last; t += kSortThreads / 32) {
    auto logits = [&](auto& v) {
      constexpr int kPer = std::extent_v<std::remove_reference_t<decltype(v)>>;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        const float* l = o.logits + int64_t(t) * n_expert + min(lane * kPer + i, n_expert - 1);
        v[i] = ((l[0] + l[part]) + (l[2 * part] + l[3 * part])) +
               ((l[4 * part] + l[5 * part]) + (l[6 * part] + l[7 * part]));
      }
    };
    choose(scale, n_expert, n_used, lane, logits, [&](int e, float weight) {
      o.expert[t * n_used + lane] = e, o.weight[t * n_used + lane] = weight;
      atomicAdd(&count[e], 1);
    });
  }
  __syncthreads();
  if (thread < n_expert) o.before[blockIdx.x * n_expert + thread] = count[thread];
}

// Sums of `value` over the threads before this one, and over all.
__device__ int2 sum_before(int value, int* warp_sum) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  int sum = value;
  for (int m = 1; m < 32; m *= 2) {
    const int v = __shfl_up_sync(~0u, sum, m);
    if (lane >= m) sum += v;
  }
  __syncthreads();
  if (lane == 31) warp_sum[warp] = sum;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) before += warp_sum[w];
    all += warp_sum[w];
  }
  return {before + sum - value, all};
}

// A thread an expert: counts become sums over earlier blocks; N tiles of nearly equal widths.
__global__ void __launch_bounds__(kThreads) list_kernel(MoeLargeBatch o, int n_expert, int n_block, int most) {
  __shared__ int warp_sum[kThreads / 32];
  pdl_wait();
  pdl_trigger();
  const int e = int(threadIdx.x);
  int n = 0;
  if (e < n_expert) {
    constexpr int kAhead = 16;
    for (int b = 0; b < n_block; b += kAhead) {
      int c[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) c[i] = b + i < n_block ? o.before[(b + i) * n_expert + e] : 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (b + i < n_block) o.before[(b + i) * n_expert + e] = n;
        n += c[i];
      }
    }
    o.next[2 * e] = o.next[2 * e + 1] = 0;
  }
  const int tiles = (n + most - 1) / most, width = tiles ? ((n + tiles - 1) / tiles + 15) / 16 * 16 : 0;
  const int2 tile = sum_before(tiles, warp_sum);
  const int row = sum_before(tiles * width, warp_sum).x;
  for (int i = 0; i < tiles; ++i) o.tile[tile.x + i] = make_int4(e, row + i * width, width, 0);
  if (e < n_expert) o.tile_first[e] = tile.x;
  if (e == 0) o.tile_first[n_expert] = tile.y;
}

// A thread a pair counts the earlier ones of its expert.
__global__ void __launch_bounds__(kSortThreads) place_kernel(MoeLargeBatch o, int n_expert, int n_used, int n_tok) {
  __shared__ __align__(16) int expert[kMoeSortTokens * kMaxUsed];
  static_assert(kMoeSortTokens * kMaxUsed <= kSortThreads);
  pdl_wait();
  pdl_trigger();
  const int first = int(blockIdx.x) * kMoeSortTokens, n = (min(first + kMoeSortTokens, n_tok) - first) * n_used,
            i = int(threadIdx.x);
  if (i < n) expert[i] = o.expert[first * n_used + i];
  __syncthreads();
  if (i >= n) return;
  const int e = expert[i], tile = o.tile_first[e], width = o.tile[tile].z;
  int at = o.before[blockIdx.x * n_expert + e];
  for (int j = 0; j < i; j += 4) {
    const int4 v = *reinterpret_cast<const int4*>(expert + j);
    at += (v.x == e) + (v.y == e && j + 1 < i) + (v.z == e && j + 2 < i) + (v.w == e && j + 3 < i);
  }
  o.place[first * n_used + i] = make_int2(tile + at / width, at % width);
}

}  // namespace

void moe_route_large_batch(cudaStream_t stream, const MoePass& p, Mat r) {
  const MoeExperts& m = p.w;
  CHECK(m.n_expert <= kMaxExperts && m.n_used <= kMaxUsed && r.cols % 4 == 0 && r.rows == p.n_tok,
        "{} experts, {} used, {} columns", m.n_expert, m.n_used, r.cols);
  static_assert(kMoeRouterParts == 8 && kMaxExperts <= kThreads);
  const int part = (r.cols + kMoeRouterParts * kCols - 1) / (kMoeRouterParts * kCols) * kCols;
  const int expert_blocks = (m.n_expert + kExperts - 1) / kExperts;
  const auto blocks = [&](int tokens) { return (p.n_tok + tokens - 1) / tokens * expert_blocks * kMoeRouterParts; };
  const int tokens = blocks(128) > device().n_sm ? 128 : 64;
  launch(tokens == 128 ? product_kernel<128> : product_kernel<64>,
         dim3(unsigned((p.n_tok + tokens - 1) / tokens), unsigned(expert_blocks), kMoeRouterParts), dim3(kThreads), 0,
         stream, r, m.router, m.n_expert, part, p.b.logits);
  const int sort_blocks = (p.n_tok + kMoeSortTokens - 1) / kMoeSortTokens;
  launch(choose_kernel, dim3(unsigned(sort_blocks)), dim3(kSortThreads), 0, stream, p.b, m.scale, m.n_expert, m.n_used,
         p.n_tok);
  launch(list_kernel, dim3(1), dim3(kThreads), 0, stream, p.b, m.n_expert, sort_blocks, p.tile);
  launch(place_kernel, dim3(unsigned(sort_blocks)), dim3(kSortThreads), 0, stream, p.b, m.n_expert, m.n_used, p.n_tok);
}

}  // namespace facet::cuda
