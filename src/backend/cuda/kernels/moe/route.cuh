#pragma once
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/choose.cuh"
#include "backend/cuda/kernels/moe/moe.h"

// What blocks of route.cu do, alone or beside blocks of another kernel of the same launch (skinny.cuh).
namespace facet::cuda {

constexpr int kRouteThreads = 128;  // of a router row; a block has one or several groups of so many

struct RouteScratch {
  int32_t picked[kMoeRows * kMaxUsed];
  int count[kMaxExperts], begin[kMaxExperts + 1];
  float part[32];
  bool last;
};

// From the pairs of each expert: where they begin, and the list of experts that have some. The first warp does it.
__device__ inline void list_active(const Routing& o, int n_expert, const int* count, int* begin) {
  const int lane = int(threadIdx.x);
  if (lane >= 32) return;
  constexpr int kPer = kMaxExperts / 32;
  int n = 0, sum = 0;  // of the lane's experts, lane * kPer..
  for (int i = 0; i < kPer; ++i) {
    const int e = lane * kPer + i, c = e < n_expert ? count[e] : 0;
    n += c > 0, sum += c;
  }
  int n_before = n, sum_before = sum;
  for (int m = 1; m < 32; m *= 2) {
    const int a = __shfl_up_sync(~0u, n_before, m), b = __shfl_up_sync(~0u, sum_before, m);
    if (lane >= m) n_before += a, sum_before += b;
  }
  n_before -= n, sum_before -= sum;
  for (int i = 0; i < kPer; ++i) {
    const int e = lane * kPer + i;
    if (e >= n_expert) break;
    begin[e] = sum_before;
    if (count[e] == 0) continue;
    o.active[n_before] = e, o.first[n_before] = sum_before;
    ++n_before, sum_before += count[e];
  }
  if (lane == 31) o.active[n_expert] = n_before, o.first[n_before] = sum_before;
}

// One block sorts the pairs of n_tok tokens by expert.
__device__ inline void sort_pairs(const Routing& o, const int32_t* picked, int n_expert, int n_pair, int* count, int* begin) {
  const int thread = int(threadIdx.x);
  for (int e = thread; e < n_expert; e += int(blockDim.x)) count[e] = 0;
  __syncthreads();
  for (int i = thread; i < n_pair; i += int(blockDim.x)) atomicAdd(&count[picked[i]], 1);
  __syncthreads();
  list_active(o, n_expert, count, begin);
  __syncthreads();
  // An expert's slots in ascending order: a thread an expert walks over all of them.
  for (int e = thread; e < n_expert; e += int(blockDim.x)) {
    if (count[e] == 0) continue;
    int at = begin[e];
    for (int i = 0; i < n_pair; ++i)
      if (picked[i] == e) o.pair[at++] = i;
  }
}

// One token: its experts are distinct. A warp.
__device__ inline void sort_one(const Routing& o, const int32_t* picked, int n_expert, int n_used, int lane) {
  const int mine = lane < n_used ? picked[lane] : 0;
  int at = 0;
  for (int k = 0; k < n_used; ++k) at += picked[k] < mine;
  if (lane < n_used) o.active[at] = mine, o.first[at] = at, o.pair[at] = lane;
  if (lane == 0) o.active[n_expert] = n_used, o.first[n_used] = n_used;
}

// Block `block` of those that do the job, all threads. The blocks' groups share the experts, in n_share shares of the tokens.
__device__ inline void route_block(const RouteJob& j, int block, int n_share, RouteScratch& shared) {
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, thread = int(threadIdx.x) % kRouteThreads, group = int(threadIdx.x) / kRouteThreads;
  const int share = block % n_share, e = block / n_share * (int(blockDim.x) / kRouteThreads) + group;
  const Routing& o = j.o;
  const int n_col4 = j.r.cols / 4;
  const float4* w = reinterpret_cast<const float4*>(j.router + int64_t(min(e, j.n_expert - 1)) * j.r.cols);
  constexpr int kKeep = kMaxRouterCols / 4 / kRouteThreads;  // the router's row stays in registers
  float4 keep[kKeep];
#pragma unroll
  for (int i = 0; i < kKeep; ++i) {
    const int c = i * kRouteThreads + thread;
    keep[i] = c < n_col4 ? __ldg(w + c) : float4{};
  }
  if (threadIdx.x == 0) shared.last = false;
  wait_for_previous();
  let_next_start();
  for (int t = share; t < j.n_tok; t += n_share) {
    const float4* x = reinterpret_cast<const float4*>(j.r.p + t * j.r.stride);
    float4 a[kKeep];
#pragma unroll
    for (int i = 0; i < kKeep; ++i) {
      const int c = i * kRouteThreads + thread;
      a[i] = c < n_col4 ? x[c] : float4{};
    }
    float s = 0;
#pragma unroll
    for (int i = 0; i < kKeep; ++i) s += (a[i].x * keep[i].x + a[i].y * keep[i].y) + (a[i].z * keep[i].z + a[i].w * keep[i].w);
    for (int m = 16; m > 0; m /= 2) s += __shfl_xor_sync(~0u, s, m);
    __syncthreads();
    if (lane == 0) shared.part[warp] = s;
    __syncthreads();
    const float* part = shared.part + 4 * group;
    if (thread == 0 && e < j.n_expert) __stcg(o.logits + int64_t(t) * j.n_expert + e, (part[0] + part[1]) + (part[2] + part[3]));
  }
  if (thread == 0 && e < j.n_expert) {  // who wrote the logits
    __threadfence();
    if (atomicAdd(o.counter, 1u) == unsigned(j.n_expert * n_share - 1)) shared.last = true;
  }
  __syncthreads();
  if (!shared.last) return;
  __threadfence();
  for (int t = warp; t < j.n_tok; t += int(blockDim.x) / 32)
    choose(shared.picked + t * j.n_used, o.weight + t * j.n_used, j.scale, j.n_expert, j.n_used, lane, [&](int i) { return __ldcg(o.logits + int64_t(t) * j.n_expert + i); });
  __syncthreads();
  if (j.n_tok > 1)
    sort_pairs(o, shared.picked, j.n_expert, j.n_tok * j.n_used, shared.count, shared.begin);
  else if (warp == 0)
    sort_one(o, shared.picked, j.n_expert, j.n_used, lane);
  for (int i = int(threadIdx.x); i < j.n_tok * j.n_used; i += int(blockDim.x)) o.expert[i] = shared.picked[i];
  if (threadIdx.x == 0) *o.counter = 0;
}

}  // namespace facet::cuda
