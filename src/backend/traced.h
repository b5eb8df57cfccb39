#pragma once
#include <algorithm>
#include <chrono>
#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/optional.h"
#include "backend/shard_spec.h"
#include "backend/verb_cost.h"
#include "base/check.h"
#include "base/result.h"

namespace facet {

// A backend that prices every verb of another one: by the host's clock, or by marks while tracing is on. Marked verbs
// do not overlap, as they may in a step that is not traced.
template <class B>
class Traced {
 public:
  using Rows = typename B::Rows;
  using Weight = typename B::Weight;
  using Vec = typename B::Vec;
  using Freqs = typename B::Freqs;
  using KvLayer = typename B::KvLayer;
  using Ids = typename B::Ids;
  using Table = typename B::Table;
  using Scores = typename B::Scores;
  using Inner = B;

  template <class... Args>
  explicit Traced(Args&&... args) : inner_(std::forward<Args>(args)...) {
    static_assert(Decorates<Traced, B>);
  }

  template <class T>
  auto upload(const T& t) {
    return inner_.upload(t);
  }
  Weight upload(const TensorView& t, const ShardSpec& spec) { return upload_shard(inner_, t, spec); }
  int n_shard() const { return shards_of(inner_); }
  Rows new_rows(int rows, int cols) { return inner_.new_rows(rows, cols); }
  std::vector<float> to_host(Rows x) { return inner_.to_host(x); }
  void from_host(Rows x, std::span<const float> values) { inner_.from_host(x, values); }
  Ids new_ids(int n) { return inner_.new_ids(n); }
  Scores new_scores(int n) { return inner_.new_scores(n); }
  void reserve(const BackendLimits& l) { inner_.reserve(l); }

  void begin_step(const Step& s) requires BeginsSteps<B> {
    inner_.begin_step(s);
    if constexpr (MarksTime<B>)
      if (tracing_) {
        inner_.hold(), inner_.mark();
        if (std::exchange(marking_, true)) marked_.push_back(nullptr);  // between two steps
      }
  }
  void next_step(const Step& s) requires TakesNextStep<B> { inner_.next_step(s); }
  // Nothing is replayed while tracing is on.
  void trace(bool on) requires MarksTime<B> {
    tracing_ = on;
    inner_.use_graphs(!on);
  }
  // Once the steps that were traced have been launched.
  void take_laps() requires MarksTime<B> {
    const std::vector<double> ms = inner_.laps();
    CHECK(ms.size() == marked_.size(), "{} marked verbs, {} times", marked_.size(), ms.size());
    for (size_t i = 0; i < ms.size(); ++i)
      if (marked_[i]) marked_[i]->ms += ms[i];
    marked_.clear();
    marking_ = false;
  }
  template <class Pass>
  Rows replay(const void* key, Pass&& pass) requires ReplaysPasses<B> {
    return inner_.replay(key, pass);
  }
  void take_file(std::span<const TensorView> tensors) requires TakesFiles<B> { inner_.take_file(tensors); }
  void take_drafters() requires TakesDrafters<B> { inner_.take_drafters(); }
  Status status() const requires ReportsStatus<B> { return inner_.status(); }
  void make_current() requires MakesCurrent<B> { inner_.make_current(); }
  Selected take_selected(int slot) requires CountsSelected<B> { return inner_.take_selected(slot); }
  B& inner() { return inner_; }

#define VERB(name, parameters, arguments, results, n_bytes, n_flops) \
  void name parameters requires(Has<B>::name) {                      \
    timed(#name, n_bytes, n_flops, [&] { inner_.name arguments; });  \
  }
#define MERGED VERB
#define CHAINED VERB
#define ENCODER VERB
#include "backend/verbs.def"

  const VerbCosts& costs() const { return costs_; }
  void reset() { costs_.clear(); }

 private:
  static double act(const Rows& x) { return double(B::rows_bytes(x.rows, x.cols)); }
  static double bytes(const Weight& w) {
    return w ? double(w.n_stack * w.n_out) * double(row_bytes(w.type, w.n_in)) : 0;
  }
  static double flops(const Rows& x, const Weight& w) {
    return w ? 2.0 * x.rows * double(w.n_in) * double(w.n_out) : 0;
  }
  static double table_rows(const Weight& table, int n) { return double(n) * double(row_bytes(table.type, table.n_in)); }
  static double kv_bytes(const KvLayer& kv, const Step& s) { return double(s.shape.n_tok) * double(kv.row_bytes()); }
  // f(n, len): tokens of a sequence, its rows after the step.
  template <class F>
  static double each_sequence(const Step& s, F&& f) {
    double sum = 0;
    for (int i = 0; i < s.shape.n_seq; ++i) {
      const int n = s.q_begin[i + 1] - s.q_begin[i];
      sum += f(n, s.kv_len[i] + n);
    }
    return sum;
  }
  static double attend_bytes(const KvLayer& kv, const Step& s, const AttnSpec& a) {  // rows are read once a sequence
    return double(kv.row_bytes()) *
           each_sequence(s, [&](int n, int len) { return double(a.window ? std::min(len, a.window - 1 + n) : len); });
  }
  static double attend_flops(const Step& s, const AttnSpec& a) {
    return 4.0 * a.n_q_head * a.head_dim *
           each_sequence(s, [&](int n, int len) { return double(n) * (a.window ? std::min(len, a.window) : len); });
  }
  static double token_pairs(const Step& s) {
    return each_sequence(s, [](int n, int) { return double(n) * n; });
  }
  // Rows of different tokens may share clusters; counted as if none did.
  static double cluster_share(const ClusteredHead<Weight, Table>& head, int rows) {
    return std::min(1.0, double(head.top_k) * rows / double(head.centroid.n_out));
  }
  // At most every expert once; at least what one token uses.
  static double moe_bytes(const Rows& y, const Rows& e, const Rows& r, const MoeWeights<Weight, Vec>& w, int n_used) {
    const double share = std::min(1.0, double(n_used) * y.rows / double(w.router.n_out));
    return act(y) + act(e) + act(r) + bytes(w.router) +
           share * (bytes(w.gate_up) + bytes(w.gate) + bytes(w.up) + bytes(w.down));
  }
  static double moe_flops(const Rows& e, const Rows& r, const MoeWeights<Weight, Vec>& w, int n_used) {
    const double per_token = flops(e, w.gate_up) + flops(e, w.gate) + flops(e, w.up) +
                             2.0 * double(w.down.n_in) * double(w.down.n_out) * e.rows;
    return flops(r, w.router) + per_token * n_used;
  }
  template <class F>
  void timed(const char* verb, double bytes, double flops, F&& f) {
    if constexpr (MarksTime<B>)
      if (!tracing_) return f();
    if constexpr (MarksTime<B>)
      if (!std::exchange(marking_, true)) inner_.mark();
    const auto start = std::chrono::steady_clock::now();
    f();
    VerbCost& c = costs_[verb];
    if constexpr (MarksTime<B>)
      inner_.mark(), marked_.push_back(&c);
    else
      c.ms += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    ++c.calls;
    c.bytes += bytes;
    c.flops += flops;
  }
  B inner_;
  VerbCosts costs_;
  bool tracing_ = false, marking_ = false;  // marking_: there is a mark since take_laps()
  std::vector<VerbCost*> marked_;  // by mark, of the steps at hand; null: no verb's. A map's elements stay in place
};

}  // namespace facet
