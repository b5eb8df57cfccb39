#pragma once
#include "backend/cuda/kernels/attention/expand_rows.cuh"
#include "backend/cuda/kernels/attention/params.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/select.h"

// What the prefill kernels of attend share (prefill_mma.cuh: mma.sync, the others: wgmma): how a tile of query
// rows finds its sequence, what it sees, where rows of the cache lie, and how query rows enter and leave. Blocks have
// kPrefillThreads threads.
namespace facet::cuda {

constexpr int kPrefillThreads = 256;

// A tile's place in the step: tokens [rows.j0, rows.j1) of sequence seq.
struct PrefillTile {
  int seq;       // -1: no tokens are left for this block
  SeqRows rows;  // of the sequence, as this tile sees it
  bool plain;    // the usual chunk: a token's position is its row, and what it sees is a range of rows
  int lo, hi;    // the tile sees no row outside of [lo, hi)
};

// Whether a tile sees the row; in one step, as hi is at least lo or there is no row between.
__device__ __forceinline__ bool sees(const PrefillTile& t, int row) {
  const int lo = t.lo, hi = t.hi;
  return unsigned(row - lo) < unsigned(max(hi - lo, 0));
}

// The tile of this block, for tiles of n_tok tokens; the last tokens start first. Every lane of a warp calls it.
__device__ __forceinline__ PrefillTile find_prefill_tile(const AttendParams& p, int n_tok) {
  const int lane = threadIdx.x % 32;
  PrefillTile t{.seq = -1};
  // Tiles are numbered through the sequences, 32 of them at a time.
  int tile = int(gridDim.x) - 1 - int(blockIdx.x);
  for (int s0 = 0; s0 < p.step.shape.n_seq && t.seq < 0; s0 += 32) {
    int n = 0;
    if (s0 + lane < p.step.shape.n_seq && p.step.q_begin[s0 + lane] >= p.t_begin)
      n = (p.step.q_begin[s0 + lane + 1] - p.step.q_begin[s0 + lane] + n_tok - 1) / n_tok;
    int until = n;
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
      const int before = __shfl_up_sync(~0u, until, m);
      if (lane >= m) until += before;
    }
    const uint32_t past = __ballot_sync(~0u, until > tile);
    if (past) {
      const int l = __ffs(past) - 1;
      t.seq = s0 + l;
      tile -= __shfl_sync(~0u, until - n, l);
    } else {
      tile -= __shfl_sync(~0u, until, 31);
    }
  }
  if (t.seq < 0) return t;
  SeqRows& s = t.rows;
  s.begin = p.step.q_begin[t.seq];
  s.n = p.step.q_begin[t.seq + 1] - s.begin;
  s.len = p.step.kv_len[t.seq];
  s.mask = p.step.mask[t.seq];
  s.in_step = s.mask == Mask::kPast ? 0 : s.n;
  s.j0 = tile * n_tok, s.j1 = min(s.n, s.j0 + n_tok);
  int least = INT_MAX;
  s.most_pos = 0;
  for (int j = s.j0; j < s.j1; j += 32) {
    const int pos = p.step.pos[s.begin + min(j + lane, s.j1 - 1)];
    least = min(least, pos), s.most_pos = max(s.most_pos, pos);
  }
  for (int m = 16; m > 0; m /= 2) {
    least = min(least, __shfl_xor_sync(~0u, least, m));
    s.most_pos = max(s.most_pos, __shfl_xor_sync(~0u, s.most_pos, m));
  }
  t.plain = s.mask == Mask::kCausal && p.step.pos[s.begin] == s.len;
  s.first = p.window > 0 ? max(0, t.plain ? least - p.window + 1 : min(s.len, least - p.window + 1)) : 0;
  t.lo = s.first, t.hi = s.len + (t.plain ? s.j1 : s.in_step);
  return t;
}

// The tiles of kKeys rows that a block of threads walks over: all from row0 on, or those of the blocks in a list.
template <int kKeys>
struct KeyTiles {
  static constexpr int kPer = kSelectRows / kKeys;
  static_assert(kSelectRows % kKeys == 0);
  const int32_t* list;  // null: all
  int row0, n;
  KeyTiles() = default;
  __device__ KeyTiles(const AttendParams& p, const PrefillTile& t, int head) : list(nullptr) {
    row0 = t.lo / kKeys * kKeys, n = t.hi > t.lo ? (t.hi - row0 + kKeys - 1) / kKeys : 0;
    if (!p.blocks.count) return;
    const int at =
        (int(blockIdx.z) * p.blocks.n_tile + select_tile(t.rows.begin, t.seq, t.rows.j0)) * p.kv.n_head + head;
    int count = p.blocks.count[at];
    if (count == kAllBlocks) return;
    list = p.blocks.index + int64_t(at) * p.blocks.cap;
    while (count > 0 && list[count - 1] * kSelectRows >= t.hi) --count;  // later tokens of the list's tile see it
    n = 0;
    if (count > 0) n = (count - 1) * kPer + min(kPer, (t.hi - list[count - 1] * kSelectRows + kKeys - 1) / kKeys);
  }
  __device__ __forceinline__ int row(int tile) const {
    return list ? __ldg(list + tile / kPer) * kSelectRows + tile % kPer * kKeys : row0 + tile * kKeys;
  }
};

