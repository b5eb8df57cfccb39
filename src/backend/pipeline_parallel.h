#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_rows.h"
#include "backend/compose.h"
#include "backend/pass.h"
#include "backend/shard_spec.h"
#include "backend/stage_of.h"
#include "base/check.h"

namespace facet {

// Copies rows from one stage to another, if the host can read both; stages on devices have a way of their own
// (cuda/p2p_copy.h).
template <class B>
struct HostMove {
  // y of stage `to` becomes x of stage `from`.
  void move(size_t /*to*/, typename B::Rows y, size_t /*from*/, typename B::Rows x) {
    for (int t = 0; t < y.rows; ++t) std::copy_n(x.row(t), x.cols, y.row(t));
  }
};

// Parallelism by layers: one backend made of several, each of which has some layers with their K/V rows. A verb runs on
// the stage that has its weight, or the layer's K/V rows, or else its input; rows are copied when a verb reads them on
// another stage. Nothing is computed in another way: every bit is that of one backend.
//
// Drafters come last: take_drafters() puts them and their K/V rows on the last stage, which has the rows that an MTP
// head reads and the hidden state that it begins with.
//
// The host notes, row by row, which stages have a row when a verb writes it.
template <class B, class Move = HostMove<B>>
class PipelineParallel {
 public:
  template <class T>
  using Each = std::array<T, kMaxShards>;

  struct Buffer {
    Each<typename B::Rows> part{};
    std::vector<uint8_t> has;  // bit i: stage i has this row
    int rows = 0, cols = 0;
  };
  using Rows = BufferRows<Buffer>;
  struct Weight {
    typename B::Weight w{};
    size_t stage = 0;
    DType type = DType::kF32;
    int64_t n_out = 0, n_in = 0, n_stack = 1;
    const char* name = "";
    explicit operator bool() const { return bool(w); }
  };
  template <class T>
  struct Copies {
    Each<T> part{};
    explicit operator bool() const { return bool(part[0]); }
  };
  using Vec = Copies<typename B::Vec>;
  using Freqs = Each<typename B::Freqs>;
  using Table = Copies<typename B::Table>;
  struct KvLayer {
    typename B::KvLayer kv{};
    size_t stage = 0;
    int head_dim = 0;
    int64_t row_bytes() const { return kv.row_bytes(); }
  };
  template <class T>
  struct Values {  // the host reads those of the stage that chose
    Each<T> part{};
    size_t* stage = nullptr;
    auto operator[](size_t i) const { return part[*stage][i]; }
  };
  using Ids = Values<typename B::Ids>;
  using Scores = Values<typename B::Scores>;

  // layers: of each stage, in order. Each stage's backend gets the same arguments.
  template <class... Args>
  explicit PipelineParallel(const std::vector<int>& layers, const Args&... args) : layers_(layers) {
    for (size_t i = 0; i < layers.size(); ++i) stage_.push_back(std::make_unique<B>(args...));
    begin();
  }
  // Each stage's backend gets an argument of its own: the GPU that it is on.
  template <class T>
  explicit PipelineParallel(const std::vector<int>& layers, const std::vector<T>& own) : layers_(layers) {
    for (const T& t : own) stage_.push_back(std::make_unique<B>(t));
    begin();
  }

  size_t n_stage() const { return stage_.size(); }
  B& stage(size_t i) { return *stage_[i]; }
  Move& way() { return move_; }
  size_t stage_of(int layer) const { return drafters_ ? last() : facet::stage_of(layers_, layer); }
  // Weights that are uploaded from now on are a drafter's.
  void take_drafters() { drafters_ = true; }

