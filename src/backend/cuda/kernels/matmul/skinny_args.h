#pragma once
#include "backend/cuda/kernels/matmul/matmul.h"

// What the launcher (skinny.cu) tells the kernels (skinny.cuh) of a product with few rows.
namespace facet::cuda {

constexpr int kMaxSets = 64, kMaxBlocks = 264;

// What a warp needs before its first tile is on its way comes first: a kernel's arguments miss the constant cache,
// line by line.
struct SkinnyArgs {
  struct Tiles {
    const uint8_t* p;
    int strip_bytes, tile_bytes, n_tile;  // n_tile: of a strip
    int per_block;                        // tiles of kActBlock columns
    Tile tile;
    bool grouped;  // group_tiles() of them count as one, here and in all that follows
  } tiles[3];
  int first_job[4];                       // of each matrix: a job is a strip, or with glu a strip of both
  int n_set, n_sub;                       // sets of blocks that share the columns of a strip
  int n_block;                            // of kActBlock columns
  int at_parts, at_rings, n_stage, slot;  // in shared memory; of a warp's ring
  bool keep_place;                        // the ring's slots have room for it
  bool even;                              // tiles of a job are of one size
  bool leave;                             // the sets' sums are left as they are
  bool late;                              // the kernel before this one is waited for at the end
  bool early;                             // the next kernel starts before this one's input is there
  bool ahead;                             // SkinnyWork's
  int beside_at, beside_blocks;           // the first block that routes, and how many do
  int beside_rows;                        // rows of the routing's input in a block's shared memory
  int block_job[kMaxBlocks + 1];          // where the jobs of each block of a set begin
  // --- read later
  SkinnyMatrix m[3];
  bool wide[3];  // four rows of y at a time: everything is aligned
  int n_job, n_matrix;
  int blocks;  // of a set
  facet::Act act;
  const __nv_bfloat16* x;
  int64_t x_stride;
  const uint8_t* image;  // of x, if it is there already; only for several rows
  int n_tok, n_in;
  int64_t bytes;          // of all weights
  int set_cols;           // most columns of a set
  int run_tiles, thirds;  // most tiles of a warp; SkinnyWork's
  float* partial;         // [set][job][sub][N][16]
  unsigned* counter;      // [block of a set]
  RouterArgs beside;      // of the blocks from beside_at on
};

// The kernel for N rows, with the shared memory that fits the arguments.
template <int N, Input in, bool kShort>
void launch_skinny(cudaStream_t, SkinnyArgs&, int n_warp);

}  // namespace facet::cuda