// A row's place in lse.
__device__ __forceinline__ float* lse_at(const AttendParams& p, const SeqRows& s, int head, int token, int row) {
  return p.blocks.lse + (int64_t(blockIdx.z) * p.step.shape.n_tok + s.begin + token) * p.n_q_head + head * p.group +
         row % p.group;
}
// The results of a tile with an empty list.
template <int kRows>
__device__ __forceinline__ void leave_empty(const AttendParams& p, const SeqRows& s, int head) {
  if (p.blocks.lse)
    for (int r = threadIdx.x; r < kRows && s.j0 + r / p.group < s.j1; r += kPrefillThreads)
      *lse_at(p, s, head, s.j0 + r / p.group, r) = -INFINITY;
}

// Zeros for the rows after the last sequence; called by the one block that has the number after the last tile.
__device__ __forceinline__ void clear_prefill_padding(const AttendParams& p, int head, int E) {
  for (int t = max(p.t_begin, p.step.q_begin[p.step.shape.n_seq]); t < p.t_end; ++t)
    for (int i = threadIdx.x; i < p.group * E; i += kPrefillThreads) {
      p.o[t * p.o_stride + head * p.group * E + i] = 0;
      if (p.o_bf) p.o_bf[t * p.o_bf_stride + head * p.group * E + i] = __float2bfloat16(0.f);
    }
}

// Copies of quantised rows in f16 (F16Rows): of the sequences of long chunks one after another, each at a multiple of
// kExpandRows, from the first row on that any of its tokens sees.
constexpr int kExpandRows = 32;
__device__ __forceinline__ int first_expanded(const AttendParams& p, int seq) {
  return p.window > 0 ? max(0, p.step.kv_len[seq] - p.window + 1) : 0;
}
__device__ __forceinline__ int expanded_rows(const AttendParams& p, int seq) {
  const int n = p.step.q_begin[seq + 1] - p.step.q_begin[seq];
  if (p.step.q_begin[seq] < p.t_begin || n <= 0) return 0;
  return (p.step.kv_len[seq] + n - first_expanded(p, seq) + kExpandRows - 1) / kExpandRows * kExpandRows;
}
__device__ __forceinline__ int expanded_before(const AttendParams& p, int seq) {
  int before = 0;
  for (int i = 0; i < seq; ++i) before += expanded_rows(p, i);
  return before;
}
// The sequence whose copies lie at row `at`; seq -1: none.
struct ExpandedPlace {
  int seq = -1, before = 0;
  __device__ ExpandedPlace(const AttendParams& p, int at) {
    for (int i = 0; i < p.step.shape.n_seq; ++i) {
      const int n = expanded_rows(p, i);
      if (at < before + n) {
        seq = i;
        return;
      }
      before += n;
    }
  }
};

// Query rows enter and leave by warps. A lane has four adjacent values at a time, so that lanes have whole lines of
// memory; where rows are rotated it has all of its own at once, for fewer steps among lanes.
template <KvType T, int E>
constexpr int kLaneValues = device_kv_has_scales(T) ? E / 32 : 4;

