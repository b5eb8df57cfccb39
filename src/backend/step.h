#pragma once
#include <cstdint>

#if defined(__CUDACC__)
#define FACET_HD __host__ __device__
#else
#define FACET_HD
#endif

namespace facet {

// Which tokens of the same step a token may see. Committed cache rows are always visible
// (subject to the layer's window).
enum class Mask : uint8_t {
  kCausal,  // earlier tokens and itself: prefill chunk, decode, chain verify
  kTree,    // its ancestors and itself: tree verify
  kBlock,   // every token of its sequence: a DFlash draft block
  kPast,    // none; the step writes no K/V: an MTP head reading the target's cache
};

constexpr int kMaxTreeNodes = 64;  // width of Step::ancestor
// A sequence with at most this many tokens in a step takes row-invariant kernels on every backend: a row's bits do not
// depend on what else is in the step.
constexpr int kSmallT = 16;

// Tokens of one sequence in a step from which on weights in RAM come to the GPU (weights_in_ram.h): bringing those of
// a layer takes as long as the CPU takes for about so many rows. Prompts are cut into multiples of it.
constexpr int kStreamBlock = 256;

// Everything a captured CUDA graph is specialised on. Nothing else may change a launch.
struct StepShape {
  int n_tok = 0, n_seq = 0, n_out = 0;  // padded to a bucket; padding rows have seq = -1
  int n_small = 0;                      // tokens of the leading sequences that have at most kSmallT each
  int n_long = 0;                       // the sequences behind those
  int n_blocks = 0;                     // tokens of the last sequences that have at least kStreamBlock each
  int64_t long_rows = 0;                // of those, as `longest`, together; 0 unless staged
  int longest = 0;                      // rows of the longest sequence after this step (kv_len + its tokens)
  int n_path = 0;       // most paths from the root to a leaf of a tree of at most kSmallT tokens; 0: none
  bool staged = false;  // some sequence brings more tokens than the rings' margin
  bool select = false;  // some sequence has n_select > 0
  int n_soft = 0;       // tokens whose embedding is a row that an encoder made
  bool ahead = false;   // some token has Step::ahead > 0
  bool operator==(const StepShape&) const = default;
  bool all_out() const { return n_out == n_tok; }  // the head runs for every token, in order (Out::kGiven aside)
};

// Block-sparse prefill (select.h): what may be left out.
struct SelectSpec {
  float gamma = 1;            // of every row's attention so much is read: by estimate, and checked by samples
  float least = 0, most = 1;  // of the blocks that a tile sees, beside those that are always read
  bool check = true;          // by samples
};

// One forward pass over T tokens of S sequences, ragged. Prefill, decode, verify, tree verify
// and batches differ in the contents of these arrays and in nothing else. The arrays live in the
// backend's memory at fixed addresses, so a replayed graph sees the new step without patching.
//
// The j-th token of sequence s in this step has cache row kv_len[s] + j.
struct Step {
  StepShape shape;
  const int32_t* token = nullptr;      // [T]
  const int32_t* pos = nullptr;        // [T]   RoPE position; in a tree, kv_len + depth
  const int32_t* seq = nullptr;        // [T]   owning sequence of this step, -1 for a padding row
  const int32_t* q_begin = nullptr;    // [S+1] first token of each sequence in this step
  const int32_t* kv_len = nullptr;     // [S]   rows committed before this step; row r holds position r
  const int32_t* slot = nullptr;       // [S]   where the sequence's rows live in the cache
  const Mask* mask = nullptr;          // [S]   a tree verify, a draft block and a prefill chunk can share a step
  const uint64_t* ancestor = nullptr;  // [T]   read for kTree only: bit j = the sequence's j-th token is visible
  const int32_t* out_row = nullptr;    // [O]   tokens for which the head runs
  const int32_t* n_select = nullptr;   // [S]   leading tokens that read chosen blocks in full layers; if shape.select
  const int32_t* soft = nullptr;   // [T]   row of the step's soft embeddings, -1: the token's own; if shape.n_soft > 0
  const int32_t* ahead = nullptr;  // [T]   tokens of the same picture that follow in this step, which it sees as well
                                   //       in layers with AttnSpec::ahead; kCausal only, if shape.ahead
  SelectSpec select;
};

// Whether token j of a sequence sees its token i of the same step, window aside. ahead: of token j, in a layer that
// looks ahead in pictures.
FACET_HD inline bool sees_in_step(Mask mask, uint64_t ancestor, int j, int i, bool causal_block, int ahead = 0) {
  switch (mask) {
    case Mask::kCausal:
      return i <= j + ahead;
    case Mask::kTree:
      return (ancestor >> i) & 1u;
    case Mask::kBlock:
      return !causal_block || i <= j;
    case Mask::kPast:
      return false;
  }
  return false;
}

}  // namespace facet
