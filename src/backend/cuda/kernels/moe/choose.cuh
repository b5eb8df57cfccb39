#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {

// A warp chooses the experts of a token from logit(expert), and their weights: the n_used largest, lowest index on ties;
// softmax over the chosen. expert and weight: of the token, by rank.
template <class Logit>
__device__ void choose(int32_t* expert, float* weight, const float* scale, int n_expert, int n_used, int lane, Logit&& logit) {
  constexpr int kPer = kMaxExperts / 32;
  float v[kPer];
  for (int i = 0; i < kPer; ++i) v[i] = i * 32 + lane < n_expert ? logit(i * 32 + lane) : -INFINITY;
  float top = 0, sum = 0;
  float mine = 0;
  int mine_expert = 0;
  for (int k = 0; k < n_used; ++k) {
    float best = -INFINITY;
    int at = n_expert;
    for (int i = 0; i < kPer; ++i)
      if (v[i] > best) best = v[i], at = i * 32 + lane;
    for (int m = 16; m > 0; m /= 2) {
      const float b = __shfl_xor_sync(~0u, best, m);
      const int a = __shfl_xor_sync(~0u, at, m);
      if (b > best || (b == best && a < at)) best = b, at = a;
    }
    if (at >= n_expert) at = k;  // no finite logit is left: any expert, so that indices stay in range
    for (int i = 0; i < kPer; ++i)
      if (i * 32 + lane == at) v[i] = -INFINITY;
    if (k == 0) top = best;
    const float p = __expf(best - top);
    sum += p;
    if (lane == k) mine = p, mine_expert = at;
  }
  if (lane < n_used) {
    expert[lane] = mine_expert;
    weight[lane] = mine / sum * (scale ? scale[mine_expert] : 1.f);
  }
}

}  // namespace facet::cuda
