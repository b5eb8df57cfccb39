#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/matmul/layout.h"

namespace facet::cuda {

// One row to draw from, with what the host has worked out (backend/sampling.h).
struct DrawRow {
  float temperature, top_p, min_p;
  int32_t top_k;  // 1..kMaxTopK
  uint64_t seed;
  int64_t position;
  int32_t first_adjust, n_adjust;
  int32_t mask = -1;  // of the masks; -1: every token is allowed
};
// A change of one logit: l + bias, then divided or multiplied by the penalty, then less `minus`.
struct Adjust {
  int32_t id;
  float bias, penalty, minus;  // bias -inf: suppressed
};
// A flag in the host's memory that is set when the results are written, which is sooner than the end of the stream.
struct Done {
  uint32_t* flag = nullptr;   // page-locked; null: the host does not wait
  uint32_t number = 0;        // what it becomes when all rows are written
  unsigned* n_row = nullptr;  // device memory, zero between launches: rows written so far
};
constexpr int kMaxTopK = 256;
constexpr int kDrawPart = 4096;  // logits of one block
// Candidates of a row, of 8 bytes each.
inline int64_t draw_candidates(int64_t n_vocab) { return (n_vocab + kDrawPart - 1) / kDrawPart * kMaxTopK; }

// ids[i] drawn from logits [n_row, n_vocab], which the adjustments change; -1 if a row holds a NaN or nothing finite.
// masks: n_mask of (n_vocab + 31) / 32 words, bit t for token t; what has none counts as minus infinity, and is that
// afterwards. rows, adjust, masks: device memory; candidates: scratch, draw_candidates() a row. Keyed by (seed,
// position) as uniform_at; the same choice as sample_row.
void draw(cudaStream_t, int32_t* ids, float* logits, int64_t stride, int n_vocab, int n_row, const DrawRow* rows,
          const Adjust* adjust, int n_adjust, bool greedy, uint64_t* candidates, Done done = {},
          const uint32_t* masks = nullptr, int n_mask = 0);

// ids and log_probs [n_row, k]: the k largest of each row, best first, and their natural log-probabilities; -1 and -inf
// where there are no more. best [n_row], if it is not null: the first of each row, 0 where there is none.
struct TopK {
  int32_t* ids = nullptr;
  float* log_probs = nullptr;
  int32_t* best = nullptr;
  uint64_t* candidates = nullptr;  // scratch: draw_candidates() a row
  float2* part_sums = nullptr;     // scratch: one a part and row
  int n_row = 0, k = 0, n_part = 0;
};
void top_k(cudaStream_t, const float* logits, int64_t stride, int n_vocab, TopK, Done done = {});
// The same in two launches: after the first, candidates and part_sums are taken and logits read.
void top_k_parts(cudaStream_t, const float* logits, int64_t stride, int n_vocab, TopK&);
void top_k_pick(cudaStream_t, const TopK&, Done done = {});
// top_k_pick, then y[t] = [table[best of row t] * scale, x[t]].
void top_k_embed(cudaStream_t, const TopK&, Mat y, const TiledMatrix& table, float scale, Mat x);

// logits of tokens outside the top_k best clusters become -inf. order [n_vocab]: tokens, cluster after cluster of equal
// size; scores [n_row, n_cluster], n_cluster <= kDrawPart; chosen [n_row, n_cluster]: scratch.
void keep_clusters(cudaStream_t, float* logits, int64_t stride, int n_vocab, int n_row, const float* scores,
                   int64_t score_stride, int n_cluster, int top_k, const int32_t* order, uint8_t* chosen);

}  // namespace facet::cuda
