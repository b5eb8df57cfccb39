#pragma once
#include <algorithm>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/sampler.h"
#include "base/check.h"

namespace facet {

// The meaning of every verb: loops, f32, no SIMD, exact block decoding. A row's bits depend on that row alone,
// for every number of tokens in the step and every number of threads.
class CpuRef {
 public:
  struct Rows {
    float* p = nullptr;
    int rows = 0, cols = 0;
    int64_t stride = 0;
    float* row(int64_t t) const { return p + t * stride; }
    Rows view(int r, int c) const {
      CHECK(r <= rows && c <= stride, "view [{}, {}] of rows [{}, {}]", r, c, rows, stride);
      return {p, r, c, stride};
    }
    Rows cols_at(int begin, int n) const {
      CHECK(begin >= 0 && begin + n <= cols, "columns {}..{} of {}", begin, begin + n, cols);
      return {p + begin, rows, n, stride};
    }
    Rows rows_at(int begin, int n) const {
      CHECK(begin >= 0 && begin + n <= rows, "rows {}..{} of {}", begin, begin + n, rows);
      return {p + begin * stride, n, cols, stride};
    }
    explicit operator bool() const { return p != nullptr; }
  };
  struct Vec {
    const float* p = nullptr;
    int n = 0;
    explicit operator bool() const { return p != nullptr; }
  };
  struct Freqs {
    const double* p = nullptr;  // double: an f32 angle is off by 0.06 rad at a million tokens
    int n = 0;
  };
  struct Weight {
    const std::byte* p = nullptr;
    DType type = DType::kF32;
    int64_t n_out = 0, n_in = 0, n_stack = 1;
    const char* name = "";
    const float* scale = nullptr;  // [n_stack / per_scale] factors of products, or none
    int per_scale = 1;             // matrices that share one
    explicit operator bool() const { return p != nullptr; }
    float factor(int64_t stack) const { return scale ? scale[stack / per_scale] : 1.f; }
    // The upper or lower half of each matrix as a matrix: 2 stack, 2 stack + 1.
    Weight halves() const {
      Weight h = *this;
      h.n_out /= 2, h.n_stack *= 2, h.per_scale *= 2;
      return h;
    }
    const std::byte* row(int64_t stack, int64_t o) const {
      return p + (stack * n_out + o) * int64_t(row_bytes(type, n_in));
    }
  };
  using KvLayer = facet::KvLayer;
  using Ids = std::span<int32_t>;
  using Scores = std::span<float>;
  struct Table {
    const int32_t* p = nullptr;
    int n = 0;
    explicit operator bool() const { return p != nullptr; }
  };

  explicit CpuRef(int n_threads = 1) : n_threads_(n_threads), sampler_(size_t(n_threads)) {}
  CpuRef(const CpuRef&) = delete;
  CpuRef& operator=(const CpuRef&) = delete;

  // Open time. Weights stay where they are mapped; gains and activations are owned by the backend.
  Weight upload(const TensorView& t);
  Vec upload(std::span<const float> gain);
  Freqs upload(std::span<const double> freqs);
  Table upload(std::span<const int32_t> values);
  Rows new_rows(int rows, int cols);
  Ids new_ids(int n);
  Scores new_scores(int n);
  void reserve(const BackendLimits& limits);  // again for a drafter: the larger of both holds
  std::vector<float> to_host(Rows x) const;   // [rows, cols], for comparison
  void from_host(Rows x, std::span<const float> values);
  static constexpr double kRound = 0x1p-24;  // of activations and products
  static int64_t rows_bytes(int64_t rows, int64_t cols) { return rows * cols * int64_t(sizeof(float)); }
  static int64_t reserve_bytes(const BackendLimits& limits, int n_threads);

