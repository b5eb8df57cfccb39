#pragma once
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/optional.h"
#include "backend/pass.h"
#include "backend/placed.h"
#include "backend/shard_link.h"
#include "backend/shard_spec.h"
#include "backend/tensor_parallel_types.h"
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
class TensorParallel : public PlacedVerbs<TensorParallel<B, Link>, TensorParallelTypes<B, Link>> {
  using Types = TensorParallelTypes<B, Link>;
  using Verbs = PlacedVerbs<TensorParallel, Types>;
  template <class T>
  using Each = typename Types::template Each<T>;
  using Buffer = typename Types::Buffer;

 public:
  using typename Verbs::Ids, typename Verbs::KvLayer, typename Verbs::Scores, typename Verbs::Table;
  using typename Verbs::Rows, typename Verbs::Weight, typename Verbs::Vec, typename Verbs::Freqs;

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
      if constexpr (!CopiesWeights<B>) bytes_.push_back(std::move(mine.bytes));
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
  static constexpr double kRoundLight = round_light<B>();
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
  Selected take_selected(int slot) requires CountsSelected<B> {
    Selected all;
    each([&](size_t, B& b) { all.add(b.take_selected(slot)); });
    return all;
  }
  void take_file(std::span<const TensorView> tensors) requires TakesFiles<B> {
    each([&](size_t, B& b) { b.take_file(tensors); });
  }
  void begin_step(const Step& s) requires BeginsSteps<B> {
    each([&](size_t, B& b) { b.begin_step(s); });
  }
  void next_step(const Step& s) requires TakesNextStep<B> {
    each([&](size_t, B& b) { b.next_step(s); });
  }