// Query rows of the tile in f16, in the places of K's values, as a tile of kRows rows at `shared`.
template <KvType K, int E, int kRows, bool kShared = false>
__device__ __forceinline__ void load_queries(char* shared, const AttendParams& p, const SeqRows& s, int head) {
  constexpr int kPer = kLaneValues<K, E>, kParts = E / 32 / kPer, kWarps = kPrefillThreads / 32;
  constexpr int kTogether = 64 / (E / 32);  // rows whose loads are in flight
  static_assert(kRows % (kWarps * kTogether) == 0);
  const int lane = threadIdx.x % 32;
  for (int r0 = threadIdx.x / 32; r0 < kRows; r0 += kWarps * kTogether) {
    float4 f[kTogether][kParts][kPer / 4];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int r = r0 + k * kWarps, j = s.j0 + r / p.group;
      const float* row = p.q + (s.begin + j) * p.q_stride + (head * p.group + r % p.group) * E;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const int d = (part * 32 + lane) * kPer;
        const float4* from = reinterpret_cast<const float4*>(row + (kShared ? shared_channel(d, true) : d));
#pragma unroll
        for (int i = 0; i < kPer / 4; ++i) f[k][part][i] = j < s.j1 ? __ldg(from + i) : float4{};
      }
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float x[kPer];
#pragma unroll
        for (int i = 0; i < kPer / 4; ++i) {
          const float4 v = f[k][part][i];
          x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        }
        if (device_kv_has_scales(K)) warp_rotate<kPer>(x, lane, false);
#pragma unroll
        for (int i = 0; i < kPer; i += 4) {
          const __half2 a = __floats2half2_rn(x[i], x[i + 1]), b = __floats2half2_rn(x[i + 2], x[i + 3]);
          const int place = place_of<K>((part * 32 + lane) * kPer + i);
          *reinterpret_cast<uint2*>(shared + tile_at(kRows, r0 + k * kWarps, place * 2)) =
              make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
        }
      }
  }
}

// One finished row of a warp, E f32 in the places of V's values at `row`: in order, rotated back, to o and o_bf.
template <KvType V, int E, bool kShared = false>
__device__ __forceinline__ void store_output(const char* row, const AttendParams& p, int token, int q_head) {
  constexpr int kPer = kLaneValues<V, E>;
  const int lane = threadIdx.x % 32;
  float* const o = p.o + token * p.o_stride + q_head * E;
  __nv_bfloat16* const o_bf = p.o_bf ? p.o_bf + token * p.o_bf_stride + q_head * E : nullptr;
#pragma unroll
  for (int part = 0; part < E / 32 / kPer; ++part) {
    const int d = (part * 32 + lane) * kPer, col = kShared ? shared_channel(d, false) : d;
    float x[kPer];
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      const float4 f = *reinterpret_cast<const float4*>(row + place_of<V>(d + i) * 4);
      x[i] = f.x, x[i + 1] = f.y, x[i + 2] = f.z, x[i + 3] = f.w;
    }
    if (device_kv_has_scales(V)) warp_rotate<kPer>(x, lane, true);
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      // A plain store the compiler takes apart.
      __stwb(reinterpret_cast<float4*>(o + col + i), make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]));
      if (!o_bf) continue;
      const __nv_bfloat162 a = __floats2bfloat162_rn(x[i], x[i + 1]), b = __floats2bfloat162_rn(x[i + 2], x[i + 3]);
      *reinterpret_cast<uint2*>(o_bf + col + i) =
          make_uint2(*reinterpret_cast<const uint32_t*>(&a), *reinterpret_cast<const uint32_t*>(&b));
    }
  }
}

// The query rows of a lane in a warp's 8 * kHeld, g and g + 8 (lane 4 g + c), as online softmax goes along.
template <int kHeld>
struct PrefillRows {
  int token[kHeld];              // of the sequence; -1: no row of the tile
  float top[kHeld], sum[kHeld];  // largest score so far (times log2 e), sum of probabilities (times 64)

  // sum: of the whole row. One lane of four calls it.
  __device__ __forceinline__ void leave_lse(const AttendParams& p, const SeqRows& s, int head, int strip) const {
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (token[h] >= 0)
        *lse_at(p, s, head, token[h], strip + int(threadIdx.x) % 32 / 4 + 8 * h) =
            sum[h] > 0 ? .693147181f * (top[h] - 6.f + log2f(sum[h])) : -INFINITY;
  }
  __device__ PrefillRows(const SeqRows& s, int group, int strip) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      token[h] = s.j0 + (strip + int(threadIdx.x) % 32 / 4 + 8 * h) / group;
      if (token[h] >= s.j1) token[h] = -1;
      top[h] = -INFINITY, sum[h] = 0;
    }
  }
};
using PrefillLane = PrefillRows<2>;

