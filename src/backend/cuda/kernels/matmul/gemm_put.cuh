#pragma once
#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/mma.cuh"

namespace facet::cuda {

// Results r.. of row tok of a product, into all that its arguments want; times: multiplied by the activation of what y
// has there.
template <class Args>
__device__ __forceinline__ void gemm_put(const Args& a, int tok, int r, float4 v) {
  if (tok >= a.n_tok || r >= a.n_out) return;
  const int64_t at = tok * a.y_stride + r, at_bf = tok * a.y_bf_stride + r;
  if (a.aligned && r + 4 <= a.n_out) {
    if (a.times) {
      const float4 g = *reinterpret_cast<const float4*>(a.y + at);
      v.x *= activate(g.x, a.act), v.y *= activate(g.y, a.act), v.z *= activate(g.z, a.act);
      v.w *= activate(g.w, a.act);
    }
    if (a.y) *reinterpret_cast<float4*>(a.y + at) = v;
    if (a.y_also) *reinterpret_cast<float4*>(a.y_also + at) = v;
    if (a.y_bf) *reinterpret_cast<uint2*>(a.y_bf + at_bf) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
    return;
  }
  float each[4] = {v.x, v.y, v.z, v.w};
  for (int i = 0; i < min(4, a.n_out - r); ++i) {
    if (a.times) each[i] *= activate(a.y[at + i], a.act);
    if (a.y) a.y[at + i] = each[i];
    if (a.y_also) a.y_also[at + i] = each[i];
    if (a.y_bf) a.y_bf[at_bf + i] = __float2bfloat16_rn(each[i]);
  }
}

}  // namespace facet::cuda
