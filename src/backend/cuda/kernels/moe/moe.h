#pragma once
#include <cuda_runtime.h>

#include "backend/cuda/kernels/attend.h"
#include "backend/cuda/kernels/matmul/layout.h"

// Launchers of the mixture-of-experts verb. Everything is device memory.
namespace facet::cuda {

constexpr int kMoeRows = 16;  // tokens of one launch of the small kernels

// How tokens are spread over experts. A pair is a token and one of its experts; slot = token * n_used + rank.
struct Routing {
  float* logits = nullptr;      // [T, N]
  float* weight = nullptr;      // [slot] of the expert's output
  int32_t* expert = nullptr;    // [slot]
  int32_t* active = nullptr;    // [N] experts that have pairs, ascending; [N]: their number
  int32_t* first = nullptr;     // [N + 1] of an active expert's pairs in `pair`, by its place in `active`
  int32_t* pair = nullptr;      // [T n_used] slots, by expert, then token
  unsigned* counter = nullptr;  // zero between launches
};
struct MoeSmall {
  TiledMatrix gate, up;         // stacks; up's strips start at up_strip (merged matrices: gate rows, then up rows)
  int up_strip = 0, d_expert = 0;
  TiledMatrix down;
  const float* router = nullptr;  // [N, D]
  const float* scale = nullptr;   // [N] or none
  int n_expert = 0, n_used = 0;
  Act act = Act::kGelu;
};
struct MoeBuffers {
  Routing routing;
  __nv_bfloat16* hidden = nullptr;  // [T n_used, d_expert], by place in `pair`
  float* out = nullptr;             // [slot, D]
};

// Chooses experts for n_tok rows of r: the n_used largest logits, lowest index on ties; softmax over the chosen.
void route(cudaStream_t, const MoeSmall&, Mat r, int n_tok, const Routing&);
// out[slot] = expert(e[t]) of n_tok <= kMoeRows rows in bf16; then y[t] = sum over ranks of weight * out, in rank order.
void moe_small(cudaStream_t, const MoeSmall&, Mat e, int n_tok, const MoeBuffers&);
void moe_combine(cudaStream_t, Mat y, const float* out, const float* weight, int n_used);

}  // namespace facet::cuda
