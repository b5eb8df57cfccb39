#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/common/mat.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/cuda/kernels/ops.h"
#include "backend/shard_spec.h"

// Collectives of GPUs that each hold a part of a model. Every GPU launches the same collectives in the same order,
// each on its own stream; a collective ends when the other GPUs have reached it.
namespace facet::cuda {

constexpr int kMailboxBlocks = 128;  // at most, of collectives through mailboxes; all of them are resident at once
constexpr int kSumBlocks = 64;       // of sums in place

// A GPU's view of the others. Mailboxes and flags are in memory that all of them reach: of each GPU, or of the host.
struct Communicator {
  int me = 0, n = 1;
  uint64_t* box[kMaxShards] = {};   // of each GPU, what others sent it: [2][source][box_floats]
  uint32_t* flag[kMaxShards] = {};  // of each GPU: [kSumBlocks][source]
  int64_t box_floats = 0;
  uint32_t* counters = nullptr;  // of this GPU: [kCounterWords]
  uint32_t* failed = nullptr;    // of the host: 1 + the GPU that this one waited for in vain; 0: none
  uint64_t timeout_ns = 0;       // how long a collective waits for another GPU
};
constexpr int kCounterWords = 3 + kSumBlocks;

// y of every GPU becomes the sum over the GPUs in `has`, in ascending order. This GPU's part is a product's partial
// sums where left.p is set, the outputs of experts where slots.out is set, else y.
struct SumPart {
  Mat y;
  Partials left;
  MoeSlots slots;
  unsigned has = 0;
};
// One or two at once. rows * (cols rounded up to 2), of both, <= box_floats.
void all_reduce(cudaStream_t, const Communicator&, const SumPart&, const SumPart& second = {});
// The same for any number of rows, if GPUs reach each other's memory: all[i] is y of GPU i; all have one stride.
struct EachPart {
  float* p[kMaxShards] = {};
};
void all_reduce_in_place(cudaStream_t, const Communicator&, Mat y, const EachPart& all, unsigned has);
// `to` of the GPUs in `wants` gets the columns of all GPUs side by side: cols[i] of GPU i from column at[i] on.
struct Columns {
  int at[kMaxShards] = {}, cols[kMaxShards] = {};
};
void all_gather_columns(cudaStream_t, const Communicator&, Mat to, Mat from, const Columns&, unsigned wants);
// Rows of the tokens [first, first + table.n_out) times scale_by; zeros for others.
void embed_own(cudaStream_t, Mat x, const TiledMatrix& table, const int32_t* token, int first, float scale_by);

}  // namespace facet::cuda
