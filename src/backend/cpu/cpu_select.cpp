// Block-sparse prefill on the CPU (backend/select.h).
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/cpu_ref.h"
#include "base/threads.h"
#include "formats/kv_codec.h"

namespace facet {
namespace {

int64_t blocks_of(const BackendLimits& l) { return select_blocks_to(int(l.max_rows)) + 1; }
int64_t means_of(const BackendLimits& l) { return blocks_of(l) * kBlockMeans; }
int tiles_of(const BackendLimits& l) { return select_tiles(l.max_tok, l.n_select); }
int64_t tile_rows(const BackendLimits& l) { return int64_t(kSelectTokens) * l.n_group; }
int64_t choice_floats(const BackendLimits& l) { return tile_rows(l) * (l.head_dim + kBlockMeans + blocks_of(l) + 2); }

// f(tile, sequence, first and last + 1 of its tokens, counted in the sequence) for each tile of those that select.
template <class F>
void each_tile(const Step& s, F&& f) {
  for (int q = 0; q < s.shape.n_seq; ++q) {
    const int begin = s.q_begin[q], n = s.q_begin[q + 1] - begin;
    for (int j0 = 0; j0 < n; j0 += kSelectTokens) f(select_tile(begin, q, j0), q, j0, std::min(j0 + kSelectTokens, n));
  }
}
// Whether a tile chooses its blocks; else it reads everything.
bool selects(const Step& s, int seq, int j1) { return j1 <= s.n_select[seq]; }
int blocks_seen(const Step& s, int seq, int j1) { return select_blocks_to(s.kv_len[seq] + j1 - 1); }

void plain_dots(const std::byte* rows, int64_t row_bytes, int64_t n_row, int64_t n, int n_x, const float* const* x,
                float* y, int64_t stride) {
  for (int i = 0; i < n_x; ++i)
    for (int64_t o = 0; o < n_row; ++o) {
      const float* row = reinterpret_cast<const float*>(rows + o * row_bytes);
      float sum = 0;
      for (int64_t e = 0; e < n; ++e) sum += row[e] * x[i][e];
      y[i * stride + o] = sum;
    }
}

}  // namespace

int64_t CpuRef::selection_bytes(const BackendLimits& l, int n_threads) {
  if (l.n_select == 0) return 0;
  const int64_t lists =
      int64_t(tiles_of(l)) * l.n_kv_head * (blocks_of(l) + kSampleBlocks + 2) * int64_t(sizeof(int32_t));
  const int64_t floats = means_of(l) * l.n_kv_head * l.head_dim + int64_t(l.max_tok) * l.n_q_head * (1 + kSampleSets) +
                         choice_floats(l) * n_threads;
  return 2 * lists + floats * int64_t(sizeof(float));
}

void CpuRef::reserve_selection(const BackendLimits& l) {
  if (l.n_select == 0) return;
  means_.resize(size_t(means_of(l) * l.n_kv_head * l.head_dim));
  choice_.assign(size_t(n_threads_), std::vector<float>(size_t(choice_floats(l))));
  selected_.resize(size_t(l.n_select));
  sample_.reserve(size_t(tiles_of(l)) * size_t(l.n_kv_head) * kSampleBlocks);
  lse_.reserve(size_t(l.max_tok) * size_t(l.n_q_head) * (1 + kSampleSets));
  for (BlockLists* lists : {&lists_, &samples_}) lists->resize(tiles_of(l), l.n_kv_head, blocks_of(l));
}

void CpuRef::select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
  select_with(q, kv, s, spec, plain_dots);
}

