#pragma once
#include "backend/cuda/kernels/matmul/skinny_args.h"

// What the launcher (wide.cu) tells the kernels (wide.cuh) of a product with more rows than skinny.cu takes at once.
namespace facet::cuda {

constexpr int wide_rows(Input in) {
  return in == Input::kByte ? kWideRows : in == Input::kTwoBytes ? kWideRows / 2 : 0;
}
constexpr int kWideWarps = 12, kWideStages = 6;  // that multiply, at most
constexpr int kWideTotal = 2 * 16 * kWideGroup;  // floats of shared memory for each of them

struct WideArgs {
  SkinnyArgs a;          // n_stage and slot are of this kernel; at_parts is where the sums between cuts are
  int rows;              // of the image: a multiple of kWideGroup
  int group, n_group;    // rows of a warp, and how many warps a pair of strips has
  int run_warps;         // runs of a block in the kernels for few rows: their borders cut the sums
  int pairs;             // of strips, that a block multiplies at a time
  int act_bytes, stage;  // of 256 columns of the image; of a stage
};

// The product of work that skinny() has laid out, of a.n_tok <= kWideRows rows. False: there is no room, nothing was
// done.
bool wide(cudaStream_t, const SkinnyArgs&, Input, int run_warps, const SkinnyWork&, Partials& left);

template <bool kTwo>
void launch_wide(cudaStream_t, const WideArgs&, int n_warp);

}  // namespace facet::cuda
