#pragma once

namespace facet::cuda {

// n / d for 0 <= n < kFastDivMost and 0 < d: a division of floats takes a quarter of the instructions.
constexpr int kFastDivMost = 1 << 20;
__device__ __forceinline__ int fast_div(int n, int d) { return int(__fdividef(float(n) + .5f, float(d))); }

}  // namespace facet::cuda
