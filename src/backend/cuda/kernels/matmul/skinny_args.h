#pragma once
#include "backend/cuda/kernels/matmul/matmul.h"

// What the launcher (skinny.cu) tells the kernels (skinny.cuh) of a product with few rows.
namespace facet::cuda {

constexpr int kMaxSets = 64, kMaxBlocks = 264;

struct SkinnyArgs {
  SkinnyMatrix m[3];
  int64_t strip_bytes[3];
  int tile_bytes[3];
  int first_job[4];  // of each matrix: a job is a strip, or with glu a strip of both
  int n_job, n_matrix, n_sub;
  int16_t set_tile[3][kMaxSets + 1];  // where the columns of each set begin, in tiles
  bool wide[3];                       // four rows of y at a time: everything is aligned
  int n_set, blocks;                  // sets of blocks that share the columns of a strip; blocks of a set
  int block_job[kMaxBlocks + 1];      // where the jobs of each block of a set begin
  facet::Act act;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* image;                // of x, if it is there already; only for several rows
  int n_tok, n_in;
  int64_t bytes;      // of all weights
  int set_cols;       // most columns of a set
  int n_stage, slot;  // of a warp's ring
  bool keep_place;    // the ring's slots have room for it
  float* partial;     // [set][job][sub][N][16]
  unsigned* counter;  // [block of a set]
  RouteJob beside;    // of the first beside_blocks blocks
  int beside_blocks;
};

// The kernel for N rows, with the shared memory that fits the arguments.
template <int N, bool kFloat, bool kShort>
void launch_skinny(cudaStream_t, SkinnyArgs&, int n_warp);

}  // namespace facet::cuda
