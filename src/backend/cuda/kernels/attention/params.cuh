#pragma once
#include <cuda_fp16.h>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/attention/device_kv_layout.cuh"

// What the kernels of attend share: their parameters, which rows a token sees, and how rows are divided into splits.
namespace facet::cuda {

// norm_rope_append, done by the decode kernel of attend.
struct FusedQkNormRope {
  bool on = false;                         // q, k and v are the projections'
  const float *k = nullptr, *v = nullptr;  // [T, Hk * E]; null: nothing to append
  int64_t k_stride = 0, v_stride = 0;
  NormRopeAppend work;
};

// Lists of blocks of rows (backend/select.h) for the tiles of prefill kernels. gridDim.z sets of lists, one after
// another: [set][tile][K/V head], entries of `index` cap apart.
struct BlockLists {
  const int32_t* count = nullptr;  // kAllBlocks: all rows; 0: nothing, and nothing is written. Null: no lists
  const int32_t* index = nullptr;  // ascending
  int cap = 0, n_tile = 0, n_set = 1;
  float* lse = nullptr;  // [set][T][Hq] of scores, natural; null: not wanted
  bool writes = true;    // false: lse alone
};
constexpr int kAllBlocks = -1;

// Shared rows of long sequences in f16 (prefill_shared_wgmma.cuh): scratch, and how a launch uses it.
struct F16Rows {
  __half* rows = nullptr;  // [K/V head of the launch, from head0][cap][kSharedCols]
  int64_t bytes = 0, cap = 0;
  int head0 = 0;
};

// Tokens [t_begin, t_end) of a step; the kernels of short sequences leave one partial result per split.
struct AttendParams {
  float* o = nullptr;  // [T, Hq * E]
  __nv_bfloat16* o_bf = nullptr;
  uint8_t* o_image = nullptr;  // of n_image rows (matmul/acts.cuh)
  int n_image = 0;
  const float* q = nullptr;
  int64_t o_stride = 0, o_bf_stride = 0, q_stride = 0;
  KvLayer kv;
  Step step;
  int t_begin = 0, t_end = 0;
  int n_q_head = 0, group = 0;  // group: query heads per K/V head
  int window = 0;
  float scale = 1.f;
  bool causal_block = false;
  bool ahead = false;  // attend_plain: only tokens with Step::ahead > 0, which see so many tokens more
  int n_split = 0, n_col_block = 0, n_sm = 0;
  int n_path = 0;  // StepShape's
  FusedQkNormRope heads;
  BlockLists blocks;
  F16Rows f16;
  __half* part_o = nullptr;   // [tokens, Hq, n_split, E], divided by its sum
  float2* part_ml = nullptr;  // [tokens, Hq, n_split]: maximum (of score * scale * log2 e) and sum
};

// Split-KV (FlashDecoding): a split is a range of rows whose softmax is computed alone. Where splits begin depends on
// the row numbers and the layer alone, never on the load, so the bits of a result do not depend on what else is in
// the step. Full layers have longer splits in long contexts, and later so if few K/V heads make few blocks (except in
// F16, where each block has a multiprocessor for itself). A window always has the same few rows: short splits spread
// them over the chip.
constexpr int kWindowSplit = 64, kFewHeads = 2;
enum class KvSplitPolicy { kWindow, kFull, kFullOfFew };
FACET_HD constexpr KvSplitPolicy policy_of(KvType k, int window, int n_kv_head) {
  return window > 0                                    ? KvSplitPolicy::kWindow
         : n_kv_head <= kFewHeads && k != KvType::kF16 ? KvSplitPolicy::kFullOfFew
                                                       : KvSplitPolicy::kFull;
}
// The row from which on splits have 512 rows.
FACET_HD constexpr int row_of_512(KvSplitPolicy policy) { return policy == KvSplitPolicy::kFullOfFew ? 32768 : 16384; }
FACET_HD constexpr int split_index(KvSplitPolicy policy, int row) {
  if (policy == KvSplitPolicy::kWindow) return row / kWindowSplit;
  if (row < 2048) return row / 64;
  if (row < 4096) return 32 + (row - 2048) / 128;
  const int at = row_of_512(policy), first = 48 + (at - 4096) / 256, last = first + (65536 - at) / 512;
  if (row < at) return 48 + (row - 4096) / 256;
  if (row < 65536) return first + (row - at) / 512;
  return last + (row - 65536) / 1024;
}
FACET_HD constexpr int split_begin(KvSplitPolicy policy, int split) {
  if (policy == KvSplitPolicy::kWindow) return split * kWindowSplit;
  if (split < 32) return split * 64;
  if (split < 48) return 2048 + (split - 32) * 128;
  const int at = row_of_512(policy), first = 48 + (at - 4096) / 256, last = first + (65536 - at) / 512;
  if (split < first) return 4096 + (split - 48) * 256;
  if (split < last) return at + (split - first) * 512;
  return 65536 + (split - last) * 1024;
}

// Splits that the rows seen by the tokens of a short sequence can touch, for a longest sequence of `longest` rows.
FACET_HD constexpr int most_splits(KvSplitPolicy policy, int window, int64_t longest) {
  if (longest <= 0) return 1;
  const int all = split_index(policy, int(longest - 1)) + 1;
  if (policy != KvSplitPolicy::kWindow) return all;
  const int touched = (window + kSmallT + kWindowSplit - 2) / kWindowSplit + 1;
  return all < touched ? all : touched;
}

#if defined(__CUDACC__)
// One sequence as a block sees it. Every lane of a warp calls it and gets the same. Tokens that write rows have
// positions of at least kv_len and below kv_len + n (chain, block: the row's number; tree: by depth); those that write
// none may have any.
struct SeqRows {
  int begin, n;      // its tokens of the step
  int j0, j1;        // those of them in [t_begin, t_end)
  int len, in_step;  // committed rows, rows of this step
  int first;         // no row before it is seen by any of them
  int most_pos;      // no position of them is larger
  Mask mask;
};
__device__ __forceinline__ SeqRows seq_rows(const AttendParams& p, int seq) {
  SeqRows s;
  s.begin = p.step.q_begin[seq];
  s.n = p.step.q_begin[seq + 1] - s.begin;
  s.len = p.step.kv_len[seq];
  s.mask = p.step.mask[seq];
  s.j0 = max(0, p.t_begin - s.begin);
  s.j1 = min(s.n, p.t_end - s.begin);
  s.in_step = s.mask == Mask::kPast ? 0 : s.n;
  s.first = 0, s.most_pos = s.len + s.n - 1;
  if (p.window > 0) {
    int least = s.len;
    if (s.mask == Mask::kPast && s.j0 < s.j1) {
      least = p.step.pos[s.begin + min(s.j0 + int(threadIdx.x % 32), s.j1 - 1)];
      s.most_pos = least;
      for (int m = 16; m > 0; m /= 2) {
        least = min(least, __shfl_xor_sync(~0u, least, m));
        s.most_pos = max(s.most_pos, __shfl_xor_sync(~0u, s.most_pos, m));
      }
    }
    s.first = max(0, min(s.len, least - p.window + 1));
  }
  return s;
}

// Whether a token at position pos sees the row at position `row`, one that is there; in a tree, on a path through the
// token.
__device__ __forceinline__ bool sees_position(const AttendParams& p, const SeqRows& s, int pos, int row) {
  if (p.window > 0 && pos - row >= p.window) return false;
  return row < s.len || row <= pos || (s.mask == Mask::kBlock && !p.causal_block);
}

// Whether token j of the sequence, at position pos, sees the row with this number.
__device__ __forceinline__ bool sees_row(const AttendParams& p, const SeqRows& s, int j, int pos, uint64_t ancestor,
                                         int row) {
  if (row < s.len) return p.window == 0 || pos - row < p.window;
  const int i = row - s.len;
  if (i >= s.in_step || !sees_in_step(s.mask, ancestor, j, i, p.causal_block)) return false;
  return p.window == 0 || pos - p.step.pos[s.begin + i] < p.window;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// Launchers of the parts; attend() chooses among them.
void attend_plain(cudaStream_t, const AttendParams&);
void attend_combine(cudaStream_t, const AttendParams&);

}  // namespace facet::cuda
