#pragma once
#include "backend/cuda/kernels/matmul/skinny_args.h"

// Products of many rows without bf16 copies of the weights (prompt.cu): what the launcher tells the kernel.
namespace facet::cuda {

// A block multiplies kWarps / kCols pairs of strips by kRows rows of activations; a warp a pair by 8 * kTiles of them.
template <int kWarps_, int kTiles_, int kCols_, int kBlocks_>
struct PromptShape {
  static constexpr int kWarps = kWarps_, kTiles = kTiles_, kCols = kCols_, kBlocks = kBlocks_;
  static constexpr int kThreads = kWarps * 32, kPairs = kWarps / kCols, kRows = 8 * kTiles * kCols;
};

struct PromptArgs {
  // Of the two strips of a pair: neighbours in a matrix, or one of gate and one of up.
  const uint8_t* w[2];
  int strip_bytes, n_strip, n_out;
  int n_block, n_group;        // of 256 and of 64 columns
  int block_pairs;             // pairs of strips of a block, at most kPairs
  int n_pair, n_wide, n_high;  // pairs of strips, and blocks that share them; blocks that share the rows
  bool gated;                  // pairs are of gate and up
  bool times;                  // y holds gate already: it becomes act(y) times the product
  bool wide;                   // four rows of y at a time: everything is aligned
  facet::Act act;
  const uint8_t* image;  // [rows / kRows][256 columns] images of kRows rows (acts.cuh)
  int n_tok;
  float *y, *y_also;
  __nv_bfloat16* y_bf;
  int64_t y_stride, y_bf_stride;
};

constexpr int kPromptRows = 64;  // of an image

template <bool kTwo>
void launch_prompt(cudaStream_t, Tile, PromptArgs&);

}  // namespace facet::cuda
