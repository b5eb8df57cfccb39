#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/route/route.h"

namespace facet::cuda {

// Floats as integers of the same order, both zeros as one; what is no number is below all.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t u = __float_as_uint(v + 0.f);
  return v == v ? u ^ (uint32_t(int32_t(u) >> 31) | 0x80000000u) : 1u;
}
__device__ __forceinline__ float of_ordered(uint32_t k) {
  return k > 1 ? __uint_as_float(k & 0x80000000u ? k ^ 0x80000000u : ~k) : -INFINITY;
}

// A warp chooses the experts of a token, and their weights: the n_used <= n_expert of the largest logits, lowest index
// on ties; softmax over the chosen. logits(v): v[i] of expert lane * kPer + i, any value where there is none.
// put(expert, weight) of rank `lane` < n_used; experts are distinct whatever the logits are.
template <int kPer, class Logits, class Put>
__device__ __forceinline__ void choose_of(const float* scale, int n_expert, int n_used, int lane, Logits&& logits,
                                          Put&& put) {
  float v[kPer];
  logits(v);
  uint32_t key[kPer];  // of the lane's experts that are left, in descending order, then in theirs; 0: none
  int of[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) of[i] = lane * kPer + i, key[i] = of[i] < n_expert ? ordered(v[i]) : 0;
#pragma unroll
  for (int n = kPer - 1; n > 0; --n)
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (key[i + 1] > key[i]) {
        const uint32_t k = key[i];
        const int e = of[i];
        key[i] = key[i + 1], of[i] = of[i + 1], key[i + 1] = k, of[i + 1] = e;
      }
  float top = 0, sum = 0, mine = 0;
  int mine_expert = 0;
  for (int k = 0; k < n_used; ++k) {
    const uint32_t most = __reduce_max_sync(~0u, key[0]);
    const int from = __ffs(int(__ballot_sync(~0u, key[0] == most))) - 1, at = __shfl_sync(~0u, of[0], from);
    if (lane == from) {
#pragma unroll
      for (int i = 0; i + 1 < kPer; ++i) key[i] = key[i + 1], of[i] = of[i + 1];
      key[kPer - 1] = 0;
    }
    if (k == 0) top = of_ordered(most);
    const float p = __expf(of_ordered(most) - top);
    sum += p;
    if (lane == k) mine = p, mine_expert = at;
  }
  if (lane < n_used) put(mine_expert, mine / sum * (scale ? scale[mine_expert] : 1.f));
}
template <class Logits, class Put>
__device__ __forceinline__ void choose(const float* scale, int n_expert, int n_used, int lane, Logits&& logits,
                                       Put&& put) {
  static_assert(kMaxExperts == 8 * 32);
  n_expert <= 4 * 32 ? choose_of<4>(scale, n_expert, n_used, lane, logits, put)
                     : choose_of<8>(scale, n_expert, n_used, lane, logits, put);
}

}  // namespace facet::cuda