  void embed(Rows x, Weight table, const Step& s, float scale);
  void embed_soft(Rows x, Rows soft, const Step& s);
  void rms_norm(Rows y, Rows x, Vec gain, float eps);
  void matmul(Rows y, Rows x, Weight w);
  void qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv);
  void head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps);
  void head_norm(Rows x, int head_dim, float eps);
  void head_rope(Rows x, Freqs freqs, const Step& s);
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s);
  void kv_settle(KvLayer kv, const Step& s);
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec);
  void select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec);
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec);
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act);
  void act_mul(Rows y, Rows g, Rows u, Act act);
  void ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps);
  void moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act);
  void block_conv(Rows y, Rows x, Rows delta, Vec base, const Step& s);
  void add(Rows y, Rows a, Rows b);
  void gather(Rows y, Rows x, const Step& s);
  void copy_rows(Rows y, Rows x);
  void softcap(Rows x, float cap);
  void sample(Ids ids, Rows logits, std::span<const SampleRow> rows);
  void top_k(Ids ids, Scores log_probs, Rows logits, int k);
  void clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w);
  // Of encoders (cpu_ref_encoder.cpp).
  void add_positions(Rows x, Weight table, const Step& s);
  void grid_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps);
  void encoder_attend(Rows o, Rows q, Rows k, Rows v, const Step& s, int head_dim, float scale);
  void clamp(Rows y, Rows x, float low, float high);
  void pool(Rows y, Rows x, const Step& s, int size, float scale);
  void shift_scale(Rows x, Vec shift, Vec scale);
  void layer_norm(Rows y, Rows x, Vec gain, Vec bias, float eps);
  void silu(Rows x);
  void glu(Rows y, Rows u);
  void conv2d(Rows y, Rows x, Vec kernel, int c_in);
  void causal_conv(Rows y, Rows x, Vec kernel, const Step& s);
  void relative_attend(Rows o, Rows q, Rows k, Rows v, Rows rel, const Step& s, RelativeWindow w);

  // Of the sequence in a cache slot, since it was last asked.
  Selected take_selected(int slot) { return std::exchange(selected_[size_t(slot)], {}); }

  // Lists of blocks for the tiles of a step (select.h), [tile][K/V head]: ascending indices, `cap` apart.
  struct BlockLists {
    static constexpr int kAll = -1;  // all rows; 0: nothing, and nothing is written
    std::vector<int32_t> count, index;
    int n_head = 0;
    int64_t cap = 0;
    int& count_of(int tile, int head) { return count[size_t(tile * n_head + head)]; }
    int count_of(int tile, int head) const { return count[size_t(tile * n_head + head)]; }
    int32_t* index_of(int tile, int head) { return index.data() + int64_t(tile * n_head + head) * cap; }
    const int32_t* index_of(int tile, int head) const { return index.data() + int64_t(tile * n_head + head) * cap; }
    bool has(int tile, int head, int64_t row) const {
      const int n = count_of(tile, head);
      const int32_t* at = index_of(tile, head);
      return n == kAll || std::binary_search(at, at + n, int32_t(row / kSelectRows));
    }
    void resize(int tiles, int heads, int64_t blocks) {
      n_head = heads, cap = blocks;
      count.assign(size_t(tiles) * size_t(heads), 0);
      index.resize(count.size() * size_t(blocks));
    }
  };
  const BlockLists& blocks() const { return lists_; }

 protected:
  // Attention over lists of blocks, null: over everything. lse [T, Hq] of scores, natural; null: not wanted.
  struct Over {
    const BlockLists* lists = nullptr;
    float* lse = nullptr;
    bool writes = true;  // false: lse alone
  };
  void attend_over(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec, const Over& over);
  // attend with lists: over them, then over samples of what they leave out, then again where that was too much.
  template <class Attend>
  void attend_selected(const Step& s, const AttnSpec& spec, const KvLayer& kv, Attend&& attend) {
    const size_t n = size_t(s.shape.n_tok) * size_t(spec.n_q_head);
    lse_.resize(n * (1 + kSampleSets));
    attend(Over{.lists = &lists_, .lse = lse_.data()});
    for (int set = 0; set < kSampleSets; ++set) {
      if (s.select.check) sample_blocks(kv, s, set);
      float* lse = lse_.data() + n * size_t(set + 1);
      if (s.select.check) attend(Over{.lists = &samples_, .lse = lse, .writes = false});
    }
    if (settle_selected(kv, s, spec)) attend(Over{.lists = &samples_});
  }
  void sample_blocks(const KvLayer& kv, const Step& s, int set);
  bool settle_selected(const KvLayer& kv, const Step& s, const AttnSpec& spec);
  // y[i * stride + o] = rows[o] . x[i]: scores of means.
  using Dots = void (*)(const std::byte* rows, int64_t row_bytes, int64_t n_row, int64_t n, int n_x,
                        const float* const* x, float* y, int64_t stride);
  void select_with(Rows q, KvLayer kv, const Step& s, AttnSpec spec, Dots dots);

  void reserve_selection(const BackendLimits& l);
  static int64_t selection_bytes(const BackendLimits& l, int n_threads);
  float* scratch() const;  // of the calling thread
  int threads_for_rows(Rows logits) const;
  void expert_matmul(Rows y, Rows x, Weight w, int expert);
  static void append_head(const KvLayer& kv, const float* k, const float* v, KvRow to, int h);
  // The clusters with the w.top_k best of scores [N], lowest index on ties; f(cluster) for each.
  template <class F>
  static void each_chosen_cluster(const float* scores, const ClusteredHead<Weight, Table>& w, F&& f) {
    const float* end = scores + w.centroid.n_out;
    int chosen[kMaxClusters];
    for (int k = 0; k < w.top_k; ++k) {
      const float* best = end;
      for (const float* s = scores; s < end; ++s)
        if ((best == end || *s > *best) && std::find(chosen, chosen + k, int(s - scores)) == chosen + k) best = s;
      chosen[k] = int(best - scores);
      f(chosen[k]);
    }
  }

  int n_threads_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<double>> doubles_;
  std::deque<std::vector<int32_t>> ids_, tables_;
  std::deque<std::string> names_;
  BackendLimits limits_;
  std::vector<std::vector<float>> scratch_;  // per thread
  std::vector<SamplerScratch> sampler_;      // [n_threads]
  Rows router_, expert_hidden_, expert_up_, expert_out_;
  Rows cluster_score_;  // [T, N]
  // Block-sparse prefill.
  BlockLists lists_, samples_;
  std::vector<int32_t> sample_;             // [tile][head][kSampleBlocks] of what lists_ leave out
  std::vector<float> means_;                // [head][mean][E]
  std::vector<float> lse_;                  // [1 + sets][T][Hq]
  std::vector<std::vector<float>> choice_;  // per thread: queries and scores of a tile
  std::vector<Selected> selected_;          // by cache slot
};

static_assert(Backend<CpuRef> && EncoderBackend<CpuRef>);

}  // namespace facet
