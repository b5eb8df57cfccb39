#pragma once
#include <algorithm>
#include <type_traits>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/route/choose.cuh"
#include "backend/cuda/kernels/route/route.h"

// The work of a block of route.cu, also for blocks of another kernel of the same launch (matmul/skinny.cuh).
namespace facet::cuda {

constexpr int kRouteThreads = 128;  // of a router row
constexpr int kRouteGroups = 2;     // of so many threads in a block: a group an expert
static_assert(kRouteThreads * kRouteGroups == kMaxExperts, "a thread an expert when pairs are sorted");

struct RouteScratch {
  float part[kMoeRows][kRouteGroups * kRouteThreads / 32];
  // These belong to the block that chooses.
  float scale[kMaxExperts];
  uint8_t rank[kMoeRows][kMaxExperts];  // of an expert for a token, from 1 on
  int before[kRouteGroups * kRouteThreads / 32];
};
constexpr int kRouteRowsAt = (int(sizeof(RouteScratch)) + 15) / 16 * 16;  // in shared memory, the rows at hand
// Rows that so many bytes of shared memory have room for, of n_tok.
inline int route_rows(int64_t bytes, int cols, int n_tok) {
  return int(std::clamp<int64_t>((bytes - kRouteRowsAt) / (cols * 4), 1, n_tok));
}

// Four terms of a logit, in the order that every kernel here has.
__device__ __forceinline__ void add_products(float& s, float4 a, float4 w) {
  s += __fmaf_rn(a.x, w.x, __fmul_rn(a.y, w.y)) + __fmaf_rn(a.z, w.z, __fmul_rn(a.w, w.w));
}

// The pairs of all tokens by expert, an expert's slots in ascending order. A thread an expert.
__device__ inline void sort_pairs(const Routing& o, RouteScratch& scratch, int n_tok, int n_used) {
  const int e = int(threadIdx.x), lane = e % 32, warp = e / 32;
  int n = 0;
#pragma unroll 4
  for (int t = 0; t < n_tok; ++t) n += scratch.rank[t][e] > 0;
  constexpr int kRows = routing_rows(kMoeRows);
  const int entries = (n + kRows - 1) / kRows;
  int all = entries << 16 | n;  // entries up to this expert's, and their pairs
  for (int m = 1; m < 32; m *= 2) {
    const int v = __shfl_up_sync(~0u, all, m);
    if (lane >= m) all += v;
  }
  if (lane == 31) scratch.before[warp] = all;
  __syncthreads();
  for (int w = 0; w < warp; ++w) all += scratch.before[w];
  int at = (all & 0xFFFF) - n;
  for (int i = 0; i < entries; ++i) {
    const int to = (all >> 16) - entries + i;
    o.active[to] = e, o.first[to] = at + i * kRows;
  }
  if (n > 0)
    for (int t = 0; t < n_tok; ++t)
      if (const int r = scratch.rank[t][e]) o.pair[at++] = t * n_used + r - 1;
  if (e == kMaxExperts - 1) *o.n_active = all >> 16, o.first[all >> 16] = all & 0xFFFF;
}

// The block that chooses polls the logits until all of them are of this routing.
__device__ inline void choose_block(const RouterArgs& j, RouteScratch& scratch) {
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32, n_warp = int(blockDim.x) / 32;
  pdl_trigger();  // the other blocks trigger after their wait, so the next kernel starts no sooner
  scratch.scale[thread] = j.scale && thread < j.n_expert ? __ldg(j.scale + thread) : 1.f;
  for (int t = 0; t < j.n_tok; ++t) scratch.rank[t][thread] = 0;
  __syncthreads();
  pdl_wait();
  const Routing& o = j.o;
  const unsigned number = __ldcg(o.number) + 1;
  for (int t = warp; t < j.n_tok; t += n_warp) {
    auto logits = [&](auto& v) {
      constexpr int kPer = std::extent_v<std::remove_reference_t<decltype(v)>>;
      const volatile uint64_t* from = o.logits + int64_t(t) * j.n_expert;
      for (bool there = false; !there;) {
        uint64_t word[kPer];
#pragma unroll
        for (int i = 0; i < kPer; ++i) word[i] = from[min(lane * kPer + i, j.n_expert - 1)];
        there = true;
#pragma unroll
        for (int i = 0; i < kPer; ++i)
          there &= unsigned(word[i] >> 32) == number, v[i] = __uint_as_float(unsigned(word[i]));
      }
      __syncwarp();
    };
    choose(scratch.scale, j.n_expert, j.n_used, lane, logits, [&](int e, float weight) {
      const int slot = t * j.n_used + lane;
      o.expert[slot] = e, o.weight[slot] = weight;
      if (j.n_tok == 1)  // its experts are distinct
        *const_cast<volatile int32_t*>(o.active + lane) = e, o.first[lane] = o.pair[lane] = lane;
      else
        scratch.rank[t][e] = uint8_t(lane + 1);
    });
  }
  if (j.n_tok > 1) {
    __syncthreads();
    sort_pairs(o, scratch, j.n_tok, j.n_used);
  } else if (thread == 0) {
    *o.n_active = o.first[j.n_used] = j.n_used;
  }
  if (thread == 0) *o.number = number;
}

// Block `block` of those that do the job: the first one chooses, others have kRouteGroups experts each. shared:
// kRouteRowsAt bytes and n_row rows. kOne: there is one token.
// Long: the router's row is read before the wait and stays in registers for the sums behind it.
template <bool kOne>
__device__ void route_block(const RouterArgs& j, int block, uint8_t* shared, int n_row) {
  RouteScratch& scratch = *reinterpret_cast<RouteScratch*>(shared);
  if (block == 0) return choose_block(j, scratch);
  // A thread that has read a logit of this block, and a kernel that starts after its trigger, read -1: no expert is
  // chosen yet.
  const bool clears = kOne && j.ahead && block == 1;
  if (clears && threadIdx.x < 32) {
    if (int(threadIdx.x) < j.n_used) __stcg(j.o.active + threadIdx.x, -1);
    __threadfence();
  }
  float4* const rows = reinterpret_cast<float4*>(shared + kRouteRowsAt);
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int group = thread / kRouteThreads, of_group = thread % kRouteThreads, e = (block - 1) * kRouteGroups + group;
  const int n_col4 = j.r.cols / 4;
  const float4* w = reinterpret_cast<const float4*>(j.router + int64_t(min(e, j.n_expert - 1)) * j.r.cols);
  constexpr int kKeep = kMaxRouterCols / 4 / kRouteThreads;  // the router's row stays in registers
  float4 keep[kKeep];
#pragma unroll
  for (int i = 0; i < kKeep; ++i) {
    const int c = i * kRouteThreads + of_group;
    keep[i] = c < n_col4 ? load_once(w + c) : float4{};
  }
  pdl_wait();
  if (clears) __syncthreads();
  pdl_trigger();
  auto put_logit = [&](int t, unsigned number, const float* part) {
    const uint64_t logit = __float_as_uint((part[0] + part[1]) + (part[2] + part[3]));
    *const_cast<volatile uint64_t*>(j.o.logits + int64_t(t) * j.n_expert + e) = uint64_t(number) << 32 | logit;
  };
  if constexpr (kOne) {
    float4 a[kKeep];
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
      const int c = i * kRouteThreads + of_group;
      a[i] = c < n_col4 ? *reinterpret_cast<const float4*>(j.r.p + 4 * c) : float4{};
    }
    const unsigned number = __ldcg(j.o.number) + 1;
    float s = 0;
#pragma unroll
    for (int i = 0; i < kKeep; ++i)
      if (i * kRouteThreads + of_group < n_col4) add_products(s, a[i], keep[i]);
    for (int m = 16; m > 0; m /= 2) s += __shfl_xor_sync(~0u, s, m);
    if (lane == 0) scratch.part[0][warp] = s;
    __syncthreads();
    if (of_group == 0 && e < j.n_expert) put_logit(0, number, scratch.part[0] + group * (kRouteThreads / 32));
    return;
  }
  unsigned number = 0;
  for (int t0 = 0; t0 < j.n_tok; t0 += n_row) {
    const int n = min(n_row, j.n_tok - t0);
    if (t0 > 0) __syncthreads();
    for (int k = 0; k < n; ++k)
      for (int c = thread; c < n_col4; c += int(blockDim.x))
        copy16_async(rows + k * n_col4 + c, j.r.p + (t0 + k) * j.r.stride + 4 * c);
    copies_commit();
    if (t0 == 0)
      number = __ldcg(j.o.number) + 1;  // read behind the rows, since nothing needs it before they have arrived
    copies_wait<0>();
    __syncthreads();
    constexpr int kTogether = 4;  // tokens whose sums hide each other's latency
    for (int k0 = 0; k0 < n; k0 += kTogether) {
      float s[kTogether] = {};
#pragma unroll
      for (int i = 0; i < kKeep; ++i) {
        const int c = i * kRouteThreads + of_group;
        if (c >= n_col4) break;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) add_products(s[k], rows[min(k0 + k, n - 1) * n_col4 + c], keep[i]);
      }
      for (int m = 16; m > 0; m /= 2)
#pragma unroll
        for (int k = 0; k < kTogether; ++k) s[k] += __shfl_xor_sync(~0u, s[k], m);
#pragma unroll
      for (int k = 0; k < kTogether; ++k)
        if (lane == k && k0 + k < n) scratch.part[k0 + k][warp] = s[k];
    }
    __syncthreads();
    if (of_group < n && e < j.n_expert) {
      put_logit(t0 + of_group, number, scratch.part[of_group] + group * (kRouteThreads / 32));
    }
  }
}

}  // namespace facet::cuda
