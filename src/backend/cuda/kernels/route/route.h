#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/common/mat.h"

// Launchers of the routing of few tokens to experts: a room below the matrix products, which may have it done by blocks
// of their own (SkinnyWork::beside), and below moe. Everything is device memory.
namespace facet::cuda {

constexpr int kMaxExperts = 256, kMaxUsed = 16, kMaxRouterCols = 4096;
constexpr int kMoeRows = 16;  // tokens of one launch of the small kernels
// Rows of an entry of Routing::active at most, so that no expert takes its block longer than others do theirs.
constexpr int routing_rows(int n_tok) { return n_tok <= 64 ? 8 : 16; }
constexpr int64_t routing_entries(int64_t n_expert, int64_t pairs) { return n_expert + pairs / 8; }  // at most

// How few tokens are spread over experts. A pair is a token and one of its experts; slot = token * n_used + rank.
struct Routing {
  uint64_t* logits = nullptr;  // [T, N] bits of a logit, and above them the number of the routing that it is of
  float* weight = nullptr;     // [slot] of the expert's output
  int32_t* expert = nullptr;   // [slot]
  // [entries] experts that have pairs, ascending if there are several tokens, each for at most routing_rows() of them;
  // -1 while RouterArgs::ahead chooses.
  int32_t* active = nullptr;
  int32_t* first = nullptr;     // [entries + 1] of an entry's pairs in `pair`
  int32_t* n_active = nullptr;  // entries
  int32_t* pair = nullptr;      // [T n_used] slots, by expert, then token
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
