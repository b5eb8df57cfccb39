// route_small_batch -- which experts the tokens of a batch use, for more tokens than route.cu takes at once
//
// Shapes     r [T, D] f32, router [N, D] f32, N <= 256, n_used <= 16; T <= kMoeSmallBatch
// Bytes      the router once per four tokens, r once per eight experts, from L2
// Launch     logits: a block per eight experts and four tokens. lists: one block, a warp per token, then per range of
//            pairs, then a thread per expert
// Order      a logit's sum and a token's choice are those of route.cuh, so that a row has the same experts and weights
//            in every batch; pairs by expert, then token
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/cuda/kernels/route/route.cuh"

namespace facet::cuda {
namespace {

constexpr int kExperts = 8, kTokens = 4;  // of a block of logits
constexpr int kSums = kExperts * kTokens;
static_assert(kSums == 32);

// v[0]: sum number `lane` of the sums over all lanes, added as a butterfly adds them.
template <int kMask = 16>
__device__ __forceinline__ void sum_and_scatter(float (&v)[kSums], int lane) {
  const bool upper = lane & kMask;
#pragma unroll
  for (int i = 0; i < kMask; ++i) {
    const float other = __shfl_xor_sync(~0u, upper ? v[i] : v[i + kMask], kMask);
    v[i] = (upper ? v[i + kMask] : v[i]) + other;
  }
  if constexpr (kMask > 1) sum_and_scatter<kMask / 2>(v, lane);
}

__global__ void __launch_bounds__(kRouteThreads) logits_kernel(const __grid_constant__ RouterArgs j) {
  constexpr int kWarps = kRouteThreads / 32;
  static_assert(kWarps == 4);
  __shared__ float part[kWarps][kSums];
  const int thread = int(threadIdx.x), lane = thread % 32, e0 = int(blockIdx.x) * kExperts,
            t0 = int(blockIdx.y) * kTokens, n_col4 = j.r.cols / 4;
  const float4 *w[kExperts], *r[kTokens];
#pragma unroll
  for (int i = 0; i < kExperts; ++i)
    w[i] = reinterpret_cast<const float4*>(j.router + int64_t(min(e0 + i, j.n_expert - 1)) * j.r.cols);
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
    r[i] = reinterpret_cast<const float4*>(j.r.p + min(t0 + i, j.n_tok - 1) * j.r.stride);
  pdl_wait();
  pdl_trigger();
  const unsigned number = __ldcg(j.o.number) + 1;
  float s[kSums] = {};  // [token][expert]
  for (int c = thread; c < n_col4; c += kRouteThreads) {
    float4 keep[kExperts], a[kTokens];
#pragma unroll
    for (int i = 0; i < kTokens; ++i) a[i] = r[i][c];
#pragma unroll
    for (int i = 0; i < kExperts; ++i) keep[i] = __ldg(w[i] + c);
#pragma unroll
    for (int i = 0; i < kSums; ++i) add_products(s[i], a[i / kExperts], keep[i % kExperts]);
  }
  sum_and_scatter(s, lane);
  part[thread / 32][lane] = s[0];
  __syncthreads();
  const int t = t0 + thread / kExperts, e = e0 + thread % kExperts;
  if (thread >= kSums || t >= j.n_tok || e >= j.n_expert) return;
  const float sum = (part[0][thread] + part[1][thread]) + (part[2][thread] + part[3][thread]);
  j.o.logits[int64_t(t) * j.n_expert + e] = uint64_t(number) << 32 | __float_as_uint(sum);
}

// The experts of token t, by a warp; also into expert[slot].
__device__ __forceinline__ void choose_for(const RouterArgs& j, int t, int lane, uint8_t* expert) {
  auto logits = [&](auto& v) {
    constexpr int kPer = std::extent_v<std::remove_reference_t<decltype(v)>>;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      v[i] = __uint_as_float(unsigned(j.o.logits[int64_t(t) * j.n_expert + min(lane * kPer + i, j.n_expert - 1)]));
  };
  choose(j.scale, j.n_expert, j.n_used, lane, logits, [&](int e, float weight) {
    const int slot = t * j.n_used + lane;
    j.o.expert[slot] = e, j.o.weight[slot] = weight;
    expert[slot] = uint8_t(e);
  });
}

constexpr int kListWarps = 32, kListThreads = kListWarps * 32;
constexpr int kMostTurns = kMoeSmallBatch / kListWarps * kMaxUsed / 32;  // of 32 pairs of a warp

// Chooses (kChoose), and lists the pairs. slots: moe_place's, or null. A warp has the pairs of a range of tokens.
template <bool kChoose>
__global__ void __launch_bounds__(kListThreads)
    lists_kernel(const __grid_constant__ RouterArgs j, int rows, const int16_t* slots) {
  static_assert(kMoeSmallBatch % kListWarps == 0);
  __shared__ uint8_t expert[kMoeSmallBatch * kMaxUsed];
  __shared__ uint16_t before[kListWarps][kMaxExperts];  // pairs of an expert: of the warp, then in warps before it
  __shared__ int start[kMaxExperts], total[kMaxExperts / 32];
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const Routing& o = j.o;
  for (int i = thread; i < kListWarps * kMaxExperts; i += kListThreads) (&before[0][0])[i] = 0;
  pdl_wait();
  pdl_trigger();
  const int each = (j.n_tok + kListWarps - 1) / kListWarps, tok0 = min(warp * each, j.n_tok),
            tok1 = min(tok0 + each, j.n_tok), pair0 = tok0 * j.n_used, pair1 = tok1 * j.n_used;
  if constexpr (kChoose) {
    for (int t = tok0; t < tok1; ++t) choose_for(j, t, lane, expert);
    // The next routing has another number, so it takes no logit of this one for its own.
    if (thread == 0) *o.number += 1;
  } else {
    for (int i = pair0 + lane; i < pair1; i += 32) expert[i] = uint8_t(o.expert[i]);
  }
  __syncthreads();

  // Of a warp's pairs, how many earlier ones have the same expert.
  int rank[kMostTurns];
#pragma unroll
  for (int k = 0; k < kMostTurns; ++k) {
    const int i = pair0 + 32 * k + lane, e = i < pair1 ? expert[i] : -1;
    if (pair0 + 32 * k >= pair1) break;
    const unsigned same = __match_any_sync(~0u, e), earlier = same & ((1u << lane) - 1);
    rank[k] = e < 0 ? 0 : before[warp][e] + __popc(earlier);
    __syncwarp();
    if (e >= 0 && earlier == 0) before[warp][e] = uint16_t(before[warp][e] + __popc(same));
    __syncwarp();
  }
  __syncthreads();
  const int number = thread >= j.n_expert ? -1 : slots ? slots[thread] : thread;  // in the stacks
  int n = 0, entries = 0, all = 0;  // the expert's pairs and entries; entries and pairs up to its own
  if (thread < kMaxExperts) {
#pragma unroll
    for (int w = 0; w < kListWarps; ++w) {
      const int here = before[w][thread];
      before[w][thread] = uint16_t(n);
      n += here;
    }
    if (number < 0) n = 0;
    entries = (n + rows - 1) / rows;
    all = entries << 16 | n;
    for (int m = 1; m < 32; m *= 2) {
      const int v = __shfl_up_sync(~0u, all, m);
      if (lane >= m) all += v;
    }
    if (lane == 31) total[warp] = all;
  }
  __syncthreads();
  if (thread < kMaxExperts) {
    for (int w = 0; w < warp; ++w) all += total[w];
    const int at = (all & 0xFFFF) - n, entry = (all >> 16) - entries;
    start[thread] = number < 0 ? -1 : at;
    for (int i = 0; i < entries; ++i) o.active[entry + i] = number, o.first[entry + i] = at + i * rows;
    if (thread == kMaxExperts - 1) *o.n_active = all >> 16, o.first[all >> 16] = all & 0xFFFF;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kMostTurns; ++k) {
    const int i = pair0 + 32 * k + lane;
    if (i >= pair1) break;
    const int e = expert[i], from = start[e];
    if (from >= 0) o.pair[from + before[warp][e] + rank[k]] = i;
  }
}

__global__ void __launch_bounds__(kMaxExperts) count_kernel(unsigned* times, const int32_t* expert, int n_slot) {
  const int i = int(blockIdx.x) * kMaxExperts + int(threadIdx.x);
  if (i < n_slot) atomicAdd(times + expert[i], 1u);
}

}  // namespace

void route_small_batch(cudaStream_t stream, const RouterArgs& j) {
  static_assert(routing_entries(kMaxExperts, kMoeSmallBatch * kMaxUsed) + kMoeSmallBatch * kMaxUsed < 1 << 16);
  CHECK(j.n_tok > 0 && j.n_tok <= kMoeSmallBatch, "{} tokens", j.n_tok);
  launch(logits_kernel,
         dim3(unsigned((j.n_expert + kExperts - 1) / kExperts), unsigned((j.n_tok + kTokens - 1) / kTokens)),
         dim3(kRouteThreads), 0, stream, j);
  launch(lists_kernel<true>, dim3(1), dim3(kListThreads), 0, stream, j, routing_rows(j.n_tok),
         static_cast<const int16_t*>(nullptr));
}

void moe_place(cudaStream_t stream, const Routing& r, const int16_t* slots, int n_expert, int n_tok, int n_used) {
  CHECK(n_tok <= kMoeSmallBatch && n_used <= kMaxUsed && n_expert <= kMaxExperts, "{} tokens of {} experts", n_tok,
        n_expert);
  launch(lists_kernel<false>, dim3(1), dim3(kListThreads), 0, stream,
         RouterArgs{.n_expert = n_expert, .n_used = n_used, .n_tok = n_tok, .o = r}, routing_rows(n_tok), slots);
}

void moe_count(cudaStream_t stream, unsigned* times, const int32_t* expert, int n_slot) {
  count_kernel<<<unsigned((n_slot + kMaxExperts - 1) / kMaxExperts), kMaxExperts, 0, stream>>>(times, expert, n_slot);
  FACET_CUDA_CHECK(cudaGetLastError());
}

}  // namespace facet::cuda
