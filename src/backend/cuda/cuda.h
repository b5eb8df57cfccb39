#pragma once
#include <cuda_runtime.h>

#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/activations.h"
#include "backend/cuda/cpu_ffn.h"
#include "backend/cuda/device.h"
#include "backend/cuda/gemm.h"
#include "backend/cuda/graphs.h"
#include "backend/cuda/host_table.h"
#include "backend/cuda/kernels/attention/select.h"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/cuda/loader.h"
#include "backend/cuda/sampler.h"
#include "backend/cuda/step_arrays.h"
#include "backend/cuda/weight_stream.h"
#include "base/result.h"

namespace facet {

// One GPU. Activations are f32; what a matrix product reads is rounded to bf16 once, by the verb that made
// it where that is free, and for quantised weights and few rows then to 8 bits. Weights keep the file's bytes,
// reordered (kernels/matmul/layout.h).
//
// Rows of the step's leading short sequences (StepShape::n_small) take kernels in which a row's bits depend on it
// alone; rows of longer chunks may take others.
class Cuda {
 public:
  using Rows = cuda::Rows;
  struct Vec {
    const float* p = nullptr;
    int n = 0;
    explicit operator bool() const { return p != nullptr; }
  };
  struct Freqs {
    const double* p = nullptr;
    int n = 0;
  };
  struct Weight {
    cuda::TiledMatrix m;
    const float* f32 = nullptr;  // a router: instead of tiles
    DType type = DType::kF32;    // in the file
    int64_t n_out = 0, n_in = 0, n_stack = 1;
    const char* name = "";
    // In RAM: the matrix there, instead of tiles, and its number in the stream that brings it.
    const cuda::CpuFfn::Weight* in_ram = nullptr;
    int streamed = 0, layer = 0;
    const int16_t* slots = nullptr;  // of a stack that has tiles of some of its matrices (MoeExperts::slots)
    bool is_host_table = false;      // its rows come with each step
    explicit operator bool() const { return n_out > 0; }
  };
  using KvLayer = facet::KvLayer;
  struct Table {
    const int32_t* p = nullptr;
    int n = 0;
    explicit operator bool() const { return p != nullptr; }
  };
  using Ids = cuda::Results<int32_t>;
  using Scores = cuda::Results<float>;

  // Fails when there is no such GPU, or it is older than compute capability 8.0.
  static Status usable(int gpu);
  static Result<int64_t> free_memory(int gpu);

  explicit Cuda(int gpu = 0) : Cuda(gpu, -1) {}
  Cuda(int gpu, int64_t fail_at) : Cuda(gpu, WeightsInRam{}, fail_at) {}
  // fail_at: the allocation of this number fails, for tests.
  Cuda(int gpu, const WeightsInRam& in_ram, int64_t fail_at = -1);
  ~Cuda();
  Cuda(const Cuda&) = delete;
  Cuda& operator=(const Cuda&) = delete;