  Weight upload(const TensorView& t) {
    names_.push_back(t.name);
    const size_t at = drafters_ ? last() : facet::stage_of(layers_, t.name);
    facet::make_current(*stage_[at]);
    return {stage_[at]->upload(t), at, t.type, t.ne[1], t.ne[0], t.ne[2], names_.back().c_str()};
  }
  Vec upload(std::span<const float> v) {
    return of_each<Vec>([&](B& b) { return b.upload(v); });
  }
  Table upload(std::span<const int32_t> v) {
    return of_each<Table>([&](B& b) { return b.upload(v); });
  }
  Freqs upload(std::span<const double> v) {
    Freqs f{};
    each([&](size_t i, B& b) { f[i] = b.upload(v); });
    return f;
  }
  Rows new_rows(int rows, int cols) {
    Buffer& x = buffers_.emplace_back();
    x.rows = rows, x.cols = cols, x.has.assign(size_t(rows), 1);
    each([&](size_t i, B& b) { x.part[i] = b.new_rows(rows, cols); });
    return {&x, rows, cols};
  }
  Ids new_ids(int n) {
    return chosen<Ids>([&](B& b) { return b.new_ids(n); });
  }
  Scores new_scores(int n) {
    return chosen<Scores>([&](B& b) { return b.new_scores(n); });
  }
  void reserve(const BackendLimits& l) {
    each([&](size_t, B& b) { b.reserve(l); });
  }
  static constexpr double kRound = B::kRound;
  static constexpr double kRoundLight = [] {
    if constexpr (requires { B::kRoundLight; })
      return B::kRoundLight;
    else
      return B::kRound;
  }();
  static int64_t rows_bytes(int64_t rows, int64_t cols) { return B::rows_bytes(rows, cols); }

  std::vector<float> to_host(Rows x) {
    const size_t at = where(x);
    const auto rows = in(x, at);
    facet::make_current(*stage_[at]);
    return stage_[at]->to_host(rows);
  }
  void from_host(Rows x, std::span<const float> values) {
    run(where(x), [&](size_t i, B& b) { b.from_host(out(x, i), values); });
  }
  Status status() const {
    for (const auto& b : stage_)
      if (auto ok = memory_status(*b); !ok) return ok;
    return Ok{};
  }
  void make_current() {}  // before each stage's work
  void take_file(std::span<const TensorView> tensors) requires requires(B b) { b.take_file(tensors); }
  {
    each([&](size_t, B& b) { b.take_file(tensors); });
  }
  void begin_step(const Step& s) requires requires(B b) { b.begin_step(s); }
  {
    each([&](size_t, B& b) { b.begin_step(s); });
  }
  // Launched verb by verb: no pass is captured over several stages.
  template <class Pass>
  Rows replay(const void*, Pass&& pass) requires requires(B b) {
    b.begin_pass(B::Way::kRun);
  }
  {
    each([&](size_t, B& b) { b.begin_pass(B::Way::kRun); });
    const Rows out = pass();
    each([&](size_t, B& b) { b.end_pass(B::Way::kRun); });
    return out;
  }
  void finish() requires requires(B b) { b.finish(); }
  {
    each([&](size_t, B& b) { b.finish(); });
  }
  Selected take_selected(int slot) requires requires(B b) { b.take_selected(0); }
  {
    Selected all;
    each([&](size_t, B& b) { all.add(b.take_selected(slot)); });
    return all;
  }

  // --- Where the weight is

