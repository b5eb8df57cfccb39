#pragma once
#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/mma.cuh"

// What the products of many rows share: the order of their blocks, and where results go.
namespace facet::cuda {

// Work item i of n_high blocks of rows times n_wide blocks of outputs. Those that run side by side share weights and
// rows: `beside` blocks of rows for one of outputs, then for the next one.
struct WorkPlace {
  int wide, high;
  WorkPlace() = default;
  __device__ WorkPlace(int beside, int n_high, int n_wide, int i) {
    const int all = n_wide * beside, set = i / all;
    const int n = min(beside, n_high - set * beside), rest = i - set * all;
    wide = rest / n, high = set * beside + rest - wide * n;
  }
};

// Four results of one token, into all that a product's arguments want; times: multiplied by the activation of what y
// has there.
template <class Args>
__device__ __forceinline__ void put_results(const Args& a, int tok, int r, float4 value) {
  const int n = min(4, a.n_out - r);
  const int64_t at = tok * a.y_stride + r, at_bf = tok * a.y_bf_stride + r;
  float v[4] = {value.x, value.y, value.z, value.w};
  if (a.times)
    for (int i = 0; i < n; ++i) v[i] *= activate(a.y[at + i], a.act);
  if (a.wide && n == 4) {
    value = {v[0], v[1], v[2], v[3]};
    if (a.y) *reinterpret_cast<float4*>(a.y + at) = value;
    if (a.y_also) *reinterpret_cast<float4*>(a.y_also + at) = value;
    if (a.y_bf) *reinterpret_cast<uint2*>(a.y_bf + at_bf) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= n) break;
    if (a.y) a.y[at + i] = v[i];
    if (a.y_also) a.y_also[at + i] = v[i];
    if (a.y_bf) a.y_bf[at_bf + i] = __float2bfloat16_rn(v[i]);
  }
}

}  // namespace facet::cuda