  static constexpr bool kCopiesWeights = true;
  Weight upload(const TensorView& t);
  // How often experts are chosen is added to usage when this ends. After all weights.
  void count_experts(std::shared_ptr<ExpertUsage> usage);
  void take_drafters() { in_ram_ = {}; }  // their weights are on the GPU, whatever their names
  Vec upload(std::span<const float> gain);
  Freqs upload(std::span<const double> freqs);
  Table upload(std::span<const int32_t> values);
  Rows new_rows(int rows, int cols) { return acts_.new_rows(rows, cols); }
  Ids new_ids(int n) { return sampler_.new_results<int32_t>(n); }
  Scores new_scores(int n) { return sampler_.new_results<float>(n); }
  void reserve(const BackendLimits& limits);  // again for a drafter: the larger of both holds
  std::vector<float> to_host(Rows x);
  void from_host(Rows x, std::span<const float> values);
  // Rounding error of activations that enter a matrix product, relative to the largest of their 64; and of everything
  // else: bf16, and f16 in attention.
  static constexpr double kRound = 1.0 / 254;
  static constexpr double kRoundLight = 0x1p-9;
  // What the kernels cannot multiply, as an error of the file: checked before anything is uploaded. Rows of a matrix
  // may have most_cols(its products do not read a byte a value) columns.
  static Status accepts(const std::string& file, std::span<const TensorView> tensors, int n_expert_used,
                        int64_t most_byte_cols, int64_t most_wide_cols);
  static int64_t most_cols(const cuda::DeviceInfo&, bool is_wide);
  // Which products with few rows read activations in two bytes: all where most weights are so fine that one byte, not
  // they, would be most of the error (Q6_K, Q8_0, Q5_0, Q4_0), else those of attention in models with embeddings for
  // each layer, whose narrow rows lose more. take_file() says so before a model's tensors are uploaded; drafters follow
  // it.
  enum class Fine : uint8_t { kNone, kAttention, kAll };
  static Fine fineness(std::span<const TensorView> tensors);
  void take_file(std::span<const TensorView> tensors) { fine_ = fineness(tensors); }
  static bool keeps(const TensorView& t);            // as it is; of others, formats/widen.h
  static DType kept(const TensorView& t);            // its type there
  static int64_t weight_bytes(const TensorView& t);  // on the device
  static int64_t host_table_bytes(const WeightsInRam&, std::span<const TensorView> tensors, int max_tok);
  // Of the largest layer's weights in RAM, on the device; and what bringing such layers there takes in all.
  static int64_t streamed_layer_bytes(const WeightsInRam&, std::span<const TensorView> tensors);
  static int64_t stream_bytes(int64_t layer, int max_tok) {
    return layer > 0 && max_tok >= kStreamBlock ? cuda::WeightStream::bytes(layer) : 0;
  }
  static int64_t partial_bytes(const cuda::DeviceInfo&, std::span<const TensorView> tensors);  // of partial sums
  // Elements of the largest of these matrices that products of many rows take as a panel of bf16.
  static int64_t most_unpacked(const cuda::DeviceInfo&, std::span<const TensorView> tensors);
  static int64_t rows_bytes(int64_t rows, int64_t cols) { return rows * cols * 6; }
  static int64_t reserve_bytes(const cuda::DeviceInfo&, const BackendLimits& limits);

  // Called before work on a thread, or after work on another GPU there. The constructor makes it current.
  void make_current() { device_.make_current(); }
  cuda::Device& device() { return device_; }
  // The first allocation that failed: nothing is allocated after it, and nothing may run.
  Status status() const { return device_.status(); }

  // Copies the step's arrays to the device; every verb until the next call works on this step.
  void begin_step(const Step& s);
  // The newest step again, or its first rows, with the tokens that next_tokens has chosen.
  void next_step(const Step& s);
  // What pass() launches, as a graph once it is asked for again soon with this key, unless too many others
  // came in between (cuda::Graphs). Long steps are always launched one by one. pass() must launch the same things
  // whenever `key` and the step's shape are equal.
  template <class Pass>
  Rows replay(const void* key, Pass&& pass) {
    acts_.forget_rounded();
    resolve_pending();  // a graph's kernels do not do work that was pending before it
    const cuda::Graphs::Replayed r = graphs_.replay(key, step_.shape, [&] {
      in_pass_ = true;
      const Rows out = pass();
      resolve_pending();
      in_pass_ = false;
      return out;
    });
    if (r.as_graph) acts_.forget_rounded();
    return r.out;
  }
  // replay() in pieces, for a pass over several GPUs.
  using Way = cuda::Graphs::Way;
  Way look(const void* key) {
    acts_.forget_rounded();
    resolve_pending();
    return graphs_.look(key, step_.shape);
  }
  void begin_pass(Way way) {
    if (way == Way::kCapture) graphs_.begin();
    in_pass_ = true;
  }
  void end_pass(Way way) {
    resolve_pending();
    in_pass_ = false;
    if (way == Way::kCapture) graphs_.end();
  }
  void instantiate_pass() { graphs_.instantiate(); }  // when all GPUs have ended a pass that they captured
  void launch_pass() {
    graphs_.launch();
    acts_.forget_rounded();
  }
  const StepShape& shape() const { return step_.shape; }  // of the newest step, as graphs know it

  // For a link between GPUs (cuda_link.h): rows to be read, rows that the next launch will change, and what is
  // pending of exactly y, which the caller adds up.
  cuda::Mat read(const Rows& x) { return acts_.mat(x, false); }
  cuda::Mat changed(const Rows& x) { return acts_.written(x, false); }
  cuda::Partials take_sums(const Rows& y) { return acts_.take_sums(y); }
  cuda::MoeSlots take_experts(const Rows& y) { return acts_.take_experts(y); }
  void embed_own(Rows x, Weight table, float scale, int first);  // the table's first row is that token's; else zeros

