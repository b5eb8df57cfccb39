#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {

// Floats as integers of the same order, both zeros as one; what is no number is below all.
__device__ __forceinline__ uint32_t ordered(float v) {
  const uint32_t u = __float_as_uint(v + 0.f);
  return v == v ? u ^ (uint32_t(int32_t(u) >> 31) | 0x80000000u) : 1u;
}
__device__ __forceinline__ float of_ordered(uint32_t k) { return k > 1 ? __uint_as_float(k & 0x80000000u ? k ^ 0x80000000u : ~k) : -INFINITY; }

// A warp chooses the experts of a token from logit(expert), and their weights: the n_used <= n_expert largest, lowest index on
// ties; softmax over the chosen. expert and weight: of the token, by rank; experts are distinct whatever the logits are.
template <class Logit>
__device__ void choose(int32_t* expert, float* weight, const float* scale, int n_expert, int n_used, int lane, Logit&& logit) {
  constexpr int kPer = kMaxExperts / 32;
  uint32_t key[kPer];  // 0: chosen, or none
  for (int i = 0; i < kPer; ++i) key[i] = i * 32 + lane < n_expert ? ordered(logit(i * 32 + lane)) : 0;
  float top = 0, sum = 0;
  float mine = 0;
  int mine_expert = 0;
  for (int k = 0; k < n_used; ++k) {
    uint32_t best = 0, at = kMaxExperts;
    for (int i = 0; i < kPer; ++i)
      if (key[i] > best) best = key[i], at = uint32_t(i * 32 + lane);
    const uint32_t most = __reduce_max_sync(~0u, best);
    at = __reduce_min_sync(~0u, best == most ? at : kMaxExperts);
    for (int i = 0; i < kPer; ++i)
      if (uint32_t(i * 32 + lane) == at) key[i] = 0;
    if (k == 0) top = of_ordered(most);
    const float p = __expf(of_ordered(most) - top);
    sum += p;
    if (lane == k) mine = p, mine_expert = int(at);
  }
  if (lane < n_used) {
    expert[lane] = mine_expert;
    weight[lane] = mine / sum * (scale ? scale[mine_expert] : 1.f);
  }
}

}  // namespace facet::cuda
