#pragma once
#include "backend/cpu/cpu_ref.h"
#include "backend/cpu/simd.h"
#include "backend/expert_usage.h"

namespace facet {

// CpuRef's verbs for speed: quantised weights times 8-bit activations without dequantising, SIMD chosen at run time,
// attention over decoded blocks. As there, a row's bits depend on that row alone: not on the tokens of the step, on how
// a prompt was cut, or on the threads. Every instruction set gives the same bits.
class CpuFast : public CpuRef {
 public:
  explicit CpuFast(int n_threads = 1, CpuIsa isa = CpuIsa::kAuto);

  using CpuRef::upload;
  Freqs upload(std::span<const double> freqs);  // equal ones are kept once
  void reserve(const BackendLimits& limits);
  static constexpr double kRound = 1.0 / 254;  // of activations, relative to the largest of their group of 32
  static int64_t reserve_bytes(const BackendLimits& limits, int n_threads);
  const char* isa() const { return simd_.name; }

  void rms_norm(Rows y, Rows x, Vec gain, float eps);
  void matmul(Rows y, Rows x, Weight w);
  void qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv);
  void head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps);
  void head_norm(Rows x, int head_dim, float eps);
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s);
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec);
  void select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec);
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec);
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act);
  void act_mul(Rows y, Rows g, Rows u, Act act);
  void ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps);
  void moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act);
  // moe() of rows whose experts are chosen: expert [T n_used], each token's in the order of its sum; weight [T n_used] of
  // an expert's output. w.router and w.scale are not read. Expert -1: not computed here.
  void routed_experts(Rows y, Rows e, std::span<const int32_t> expert, std::span<const float> weight,
                      MoeWeights<Weight, Vec> w, int n_used, Act act);
  void count_experts(std::shared_ptr<ExpertUsage> usage) { usage_ = std::move(usage); }
  void softcap(Rows x, float cap);
  void clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w);
  void grid_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps);
  void encoder_attend(Rows o, Rows q, Rows k, Rows v, const Step& s, int head_dim, float scale);

 protected:
  void attend_over(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec, const Over& over);

 private:
  // Rows of a matrix product's input: as they are, and quantised if some weight wants that.
  struct Input {
    int n_tok = 0;
    const QuantRow* q = nullptr;
    const float* const* f = nullptr;
    const std::byte* panels = nullptr;  // q as SimdKernels::panel arranges it, if gemm will be called and wants that
  };
  struct QuantBuffer {
    std::vector<std::byte> bytes;
    std::vector<QuantRow> row;
    std::vector<const float*> f;
    void reserve(int64_t rows, int64_t cols);
    static int64_t row_bytes(int64_t cols);
  };
  // The queries of one sequence that share decoded K/V rows: some tokens', of some query heads of each K/V head.
  struct Block {
    int t0, t1, g0, g1;
    int64_t first, end;  // places of keys that one of them may see (simd.h)
    int64_t n_split() const { return end > first ? (end - 1) / kSplitRows - first / kSplitRows + 1 : 0; }
    int n_query() const { return (t1 - t0) * (g1 - g0); }
  };
  struct AttendScratch;
  struct RopeTable {
    const double* freqs;
    int n;
    std::vector<int32_t> pos;  // the table's rows are for these positions
    std::vector<float> value;  // [max_tok][2][n] cosines, then sines
  };

  Input quantise(QuantBuffer& to, Rows x, bool wanted, bool with_records);  // with_records: some product reads them
  Input prepare(Rows x, bool wanted);                                       // the input of whole steps, in panels too
  std::byte* panel(int64_t i, int64_t cols);
  bool quantised(const Weight& w) const { return w && simd_.gemv[int(w.type)]; }
  // y[t * stride + o - begin] = row o of matrix `stack` of w times x[t]. Runs on the calling thread.
  void product(float* y, int64_t stride, const Input& x, const Weight& w, int64_t stack, int64_t begin,
               int64_t end) const;
  void unscaled(float* y, int64_t stride, const Input& x, const Weight& w, int64_t stack, int64_t begin,
                int64_t end) const;  // without the factor of the matrix
  void product_all(Rows y, const Input& x, const Weight& w) const;
  // F32, F16, BF16: whose rows may be cut anywhere.
  bool takes_floats(const Weight& w) const { return simd_.widen[int(w.type)] != nullptr; }
  void dots_in_floats(float* y, int64_t stride, const Input& x, int64_t t, int n_tok, const Weight& w, int64_t begin,
                      int64_t end) const;
  void product_in_floats(Rows y, const Input& x, const Weight& w) const;
  void gate_up_in_floats(Rows y, const Input& x, const Weight& gate, const Weight& up, Act act) const;
  void gate_up_range(float* y, int64_t stride, const Input& x, const Weight& gate, int64_t gate_stack, const Weight& up,
                     int64_t up_stack, int64_t begin, int64_t end, Act act) const;
  void choose_experts(Rows logits, Vec scale, int K);
  void chosen_experts(Rows y, Rows e, const MoeWeights<Weight, Vec>& w, int n_used, Act act);  // of chosen_, route_
  int sort_pairs(const Input& x, int T, int K, int n_expert);
  void activate(float* y, const float* g, const float* u, int64_t n, Act act) const;
  float inv_rms(const float* x, int64_t n, float eps) const;
  const float* rope_table(Freqs freqs, const Step& s, int n_tok);
  float* aligned_scratch() const;
  AttendScratch attend_scratch(int head_dim) const;
  int pieces_of(const Block& b, int n_head);
  void attend_part(const AttendScratch& a, const Block& b, int64_t split, int head, KvLayer kv, const Step& s,
                   const AttnSpec& spec, const BlockLists* lists, float* out, float* top, float* sum) const;

  const SimdKernels& simd_;
  QuantBuffer act_, hidden_act_;
  std::vector<std::byte> panels_;
  std::vector<Block> blocks_;
  std::vector<int64_t> load_;  // of each thread, while a block is cut
  std::vector<float> partial_;
  std::deque<RopeTable> rope_;
  // Encoders of pictures: angles of positions from 0 on, and one head's keys and values.
  const double* grid_freqs_ = nullptr;
  int grid_positions_ = 0;
  std::vector<float> grid_rope_, encoder_keys_, encoder_values_;
  // MoE: pairs of token and expert, sorted by expert.
  std::shared_ptr<ExpertUsage> usage_;                                       // null: nobody counts
  std::vector<int32_t> chosen_, pair_of_, cursor_, used_expert_, panel_of_;  // [T K], [T K], [N + 1], [N], [N]
  std::vector<float> route_;                                                 // [T K] weights, by rank
  std::vector<QuantRow> pair_q_;
  std::vector<const float*> pair_f_;
  Rows hidden_;
};

static_assert(Backend<CpuFast>);

}  // namespace facet
