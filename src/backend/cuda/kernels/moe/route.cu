// route -- which experts a token uses: router product, top-k, softmax over the chosen, and the pairs sorted by expert
//
// Shapes     r [T, D] f32, router [N, D] f32, N <= 256, n_used <= 16; T <= 16 (more: route_many.cu)
// Launch     a block an expert, up to four of them for several tokens, for the product; the last block to finish does the rest
// Order      a logit's sum depends on D only
// Reference  CpuRef::moe    Test tests/kernels/cuda_moe_test.cpp
#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/moe/choose.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {
namespace {

constexpr int kThreads = 128;

// From the pairs of each expert: where they begin, and the list of experts that have some. The first warp does it.
__device__ void list_active(const Routing& o, int n_expert, const int* count, int* begin) {
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
__device__ void sort_pairs(const Routing& o, const int32_t* picked, int n_expert, int n_pair) {
  __shared__ int count[kMaxExperts], begin[kMaxExperts + 1];
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

__global__ void __launch_bounds__(kThreads) route_kernel(Mat r, const float* router, const float* scale, int n_expert, int n_used, int n_tok, Routing o) {
  __shared__ float part[kThreads / 32];
  __shared__ bool last;
  const int e = int(blockIdx.x), lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const float4* w = reinterpret_cast<const float4*>(router + int64_t(e) * r.cols);
  constexpr int kKeep = 8;  // the router's row stays in registers up to 4,096 columns
  float4 keep[kKeep];
  for (int i = 0; i < kKeep; ++i) {
    const int c = i * kThreads + int(threadIdx.x);
    keep[i] = c < r.cols / 4 ? __ldg(w + c) : float4{};
  }
  wait_for_previous();
  let_next_start();
  for (int t = int(blockIdx.y); t < n_tok; t += int(gridDim.y)) {
    const float4* x = reinterpret_cast<const float4*>(r.p + t * r.stride);
    float s = 0;
    for (int i = 0; i < kKeep; ++i) {
      const int c = i * kThreads + int(threadIdx.x);
      if (c >= r.cols / 4) break;
      const float4 a = x[c];
      s += (a.x * keep[i].x + a.y * keep[i].y) + (a.z * keep[i].z + a.w * keep[i].w);
    }
    for (int m = 16; m > 0; m /= 2) s += __shfl_xor_sync(~0u, s, m);
    __syncthreads();
    if (lane == 0) part[warp] = s;
    __syncthreads();
    if (threadIdx.x == 0) __stcg(o.logits + int64_t(t) * n_expert + e, (part[0] + part[1]) + (part[2] + part[3]));
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(o.counter, 1u) == gridDim.x * gridDim.y - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  __shared__ int32_t picked[kMoeRows * kMaxUsed];
  for (int t = warp; t < n_tok; t += kThreads / 32)
    choose(picked + t * n_used, o.weight + t * n_used, scale, n_expert, n_used, lane, [&](int i) { return __ldcg(o.logits + int64_t(t) * n_expert + i); });
  __syncthreads();
  sort_pairs(o, picked, n_expert, n_tok * n_used);
  for (int i = int(threadIdx.x); i < n_tok * n_used; i += kThreads) o.expert[i] = picked[i];
  if (threadIdx.x == 0) *o.counter = 0;
}

}  // namespace

void route(cudaStream_t stream, const MoeExperts& m, Mat r, int n_tok, const Routing& o) {
  CHECK(m.n_expert <= kMaxExperts && m.n_used <= kMaxUsed && r.cols % 4 == 0 && r.cols <= kMaxRouterCols, "{} experts, {} used, {} columns", m.n_expert, m.n_used, r.cols);
  CHECK(n_tok <= kMoeRows, "{} tokens", n_tok);
  launch(route_kernel, dim3(unsigned(m.n_expert), unsigned(std::min(n_tok, 4))), dim3(kThreads), 0, stream, r, m.router, m.scale, m.n_expert, m.n_used, n_tok, o);
}

}  // namespace facet::cuda
