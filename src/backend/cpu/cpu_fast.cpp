#include "backend/cpu/cpu_fast.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "backend/cpu/cpu_sizes.h"
#include "base/threads.h"

namespace facet {
namespace {

constexpr int kBlockTok = 16;  // tokens that share one decoding of K and V

// Floats of one thread's scratch, by use; a verb has all of it.
int64_t product_floats(const BackendLimits& l) {
  const int64_t rows = std::max<int64_t>(l.max_tok, int64_t(l.max_tok) * l.n_expert_used);
  return tile_floats(std::max(l.max_cols, l.d_expert)) + 2 * kTileRows * l.max_tok +
         std::max(rows * kTileRows, int64_t(kPieceCols) * kMaxGemvTok * std::max(1, l.n_expert_used)) + 1024;
}
int64_t head_floats(const BackendLimits& l) { return std::min(1024, l.max_cols); }
int64_t attend_floats(const BackendLimits& l) {
  const int64_t n = int64_t(kBlockTok) * l.n_group, E = head_floats(l);
  return 3 * n * E + n * kPartKeys + 16 * E + 4 * n + kBlockTok * kPartKeys / 4 + 5 * kPartKeys + 1024;
}
int64_t thread_floats(const BackendLimits& l) {
  return std::max({product_floats(l), attend_floats(l), encoder_thread_floats(l.encoder_head), float_floats(l.max_tok),
                   int64_t(2048)});
}
// Results of all splits of a block's tokens, or of as many of these as have room.
int64_t partial_floats(const BackendLimits& l) {
  return std::min<int64_t>((l.max_rows / kSplitRows + 2) * (l.max_cols + 2 * 128) * std::min(l.max_tok, kBlockTok),
                           int64_t(8) << 20);
}

// Panels of a step's rows, or of the experts that get enough of them; a last one may have room to spare.
int64_t panels_bytes(const BackendLimits& l) {
  const int64_t pairs = int64_t(l.max_tok) * l.n_expert_used,
                of_experts = pairs / kPanelRows + std::min<int64_t>(pairs, l.n_expert);
  return std::max(round_up(l.max_tok, kPanelRows) / kPanelRows * panel_bytes(l.max_cols),
                  of_experts * panel_bytes(std::max(l.d_moe, l.d_expert))) +
         64;
}

}  // namespace

CpuFast::CpuFast(int n_threads, CpuIsa isa) : CpuRef(n_threads), simd_(simd_kernels(isa)), load_(size_t(n_threads)) {
  CHECK(has_isa(isa), "this machine has no {}", isa_name(isa));
}

CpuFast::Freqs CpuFast::upload(std::span<const double> freqs) {
  for (const RopeTable& r : rope_)
    if (std::equal(freqs.begin(), freqs.end(), r.freqs, r.freqs + r.n)) return {r.freqs, r.n};
  const Freqs f = CpuRef::upload(freqs);
  rope_.push_back({f.p, f.n, {}, {}});
  return f;
}

int64_t CpuFast::QuantBuffer::row_bytes(int64_t cols) {
  return round_up(padded(cols) * 11 / 8, 64) + padded(cols) / kChunkCols * kRecordBytes;
}
void CpuFast::QuantBuffer::reserve(int64_t rows, int64_t cols) {
  bytes.resize(size_t(rows * row_bytes(cols)) + 64);
  row.resize(size_t(rows));
  f.resize(size_t(rows));
}

int64_t CpuFast::reserve_bytes(const BackendLimits& l, int n_threads) {
  const int64_t pairs = int64_t(l.max_tok) * l.n_expert_used;
  return (thread_floats(l) * n_threads + partial_floats(l)) * int64_t(sizeof(float)) +
         l.max_tok * QuantBuffer::row_bytes(l.max_cols) + 128 + panels_bytes(l) +
         pairs * (QuantBuffer::row_bytes(l.d_expert) + int64_t(sizeof(float)) * l.d_expert) +
         rows_bytes(l.max_tok, 2 * head_floats(l) + l.n_cluster) + selection_bytes(l, n_threads) +
         (l.encoder_head > 0 ? rows_bytes(l.max_tok + 16, 2 * l.encoder_head + encoder_cols(l.encoder_head)) : 0);
}

void CpuFast::reserve(const BackendLimits& limits) {
  const BackendLimits l = limits_ = limits_.with(limits);
  scratch_.assign(size_t(n_threads_), std::vector<float>(size_t(thread_floats(l))));
  act_.reserve(l.max_tok, l.max_cols);
  if (simd_.panel) panels_.resize(size_t(panels_bytes(l)));
  blocks_.reserve(size_t(l.max_tok));
  partial_.resize(size_t(partial_floats(l)));
  for (RopeTable& r : rope_) {
    r.pos.reserve(size_t(l.max_tok));
    r.value.resize(size_t(l.max_tok) * 2 * size_t(r.n));
  }
  reserve_selection(l);
  if (l.encoder_head > 0) {
    const size_t rows = size_t(l.max_tok) + 16;
    grid_rope_.resize(rows * size_t(l.encoder_head)), grid_positions_ = 0;
    encoder_keys_.resize(rows * size_t(l.encoder_head));
    encoder_values_.resize(rows * size_t(encoder_cols(l.encoder_head)));
  }
  if (l.n_cluster > 0) cluster_score_ = new_rows(l.max_tok, l.n_cluster);
  if (l.n_expert == 0) return;
  const size_t pairs = size_t(l.max_tok) * size_t(l.n_expert_used);
  router_ = new_rows(l.max_tok, l.n_expert);
  hidden_ = new_rows(int(pairs), l.d_expert);
  hidden_act_.reserve(int64_t(pairs), l.d_expert);
  chosen_.resize(pairs), pair_of_.resize(pairs), route_.resize(pairs), pair_q_.resize(pairs), pair_f_.resize(pairs);
  cursor_.resize(size_t(l.n_expert) + 1);
  used_expert_.reserve(size_t(l.n_expert));
  panel_of_.resize(size_t(l.n_expert));
}

float* CpuFast::aligned_scratch() const {
  const auto p = reinterpret_cast<uintptr_t>(scratch());
  return reinterpret_cast<float*>((p + 63) / 64 * 64);
}

// ---- attention

void CpuFast::kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
  const int E = kv.head_dim;
  auto encode = [&](KvType type, const float* x, std::byte* to) {
    if (type == KvType::kF16 && simd_.to_f16)
      simd_.to_f16(x, to, E);
    else
      kv_encode(type, x, to, E);
  };
  parallel_for(s.shape.n_tok, n_threads_, [&](int64_t t) {
    const int q = s.seq[t];
    if (q < 0 || s.mask[q] == Mask::kPast) return;
    const KvRow to = kv_row(kv, s, q, s.kv_len[q] + t - s.q_begin[q]);
    for (int h = 0; h < kv.n_head; ++h) {
      const float *kh = k.row(t) + h * E, *vh = v.row(t) + h * E;
      if (kv.shared) {
        append_head(kv, kh, vh, to, h);
        continue;
      }
      encode(kv.k_type, kh, to.k + h * kv.k_head());
      encode(kv.v_type, vh, to.v + h * kv.v_head());
    }
  });
}

