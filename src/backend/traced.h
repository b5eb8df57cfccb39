#pragma once
#include <chrono>
#include <concepts>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/check.h"
#include "base/result.h"

namespace facet {

// What one verb cost over the steps that were traced. Bytes are those that must move: weights once, activations
// read and written once, cache rows once.
struct VerbCost {
  int64_t calls = 0;
  double ms = 0, bytes = 0, flops = 0;
};

// Devices that run behind the host time verbs by marks among their own work.
//   hold   keeps the device busy while the host runs ahead, so that no verb waits for it
//   laps   waits for everything; milliseconds between one mark since the last call and the next
template <class B>
concept MarksTime = requires(B b) {
  b.mark();
  b.hold();
  { b.laps() } -> std::same_as<std::vector<double>>;
};

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
  explicit Traced(Args&&... args) : inner_(std::forward<Args>(args)...) {}

  template <class T>
  auto upload(const T& t) {
    return inner_.upload(t);
  }
  Rows new_rows(int rows, int cols) { return inner_.new_rows(rows, cols); }
  std::vector<float> to_host(Rows x) { return inner_.to_host(x); }
  void from_host(Rows x, std::span<const float> values) { inner_.from_host(x, values); }
  Ids new_ids(int n) { return inner_.new_ids(n); }
  Scores new_scores(int n) { return inner_.new_scores(n); }
  void reserve(const BackendLimits& l) { inner_.reserve(l); }