  // All shards run a pass, capture it, or launch what they captured. What it leaves in buffers is noted when it is
  // captured.
  template <class Pass>
  Rows replay(const void* key, Pass&& pass) requires CapturesPasses<B> {
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
  void use_graphs(bool on) requires UsesGraphs<B> {
    each([&](size_t, B& b) { b.use_graphs(on); });
  }
  void finish() requires Finishes<B> {
    each([&](size_t, B& b) { b.finish(); });
    if constexpr (requires(Link l) { l.check(); }) link_.check();
  }
  // Times are the first shard's: sums end at the same time in all.
  void mark() requires MarksTime<B> { first().mark(); }
  void hold() requires MarksTime<B> { first().hold(); }
  std::vector<double> laps() requires MarksTime<B> { return first().laps(); }

  // --- Verbs that need more than placed.h's

  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act act) {
    check_pair(gate, up);
    Verbs::gate_up(y, h, gate, up, act);
  }
  // Shards look up the tokens that they have; the rows of the others are zero, and the sum is the row.
  void embed(Rows x, Weight table, const Step& s, float scale) {
    if (table.side == ShardSpec::Side::kWhole) return Verbs::embed(x, table, s, scale);
    each_holder(table, [&](size_t i, B& b) { link_.embed(b, to(x, i), table.part[i], s, scale, (*table.ranges)[i]); });
    sum(x, table.holders());
    written(x, nullptr);
  }
  // Logits are divided by vocabulary, and brought together where a token is chosen.
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
  void embed_concat(Rows y, Weight table, const Step& s, float scale, Rows x) requires(Has<B>::embed_concat) {
    if (table.side == ShardSpec::Side::kWhole) return Verbs::embed_concat(y, table, s, scale, x);
    embed(y.cols_at(0, y.cols - x.cols), table, s, scale);
    this->copy_rows(y.cols_at(y.cols - x.cols, x.cols), x);
  }
  void matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) requires(Has<B>::matmul_beside) {
    const bool both = w.side != ShardSpec::Side::kIn && u.side != ShardSpec::Side::kIn && w.holders() == u.holders();
    if (both) return Verbs::matmul_beside(y, w, z, u, x);
    this->matmul(y, x, w);
    this->matmul(z, x, u);
  }
  void ffn(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Act act) requires(Has<B>::ffn) {
    gate_up(g, h, gate, up, act);
    this->matmul(y, g, down);
  }
  void ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                      MoeWeights<Weight, Vec> w, int n_used, Act act) requires(Has<B>::ffn_beside_moe) {
    if (down.ranges == gate.ranges && down.holders() == w.down.holders()) {
      check_pair(gate, up);
      return Verbs::ffn_beside_moe(y, g, h, gate, up, down, o, e, r, w, n_used, act);
    }
    gate_up(g, h, gate, up, act);
    this->matmul(y, g, down);
    this->moe(o, e, r, w, n_used, act);
  }

  // Every other verb (placed.h): on each shard that holds a part of a weight of it, or on all where it has no weight.
  template <class F, class... A>
  void place(F&& verb, const A&... all) {
    std::tuple<decltype(prepared(all))...> ready{prepared(all)...};
    each([&](size_t i, B& b) {
      bool any = false, here = false;
      (note_holders(all, i, any, here), ...);
      if (any && !here) return;
      std::apply([&](const auto&... own) { verb(b, part_of(own, i)...); }, ready);
    });
    Sums sums;
    (note_written(all, sums), ...);
    add_up(sums);
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
  // What is to be added up after a verb: partial sums of products.
  struct Sums {
    std::array<Rows, 4> rows{};
    std::array<unsigned, 4> has{};
    int n = 0;
  };
  // Two at once, where the link can add two sums.
  void add_up(const Sums& s) {
    if constexpr (requires(std::span<const typename B::Rows> r) { link_.sum(r, 1u, r, 1u); }) {
      if (s.n == 2) {
        const auto first = parts_of(s.rows[0]), second = parts_of(s.rows[1]);
        return link_.sum(std::span(first).first(shard_.size()), s.has[0], std::span(second).first(shard_.size()),
                         s.has[1]);
      }
    }
    for (int i = 0; i < s.n; ++i) sum(s.rows[size_t(i)], s.has[size_t(i)]);
  }

  // --- place(): before the shards' work, in each shard, after it

  template <class T>
  const T& prepared(const T& x) {
    return x;
  }
  Each<typename B::Rows> prepared(const Placed<Role::kInOf, Rows, Weight>& x) { return of_input(x.rows, x.with); }
  const Placed<Role::kOutLike, Rows, Rows>& prepared(const Placed<Role::kOutLike, Rows, Rows>& y) {
    written(y.rows, y.with.buffer->held);
    return y;
  }
  const MoeWeights<Weight, Vec>& prepared(const MoeWeights<Weight, Vec>& w) {
    check_experts(w);
    return w;
  }

  template <class T>
  static void note_holders(const T&, size_t, bool&, bool&) {}
  static void note_holders(const Weight& w, size_t i, bool& any, bool& here) {
    any |= bool(w), here |= bool(w.part[i]);
  }
  static void note_holders(const MoeWeights<Weight, Vec>& w, size_t i, bool& any, bool& here) {
    note_holders(w.down, i, any, here);
  }

  template <Role role, class With>
  typename B::Rows part_of(const Placed<role, Rows, With>& x, size_t i) const {
    if constexpr (role == Role::kIn || role == Role::kLost || role == Role::kInOut)
      return whole(x.rows, i);
    else if constexpr (role == Role::kOut)
      return to(x.rows, i);
    else if constexpr (role == Role::kOutOf)
      return result(x.rows, x.with, i);
    else
      return held(x.rows, i);
  }
  static auto part_of(const Each<typename B::Rows>& x, size_t i) { return x[i]; }
  AttnSpec part_of(const PlacedHeads<Rows>& x, size_t i) const {
    AttnSpec own = x.spec;
    own.n_q_head = held(x.rows, i).cols / own.head_dim;
    return own;
  }
  template <class T>
  static decltype(auto) part_of(const T& x, size_t i) {
    if constexpr (requires { x.part[i]; })
      return (x.part[i]);
    else if constexpr (std::is_same_v<T, Freqs>)
      return (x[i]);
    else
      return (x);
  }

  template <class T>
  void note_written(const T&, Sums&) {}
  void note_written(const Placed<Role::kOut, Rows>& y, Sums&) {
    if (y.used) written(y.rows, nullptr);
  }
  void note_written(const Placed<Role::kOutOf, Rows, Weight>& y, Sums& sums) {
    written(y.rows, y.with.side == ShardSpec::Side::kOut ? y.with.ranges : nullptr);
    if (y.with.side != ShardSpec::Side::kIn) return;
    sums.rows[size_t(sums.n)] = y.rows, sums.has[size_t(sums.n++)] = y.with.holders();
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
  static ClusteredHead<typename B::Weight, typename B::Table> part_of(const ClusteredHead<Weight, Table>& w, size_t i) {
    return {w.head.part[i], w.centroid.part[i], w.order.part[i], w.top_k};
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
