#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/kernels/common/mat.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/cuda/kernels/ops.h"
#include "backend/shard_spec.h"

// What GPUs with a part of a model each tell one another. Every GPU launches the same exchanges in the same order, each
// on its own stream; an exchange ends when the others have come to it.
namespace facet::cuda {

constexpr int kMailboxBlocks = 128;  // at most, of exchanges through mailboxes; all of them wait at the same time
constexpr int kSumBlocks = 64;       // of sums in place

// A GPU's view of the others. Mailboxes and flags are in memory that all of them reach: of each GPU, or of the host.
struct Communicator {
  int me = 0, n = 1;
  uint64_t* box[kMaxShards] = {};   // of each GPU, what others sent it: [2][source][box_floats]
  uint32_t* flag[kMaxShards] = {};  // of each GPU: [kSumBlocks][source]
  int64_t box_floats = 0;
  uint32_t* counters = nullptr;  // of this GPU: counters, [kCounterWords]
  uint32_t* failed = nullptr;    // of the host: 1 + the GPU that this one waited for in vain; 0: none
  uint64_t timeout_ns = 0;       // nanoseconds that an exchange waits
};
constexpr int kCounterWords = 3 + kSumBlocks;

// y of every GPU becomes the sum of those in `has`, in their order. This GPU's part is what a product has left where
// left.p is set, what experts have left where slots.out is, else y.
struct SumPart {
  Mat y;
  Partials left;
  MoeSlots slots;
  unsigned has = 0;
};
// One or two at once. rows * (cols rounded up to 2), of both, <= box_floats.
void all_reduce(cudaStream_t, const Communicator&, const SumPart&, const SumPart& second = {});
// The same for any number of rows, where GPUs read each other's memory: all[i] is y of GPU i, of one stride.
struct EachPart {
  float* p[kMaxShards] = {};
};
void all_reduce_in_place(cudaStream_t, const Communicator&, Mat y, const EachPart& all, unsigned has);
// `to` of the GPUs in `wants` gets the columns that each GPU has, side by side: cols[i] of GPU i from at[i] on.
struct Columns {
  int at[kMaxShards] = {}, cols[kMaxShards] = {};
};
void all_gather_columns(cudaStream_t, const Communicator&, Mat to, Mat from, const Columns&, unsigned wants);
// Rows of the tokens [first, first + table.n_out) times scale_by; zeros for others.
void embed_own(cudaStream_t, Mat x, const TiledMatrix& table, const int32_t* token, int first, float scale_by);

}  // namespace facet::cuda