// Takes scores of the keys at rows row0.. (as products leave them: keys 8 n + 2 c + e % 2, query row g + 8 (e / 2)):
// hides what the rows do not see unless `whole`, and finds the largest of each row, times scale (positive).
template <int kTiles, int kHeld>
__device__ __forceinline__ void mask_scores(float (&score)[kTiles][2 * kHeld], float (&most)[kHeld],
                                            const AttendParams& p, const PrefillTile& t, const PrefillRows<kHeld>& lane,
                                            int row0, float scale, bool whole) {
  const SeqRows& s = t.rows;
  const int c = int(threadIdx.x) % 4;
  if (!whole) {
    // A row sees [first, first + n) of the rows, in a plain chunk exactly.
    int first[kHeld], pos[kHeld] = {};
    unsigned n_seen[kHeld];
    uint64_t ancestor[kHeld] = {};
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int token = lane.token[h], at = s.len + token;
      const int last = t.plain ? min(t.hi - 1, at) : t.hi - 1;
      first[h] = t.plain && p.window > 0 ? max(t.lo, at - p.window + 1) : t.lo;
      n_seen[h] = token >= 0 ? unsigned(max(0, last - first[h] + 1)) : 0;
      if (t.plain || token < 0) continue;
      pos[h] = p.step.pos[s.begin + token];
      if (s.mask == Mask::kTree) ancestor[h] = p.step.ancestor[s.begin + token];
    }
    uint32_t hidden = 0;  // others: bit 2 kHeld n + e
    if (!t.plain)
#pragma unroll 1
      for (int i = 0; i < 2 * kHeld * kTiles; ++i) {
        const bool h = kHeld == 2 && i / 2 % 2;
        const int row = row0 + i / (2 * kHeld) * 8 + 2 * c + i % 2;
        auto of_row = [&](const auto& of) { return h ? of[kHeld - 1] : of[0]; };
        if (unsigned(row - of_row(first)) < of_row(n_seen) &&
            !sees_row(p, s, of_row(lane.token), of_row(pos), of_row(ancestor), row))
          hidden |= 1u << i;
      }
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int e = 0; e < 2 * kHeld; ++e) {
        const int h = e / 2, row = row0 + 8 * n + 2 * c + e % 2;
        if (unsigned(row - first[h]) >= n_seen[h] || (hidden >> (2 * kHeld * n + e) & 1)) score[n][e] = -INFINITY;
      }
  }
#pragma unroll
  for (int h = 0; h < kHeld; ++h) most[h] = -INFINITY;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 2 * kHeld; ++e) most[e / 2] = fmaxf(most[e / 2], score[n][e]);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 1));
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0u, most[h], 2));
    most[h] *= scale;
  }
}
// Tiles of rows within [from, to) are seen whole by every query row of a warp, the first of token `first`.
__device__ __forceinline__ int whole_tiles_from(const AttendParams& p, const PrefillTile& t) {
  return p.window > 0 ? max(t.lo, t.rows.most_pos - p.window + 1) : t.lo;
}
__device__ __forceinline__ int whole_tiles_to(const PrefillTile& t, int first) {
  return min(t.hi, t.rows.len + (t.plain ? first + 1 : 0));
}
__device__ __forceinline__ bool sees_whole_tile(const AttendParams& p, const PrefillTile& t, int first, int row0,
                                                int n_key) {
  return row0 >= whole_tiles_from(p, t) && row0 + n_key <= whole_tiles_to(t, first);
}

// The factor of sums of probabilities when their row's largest score goes from top to next.
__device__ __forceinline__ float shrinks(float top, float next) {
  return exp2_approx(top - (next == -INFINITY ? 0.f : next));
}
// The rows' new maxima. base: what exponents begin at; probabilities are times 64, so that small ones keep their
// precision in f16. alpha: what sums so far are to be multiplied by; true: some of it is not 1.
template <int kHeld>
__device__ __forceinline__ bool raise_maxima(const float (&most)[kHeld], PrefillRows<kHeld>& lane, float (&base)[kHeld],
                                             float (&alpha)[kHeld]) {
  bool moved = false;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const float next = fmaxf(lane.top[h], most[h]);
    moved |= next != lane.top[h];
    base[h] = (next == -INFINITY ? 0.f : next) - 6.f;
    alpha[h] = shrinks(lane.top[h], next);
    lane.top[h] = next;
    lane.sum[h] *= alpha[h];
  }
  return moved;
}
// Scores become probabilities in f16, as pairs: the A operand of the next product.
template <int kTiles, int kHeld>
__device__ __forceinline__ bool softmax_scores(const float (&score)[kTiles][2 * kHeld], const float (&most)[kHeld],
                                               float scale, PrefillRows<kHeld>& lane, uint32_t (&prob)[kTiles][kHeld],
                                               float (&alpha)[kHeld]) {
  float base[kHeld];
  const bool moved = raise_maxima(most, lane, base, alpha);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const float a = exp2_approx(fmaf(score[n][2 * h], scale, -base[h]));
      const float b = exp2_approx(fmaf(score[n][2 * h + 1], scale, -base[h]));
      const __half2 v = __floats2half2_rn(a, b);
      lane.sum[h] += a + b;
      prob[n][h] = *reinterpret_cast<const uint32_t*>(&v);
    }
  return __any_sync(~0u, moved);
}
// The same in two steps, for a kernel whose earlier probabilities are still being multiplied.
template <int kTiles, int kHeld>
__device__ __forceinline__ bool exp_scores(float (&score)[kTiles][2 * kHeld], const float (&most)[kHeld], float scale,
                                           PrefillRows<kHeld>& lane, float (&alpha)[kHeld]) {
  float base[kHeld];
  const bool moved = raise_maxima(most, lane, base, alpha);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 2 * kHeld; ++e) {
      score[n][e] = exp2_approx(fmaf(score[n][e], scale, -base[e / 2]));
      lane.sum[e / 2] += score[n][e];
    }
  return __any_sync(~0u, moved);
}
template <int kTiles, int kHeld>
__device__ __forceinline__ void pack_probs(const float (&score)[kTiles][2 * kHeld], uint32_t (&prob)[kTiles][kHeld]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const __half2 v = __floats2half2_rn(score[n][2 * h], score[n][2 * h + 1]);
      prob[n][h] = *reinterpret_cast<const uint32_t*>(&v);
    }
}
template <int kTiles>
__device__ __forceinline__ void scale_rows(float (&out)[kTiles][4], const float (&by)[2]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) out[n][0] *= by[0], out[n][1] *= by[0], out[n][2] *= by[1], out[n][3] *= by[1];
}