struct CpuFast::AttendScratch {
  float *query, *score, *part, *out, *rows;  // [n, E], [n, kPartKeys], [n, E], [n, E], [16, E]
  float *part_top, *part_sum, *top, *sum;    // [n]
  uint8_t* sees;                             // [kBlockTok, kPartKeys]
  const std::byte **k, **v;                  // [kPartKeys]
  int16_t* place;                            // [kPartKeys]
};

CpuFast::AttendScratch CpuFast::attend_scratch(int E) const {
  const int64_t n = int64_t(kBlockTok) * limits_.n_group;
  float* p = aligned_scratch();
  auto take = [&](int64_t floats) { return std::exchange(p, p + round_up(floats, 16)); };
  AttendScratch a;
  a.query = take(n * E), a.part = take(n * E), a.out = take(n * E), a.rows = take(16 * E);
  a.score = take(n * kPartKeys);
  a.part_top = take(n), a.part_sum = take(n), a.top = take(n), a.sum = take(n);
  a.sees = reinterpret_cast<uint8_t*>(take(kBlockTok * kPartKeys / 4));
  a.k = reinterpret_cast<const std::byte**>(take(2 * kPartKeys)),
  a.v = reinterpret_cast<const std::byte**>(take(2 * kPartKeys));
  a.place = reinterpret_cast<int16_t*>(take(kPartKeys / 2));
  return a;
}