  void embed(Rows x, Weight table, const Step& s, float scale) {
    run(table.stage, [&](size_t i, B& b) { b.embed(out(x, i), table.w, s, scale); });
  }
  void matmul(Rows y, Rows x, Weight w) {
    run(w.stage, [&](size_t i, B& b) {
      const auto from = in(x, i);
      b.matmul(out(y, i), from, w.w);
    });
  }
  void qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
    run(wq.stage, [&](size_t i, B& b) {
      const auto from = in(h, i);
      b.qkv(out(q, i), out(k, i), out(v, i), from, wq.w, wk.w, wv.w);
    });
  }
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
    run(gate.stage, [&](size_t i, B& b) {
      const auto from = in(h, i);
      b.gate_up(out(y, i), from, gate.w, up.w, act);
    });
  }
  void moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
    run(w.router.stage, [&](size_t i, B& b) {
      const auto experts = in(e, i), router = in(r, i);
      b.moe(out(y, i), experts, router, part_of(w, i), n_used, act);
    });
  }
  void clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w) {
    run(w.head.stage, [&](size_t i, B& b) {
      const auto from = in(h, i);
      b.clustered_head(out(logits, i), from, {w.head.w, w.centroid.w, w.order.part[i], w.top_k});
    });
  }

  // --- Where the layer's K/V rows are

  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
    run(kv.stage, [&](size_t i, B& b) { b.kv_append(kv.kv, in(k, i), in(v, i), s); });
  }
  void kv_settle(KvLayer kv, const Step& s) {
    run(kv.stage, [&](size_t, B& b) { b.kv_settle(kv.kv, s); });
  }
  void select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    run(kv.stage, [&](size_t i, B& b) { b.select_blocks(in(q, i), kv.kv, s, spec); });
  }
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    run(kv.stage, [&](size_t i, B& b) {
      const auto from = in(q, i);
      b.attend(out(o, i), from, kv.kv, s, spec);
    });
  }

  // --- Where the input is

  void head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps) {
    run(where(x), [&](size_t i, B& b) { b.head_norm_rope(changed(x, i), gain.part[i], freqs[i], s, eps); });
  }
  void head_norm(Rows x, int head_dim, float eps) {
    run(where(x), [&](size_t i, B& b) { b.head_norm(changed(x, i), head_dim, eps); });
  }
  void rms_norm(Rows y, Rows x, Vec gain, float eps) {
    run(where(x), [&](size_t i, B& b) {
      const auto from = in(x, i);
      b.rms_norm(out(y, i), from, gain.part[i], eps);
    });
  }
  // The branch comes from the layer's stage: there the layer begins that reads h, or the next stage fetches it.
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec) {
    run(where(y), [&](size_t i, B& b) {
      const auto stream = changed(x, i), branch = in(y, i);
      b.residual_norm(stream, spec.next ? out(h, i) : all_of(h, i), branch, part_of(spec, i));
    });
  }
  void act_mul(Rows y, Rows g, Rows u, Act act) {
    run(where(g), [&](size_t i, B& b) {
      const auto gate = in(g, i), factor = in(u, i);
      b.act_mul(out(y, i), gate, factor, act);
    });
  }
  void ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps) {
    run(where(c),
        [&](size_t i, B& b) { b.ple_combine(changed(p, i), changed(c, i), gain.part[i], in_scale, out_scale, eps); });
  }
  void add(Rows y, Rows a, Rows c) {
    run(where(a), [&](size_t i, B& b) {
      const auto first = in(a, i), second = in(c, i);
      b.add(out(y, i), first, second);
    });
  }
  void gather(Rows y, Rows x, const Step& s) {
    run(where(x), [&](size_t i, B& b) {
      const auto from = in(x, i);
      b.gather(out(y, i), from, s);
    });
  }
  void copy_rows(Rows y, Rows x) {
    run(where(x), [&](size_t i, B& b) {
      const auto from = in(x, i);
      b.copy_rows(out(y, i), from);
    });
  }
  void softcap(Rows x, float cap) {
    run(where(x), [&](size_t i, B& b) { b.softcap(changed(x, i), cap); });
  }
  void sample(Ids ids, Rows logits, std::span<const SampleRow> rows) {
    run(*ids.stage = where(logits), [&](size_t i, B& b) { b.sample(ids.part[i], in(logits, i), rows); });
  }
  void top_k(Ids ids, Scores log_probs, Rows logits, int k) {
    run(*ids.stage = *log_probs.stage = where(logits),
        [&](size_t i, B& b) { b.top_k(ids.part[i], log_probs.part[i], in(logits, i), k); });
  }

  // --- Merged verbs. next_tokens is none of them: the first stage would need what the last one chose.

  void norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs freqs, bool norm_v,
                        const Step& s, float eps) requires(Has<B>::norm_rope_append) {
    run(kv.stage, [&](size_t i, B& b) {
      b.norm_rope_append(kv.kv, changed(q, i), changed(k, i), changed(v, i), q_gain.part[i], k_gain.part[i], freqs[i],
                         norm_v, s, eps);
    });
  }
  void embed_concat(Rows y, Weight table, const Step& s, float scale, Rows x) requires(Has<B>::embed_concat) {
    run(table.stage, [&](size_t i, B& b) {
      const auto beside = in(x, i);
      b.embed_concat(out(y, i), table.w, s, scale, beside);
    });
  }
  void matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) requires(Has<B>::matmul_beside) {
    if (w.stage != u.stage) {
      matmul(y, x, w);
      return matmul(z, x, u);
    }
    run(w.stage, [&](size_t i, B& b) {
      const auto from = in(x, i);
      b.matmul_beside(out(y, i), w.w, out(z, i), u.w, from);
    });
  }
  void residual_norm_moe(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec, Rows r, Rows e, Vec router_gain,
                         Vec expert_gain) requires(Has<B>::residual_norm_moe) {
    run(where(y), [&](size_t i, B& b) {
      const auto stream = changed(x, i), branch = in(y, i);
      b.residual_norm_moe(stream, out(h, i), branch, part_of(spec, i), out(r, i), out(e, i), router_gain.part[i],
                          expert_gain.part[i]);
    });
  }
  void ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                      MoeWeights<Weight, Vec> w, int n_used, Act act) requires(Has<B>::ffn_beside_moe) {
    run(gate.stage, [&](size_t i, B& b) {
      const auto from = in(h, i), experts = in(e, i), router = in(r, i);
      b.ffn_beside_moe(out(y, i), out(g, i), from, gate.w, up.w, down.w, out(o, i), experts, router, part_of(w, i),
                       n_used, act);
    });
  }
  void join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain,
                          ResidualSpec<Vec> spec) requires(Has<B>::join_residual_norm) {
    run(where(y), [&](size_t i, B& b) {
      const auto stream = changed(x, i), branch = changed(y, i), other = changed(o, i);
      b.join_residual_norm(stream, spec.next ? out(h, i) : all_of(h, i), branch, other, y_gain.part[i], o_gain.part[i],
                           part_of(spec, i));
    });
  }

 private:
  void begin() {
    CHECK(!layers_.empty() && layers_.size() <= kMaxShards && stage_.size() == layers_.size(),
          "{} stages on {} backends", layers_.size(), stage_.size());
    static_assert(Backend<PipelineParallel>);
    if constexpr (requires { move_.connect(stage_); }) move_.connect(stage_);
  }
  size_t last() const { return stage_.size() - 1; }
  template <class F>
  void each(F&& f) {
    for (size_t i = 0; i < stage_.size(); ++i) run(i, f);
  }
  template <class F>
  void run(size_t i, F&& f) {
    facet::make_current(*stage_[i]);
    f(i, *stage_[i]);
  }
  template <class T, class F>
  T of_each(F&& f) {
    T t{};
    each([&](size_t i, B& b) { t.part[i] = f(b); });
    return t;
  }
  template <class T, class F>
  T chosen(F&& f) {
    T t = of_each<T>(f);
    t.stage = &chooser_.emplace_back(0);
    return t;
  }

  // The first stage that has all of x, or has its first row.
  size_t where(Rows x) const {
    unsigned all = ~0u;
    for (int t = 0; t < x.rows; ++t) all &= at(x, t);
    return size_t(std::countr_zero(all ? all : x.rows ? unsigned(at(x, 0)) : 1u));
  }
  static uint8_t& at(Rows x, int t) { return x.buffer->has[size_t(x.row0 + t)]; }
  typename B::Rows all_of(Rows x, size_t i) const {
    return x.buffer->part[i].rows_at(x.row0, x.rows).cols_at(x.col0, x.cols);
  }
  // Rows to be read by stage i: those that it lacks come there, with all their columns.
  typename B::Rows in(Rows x, size_t i) {
    for (int t = 0; t < x.rows;) {
      const uint8_t has = at(x, t);
      int end = t + 1;
      while (end < x.rows && at(x, end) == has) ++end;
      if (!(has >> i & 1)) {
        const size_t from = size_t(std::countr_zero(has));
        move_.move(i, x.buffer->part[i].rows_at(x.row0 + t, end - t), from,
                   x.buffer->part[from].rows_at(x.row0 + t, end - t));
        for (int j = t; j < end; ++j) at(x, j) = uint8_t(has | 1u << i);
      }
      t = end;
    }
    return all_of(x, i);
  }
  // Rows that stage i writes, and that it reads and writes: no other stage has them then.
  typename B::Rows out(Rows x, size_t i) {
    if (x && x.piece) in(x, i);  // the columns beside it
    if (!x) return {};
    for (int t = 0; t < x.rows; ++t) at(x, t) = uint8_t(1u << i);
    return all_of(x, i);
  }
  typename B::Rows changed(Rows x, size_t i) {
    in(x, i);
    return out(x, i);
  }

  static MoeWeights<typename B::Weight, typename B::Vec> part_of(const MoeWeights<Weight, Vec>& w, size_t i) {
    return {w.router.w, w.gate_up.w, w.gate.w, w.up.w, w.down.w, w.scale.part[i]};
  }
  static ResidualSpec<typename B::Vec> part_of(const ResidualSpec<Vec>& p, size_t i) {
    return {p.post.part[i], p.next.part[i], p.out_scale, p.eps};
  }

  std::vector<int> layers_;
  std::vector<std::unique_ptr<B>> stage_;
  Move move_;
  std::deque<Buffer> buffers_;
  std::deque<std::string> names_;
  std::deque<size_t> chooser_;  // of each list of tokens or scores: the stage that chose them last
  bool drafters_ = false;       // what is uploaded is a drafter's
};

}  // namespace facet