// Long: what a sequence's tiles have in common is made once, before them.
void CpuRef::select_with(Rows q, KvLayer kv, const Step& s, AttnSpec spec, Dots dots) {
  const int E = kv.head_dim, group = spec.n_q_head / kv.n_head;
  CHECK(limits_.n_select > 0 && kv.window == 0, "blocks are selected of full layers, where it was planned; window {}",
        kv.window);
  lists_.resize(select_tiles(s.shape.n_tok, s.shape.n_seq), kv.n_head, blocks_of(limits_));
  sample_.assign(lists_.count.size() * kSampleBlocks, -1);
  for (int seq = 0; seq < s.shape.n_seq; ++seq) {
    const int begin = s.q_begin[seq], n = s.q_begin[seq + 1] - begin, len = s.kv_len[seq];
    const int n_mean = s.n_select[seq] > 0 ? select_means_before(len + s.n_select[seq]) : 0;
    parallel_for(int64_t(kv.n_head) * n_mean, n_threads_, [&](int64_t i) {
      const int head = int(i / n_mean), m = int(i % n_mean);
      float* mean = means_.data() + (int64_t(head) * means_of(limits_) + m) * E;
      float* row = scratch();
      std::fill_n(mean, E, 0.f);
      for (int r = m * kMeanRows; r < (m + 1) * kMeanRows; ++r) {
        kv_decode(kv.k_type, kv_row(kv, s, seq, r).k + head * kv.k_head(), row, E);
        for (int e = 0; e < E; ++e) mean[e] += row[e];
      }
      for (int e = 0; e < E; ++e) mean[e] *= 1.f / kMeanRows;
    });
    const int n_tile = (n + kSelectTokens - 1) / kSelectTokens;
    parallel_for(int64_t(n_tile) * kv.n_head, n_threads_, [&](int64_t i) {
      const int head = int(i % kv.n_head), j0 = int(i / kv.n_head) * kSelectTokens,
                j1 = std::min(j0 + kSelectTokens, n);
      const int tile = select_tile(begin, seq, j0), n_block = blocks_seen(s, seq, j1), row0 = len + j0;
      if (!selects(s, seq, j1)) return void(lists_.count_of(tile, head) = BlockLists::kAll);
      const int n_row = (j1 - j0) * group;
      float* query = choice_[size_t(thread_index())].data();
      float* score = query + int64_t(n_row) * E;      // [row][block]
      float* dot = score + int64_t(n_row) * n_block;  // [row][mean of a block]
      const float* x[kSelectTokens * 64];
      CHECK(n_row <= int(std::size(x)), "{} query heads a K/V head", group);
      for (int r = 0; r < n_row; ++r) {
        x[r] = query + int64_t(r) * E;
        kv_query(kv.k_type, kv.shared, q.row(begin + j0 + r / group) + (head * group + r % group) * E,
                 query + int64_t(r) * E, E);
      }
      const int means = select_means_before(row0);
      for (int b = 0; b < n_block; ++b) {
        const int first = b * kBlockMeans, n_here = std::clamp(means - first, 0, kBlockMeans);
        const float* mean = means_.data() + (int64_t(head) * means_of(limits_) + first) * E;
        if (n_here > 0)
          dots(reinterpret_cast<const std::byte*>(mean), E * int64_t(sizeof(float)), n_here, E, n_row, x, dot,
               kBlockMeans);
        for (int r = 0; r < n_row; ++r) {
          float best = -std::numeric_limits<float>::infinity();
          for (int m = 0; m < n_here; ++m) best = std::max(best, dot[r * kBlockMeans + m] * spec.scale);
          score[int64_t(r) * n_block + b] = best;
        }
      }
      lists_.count_of(tile, head) =
          choose_blocks(s.select, score, n_row, n_block, n_block, row0, head, lists_.index_of(tile, head),
                        sample_.data() + size_t(tile * kv.n_head + head) * kSampleBlocks);
    });
  }
}

// The blocks of one set of samples, of what the lists leave out.
void CpuRef::sample_blocks(const KvLayer& kv, const Step& s, int set) {
  samples_.resize(select_tiles(s.shape.n_tok, s.shape.n_seq), kv.n_head, lists_.cap);
  each_tile(s, [&](int tile, int, int, int) {
    for (int h = 0; h < kv.n_head; ++h) {
      if (lists_.count_of(tile, h) == BlockLists::kAll) continue;
      int32_t* to = samples_.index_of(tile, h);
      for (int i = set; i < kSampleBlocks; i += kSampleSets)
        if (const int32_t b = sample_[size_t(tile * kv.n_head + h) * kSampleBlocks + size_t(i)]; b >= 0)
          to[samples_.count_of(tile, h)++] = b;
      std::sort(to, to + samples_.count_of(tile, h));
    }
  });
}

// Counts what was read and what was left out. samples_: all rows, for tiles of which too much was; true: there are any.
bool CpuRef::settle_selected(const KvLayer& kv, const Step& s, const AttnSpec& spec) {
  const int group = spec.n_q_head / kv.n_head;
  const size_t n_lse = size_t(s.shape.n_tok) * size_t(spec.n_q_head);
  samples_.resize(select_tiles(s.shape.n_tok, s.shape.n_seq), kv.n_head, lists_.cap);
  bool any = false;
  each_tile(s, [&](int tile, int seq, int j0, int j1) {
    if (s.n_select[seq] == 0) return;
    Selected& sum = selected_[size_t(s.slot[seq])];
    for (int h = 0; h < kv.n_head; ++h) {
      const int n = lists_.count_of(tile, h), n_block = blocks_seen(s, seq, j1);
      const int n_out = n == BlockLists::kAll ? 0 : n_block - n;
      bool repair = false;
      double estimate = 0;
      for (int j = j0; j < j1; ++j)
        for (int g = 0; g < group; ++g) {
          const size_t at = size_t(s.q_begin[seq] + j) * size_t(spec.n_q_head) + size_t(h * group + g);
          float set[kSampleSets];
          for (size_t i = 0; i < kSampleSets; ++i) set[i] = s.select.check ? lse_[at + (i + 1) * n_lse] : 0;
          const LeftOut out = s.select.check ? left_out(lse_[at], set, n_out) : LeftOut{0, 0};
          estimate += double(out.estimate);
          repair |= !(out.bound <= 1 - s.select.gamma);
        }
      repair &= n_out > 0;
      if (repair) samples_.count_of(tile, h) = BlockLists::kAll, estimate = 0, any = true;
      sum.blocks += repair ? n_block : n_block - n_out, sum.seen += n_block;
      sum.rows += int64_t(j1 - j0) * group, ++sum.tiles, sum.repaired += repair;
      sum.left_out += estimate;
    }
  });
  return any;
}

}  // namespace facet
