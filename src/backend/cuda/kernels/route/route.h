#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/common/mat.h"

// Launchers of the routing of few tokens to experts: a room below the matrix products, which may have it done by blocks
// of their own (SkinnyWork::beside), and below moe. Everything is device memory.
namespace facet::cuda {

constexpr int kMaxExperts = 256, kMaxUsed = 16, kMaxRouterCols = 4096;
constexpr int kMoeRows = 16;  // tokens of one launch of the small kernels

// How few tokens are spread over experts. A pair is a token and one of its experts; slot = token * n_used + rank.
struct Routing {
  uint64_t* logits = nullptr;  // [T, N] bits of a logit, and above them the number of the routing that it is of
  float* weight = nullptr;     // [slot] of the expert's output
  int32_t* expert = nullptr;   // [slot]
  int32_t* active = nullptr;   // [N] experts that have pairs, ascending if there are several tokens; -1 while
                               // RouterArgs::ahead chooses; [N]: their number
  int32_t* first = nullptr;    // [N + 1] of an active expert's pairs in `pair`, by its place in `active`
  int32_t* pair = nullptr;     // [T n_used] slots, by expert, then token
  // The number of the last routing. The owner of the memory clears it such that no word of logits has the next number.
  unsigned* number = nullptr;
};

// Chooses experts for n_tok <= kMoeRows rows of r: the n_used largest logits, lowest index on ties; softmax over the
// chosen.
struct RouterArgs {
  const float *router = nullptr, *scale = nullptr;
  int n_expert = 0, n_used = 0, n_tok = 0;
  // The experts of one token are polled by another kernel while they are chosen. When this kernel starts, no kernel
  // still reads those of the routing before.
  bool ahead = false;
  Mat r;
  Routing o;
};
int route_blocks(const RouterArgs&);
void route(cudaStream_t, const RouterArgs&);

}  // namespace facet::cuda