// Queries must be in a.query. Ranges of places start at multiples of kSplitRows, wherever the sequence stands.
void CpuFast::attend_part(const AttendScratch& a, const Block& b, int64_t split, int head, KvLayer kv, const Step& s,
                          const AttnSpec& spec, const BlockLists* lists, float* out, float* top, float* sum) const {
  const int seq = s.seq[b.t0], base = s.q_begin[seq], len = s.kv_len[seq];
  const Mask mask = s.mask[seq];
  // The range's keys: committed rows, then the step's. In a tree those that have their place here, siblings included.
  const int64_t start = split * kSplitRows, stop = std::min(start + kSplitRows, b.end),
                committed = std::clamp<int64_t>(len, start, stop);
  const int n_old = int(committed - start);
  // Rows of blocks that are not in the tile's list are seen by nobody.
  const int tile = lists ? select_tile(base, seq, b.t0 - base) : 0;
  if (lists) {
    bool any = false;
    for (int64_t r = start; r < stop; r = (r / kSelectRows + 1) * kSelectRows) any |= lists->has(tile, head, r);
    if (!any) return void(std::fill_n(top, b.n_query(), kNone));
  }
  int n_key = 0, key_of[kPartKeys];  // of the step's keys: the index in the step
  for (; n_key < n_old; ++n_key) a.place[n_key] = int16_t(n_key);
  if (mask == Mask::kTree) {
    for (int key = 0; key < s.q_begin[seq + 1] - base; ++key)
      if (const int64_t at = s.pos[base + key]; at >= start && at < stop)
        key_of[n_key] = key, a.place[n_key++] = int16_t(at - start);
  } else {
    for (int64_t r = committed; r < stop; ++r) key_of[n_key++] = int(r - len);
  }
  for (int t = b.t0; t < b.t1; ++t) {
    uint8_t* sees = a.sees + (t - b.t0) * kPartKeys;
    const int64_t low =
        spec.window ? std::clamp<int64_t>(int64_t(s.pos[t]) - spec.window + 1, start, committed) : start;
    std::memset(sees, 0, size_t(low - start));
    std::memset(sees + (low - start), 1, size_t(committed - low));
    const uint64_t ancestor = mask == Mask::kTree ? s.ancestor[t] : 0;
    const int ahead = spec.ahead ? s.ahead[t] : 0;
    for (int i = n_old; i < n_key; ++i)
      sees[i] = sees_in_step(mask, ancestor, t - base, key_of[i], spec.causal_block, ahead) &&
                (spec.window == 0 || s.pos[t] - s.pos[base + key_of[i]] < spec.window);
  }
  if (lists)
    for (int64_t r = start; r < stop;) {
      const int64_t next = std::min(stop, (r / kSelectRows + 1) * kSelectRows);
      if (!lists->has(tile, head, r))
        for (int t = 0; t < b.t1 - b.t0; ++t) std::memset(a.sees + t * kPartKeys + (r - start), 0, size_t(next - r));
      r = next;
    }
  const int64_t k_at = head * kv.k_head(), v_at = head * kv.v_head();
  for (int i = 0; i < n_key; ++i) {
    bool any = false;
    for (int t = 0; t < b.t1 - b.t0; ++t) any |= a.sees[t * kPartKeys + i] != 0;
    const KvRow row = any ? kv_row(kv, s, seq, i < n_old ? start + i : len + key_of[i]) : KvRow{nullptr, nullptr};
    a.k[i] = any ? row.k + k_at : nullptr, a.v[i] = any ? row.v + v_at : nullptr;
  }
  const AttendPart part{.n_query = b.n_query(),
                        .head_dim = kv.head_dim,
                        .n_key = n_key,
                        .group = b.g1 - b.g0,
                        .place = mask == Mask::kTree ? a.place : nullptr,
                        .scale = spec.scale,
                        .k_type = kv.k_type,
                        .v_type = kv.v_type,
                        .k = a.k,
                        .v = a.v,
                        .sees = a.sees,
                        .query = a.query,
                        .rows = a.rows,
                        .score = a.score,
                        .out = out,
                        .top = top,
                        .sum = sum};
  simd_.attend(&part);
}

