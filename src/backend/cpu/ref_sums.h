#pragma once
#include <cmath>
#include <cstdint>

// Sums as CpuRef takes them.
namespace facet::ref {

// The order of this sum is part of the definition: sixteen partial sums by column mod 16, folded in halves.
inline float dot(const float* a, const float* b, int64_t n) {
  float part[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) part[j] += a[i + j] * b[i + j];
  for (; i < n; ++i) part[i % 16] += a[i] * b[i];
  for (int m = 8; m > 0; m /= 2)
    for (int j = 0; j < m; ++j) part[j] += part[j + m];
  return part[0];
}

inline float inv_rms(const float* x, int64_t n, float eps) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(x[i]) * double(x[i]);
  return float(1.0 / std::sqrt(sum / double(n) + double(eps)));
}

}  // namespace facet::ref