  void finish() { sampler_.finish(); }  // waits for everything
  struct Counters {
    int64_t graph_launches = 0, captures = 0, allocations = 0;
  };
  Counters counters() const {
    const cuda::Graphs::Counters& g = graphs_.counters();
    return {g.launches, g.captures, device_.allocations()};
  }
  size_t graphs() const { return graphs_.size(); }
  void use_graphs(bool on) { graphs_.use(on); }
  // Times of a pass that is not replayed (backend/traced.h).
  void mark();
  void hold();
  std::vector<double> laps();

  void embed(Rows x, Weight table, const Step& s, float scale);
  void embed_soft(Rows x, Rows soft, const Step& s);
  void embed_concat(Rows y, Weight table, const Step& s, float scale, Rows x);
  void rms_norm(Rows y, Rows x, Vec gain, float eps);
  void matmul(Rows y, Rows x, Weight w);
  // The blocks of z run on the multiprocessors that are done with y.
  void matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x);
  void qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv);
  void head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps);
  void head_norm(Rows x, int head_dim, float eps);
  void head_rope(Rows x, Freqs freqs, const Step& s);
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s);
  void norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs freqs, bool norm_v,
                        const Step& s, float eps);
  void kv_settle(KvLayer kv, const Step& s);
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec);
  void select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec);
  // What select_blocks chose for the sequence in a cache slot since the last call. Waits for everything.
  Selected take_selected(int slot);
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec);
  void residual_norm_moe(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec, Rows r, Rows e, Vec router_gain,
                         Vec expert_gain);
  void join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain, ResidualSpec<Vec> spec);
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act);
  void ffn(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Act act);
  void act_mul(Rows y, Rows g, Rows u, Act act);
  void ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps);
  void moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act);
  void ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                      MoeWeights<Weight, Vec> w, int n_used, Act act);
  void block_conv(Rows y, Rows x, Rows delta, Vec base, const Step& s);
  void add(Rows y, Rows a, Rows b);
  void gather(Rows y, Rows x, const Step& s);
  void copy_rows(Rows y, Rows x);
  void softcap(Rows x, float cap);
  void sample(Ids ids, Rows logits, std::span<const SampleRow> rows);
  void top_k(Ids ids, Scores log_probs, Rows logits, int k);
  // top_k, and the best of row t becomes token t of the step (0 if there is none), without the host. In a pass that is
  // replayed the host is not told when ids and log_probs are there.
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k);
  void clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w);
  // Of encoders (cuda_encoder.cpp).
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

 private:
  static constexpr int kSkinnyMost = 64;  // rows of a long chunk that still take the kernels for few rows
  // Rows up to which experts take moe_small_batch. Without gemm: unpacking all of a layer's experts costs as much as so
  // many.
  static int moe_small_most(const cuda::DeviceInfo& d) { return d.gemm ? cuda::kMoeSmallBatch : 384; }

  template <class T>
  T* copied(std::span<const T> values);
  void take_step(const Step& s, bool keep_tokens);
  // Does all work that verbs have deferred.
  void resolve_pending() { sampler_.resolve_pending_topk(), acts_.resolve_all(); }
  template <class T>
  bool grow(T*& p, size_t n) {
    return cuda::grow(device_, p, n);
  }
  void reserve_experts(const BackendLimits& l, unsigned* number);
  // Rows of the step to which weights in RAM are brought: the last ones.
  int streamed_rows(int rows) const { return rows == step_.shape.n_tok ? step_.shape.n_blocks : 0; }
  // A weight with tiles: of one in RAM those that the stream has brought.
  Weight on_gpu(Weight w) const {
    if (w.in_ram) w.m = weight_stream_->matrix(w.streamed);
    return w;
  }
  // resident: of a layer in both places, what is always on the GPU.
  cuda::MoeExperts experts_of(const MoeWeights<Weight, Vec>& w, int n_used, Act act, bool resident = false) const;
  // Rows from `first` on. down: of the layer's experts.
  void moe_on_gpu(Rows y, Rows e, Rows r, const cuda::MoeExperts& m, const Weight& down, int first);
  // Of rows [row, row + n), n <= CpuFfn::kRows. end() of cpu_ffn_ is the caller's.
  void begin_on_cpu(Rows e, Rows r, const MoeWeights<Weight, Vec>& w, int n_used, Act act, int row, int n);
  // Of the same rows, those of their experts that are on the GPU, for end() of cpu_ffn_.
  cuda::MoePart resident_experts(Rows e, const MoeWeights<Weight, Vec>& w, int n_used, Act act, int row, int n);
  // Counts what a routing chose, if anybody wants to know.
  void count_chosen(const Weight& down, const int32_t* expert, int n_slot);
  // The tensor's matrices that are on the GPU of one that lies in both places; false: there was no memory.
  bool upload_resident(Weight& w, const TensorView& t, DType kept, std::span<const int16_t> slots);
  static bool unpacks(const cuda::DeviceInfo& d, cuda::Tile tile) {
    return (d.gemm || d.cublaslt) && (cuda::is_float(tile) || !d.int8_prompts);
  }
  // Products of many rows straight from the codes.
  bool takes_codes(const Weight& w) const { return images_ && !cuda::is_float(w.m.tile); }
  // How many of the first rows are of short sequences.
  int small_rows(int rows) const { return rows == step_.shape.n_tok ? step_.shape.n_small : rows; }
  // y[i] = w[i] x; with glu y[0] = act(w[0] x) * (w[1] x); with twin, y[1] also goes to *twin.
  void products(std::span<const Rows> y, const Rows& x, std::span<const Weight> w, bool glu, Act act, const Rows* twin,
                cuda::SkinnyWork work = {}, bool rounded = false);
  // gate_up() of which nothing but the rounded copy is read.
  void hidden(Rows y, Rows h, Weight gate, Weight up, Act act);
  void long_products(std::span<const Rows> y, const __nv_bfloat16* x, int64_t x_stride, int first, int n,
                     std::span<const Weight> w, bool glu, Act act, const Rows* twin, bool rounded);

  cuda::Device device_;  // ends last
  const cudaStream_t stream_ = device_.stream();
  Step step_;  // the newest, device pointers
  cuda::Activations acts_{device_, step_};
  cuda::StepArrays arrays_{device_};
  WeightsInRam in_ram_;                    // of what is uploaded next
  std::unique_ptr<cuda::CpuFfn> cpu_ffn_;  // null: no weights are in RAM
  std::unique_ptr<cuda::WeightStream> weight_stream_;
  std::unique_ptr<cuda::HostTable> host_table_;  // null: no table is in RAM
  std::map<int, const int16_t*> slots_;          // by layer
  std::shared_ptr<ExpertUsage> usage_;           // null: nobody counts
  struct ExpertTimes {
    int n = 0;
    unsigned* times = nullptr;  // [n], where they are counted
  };
  std::map<int, ExpertTimes> expert_times_;  // by layer, of those with experts
  cuda::Loader loader_{device_};
  cuda::Gemm gemm_{device_};
  cuda::Graphs graphs_{stream_};
  cuda::Sampler sampler_{device_, arrays_, graphs_};
  Fine fine_ = Fine::kNone;
  bool in_pass_ = false;  // what is launched may be launched again by replay
  std::deque<std::string> names_;
  BackendLimits limits_;
  int64_t most_partials_ = 0, most_int8_ = 0, most_unpacked_ = 0;  // over uploaded matrices
  float* partial_ = nullptr;
  unsigned* counter_ = nullptr;
  uint8_t* images_ = nullptr;  // rounded activations of long prompts
  int64_t images_bytes_ = 0;
  cuda::AttendScratch attend_;
  cuda::SelectBuffers select_;
  bool selected_ = false;  // the last select_blocks left lists there
  cuda::MoeBuffers moe_;
  cuda::MoeLargeBatch moe_large_batch_;
  uint8_t* moe_memory_ = nullptr;      // all of moe_large_batch_
  Rows cluster_score_;                 // [T, N]
  uint8_t* cluster_chosen_ = nullptr;  // [T, N]
  std::vector<cudaEvent_t> marks_;
  size_t n_mark_ = 0;  // of those, since laps()
};

}  // namespace facet
