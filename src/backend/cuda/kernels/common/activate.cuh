#pragma once
#include "backend/backend.h"

namespace facet::cuda {

// The activation of a gated FFN; tanh through one exponential, exact to a few units in the last place.
__device__ __forceinline__ float activate(float x, Act act) {
  if (act == Act::kSilu) return x / (1.f + __expf(-x));
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x - x / (1.f + __expf(2.f * inner));  // x (1 + tanh) / 2
}

}  // namespace facet::cuda
