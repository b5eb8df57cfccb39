#pragma once
#include "backend/backend.h"

namespace facet::cuda {

// The activation of a gated FFN; tanh through one exponential, exact to a few units in the last place.
__device__ __forceinline__ float activate(float x, Act act) {
  if (act == Act::kSilu) return x / (1.f + __expf(-x));
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  return x - x / (1.f + __expf(2.f * inner));  // x (1 + tanh) / 2
}

// The same times u, for results that are rounded to 16 bits: a quicker quotient.
__device__ __forceinline__ float gated(float g, float u, Act act) {
  if (act == Act::kSilu) return __fdividef(g, 1.f + __expf(-g)) * u;
  const float inner = 0.7978845608028654f * (g + 0.044715f * g * g * g);
  return __fdividef(g, 1.f + __expf(-2.f * inner)) * u;
}

}  // namespace facet::cuda