  void begin_step(const Step& s) requires requires(B b) { b.begin_step(s); }
  {
    inner_.begin_step(s);
    if constexpr (MarksTime<B>)
      if (tracing_) inner_.hold(), inner_.mark();
  }
  // Nothing is replayed while tracing is on.
  void trace(bool on) requires MarksTime<B> {
    tracing_ = on;
    inner_.use_graphs(!on);
  }
  // Once a step that was traced has been launched.
  void take_laps() requires MarksTime<B> {
    const std::vector<double> ms = inner_.laps();
    CHECK(ms.size() == marked_.size(), "{} marked verbs, {} times", marked_.size(), ms.size());
    for (size_t i = 0; i < ms.size(); ++i) marked_[i]->ms += ms[i];
    marked_.clear();
  }
  template <class Pass>
  Rows replay(const void* key, Pass&& pass) requires requires(B b) {
    b.replay(key, pass);
  }
  { return inner_.replay(key, pass); }
  void take_file(std::span<const TensorView> tensors) requires requires(B b) { b.take_file(tensors); }
  { inner_.take_file(tensors); }
  Status status() const requires requires(const B b) { b.status(); }
  { return inner_.status(); }
  void make_current() requires requires(B b) { b.make_current(); }
  { inner_.make_current(); }
  B& inner() { return inner_; }
  void norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs f, bool norm_v, const Step& s,
                        float eps) requires requires(B b) {
    b.norm_rope_append(kv, q, k, v, q_gain, k_gain, f, norm_v, s, eps);
  }
  {
    timed("norm_rope_append", 2 * act(q) + act(k) + act(v) + double(s.shape.n_tok) * double(kv.k_row + kv.v_row), 0,
          [&] { inner_.norm_rope_append(kv, q, k, v, q_gain, k_gain, f, norm_v, s, eps); });
  }
  void residual_norm_moe(Rows x, Rows h, Rows y, ResidualSpec<Vec> spec, Rows r, Rows e, Vec router_gain,
                         Vec expert_gain) requires requires(B b) {
    b.residual_norm_moe(x, h, y, spec, r, e, router_gain, expert_gain);
  }
  {
    timed("residual_norm_moe", 6 * act(x), 0,
          [&] { inner_.residual_norm_moe(x, h, y, spec, r, e, router_gain, expert_gain); });
  }
  void join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain, ResidualSpec<Vec> spec) requires
      requires(B b) {
    b.join_residual_norm(x, h, y, o, y_gain, o_gain, spec);
  }
  {
    timed("join_residual_norm", 5 * act(x), 0, [&] { inner_.join_residual_norm(x, h, y, o, y_gain, o_gain, spec); });
  }
  void embed(Rows x, Weight w, const Step& s, float scale) {
    timed("embed", act(x) + double(x.rows) * double(row_bytes(w.type, w.n_in)), 0,
          [&] { inner_.embed(x, w, s, scale); });
  }
  void embed_concat(Rows y, Weight w, const Step& s, float scale, Rows x) requires requires(B b) {
    b.embed_concat(y, w, s, scale, x);
  }
  {
    timed("embed_concat", act(y) + act(x) + double(y.rows) * double(row_bytes(w.type, w.n_in)), 0,
          [&] { inner_.embed_concat(y, w, s, scale, x); });
  }
  void rms_norm(Rows y, Rows x, Vec g, float eps) {
    timed("rms_norm", act(y) + act(x), 0, [&] { inner_.rms_norm(y, x, g, eps); });
  }
  void matmul(Rows y, Rows x, Weight w) {
    timed("matmul", act(y) + act(x) + bytes(w), flops(x, w), [&] { inner_.matmul(y, x, w); });
  }
  void qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
    timed("qkv", act(q) + act(k) + act(v) + act(h) + bytes(wq) + bytes(wk) + bytes(wv),
          flops(h, wq) + flops(h, wk) + flops(h, wv), [&] { inner_.qkv(q, k, v, h, wq, wk, wv); });
  }
  void head_norm_rope(Rows x, Vec g, Freqs f, const Step& s, float eps) {
    timed("head_norm_rope", 2 * act(x), 0, [&] { inner_.head_norm_rope(x, g, f, s, eps); });
  }
  void head_norm(Rows x, int e, float eps) {
    timed("head_norm", 2 * act(x), 0, [&] { inner_.head_norm(x, e, eps); });
  }
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
    timed("kv_append", act(k) + act(v) + double(s.shape.n_tok) * double(kv.k_row + kv.v_row), 0,
          [&] { inner_.kv_append(kv, k, v, s); });
  }
  void kv_settle(KvLayer kv, const Step& s) {
    timed("kv_settle", 2.0 * s.shape.n_tok * double(kv.k_row + kv.v_row), 0, [&] { inner_.kv_settle(kv, s); });
  }
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec a) {
    double rows = 0, pairs = 0;  // rows read once a sequence; pairs of query and key
    for (int i = 0; i < s.shape.n_seq; ++i) {
      const int n = s.q_begin[i + 1] - s.q_begin[i], len = s.kv_len[i] + n;
      rows += a.window ? std::min(len, a.window - 1 + n) : len;
      pairs += double(n) * (a.window ? std::min(len, a.window) : len);
    }
    timed("attend", act(o) + act(q) + rows * double(kv.k_row + kv.v_row), 4.0 * pairs * a.n_q_head * a.head_dim,
          [&] { inner_.attend(o, q, kv, s, a); });
  }
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> r) {
    timed("residual_norm", 4 * act(x), 0, [&] { inner_.residual_norm(x, h, y, r); });
  }
  void gate_up(Rows y, Rows h, Weight g, Weight u, Act a) {
    timed("gate_up", act(y) + act(h) + bytes(g) + bytes(u), flops(h, g) + flops(h, u),
          [&] { inner_.gate_up(y, h, g, u, a); });
  }
  void act_mul(Rows y, Rows g, Rows u, Act a) {
    timed("act_mul", 3 * act(y), 0, [&] { inner_.act_mul(y, g, u, a); });
  }
  void ple_combine(Rows p, Rows c, Vec g, float in, float out, float eps) {
    timed("ple_combine", 3 * act(p), 0, [&] { inner_.ple_combine(p, c, g, in, out, eps); });
  }
  void moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act a) {
    timed("moe", moe_bytes(y, e, r, w, n_used), moe_flops(e, r, w, n_used), [&] { inner_.moe(y, e, r, w, n_used, a); });
  }
  void ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                      MoeWeights<Weight, Vec> w, int n_used, Act a) requires requires(B b) {
    b.ffn_beside_moe(y, g, h, gate, up, down, o, e, r, w, n_used, a);
  }
  {
    timed("ffn_beside_moe",
          act(y) + 2 * act(g) + act(h) + bytes(gate) + bytes(up) + bytes(down) + moe_bytes(o, e, r, w, n_used),
          flops(h, gate) + flops(h, up) + flops(g, down) + moe_flops(e, r, w, n_used),
          [&] { inner_.ffn_beside_moe(y, g, h, gate, up, down, o, e, r, w, n_used, a); });
  }
  void add(Rows y, Rows a, Rows b) {
    timed("add", 3 * act(y), 0, [&] { inner_.add(y, a, b); });
  }
  void concat(Rows y, Rows a, Rows b) {
    timed("concat", 2 * act(y), 0, [&] { inner_.concat(y, a, b); });
  }
  void gather(Rows y, Rows x, const Step& s) {
    timed("gather", 2 * act(y), 0, [&] { inner_.gather(y, x, s); });
  }
  void copy_rows(Rows y, Rows x) {
    timed("copy_rows", 2 * act(y), 0, [&] { inner_.copy_rows(y, x); });
  }
  void softcap(Rows x, float cap) {
    timed("softcap", 2 * act(x), 0, [&] { inner_.softcap(x, cap); });
  }
  void sample(Ids ids, Rows x, std::span<const SampleRow> rows) {
    timed("sample", act(x), 0, [&] { inner_.sample(ids, x, rows); });
  }
  void clustered_head(Rows y, Rows h, ClusteredHead<Weight, Table> head) {
    // Rows of different tokens may share clusters; counted as if none did.
    const double share = std::min(1.0, double(head.top_k) * y.rows / double(head.centroid.n_out));
    timed("clustered_head", act(y) + act(h) + bytes(head.centroid) + share * bytes(head.head),
          flops(h, head.centroid) + flops(h, head.head) * head.top_k / double(head.centroid.n_out),
          [&] { inner_.clustered_head(y, h, head); });
  }
  void top_k(Ids ids, Scores scores, Rows x, int k) {
    timed("top_k", act(x), 0, [&] { inner_.top_k(ids, scores, x, k); });
  }

  const std::map<std::string, VerbCost>& costs() const { return costs_; }
  void reset() { costs_.clear(); }

 private:
  static double act(const Rows& x) { return double(B::rows_bytes(x.rows, x.cols)); }
  static double bytes(const Weight& w) {
    return w ? double(w.n_stack * w.n_out) * double(row_bytes(w.type, w.n_in)) : 0;
  }
  static double flops(const Rows& x, const Weight& w) {
    return w ? 2.0 * x.rows * double(w.n_in) * double(w.n_out) : 0;
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
  std::map<std::string, VerbCost> costs_;
  bool tracing_ = false;
  std::vector<VerbCost*> marked_;  // by mark, of the step at hand; a map's elements stay where they are
};

}  // namespace facet
