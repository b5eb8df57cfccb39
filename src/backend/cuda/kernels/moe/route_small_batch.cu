// route_small_batch -- which experts the tokens of a batch use, for more tokens than route.cu takes at once
//
// Shapes     r [T, D] f32, router [N, D] f32, N <= 256, n_used <= 16; T <= kMoeSmallBatch
// Bytes      the router once per kMoeRows tokens, mostly from L2; r once per two experts, from L2
// Launch     product: a block per two experts and kMoeRows tokens; choice: a warp per token; lists: one block, a thread
//            per expert
// Order      a logit's sum and a token's choice are those of route.cuh, so that a row has the same experts and weights
//            in every batch; pairs by expert, then token
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/cuda/kernels/route/route.cuh"

namespace facet::cuda {
namespace {

constexpr int kThreads = kRouteThreads * kRouteGroups, kChooseWarps = 8;

__global__ void __launch_bounds__(kThreads) logits_kernel(const __grid_constant__ RouterArgs all, int n_row) {
  extern __shared__ __align__(16) uint8_t shared[];
  RouterArgs j = all;
  const int first = int(blockIdx.y) * kMoeRows;
  j.n_tok = min(kMoeRows, all.n_tok - first);
  j.r.p += first * j.r.stride, j.o.logits += int64_t(first) * j.n_expert;
  route_block<false>(j, int(blockIdx.x) + 1, shared, min(n_row, j.n_tok));
}

__global__ void __launch_bounds__(kChooseWarps * 32) choose_kernel(const __grid_constant__ RouterArgs j) {
  pdl_wait();
  pdl_trigger();
  const int t = int(blockIdx.x) * kChooseWarps + int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  // The next routing has another number, so it takes no logit of this one for its own.
  if (blockIdx.x == 0 && threadIdx.x == 0) *j.o.number += 1;
  if (t >= j.n_tok) return;
  auto logits = [&](auto& v) {
    constexpr int kPer = std::extent_v<std::remove_reference_t<decltype(v)>>;
#pragma unroll
    for (int i = 0; i < kPer; ++i)
      v[i] = __uint_as_float(unsigned(j.o.logits[int64_t(t) * j.n_expert + min(lane * kPer + i, j.n_expert - 1)]));
  };
  choose(j.scale, j.n_expert, j.n_used, lane, logits, [&](int e, float weight) {
    const int slot = t * j.n_used + lane;
    j.o.expert[slot] = e, j.o.weight[slot] = weight;
  });
}

// A thread an expert. slots: moe_place's, or null.
__global__ void __launch_bounds__(kMaxExperts) lists_kernel(Routing o, int n_expert, int n_slot, const int16_t* slots) {
  __shared__ __align__(16) uint8_t expert[kMoeSmallBatch * kMaxUsed];
  __shared__ int before[kMaxExperts / 32];
  const int e = int(threadIdx.x), lane = e % 32, warp = e / 32;
  pdl_wait();
  pdl_trigger();
  for (int i = e; i < n_slot; i += kMaxExperts) expert[i] = uint8_t(o.expert[i]);
  __syncthreads();
  // The expert's slots: four at a time by words, the rest one by one.
  auto each = [&](auto&& f) {
    const uint32_t mine = uint32_t(e) * 0x01010101u;
    for (int i = 0; i < n_slot; i += 4)
      for (uint32_t is = __vcmpeq4(*reinterpret_cast<const uint32_t*>(expert + i), mine); is != 0;) {
        const int at = (__ffs(int(is)) - 1) / 8;
        if (i + at < n_slot) f(i + at);
        is &= ~(0xFFu << (8 * at));
      }
  };
  int n = 0;
  const int number = !slots ? e : e < n_expert ? slots[e] : -1;  // in the stacks
  if (number >= 0) each([&](int) { ++n; });
  int all = int(n > 0) << 16 | n;  // active experts up to this one, and their pairs
  for (int m = 1; m < 32; m *= 2) {
    const int v = __shfl_up_sync(~0u, all, m);
    if (lane >= m) all += v;
  }
  if (lane == 31) before[warp] = all;
  __syncthreads();
  for (int w = 0; w < warp; ++w) all += before[w];
  int at = (all & 0xFFFF) - n;
  if (n > 0) {
    o.active[(all >> 16) - 1] = number, o.first[(all >> 16) - 1] = at;
    each([&](int slot) { o.pair[at++] = slot; });
  }
  if (e == kMaxExperts - 1) o.active[n_expert] = all >> 16, o.first[all >> 16] = all & 0xFFFF;
}

__global__ void __launch_bounds__(kMaxExperts) count_kernel(unsigned* times, const int32_t* expert, int n_slot) {
  const int i = int(blockIdx.x) * kMaxExperts + int(threadIdx.x);
  if (i < n_slot) atomicAdd(times + expert[i], 1u);
}

}  // namespace

void route_small_batch(cudaStream_t stream, const RouterArgs& j) {
  static_assert(kMoeSmallBatch * kMaxUsed < 1 << 16);
  CHECK(j.n_tok > 0 && j.n_tok <= kMoeSmallBatch, "{} tokens", j.n_tok);
  constexpr int kShared = 48 * 1024;
  const int n_row = route_rows(kShared, j.r.cols, std::min(j.n_tok, kMoeRows));
  const dim3 grid(unsigned(route_blocks(j) - 1), unsigned((j.n_tok + kMoeRows - 1) / kMoeRows));
  launch(logits_kernel, grid, dim3(kThreads), size_t(kRouteRowsAt + n_row * j.r.cols * 4), stream, j, n_row);
  launch(choose_kernel, dim3(unsigned((j.n_tok + kChooseWarps - 1) / kChooseWarps)), dim3(kChooseWarps * 32), 0, stream,
         j);
  launch(lists_kernel, dim3(1), dim3(kMaxExperts), 0, stream, j.o, j.n_expert, j.n_tok * j.n_used,
         static_cast<const int16_t*>(nullptr));
}

void moe_place(cudaStream_t stream, const Routing& r, const int16_t* slots, int n_expert, int n_slot) {
  CHECK(n_slot <= kMoeSmallBatch * kMaxUsed && n_expert <= kMaxExperts, "{} pairs, {} experts", n_slot, n_expert);
  launch(lists_kernel, dim3(1), dim3(kMaxExperts), 0, stream, r, n_expert, n_slot, slots);
}

void moe_count(cudaStream_t stream, unsigned* times, const int32_t* expert, int n_slot) {
  count_kernel<<<unsigned((n_slot + kMaxExperts - 1) / kMaxExperts), kMaxExperts, 0, stream>>>(times, expert, n_slot);
  FACET_CUDA_CHECK(cudaGetLastError());
}

}  // namespace facet::cuda
