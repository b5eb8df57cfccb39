// Long: every verb of the table, and what each does with buffers that are divided.
#pragma once
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/buffer_rows.h"
#include "backend/compose.h"
#include "backend/pass.h"
#include "backend/shard_link.h"
#include "backend/shard_spec.h"
#include "base/check.h"
#include "base/recent.h"

namespace facet {

// Tensor parallelism: one backend made of several, each of which holds a part of the weights and of the K/V rows.
//
// A weight is whole in every shard, or divided by its outputs or by its inputs (ShardSpec). A product with a weight
// that is divided by outputs leaves each shard the columns that it computed; a product with one that is divided by
// inputs reads these and leaves partial sums, which an all-reduce adds up at once. So there are two all-reduces per
// layer, after the output of attention and after the feed-forward layer, and one more after a layer's experts. Every
// shard computes everything else on whole rows, with the same bits.
//
// The host notes which columns a buffer holds in each shard when a verb writes it.
template <class B, class Link = HostLink<B>>
class TensorParallel {
 public:
  template <class T>
  using Each = std::array<T, kMaxShards>;

  struct Buffer {
    Each<typename B::Rows> part{}, whole{};  // whole: of columns that were divided, for those who need all
    const ShardRanges* held = nullptr;       // columns in each shard; null: all
    int rows = 0, cols = 0;
  };
  using Rows = BufferRows<Buffer>;
  struct Weight {
    Each<typename B::Weight> part{};  // false where a shard holds none of it
    ShardSpec::Side side = ShardSpec::Side::kWhole;
    const ShardRanges* ranges = nullptr;  // of the side that is divided
    DType type = DType::kF32;
    int64_t n_out = 0, n_in = 0, n_stack = 1;
    const char* name = "";
    explicit operator bool() const { return n_out > 0; }
    unsigned holders() const {
      unsigned m = 0;
      for (size_t i = 0; i < kMaxShards; ++i) m |= unsigned(bool(part[i])) << i;
      return m;
    }
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
    Each<typename B::KvLayer> part{};
    int head_dim = 0;
    int64_t bytes = 0;  // of a row, in all shards
    int64_t row_bytes() const { return bytes; }
  };
  template <class T>
  struct Values {  // the host reads the first shard's
    Each<T> part{};
    const Link* link = nullptr;
    auto operator[](size_t i) const {
      const auto v = part[0][i];
      if constexpr (requires { link->check(); }) link->check();
      return v;
    }
  };
  using Ids = Values<typename B::Ids>;
  using Scores = Values<typename B::Scores>;

  // Each shard's backend gets the same arguments.
  template <class... Args>
  explicit TensorParallel(int n_shard, const Args&... args) {
    CHECK(n_shard >= 1 && n_shard <= kMaxShards, "{} shards", n_shard);
    for (int i = 0; i < n_shard; ++i) shard_.push_back(std::make_unique<B>(args...));
    begin();
  }
  // Each shard's backend gets an argument of its own: the GPU that it is on.
  template <class T>
  explicit TensorParallel(const std::vector<T>& own) {
    CHECK(!own.empty() && own.size() <= kMaxShards, "{} shards", own.size());
    for (const T& t : own) shard_.push_back(std::make_unique<B>(t));
    begin();
  }

  int n_shard() const { return int(shard_.size()); }
  B& shard(int i) { return *shard_[size_t(i)]; }
  Link& link() { return link_; }