// Into how many pieces a block is best cut, of its tokens or of one token's query heads, when ranges and pieces go to
// threads in turn. Four items a thread are balanced enough.
int CpuFast::pieces_of(const Block& b, int n_head) {
  constexpr int kDecode = 2;  // to decode a range costs about as much as two queries
  const int units = b.t1 - b.t0 > 1 ? b.t1 - b.t0 : b.g1 - b.g0, each = b.n_query() / units;
  const int64_t most = std::min<int64_t>({units, n_threads_, 4 * n_threads_ / (b.n_split() * n_head)});
  int best = 1;
  int64_t best_time = 0;
  for (int n = 1; n <= most; ++n) {
    std::fill(load_.begin(), load_.end(), 0);
    for (int i = 0; i < n_head * n; ++i)
      for (int64_t at = b.first; at < b.end;) {
        const int64_t next = std::min(b.end, (at / kSplitRows + 1) * kSplitRows);
        *std::min_element(load_.begin(), load_.end()) += (next - at) * (kDecode + (units + n - 1) / n * each);
        at = next;
      }
    const int64_t time = *std::max_element(load_.begin(), load_.end());
    if (n == 1 || time < best_time) best = n, best_time = time;
  }
  return best;
}

void CpuFast::attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
  if (!spec.selected) return attend_over(o, q, kv, s, spec, {});
  attend_selected(s, spec, kv, [&](const Over& over) { attend_over(o, q, kv, s, spec, over); });
}
void CpuFast::select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
  select_with(q, kv, s, spec, simd_.dots[int(DType::kF32)]);
}

