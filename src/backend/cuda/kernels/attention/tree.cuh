#pragma once
#include "backend/cuda/kernels/attention/params.cuh"

// Trees in decode kernels. A token behind a later branch sees rows of the step that do not lie one after the other, and
// tensor cores add up in the order of keys in a tile. So the splits that hold positions from kv_len on are computed
// once for each path from the root to a leaf, by blocks of their own, with the keys of that path in the order of their
// positions: the tiles of plain decoding after the path's commit. Each token belongs to one path.
//
//            tree             kv_len + 0 1 2 3       results of
//   node     0 1 2 3 4 5      path 0   0 2 4         0 2 4
//   parent   - 0 0 1 2 3      path 1   0 1 3 5       1 3 5
namespace facet::cuda {

// Tail splits of a sequence: what kSmallT rows from any row on can touch.
constexpr int kTailSplits = 2;
static_assert(kSmallT <= kWindowSplit + 1 && kSmallT <= 16);

// Tail splits of the paths after the first: their blocks' numbers go on after those of the splits.
FACET_HD constexpr int further_splits(int n_path) { return n_path > 1 ? kTailSplits * (n_path - 1) : 0; }

struct TreePath {
  uint64_t nodes = 0;   // four bits for each position from kv_len on: which token of the sequence is there
  uint32_t tokens = 0;  // bit j: no path before it has token j
  int n = 0;            // its nodes
};

#if defined(__CUDACC__)
// Place of the n-th bit that is set. Ancestors come before their descendants, so in a token's ancestors it is the one
// at position kv_len + n.
__device__ __forceinline__ int nth_bit(uint64_t bits, int n) {
  for (; n > 0; --n) bits &= bits - 1;
  return __ffsll(int64_t(bits)) - 1;
}

// The path to leaf `number` of a tree of n <= kSmallT nodes, an empty one if there are fewer leaves. Every lane of a
// warp calls it and gets the same.
__device__ __forceinline__ TreePath tree_path(const Step& step, int begin, int n, int number) {
  const int lane = threadIdx.x % 32;
  const uint32_t own = 1u << lane, sees = lane < n ? uint32_t(step.ancestor[begin + lane]) : 0;
  const uint32_t leaves = ~__reduce_or_sync(~0u, sees & ~own) & ((1u << n) - 1);
  if (number >= __popc(leaves)) return {};
  const int leaf = nth_bit(leaves, number);
  const uint32_t path = __shfl_sync(~0u, sees, leaf),
                 earlier = __reduce_or_sync(~0u, lane < leaf && (leaves & own) ? sees : 0);
  const int depth = __popc(path & (own - 1));
  const uint64_t at = path & own ? uint64_t(lane) << (4 * depth) : 0;
  return {.nodes = uint64_t(__reduce_or_sync(~0u, uint32_t(at >> 32))) << 32 | __reduce_or_sync(~0u, uint32_t(at)),
          .tokens = path & ~earlier,
          .n = __popc(path)};
}
__device__ __forceinline__ int node_at(uint64_t nodes, int i) { return int(nodes >> (4 * i & 63)) & 15; }
#endif

}  // namespace facet::cuda
