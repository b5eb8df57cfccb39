#pragma once
#include <algorithm>
#include <type_traits>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/moe/choose.cuh"
#include "backend/cuda/kernels/moe/moe.h"

// What blocks of route.cu do, alone or beside blocks of another kernel of the same launch (skinny.cuh).
namespace facet::cuda {

constexpr int kRouteThreads = 128;  // of a router row
constexpr int kRouteGroups = 2;     // of so many threads in a block: a group an expert
static_assert(kRouteThreads * kRouteGroups == kMaxExperts, "a thread an expert when pairs are sorted");

struct RouteScratch {
  int32_t picked[kMoeRows * kMaxUsed];
  float part[kMoeRows][kRouteGroups * kRouteThreads / 32];
  int before[kRouteGroups * kRouteThreads / 32];
};
constexpr int kRouteRowsAt = (int(sizeof(RouteScratch)) + 15) / 16 * 16;  // in shared memory, the rows at hand
// Rows that so many bytes of shared memory have room for, of n_tok.
inline int route_rows(int64_t bytes, int cols, int n_tok) { return int(std::clamp<int64_t>((bytes - kRouteRowsAt) / (cols * 4), 1, n_tok)); }

// One block sorts the pairs of several tokens by expert, an expert's slots in ascending order. A thread an expert.
__device__ inline void sort_pairs(const Routing& o, RouteScratch& scratch, int n_expert, int n_pair) {
  const int e = int(threadIdx.x), lane = e % 32, warp = e / 32;
  int n = 0;
#pragma unroll 8
  for (int i = 0; i < n_pair; ++i) n += scratch.picked[i] == e;
  int all = int(n > 0) << 16 | n;  // active experts up to this one, and their pairs
  for (int m = 1; m < 32; m *= 2) {
    const int v = __shfl_up_sync(~0u, all, m);
    if (lane >= m) all += v;
  }
  if (lane == 31) scratch.before[warp] = all;
  __syncthreads();
  for (int w = 0; w < warp; ++w) all += scratch.before[w];
  int at = (all & 0xFFFF) - n;
  if (n > 0) {
    o.active[(all >> 16) - 1] = e, o.first[(all >> 16) - 1] = at;
#pragma unroll 8
    for (int i = 0; i < n_pair; ++i)
      if (scratch.picked[i] == e) o.pair[at++] = i;
  }
  if (e == kMaxExperts - 1) o.active[n_expert] = all >> 16, o.first[all >> 16] = all & 0xFFFF;
}

// One token: its experts are distinct. A warp.
__device__ inline void sort_one(const Routing& o, const int32_t* picked, int n_expert, int n_used, int lane) {
  const int mine = lane < n_used ? picked[lane] : 0;
  int at = 0;
  for (int k = 0; k < n_used; ++k) at += picked[k] < mine;
  if (lane < n_used) o.active[at] = mine, o.first[at] = at, o.pair[at] = lane;
  if (lane == 0) o.active[n_expert] = n_used, o.first[n_used] = n_used;
}

// Block `block` of those that do the job, kRouteGroups experts each. shared: kRouteRowsAt bytes and n_row rows. The first block
// looks at the logits until all are of this routing, and chooses: sooner there than by counting who is done.
__device__ inline void route_block(const RouteJob& j, int block, uint8_t* shared, int n_row) {
  RouteScratch& scratch = *reinterpret_cast<RouteScratch*>(shared);
  float4* const rows = reinterpret_cast<float4*>(shared + kRouteRowsAt);
  const int thread = int(threadIdx.x), lane = thread % 32, warp = thread / 32, n_warp = int(blockDim.x) / 32;
  const int group = thread / kRouteThreads, of_group = thread % kRouteThreads, e = block * kRouteGroups + group;
  const Routing& o = j.o;
  const int n_col4 = j.r.cols / 4;
  const float4* w = reinterpret_cast<const float4*>(j.router + int64_t(min(e, j.n_expert - 1)) * j.r.cols);
  constexpr int kKeep = kMaxRouterCols / 4 / kRouteThreads;  // the router's row stays in registers
  float4 keep[kKeep];
#pragma unroll
  for (int i = 0; i < kKeep; ++i) {
    const int c = i * kRouteThreads + of_group;
    keep[i] = c < n_col4 ? __ldg(w + c) : float4{};
  }
  wait_for_previous();
  let_next_start();
  const unsigned number = __ldcg(o.number) + 1;
  for (int t0 = 0; t0 < j.n_tok; t0 += n_row) {
    const int n = min(n_row, j.n_tok - t0);
    if (t0 > 0) __syncthreads();
    for (int k = 0; k < n; ++k)
      for (int c = thread; c < n_col4; c += int(blockDim.x)) copy16_async(rows + k * n_col4 + c, j.r.p + (t0 + k) * j.r.stride + 4 * c);
    copies_commit();
    copies_wait<0>();
    __syncthreads();
    for (int k = 0; k < n; ++k) {
      float s = 0;
#pragma unroll
      for (int i = 0; i < kKeep; ++i) {
        const int c = i * kRouteThreads + of_group;
        if (c >= n_col4) break;
        const float4 a = rows[k * n_col4 + c];
        s += (a.x * keep[i].x + a.y * keep[i].y) + (a.z * keep[i].z + a.w * keep[i].w);
      }
      for (int m = 16; m > 0; m /= 2) s += __shfl_xor_sync(~0u, s, m);
      if (lane == 0) scratch.part[k][warp] = s;
    }
    __syncthreads();
    if (of_group < n && e < j.n_expert) {
      const float* part = scratch.part[of_group] + group * (kRouteThreads / 32);
      const uint64_t logit = __float_as_uint((part[0] + part[1]) + (part[2] + part[3]));
      *const_cast<volatile uint64_t*>(o.logits + int64_t(t0 + of_group) * j.n_expert + e) = uint64_t(number) << 32 | logit;
    }
  }
  if (block > 0) return;
  for (int t = warp; t < j.n_tok; t += n_warp)
    choose(scratch.picked + t * j.n_used, o.weight + t * j.n_used, j.scale, j.n_expert, j.n_used, lane, [&](auto& v) {
      constexpr int kPer = std::extent_v<std::remove_reference_t<decltype(v)>>;
      const volatile uint64_t* from = o.logits + int64_t(t) * j.n_expert;
      for (bool there = false; !there;) {
        uint64_t word[kPer];
#pragma unroll
        for (int i = 0; i < kPer; ++i) word[i] = from[min(lane * kPer + i, j.n_expert - 1)];
        there = true;
#pragma unroll
        for (int i = 0; i < kPer; ++i) there &= unsigned(word[i] >> 32) == number, v[i] = __uint_as_float(unsigned(word[i]));
      }
      __syncwarp();
    });
  if (j.n_tok > 1) {
    __syncthreads();
    sort_pairs(o, scratch, j.n_expert, j.n_tok * j.n_used);
  } else if (warp == 0) {
    __syncwarp();
    sort_one(o, scratch.picked, j.n_expert, j.n_used, lane);
  }
  if (j.n_tok > 1 || warp == 0)
    for (int i = thread; i < j.n_tok * j.n_used; i += j.n_tok > 1 ? int(blockDim.x) : 32) o.expert[i] = scratch.picked[i];
  if (thread == 0) *o.number = number;
}

}  // namespace facet::cuda