// Long: scratch and the choice of blocks are read by every thread of the two parallel parts below.
void CpuFast::attend_over(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec, const Over& over) {
  const int E = kv.head_dim, group = spec.n_q_head / kv.n_head;
  CHECK(E == spec.head_dim && spec.n_q_head % kv.n_head == 0, "{} query heads of {} over {} K/V heads of {}",
        spec.n_q_head, spec.head_dim, kv.n_head, E);
  CHECK(group <= limits_.n_group && E <= head_floats(limits_),
        "{} query heads a K/V head, heads of {}: more than planned", group, E);

  blocks_.clear();
  int64_t n_split = 0;
  for (int t = 0; t < s.shape.n_tok;) {
    const int seq = s.seq[t];
    int next = t + 1;
    while (next < s.shape.n_tok && next - t < kBlockTok && s.seq[next] == seq) ++next;
    if (seq >= 0) {
      const int n = s.mask[seq] == Mask::kPast ? 0 : s.q_begin[seq + 1] - s.q_begin[seq];
      int64_t end = s.kv_len[seq] + n;
      if (s.mask[seq] == Mask::kTree) end = *std::max_element(s.pos + s.q_begin[seq], s.pos + s.q_begin[seq + 1]) + 1;
      int64_t first = end;
      for (int i = t; i < next; ++i)
        first = std::min<int64_t>(first, spec.window ? std::max(0, s.pos[i] - spec.window + 1) : 0);
      blocks_.push_back({t, next, 0, group, first, end});
      n_split += blocks_.back().n_split();
    } else if (over.writes) {
      for (int i = t; i < next; ++i) std::fill_n(o.row(i), o.cols, 0.f);
    }
    t = next;
  }

  auto head_of = [&](const Block& b, int head, int i) { return head * group + b.g0 + i % (b.g1 - b.g0); };
  auto load_queries = [&](const AttendScratch& a, const Block& b, int head) {
    for (int i = 0; i < b.n_query(); ++i)
      kv_query(kv.k_type, kv.shared, q.row(b.t0 + i / (b.g1 - b.g0)) + head_of(b, head, i) * E,
               a.query + int64_t(i) * E, E);
  };
  // Adds one range's result to the running one, in order of ranges. A range in which a query sees nothing is no range.
  auto merge = [&](float* out, float& top, float& sum, const float* part, float part_top, float part_sum) {
    if (part_top == kNone) return;
    if (top == kNone) {
      std::copy_n(part, E, out);
      top = part_top, sum = part_sum;
      return;
    }
    const float most = std::max(top, part_top), a = std::exp(top - most), b = std::exp(part_top - most);
    for (int e = 0; e < E; ++e) out[e] = out[e] * a + part[e] * b;
    top = most, sum = sum * a + part_sum * b;
  };
  auto finish = [&](const Block& b, int head, int i, const float* out, float top, float sum) {
    if (over.lse) over.lse[(b.t0 + i / (b.g1 - b.g0)) * spec.n_q_head + head_of(b, head, i)] = top + std::log(sum);
    if (!over.writes) return;
    float* to = o.row(b.t0 + i / (b.g1 - b.g0)) + head_of(b, head, i) * E;
    const float inverse = top == kNone ? 0.f : 1.f / sum;
    float sums[1024];
    for (int e = 0; e < E; ++e) sums[e] = top == kNone ? 0.f : out[e] * inverse;
    kv_result(kv.v_type, kv.shared, sums, to, E);
  };

  // One block of few heads leaves threads idle: its ranges, and pieces of it, are computed side by side, then merged in
  // the same order.
  auto side_by_side = [&](const Block& all) {
    const int n_piece = pieces_of(all, kv.n_head), n_query = all.n_query();
    const int64_t n_result = kv.n_head * n_split * n_query;
    auto cut = [&](int i) {
      Block b = all;
      int& from = all.t1 - all.t0 > 1 ? b.t0 : b.g0;
      int& to = all.t1 - all.t0 > 1 ? b.t1 : b.g1;
      const int begin = from, n = to - from;
      from = begin + n * i / n_piece, to = begin + n * (i + 1) / n_piece;
      return b;
    };
    float *const top = partial_.data() + n_result * E, *const sum = top + n_result;
    auto result = [&](int64_t head, int64_t split, const Block& b) {  // of its first query
      return (head * n_split + split) * n_query + int64_t(b.t0 - all.t0) * group + b.g0;
    };
    parallel_for(kv.n_head * n_piece * n_split, n_threads_, [&](int64_t item) {
      const int head = int(item / n_split / n_piece);
      const int64_t split = item % n_split;
      const Block b = cut(int(item / n_split % n_piece));
      const AttendScratch a = attend_scratch(E);
      load_queries(a, b, head);
      const int64_t i = result(head, split, b);
      attend_part(a, b, all.first / kSplitRows + split, head, kv, s, spec, over.lists, partial_.data() + i * E, top + i,
                  sum + i);
    });
    parallel_for(kv.n_head * n_query, n_threads_, [&](int64_t item) {
      const int head = int(item / n_query), i = int(item % n_query);
      const AttendScratch a = attend_scratch(E);
      float most = kNone, total = 0;
      for (int64_t split = 0; split < n_split; ++split) {
        const int64_t from = result(head, split, all) + i;
        merge(a.out, most, total, partial_.data() + from * E, top[from], sum[from]);
      }
      finish(all, head, i, a.out, most, total);
    });
  };
  const int64_t n_item = int64_t(blocks_.size()) * kv.n_head;
  if (blocks_.size() == 1 && n_split > 0 && n_item < 2 * n_threads_ && n_item % n_threads_ != 0) {
    const int64_t n_fit = int64_t(partial_.size()) / (kv.n_head * n_split * group * (E + 2));  // tokens
    if (n_fit > 0) {
      const Block all = blocks_[0];
      const int n_tok = all.t1 - all.t0, n_part = int((n_tok + n_fit - 1) / n_fit);
      for (int i = 0; i < n_part; ++i) {
        Block part = all;
        part.t0 = all.t0 + n_tok * i / n_part, part.t1 = all.t0 + n_tok * (i + 1) / n_part;
        side_by_side(part);
      }
      return;
    }
  }
  parallel_for(n_item, n_threads_, [&](int64_t item) {
    const Block& b = blocks_[size_t(item / kv.n_head)];
    const int head = int(item % kv.n_head), n = b.n_query(), seq = s.seq[b.t0], base = s.q_begin[seq];
    if (over.lists && over.lists->count_of(select_tile(base, seq, b.t0 - base), head) == 0) return;
    const AttendScratch a = attend_scratch(E);
    load_queries(a, b, head);
    std::fill_n(a.top, n, kNone);
    for (int64_t i = 0; i < b.n_split(); ++i) {
      attend_part(a, b, b.first / kSplitRows + i, head, kv, s, spec, over.lists, a.part, a.part_top, a.part_sum);
      for (int j = 0; j < n; ++j)
        merge(a.out + int64_t(j) * E, a.top[j], a.sum[j], a.part + int64_t(j) * E, a.part_top[j], a.part_sum[j]);
    }
    for (int j = 0; j < n; ++j) finish(b, head, j, a.out + int64_t(j) * E, a.top[j], a.sum[j]);
  });
}

}  // namespace facet
