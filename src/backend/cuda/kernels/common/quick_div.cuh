#pragma once

namespace facet::cuda {

// n / d for 0 <= n < kQuickMost and 0 < d: floats divide in a quarter of the instructions.
constexpr int kQuickMost = 1 << 20;
__device__ __forceinline__ int quick_div(int n, int d) { return int(__fdividef(float(n) + .5f, float(d))); }

}  // namespace facet::cuda