// Most sequences that long chunks are of.
inline int most_long(const AttendParams& p) {
  const StepShape& s = p.step.shape;
  return s.n_long > 0 ? s.n_long : std::min(s.n_seq, p.t_end - p.t_begin);
}
inline dim3 prefill_grid(const AttendParams& p, int rows) {
  const int n_tok = p.t_end - p.t_begin;
  return dim3(unsigned(n_tok / (rows / p.group) + most_long(p) + 1), unsigned(p.kv.n_head), unsigned(p.blocks.n_set));
}

// Shared rows of one sequence and K/V head.
struct SharedSource {
  const char* rows;
  SharedSource() = default;
  __device__ SharedSource(const AttendParams& p, int seq, int head, int head_bytes)
      : rows(reinterpret_cast<const char*>(p.kv.k + p.step.slot[seq] * p.kv.k_slot) + head * head_bytes) {}
  // there: whether the tile sees the row; where it does not, it is read as zeros.
  __device__ const char* at(const AttendParams& p, const PrefillTile& t, int row, bool& there) const {
    there = sees(t, row);
    return rows + uint64_t(unsigned(there ? row : 0)) * unsigned(p.kv.k_row);
  }
};

// Where rows of one sequence and K/V head lie: ring or full rows, or the staging area.
template <KvType K, KvType V, int E>
struct PrefillSource {
  const char *k_rows, *v_rows, *k_stage, *v_stage;
  bool staged;
  PrefillSource() = default;
  __device__ PrefillSource(const AttendParams& p, const PrefillTile& t, int head)
      : k_rows(reinterpret_cast<const char*>(p.kv.k + p.step.slot[t.seq] * p.kv.k_slot) + head * device_kv_bytes(K, E)),
        v_rows(reinterpret_cast<const char*>(p.kv.v + p.step.slot[t.seq] * p.kv.v_slot) + head * device_kv_bytes(V, E)),
        k_stage(reinterpret_cast<const char*>(p.kv.k_stage) + head * device_kv_bytes(K, E)),
        v_stage(reinterpret_cast<const char*>(p.kv.v_stage) + head * device_kv_bytes(V, E)),
        staged(kv_staged(p.kv, t.rows.n)) {}
  struct Place {
    int row;               // in the cache, or in the staging area
    bool in_stage, there;  // there is false: a row that the tile does not see, read as zeros
  };
  __device__ Place place(const AttendParams& p, const PrefillTile& t, int row) const {
    Place at{.row = 0, .in_stage = staged && row >= t.rows.len, .there = sees(t, row)};
    if (!at.there) return at;
    if (at.in_stage)
      at.row = t.rows.begin + row - t.rows.len;
    else
      at.row = p.kv.window > 0 ? int(unsigned(row) % unsigned(p.kv.cap)) : row;
    return at;
  }
  __device__ const char* k(const AttendParams& p, const Place& at) const {
    return (at.in_stage ? k_stage : k_rows) + at.row * p.kv.k_row;
  }
  __device__ const char* v(const AttendParams& p, const Place& at) const {
    return (at.in_stage ? v_stage : v_rows) + at.row * p.kv.v_row;
  }
};

}  // namespace facet::cuda