  Weight upload(const TensorView& t) { return upload(t, ShardSpec{}); }
  // A division by inputs that would go through a block leaves the weight whole.
  Weight upload(const TensorView& t, const ShardSpec& spec) {
    names_.push_back(t.name);
    Weight w{.type = t.type, .n_out = t.ne[1], .n_in = t.ne[0], .n_stack = t.ne[2], .name = names_.back().c_str()};
    const bool in = spec.side == ShardSpec::Side::kIn;
    const ShardRanges r = shard_ranges(in ? t.ne[0] : t.ne[1] / spec.folds, spec, n_shard());
    if (spec.side == ShardSpec::Side::kWhole || (in && !ranges_hold_whole_blocks(r, t.type))) {
      each([&](size_t i, B& b) { w.part[i] = b.upload(t); });
      return w;
    }
    w.side = spec.side, w.ranges = keep(r);
    each([&](size_t i, B& b) {
      if (r[i].size() == 0) return;
      ShardedTensor mine = shard_tensor(t, spec, r[i]);
      w.part[i] = b.upload(mine.view);
      if constexpr (!requires { B::kCopiesWeights; }) bytes_.push_back(std::move(mine.bytes));
    });
    return w;
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
    x.rows = rows, x.cols = cols;
    each([&](size_t i, B& b) { x.part[i] = b.new_rows(rows, cols); });
    return {&x, rows, cols};
  }
  Ids new_ids(int n) {
    return results<Ids>([&](B& b) { return b.new_ids(n); });
  }
  Scores new_scores(int n) {
    return results<Scores>([&](B& b) { return b.new_scores(n); });
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

  // [rows, cols] of all columns, wherever they are.
  std::vector<float> to_host(Rows x) {
    if (!x.buffer->held) return first().to_host(whole(x, 0));
    std::vector<float> v(size_t(x.rows) * size_t(x.cols));
    each([&](size_t i, B& b) {
      const Range r = (*x.buffer->held)[i];
      const std::vector<float> mine = b.to_host(held(x, i));
      for (int64_t t = 0; t < x.rows; ++t)
        std::copy_n(mine.data() + t * r.size(), r.size(), v.data() + t * x.cols + r.begin);
    });
    return v;
  }
  void from_host(Rows x, std::span<const float> values) {
    each([&](size_t i, B& b) {
      if (!x.buffer->held) return b.from_host(all_columns(x, i), values);
      const Range r = (*x.buffer->held)[i];
      std::vector<float> mine;
      for (int64_t t = 0; t < x.rows; ++t) {
        const auto row = values.subspan(size_t(t * x.cols + r.begin), size_t(r.size()));
        mine.insert(mine.end(), row.begin(), row.end());
      }
      b.from_host(held(x, i), mine);
    });
  }

  Status status() const {
    for (const auto& b : shard_)
      if (auto ok = memory_status(*b); !ok) return ok;
    return Ok{};
  }
  void make_current() {}  // before each shard's work
  Selected take_selected(int slot) requires requires(B b) { b.take_selected(0); }
  {
    Selected all;
    each([&](size_t, B& b) { all.add(b.take_selected(slot)); });
    return all;
  }
  void take_file(std::span<const TensorView> tensors) requires requires(B b) { b.take_file(tensors); }
  {
    each([&](size_t, B& b) { b.take_file(tensors); });
  }
  void begin_step(const Step& s) requires requires(B b) { b.begin_step(s); }
  {
    each([&](size_t, B& b) { b.begin_step(s); });
  }
  void next_step(const Step& s) requires requires(B b) { b.next_step(s); }
  {
    each([&](size_t, B& b) { b.next_step(s); });
  }

  // All shards run a pass, capture it, or launch what they captured. What it leaves in buffers is noted when it is
  // captured.
  template <class Pass>
  Rows replay(const void* key, Pass&& pass) requires requires(B b) {
    b.look(key);
  }
  {
    using Way = typename B::Way;
    Way way = Way::kLaunch;
    each([&](size_t, B& b) { way = std::min(way, b.look(key)); });
    auto run = [&] {
      each([&](size_t, B& b) { b.begin_pass(way); });
      const Rows out = pass();
      each([&](size_t, B& b) { b.end_pass(way); });
      return out;
    };
    if (way == Way::kRun) return run();
    Captured& c = captured_.at({key, shard(0).shape()}, [](Captured&) {});
    if (way == Way::kLaunch && !c.out) way = Way::kCapture;
    if (way == Way::kCapture) {
      c.writes.clear(), noting_ = &c.writes;
      c.out = run();
      noting_ = nullptr;
      each([&](size_t, B& b) { b.instantiate_pass(); });
    }
    each([&](size_t, B& b) { b.launch_pass(); });
    for (const auto& [buffer, held] : c.writes) buffer->held = held;
    return *c.out;
  }
  void use_graphs(bool on) requires requires(B b) { b.use_graphs(on); }
  {
    each([&](size_t, B& b) { b.use_graphs(on); });
  }
  void finish() requires requires(B b) { b.finish(); }
  {
    each([&](size_t, B& b) { b.finish(); });
    if constexpr (requires(Link l) { l.check(); }) link_.check();
  }
  // Times are the first shard's: sums end at the same time in all.
  void mark() requires requires(B b) { b.mark(); }
  { first().mark(); }
  void hold() requires requires(B b) { b.hold(); }
  { first().hold(); }
  std::vector<double> laps() requires requires(B b) { b.laps(); }
  { return first().laps(); }

  // --- Products

  void matmul(Rows y, Rows x, Weight w) {
    const auto input = of_input(x, w);
    each_holder(w, [&](size_t i, B& b) { b.matmul(result(y, w, i), input[i], w.part[i]); });
    produced(y, w);
  }
  void qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
    const Weight& of_v = wv ? wv : wk;
    each([&](size_t i, B& b) {
      b.qkv(result(q, wq, i), result(k, wk, i), result(v, of_v, i), whole(h, i), wq.part[i], wk.part[i], wv.part[i]);
    });
    produced(q, wq), produced(k, wk), produced(v, of_v);
  }
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
    check_pair(gate, up);
    each_holder(gate,
                [&](size_t i, B& b) { b.gate_up(result(y, gate, i), whole(h, i), gate.part[i], up.part[i], act); });
    produced(y, gate);
  }
  void moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
    check_experts(w);
    each_holder(w.down, [&](size_t i, B& b) {
      b.moe(result(y, w.down, i), whole(e, i), whole(r, i), part_of(w, i), n_used, act);
    });
    produced(y, w.down);
  }
  void clustered_head(Rows logits, Rows h, ClusteredHead<Weight, Table> w) {
    each([&](size_t i, B& b) {
      b.clustered_head(to(logits, i), whole(h, i), {w.head.part[i], w.centroid.part[i], w.order.part[i], w.top_k});
    });
    written(logits, nullptr);
  }
  // Shards look up the tokens that they have; the rows of the others are zero, and the sum is the row.
  void embed(Rows x, Weight table, const Step& s, float scale) {
    if (table.side == ShardSpec::Side::kWhole) {
      each([&](size_t i, B& b) { b.embed(to(x, i), table.part[i], s, scale); });
    } else {
      each_holder(table,
                  [&](size_t i, B& b) { link_.embed(b, to(x, i), table.part[i], s, scale, (*table.ranges)[i]); });
      sum(x, table.holders());
    }
    written(x, nullptr);
  }

  // --- Heads: each shard its own

  void head_norm_rope(Rows x, Vec gain, Freqs freqs, const Step& s, float eps) {
    each([&](size_t i, B& b) { b.head_norm_rope(held(x, i), gain.part[i], freqs[i], s, eps); });
  }
  void head_norm(Rows x, int head_dim, float eps) {
    each([&](size_t i, B& b) { b.head_norm(held(x, i), head_dim, eps); });
  }
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
    each([&](size_t i, B& b) { b.kv_append(kv.part[i], held(k, i), held(v, i), s); });
  }
  void kv_settle(KvLayer kv, const Step& s) {
    each([&](size_t i, B& b) { b.kv_settle(kv.part[i], s); });
  }
  void select_blocks(Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    each([&](size_t i, B& b) {
      const auto mine = held(q, i);
      AttnSpec own = spec;
      own.n_q_head = mine.cols / spec.head_dim;
      b.select_blocks(mine, kv.part[i], s, own);
    });
  }
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    written(o, q.buffer->held);
    each([&](size_t i, B& b) {
      const auto mine = held(q, i);
      AttnSpec own = spec;
      own.n_q_head = mine.cols / spec.head_dim;
      b.attend(held(o, i), mine, kv.part[i], s, own);
    });
  }

  // --- Whole rows, in every shard

  void rms_norm(Rows y, Rows x, Vec gain, float eps) {
    each([&](size_t i, B& b) { b.rms_norm(to(y, i), whole(x, i), gain.part[i], eps); });
    written(y, nullptr);
  }
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec) {
    each([&](size_t i, B& b) { b.residual_norm(whole(x, i), to(h, i), whole(y, i), part_of(spec, i)); });
    written(h, nullptr);
  }
  void act_mul(Rows y, Rows g, Rows u, Act act) {
    each([&](size_t i, B& b) { b.act_mul(to(y, i), whole(g, i), whole(u, i), act); });
    written(y, nullptr);
  }
  void ple_combine(Rows p, Rows c, Vec gain, float in_scale, float out_scale, float eps) {
    each([&](size_t i, B& b) { b.ple_combine(whole(p, i), whole(c, i), gain.part[i], in_scale, out_scale, eps); });
  }
  void add(Rows y, Rows a, Rows c) {
    each([&](size_t i, B& b) { b.add(to(y, i), whole(a, i), whole(c, i)); });
    written(y, nullptr);
  }
  void gather(Rows y, Rows x, const Step& s) {
    each([&](size_t i, B& b) { b.gather(to(y, i), whole(x, i), s); });
    written(y, nullptr);
  }
  void copy_rows(Rows y, Rows x) {
    each([&](size_t i, B& b) { b.copy_rows(to(y, i), whole(x, i)); });
    written(y, nullptr);
  }

  // --- Logits: divided by vocabulary; brought together where a token is chosen

  void softcap(Rows x, float cap) {
    each([&](size_t i, B& b) { b.softcap(held(x, i), cap); });
  }
  void sample(Ids ids, Rows logits, std::span<const SampleRow> rows) {
    const auto all = gathered(logits, 1);
    first().sample(ids.part[0], all[0], rows);
  }
  void top_k(Ids ids, Scores log_probs, Rows logits, int k) {
    const auto all = gathered(logits, 1);
    first().top_k(ids.part[0], log_probs.part[0], all[0], k);
  }
  // Every shard goes on with the token, which each chooses from the same logits.
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k) requires(Has<B>::next_tokens) {
    const auto all = gathered(logits, n_shard());
    each([&](size_t i, B& b) { b.next_tokens(ids.part[i], log_probs.part[i], all[i], k); });
  }

  // --- Merged verbs

  void norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs freqs, bool norm_v,
                        const Step& s, float eps) requires(Has<B>::norm_rope_append) {
    each([&](size_t i, B& b) {
      b.norm_rope_append(kv.part[i], held(q, i), held(k, i), held(v, i), q_gain.part[i], k_gain.part[i], freqs[i],
                         norm_v, s, eps);
    });
  }
  void embed_concat(Rows y, Weight table, const Step& s, float scale, Rows x) requires(Has<B>::embed_concat) {
    if (table.side == ShardSpec::Side::kWhole) {
      each([&](size_t i, B& b) { b.embed_concat(to(y, i), table.part[i], s, scale, whole(x, i)); });
      written(y, nullptr);
    } else {
      embed(y.cols_at(0, y.cols - x.cols), table, s, scale);
      copy_rows(y.cols_at(y.cols - x.cols, x.cols), x);
    }
  }
  void matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) requires(Has<B>::matmul_beside) {
    const bool both = w.side != ShardSpec::Side::kIn && u.side != ShardSpec::Side::kIn && w.holders() == u.holders();
    if (!both) {
      matmul(y, x, w);
      return matmul(z, x, u);
    }
    each_holder(w, [&](size_t i, B& b) {
      b.matmul_beside(result(y, w, i), w.part[i], result(z, u, i), u.part[i], whole(x, i));
    });
    produced(y, w), produced(z, u);
  }
  void residual_norm_moe(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec, Rows r, Rows e, Vec router_gain,
                         Vec expert_gain) requires(Has<B>::residual_norm_moe) {
    each([&](size_t i, B& b) {
      b.residual_norm_moe(whole(x, i), to(h, i), whole(y, i), part_of(spec, i), to(r, i), to(e, i), router_gain.part[i],
                          expert_gain.part[i]);
    });
    written(h, nullptr), written(r, nullptr), written(e, nullptr);
  }
  void ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                      MoeWeights<Weight, Vec> w, int n_used, Act act) requires(Has<B>::ffn_beside_moe) {
    if (down.ranges != gate.ranges || down.holders() != w.down.holders()) {
      gate_up(g, h, gate, up, act);
      matmul(y, g, down);
      return moe(o, e, r, w, n_used, act);
    }
    check_pair(gate, up), check_experts(w);
    each_holder(down, [&](size_t i, B& b) {
      b.ffn_beside_moe(to(y, i), result(g, gate, i), whole(h, i), gate.part[i], up.part[i], down.part[i], to(o, i),
                       whole(e, i), whole(r, i), part_of(w, i), n_used, act);
    });
    produced(g, gate), produced(y, down, o, w.down);
  }
  void join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain,
                          ResidualSpec<Vec> spec) requires(Has<B>::join_residual_norm) {
    each([&](size_t i, B& b) {
      b.join_residual_norm(whole(x, i), to(h, i), whole(y, i), whole(o, i), y_gain.part[i], o_gain.part[i],
                           part_of(spec, i));
    });
    written(h, nullptr);
  }

 private:
  void begin() {
    static_assert(Decorates<TensorParallel, B>);
    if constexpr (requires { link_.connect(shard_); }) link_.connect(shard_);
  }
  B& first() {
    facet::make_current(*shard_[0]);
    return *shard_[0];
  }
  template <class F>
  void each(F&& f) {
    for (size_t i = 0; i < shard_.size(); ++i) {
      facet::make_current(*shard_[i]);
      f(i, *shard_[i]);
    }
  }
  template <class F>
  void each_holder(const Weight& w, F&& f) {
    each([&](size_t i, B& b) {
      if (w.part[i]) f(i, b);
    });
  }
  template <class T, class F>
  T of_each(F&& f) {
    T t{};
    each([&](size_t i, B& b) { t.part[i] = f(b); });
    return t;
  }

  template <class T, class F>
  T results(F&& f) {
    T t = of_each<T>(f);
    t.link = &link_;
    return t;
  }

  // Equal ranges are kept once: their addresses say whether two divisions are one.
  const ShardRanges* keep(const ShardRanges& r) {
    const auto at = std::find(ranges_.begin(), ranges_.end(), r);
    return at == ranges_.end() ? &ranges_.emplace_back(r) : &*at;
  }

  // Shard i's rows of x: all columns, or those that it holds.
  typename B::Rows all_columns(Rows x, size_t i) const {
    return x.buffer->part[i].rows_at(x.row0, x.rows).cols_at(x.col0, x.cols);
  }
  // Rows to be read; rows that are written may have been divided before.
  typename B::Rows whole(Rows x, size_t i) const {
    CHECK(!x.buffer->held, "rows [{}, {}] are read as whole and held in parts", x.rows, x.cols);
    return all_columns(x, i);
  }
  typename B::Rows to(Rows y, size_t i) const { return y ? all_columns(y, i) : typename B::Rows{}; }
  typename B::Rows columns(Rows x, const ShardRanges& r, size_t i) const {
    CHECK(x.col0 == 0, "columns {}.. of rows that shards hold in parts", x.col0);
    return x.buffer->part[i].rows_at(x.row0, x.rows).cols_at(0, int(r[i].size()));
  }
  typename B::Rows held(Rows x, size_t i) const {
    return x.buffer->held ? columns(x, *x.buffer->held, i) : all_columns(x, i);
  }
  // The output of shard i's product with w.
  typename B::Rows result(Rows y, const Weight& w, size_t i) const {
    return w.side == ShardSpec::Side::kOut ? columns(y, *w.ranges, i) : all_columns(y, i);
  }
  void written(Rows y, const ShardRanges* held) {
    if (!y) return;
    y.buffer->held = held;
    if (noting_) noting_->emplace_back(y.buffer, held);
  }
  void produced(Rows y, const Weight& w) {
    written(y, w.side == ShardSpec::Side::kOut ? w.ranges : nullptr);
    if (w.side == ShardSpec::Side::kIn) sum(y, w.holders());
  }
  // Both at once, where the link can add two sums.
  void produced(Rows y, const Weight& w, Rows z, const Weight& u) {
    if constexpr (requires(std::span<const typename B::Rows> r) { link_.sum(r, 1u, r, 1u); }) {
      if (w.side == ShardSpec::Side::kIn && u.side == ShardSpec::Side::kIn) {
        written(y, nullptr), written(z, nullptr);
        const auto first = parts_of(y), second = parts_of(z);
        return link_.sum(std::span(first).first(shard_.size()), w.holders(), std::span(second).first(shard_.size()),
                         u.holders());
      }
    }
    produced(y, w), produced(z, u);
  }
  Each<typename B::Rows> parts_of(Rows y) const {
    Each<typename B::Rows> part{};
    for (size_t i = 0; i < shard_.size(); ++i) part[i] = all_columns(y, i);
    return part;
  }
  void sum(Rows y, unsigned has) {
    const auto part = parts_of(y);
    link_.sum(std::span(part).first(shard_.size()), has);
  }

  // The input of a product with w.
  Each<typename B::Rows> of_input(Rows x, const Weight& w) {
    Each<typename B::Rows> in{};
    if (w.side != ShardSpec::Side::kIn) return gathered(x, n_shard());
    CHECK(x.buffer->held == w.ranges, "{}: its columns are divided in another way than its input's", w.name);
    each([&](size_t i, B&) { in[i] = held(x, i); });
    return in;
  }
  // All columns of x, in the first n shards.
  Each<typename B::Rows> gathered(Rows x, int n) {
    Each<typename B::Rows> to{}, from{};
    Buffer& b = *x.buffer;
    if (!b.held) {
      each([&](size_t i, B&) { to[i] = all_columns(x, i); });
      return to;
    }
    for (size_t i = 0; i < size_t(n); ++i) {
      facet::make_current(*shard_[i]);
      if (!b.whole[i]) {
        b.whole[i] = shard_[i]->new_rows(b.rows, b.cols);
        const Status had = memory_status(*shard_[i]);
        CHECK(bool(had), "{}", had.error().message());
      }
      to[i] = b.whole[i].rows_at(x.row0, x.rows).cols_at(0, x.cols);
    }
    each([&](size_t i, B&) { from[i] = held(x, i); });
    link_.gather(std::span(to).first(size_t(n)), std::span(from).first(shard_.size()), *b.held);
    return to;
  }

  static MoeWeights<typename B::Weight, typename B::Vec> part_of(const MoeWeights<Weight, Vec>& w, size_t i) {
    return {w.router.part[i], w.gate_up.part[i], w.gate.part[i], w.up.part[i], w.down.part[i], w.scale.part[i]};
  }
  static ResidualSpec<typename B::Vec> part_of(const ResidualSpec<Vec>& p, size_t i) {
    return {p.post.part[i], p.next.part[i], p.out_scale, p.eps};
  }
  static void check_pair(const Weight& gate, const Weight& up) {
    CHECK(gate.ranges == up.ranges, "{} and {} are divided in two ways", gate.name, up.name);
  }
  static void check_experts(const MoeWeights<Weight, Vec>& w) {
    CHECK((w.gate_up ? w.gate_up : w.gate).ranges == w.down.ranges, "{}: divided in another way than what it reads",
          w.down.name);
  }

  // The effect of a pass that was captured.
  using Writes = std::vector<std::pair<Buffer*, const ShardRanges*>>;
  struct Captured {
    std::optional<Rows> out;
    Writes writes;
  };
  struct Key {
    const void* pass = nullptr;
    StepShape shape;
    bool operator==(const Key&) const = default;
  };

  std::vector<std::unique_ptr<B>> shard_;
  Link link_;
  static constexpr size_t kMostCaptured = 128;
  Recent<Key, Captured> captured_{kMostCaptured};
  Writes* noting_ = nullptr;
  std::deque<Buffer> buffers_;
  std::deque<ShardRanges> ranges_;
  std::deque<std::vector<std::byte>> bytes_;  // of weights, where backends do not copy them
  std::deque<std::string> names_;
};

}  // namespace facet
