#pragma once
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/compose.h"
#include "backend/lockstep_report.h"
#include "backend/pass.h"

namespace facet {

// One verb's result compared with the reference's, on equal inputs.
struct VerbDifference {
  int64_t verb = 0;  // count since the start
  std::string name;
  std::string near;  // the weight it used, or that the verbs before it used
  int rows = 0, cols = 0;
  int row = 0, col = 0;  // of the worst element
  float got = 0, want = 0;
  double rms = 0;  // of the difference, over the rms of the reference's result
  double bound = 0;
  bool over() const { return !(rms <= bound); }  // a NaN is over
  std::string message() const {
    return fmt::format(
        "verb {} {} [{} x {}], by {}: relative rms error {:.3g} over its bound {:.3g}; worst at row {} column {}: {} "
        "against {}",
        verb, name, rows, cols, near.empty() ? "no weight" : near, rms, bound, row, col, got, want);
  }
};

// Two backends side by side: A is judged by R, verb by verb. After each comparison R's values become A's, so the next
// verb starts from equal inputs and the first difference named is the one that made it. Both must hold activations
// where the host can read them through A::to_host / R::to_host (f32 rows).
//
// A verb's bound follows from how A rounds: every input and weight is off by at most A::kRound relative to its block,
// which moves a sum of independent terms by about kRound of its rms; eight times that is the bound, plus f32
// accumulation over n terms.
template <class A, class R>
class Lockstep {
 public:
  struct Rows {
    typename A::Rows a;
    typename R::Rows r;
    int rows = 0, cols = 0;
    Rows view(int n, int c) const { return {a.view(n, c), r.view(n, c), n, c}; }
    Rows cols_at(int begin, int n) const { return {a.cols_at(begin, n), r.cols_at(begin, n), rows, n}; }
    Rows rows_at(int begin, int n) const { return {a.rows_at(begin, n), r.rows_at(begin, n), n, cols}; }
    explicit operator bool() const { return bool(a); }
  };
  template <class X, class Y>
  struct Pair {
    X a;
    Y r;
    explicit operator bool() const { return bool(a); }
  };
  using Weight = Pair<typename A::Weight, typename R::Weight>;
  using Vec = Pair<typename A::Vec, typename R::Vec>;
  struct Freqs {
    typename A::Freqs a;
    typename R::Freqs r;
  };
  struct KvLayer {
    typename A::KvLayer a;
    typename R::KvLayer r;
  };
  using Ids = typename A::Ids;
  using Table = Pair<typename A::Table, typename R::Table>;
  using Scores = typename A::Scores;

  template <class... Args>
  explicit Lockstep(const Args&... args) : a_(args...), r_(args...) {}
  // Each with arguments of its own.
  template <class... X, class... Y>
  Lockstep(const std::tuple<X...>& a, const std::tuple<Y...>& r)
      : a_(std::make_from_tuple<A>(a)), r_(std::make_from_tuple<R>(r)) {}

  Weight upload(const TensorView& t) { return {a_.upload(t), r_.upload(t)}; }
  Vec upload(std::span<const float> v) { return {a_.upload(v), r_.upload(v)}; }
  Freqs upload(std::span<const double> v) { return {a_.upload(v), r_.upload(v)}; }
  Table upload(std::span<const int32_t> v) { return {a_.upload(v), r_.upload(v)}; }
  Rows new_rows(int rows, int cols) { return {a_.new_rows(rows, cols), r_.new_rows(rows, cols), rows, cols}; }
  Ids new_ids(int n) { return a_.new_ids(n); }
  Scores new_scores(int n) { return a_.new_scores(n); }
  void reserve(const BackendLimits& l) { a_.reserve(l), r_.reserve(l); }
  std::vector<float> to_host(Rows x) { return a_.to_host(x.a); }
  void from_host(Rows x, std::span<const float> values) { a_.from_host(x.a, values), r_.from_host(x.r, values); }
  A& tested() { return a_; }
  R& reference() { return r_; }
  void make_current() { facet::make_current(a_), facet::make_current(r_); }
  Status status() const {
    const Status ok = memory_status(a_);
    return ok ? memory_status(r_) : ok;
  }

  void begin_step(const Step& s) {
    if constexpr (requires { a_.begin_step(s); }) a_.begin_step(s);
  }
  // A's merged verbs against what they are made of.
  void norm_rope_append(KvLayer kv, Rows q, Rows k, Rows v, Vec q_gain, Vec k_gain, Freqs f, bool norm_v, const Step& s,
                        float eps) requires requires(A b) {
    b.norm_rope_append(kv.a, q.a, k.a, v.a, q_gain.a, k_gain.a, f.a, norm_v, s, eps);
  }
  {
    a_.norm_rope_append(kv.a, q.a, k.a, v.a, q_gain.a, k_gain.a, f.a, norm_v, s, eps);
    facet::norm_rope_append(r_, kv.r, q.r, k.r, v.r, q_gain.r, k_gain.r, f.r, norm_v, kv.r.head_dim, s, eps);
    compare("norm_rope_append", q, q.cols);
  }
  void residual_norm_moe(Rows x, Rows h, Rows y, ResidualSpec<Vec> p, Rows r, Rows e, Vec router_gain,
                         Vec expert_gain) requires requires(A b) {
    b.residual_norm_moe(x.a, h.a, y.a, ResidualSpec<typename A::Vec>{}, r.a, e.a, router_gain.a, expert_gain.a);
  }
  {
    a_.residual_norm_moe(x.a, h.a, y.a, {p.post.a, p.next.a, p.out_scale, p.eps}, r.a, e.a, router_gain.a,
                         expert_gain.a);
    facet::residual_norm_moe(r_, x.r, h.r, y.r, ResidualSpec<typename R::Vec>{p.post.r, p.next.r, p.out_scale, p.eps},
                             r.r, e.r, router_gain.r, expert_gain.r);
    compare("residual_norm_moe.x", x, x.cols), compare("residual_norm_moe.h", h, x.cols);
    compare("residual_norm_moe.r", r, x.cols), compare("residual_norm_moe.e", e, x.cols);
  }
  void ffn_beside_moe(Rows y, Rows g, Rows h, Weight gate, Weight up, Weight down, Rows o, Rows e, Rows r,
                      MoeWeights<Weight, Vec> w, int n_used, Act act) requires requires(A b) {
    b.ffn_beside_moe(y.a, g.a, h.a, gate.a, up.a, down.a, o.a, e.a, r.a,
                     MoeWeights<typename A::Weight, typename A::Vec>{}, n_used, act);
  }
  {
    near_ = gate.r.name;
    a_.ffn_beside_moe(y.a, g.a, h.a, gate.a, up.a, down.a, o.a, e.a, r.a, of_a(w), n_used, act);
    facet::ffn_beside_moe(r_, y.r, g.r, h.r, gate.r, up.r, down.r, o.r, e.r, r.r, of_r(w), n_used, act);
    compare("ffn_beside_moe.y", y, g.cols), compare("ffn_beside_moe.o", o, e.cols);
  }
  void join_residual_norm(Rows x, Rows h, Rows y, Rows o, Vec y_gain, Vec o_gain, ResidualSpec<Vec> p) requires
      requires(A b) {
    b.join_residual_norm(x.a, h.a, y.a, o.a, y_gain.a, o_gain.a, ResidualSpec<typename A::Vec>{});
  }
  {
    a_.join_residual_norm(x.a, h.a, y.a, o.a, y_gain.a, o_gain.a, {p.post.a, p.next.a, p.out_scale, p.eps});
    facet::join_residual_norm(r_, x.r, h.r, y.r, o.r, y_gain.r, o_gain.r,
                              ResidualSpec<typename R::Vec>{p.post.r, p.next.r, p.out_scale, p.eps});
    compare("join_residual_norm.x", x, x.cols);
    if (p.next) compare("join_residual_norm.h", h, x.cols);
  }
  void embed_concat(Rows y, Weight w, const Step& s, float scale, Rows x) requires requires(A b) {
    b.embed_concat(y.a, w.a, s, scale, x.a);
  }
  {
    near_ = w.r.name;
    a_.embed_concat(y.a, w.a, s, scale, x.a);
    const int n = y.cols - x.cols;
    r_.embed(y.r.cols_at(0, n), w.r, s, scale), r_.copy_rows(y.r.cols_at(n, x.cols), x.r);
    compare("embed_concat", y, 1);
  }
  void embed(Rows x, Weight w, const Step& s, float scale) {
    near_ = w.r.name;
    a_.embed(x.a, w.a, s, scale), r_.embed(x.r, w.r, s, scale);
    compare("embed", x, 1);
  }
  void rms_norm(Rows y, Rows x, Vec g, float eps) {
    a_.rms_norm(y.a, x.a, g.a, eps), r_.rms_norm(y.r, x.r, g.r, eps);
    compare("rms_norm", y, x.cols);
  }
  void matmul(Rows y, Rows x, Weight w) {
    near_ = w.r.name;
    a_.matmul(y.a, x.a, w.a), r_.matmul(y.r, x.r, w.r);
    compare("matmul", y, x.cols);
  }
  void qkv(Rows q, Rows k, Rows v, Rows h, Weight wq, Weight wk, Weight wv) {
    near_ = wq.r.name;
    a_.qkv(q.a, k.a, v.a, h.a, wq.a, wk.a, wv.a), r_.qkv(q.r, k.r, v.r, h.r, wq.r, wk.r, wv.r);
    compare("qkv.q", q, h.cols), compare("qkv.k", k, h.cols), compare("qkv.v", v, h.cols);
  }
  void head_norm_rope(Rows x, Vec g, Freqs f, const Step& s, float eps) {
    a_.head_norm_rope(x.a, g.a, f.a, s, eps), r_.head_norm_rope(x.r, g.r, f.r, s, eps);
    compare("head_norm_rope", x, x.cols);
  }
  void head_norm(Rows x, int e, float eps) {
    a_.head_norm(x.a, e, eps), r_.head_norm(x.r, e, eps);
    compare("head_norm", x, e);
  }
  void kv_append(KvLayer kv, Rows k, Rows v, const Step& s) {
    a_.kv_append(kv.a, k.a, v.a, s), r_.kv_append(kv.r, k.r, v.r, s);
  }
  void kv_settle(KvLayer kv, const Step& s) { a_.kv_settle(kv.a, s), r_.kv_settle(kv.r, s); }
  void attend(Rows o, Rows q, KvLayer kv, const Step& s, AttnSpec spec) {
    a_.attend(o.a, q.a, kv.a, s, spec), r_.attend(o.r, q.r, kv.r, s, spec);
    compare("attend", o, s.shape.longest);
  }
  void residual_norm(Rows x, Rows h, Rows y, ResidualSpec<Vec> p) {
    a_.residual_norm(x.a, h.a, y.a, {p.post.a, p.next.a, p.out_scale, p.eps});
    r_.residual_norm(x.r, h.r, y.r, {p.post.r, p.next.r, p.out_scale, p.eps});
    compare("residual_norm.x", x, x.cols);
    if (p.next) compare("residual_norm.h", h, x.cols);
  }
  void gate_up(Rows y, Rows h, Weight g, Weight u, Act act) {
    near_ = g.r.name;
    a_.gate_up(y.a, h.a, g.a, u.a, act), r_.gate_up(y.r, h.r, g.r, u.r, act);
    compare("gate_up", y, h.cols);
  }
  void act_mul(Rows y, Rows g, Rows u, Act act) {
    a_.act_mul(y.a, g.a, u.a, act), r_.act_mul(y.r, g.r, u.r, act);
    compare("act_mul", y, 1);
  }
  void ple_combine(Rows p, Rows c, Vec g, float in, float out, float eps) {
    a_.ple_combine(p.a, c.a, g.a, in, out, eps), r_.ple_combine(p.r, c.r, g.r, in, out, eps);
    compare("ple_combine", p, p.cols);
  }
  void moe(Rows y, Rows e, Rows r, MoeWeights<Weight, Vec> w, int n_used, Act act) {
    near_ = w.router.r.name;
    a_.moe(y.a, e.a, r.a, of_a(w), n_used, act);
    r_.moe(y.r, e.r, r.r, of_r(w), n_used, act);
    compare("moe", y, e.cols);
  }
  void add(Rows y, Rows a, Rows b) {
    a_.add(y.a, a.a, b.a), r_.add(y.r, a.r, b.r);
    compare("add", y, 1);
  }
  void concat(Rows y, Rows a, Rows b) {
    a_.concat(y.a, a.a, b.a), r_.concat(y.r, a.r, b.r);
    compare("concat", y, 1);
  }
  void gather(Rows y, Rows x, const Step& s) {
    a_.gather(y.a, x.a, s), r_.gather(y.r, x.r, s);
    compare("gather", y, 1);
  }
  void copy_rows(Rows y, Rows x) {
    a_.copy_rows(y.a, x.a), r_.copy_rows(y.r, x.r);
    compare("copy_rows", y, 1);
  }
  void softcap(Rows x, float cap) {
    a_.softcap(x.a, cap), r_.softcap(x.r, cap);
    compare("softcap", x, 1);
  }
  void sample(Ids ids, Rows x, std::span<const SampleRow> rows) { a_.sample(ids, x.a, rows); }
  void clustered_head(Rows y, Rows h, ClusteredHead<Weight, Table> w) {
    near_ = w.head.r.name;
    a_.clustered_head(y.a, h.a, {w.head.a, w.centroid.a, w.order.a, w.top_k});
    r_.clustered_head(y.r, h.r, {w.head.r, w.centroid.r, w.order.r, w.top_k});
    compare("clustered_head", y, h.cols);
  }
  void top_k(Ids ids, Scores scores, Rows x, int k) { a_.top_k(ids, scores, x.a, k); }

  const std::vector<VerbDifference>& differences() const { return differences_; }  // the first ones over their bound
  int64_t compared() const { return compared_; }
  LockstepReport report() const {
    LockstepReport r{.verbs = verbs_, .first_over = {}};
    if (!differences_.empty()) r.first_over = differences_.front().message();
    return r;
  }

 private:
  // Of a matrix product's input; other verbs round less where A says so.
  static double round_of(std::string_view verb) {
    if constexpr (requires { A::kRoundLight; }) {
      for (const char* product : {"matmul", "qkv.", "gate_up", "moe", "ffn_beside_moe", "clustered_head"})
        if (verb.starts_with(product)) return A::kRound;
      return A::kRoundLight;
    }
    return A::kRound;
  }
  static MoeWeights<typename A::Weight, typename A::Vec> of_a(const MoeWeights<Weight, Vec>& w) {
    return {w.router.a, w.gate_up.a, w.gate.a, w.up.a, w.down.a, w.scale.a};
  }
  static MoeWeights<typename R::Weight, typename R::Vec> of_r(const MoeWeights<Weight, Vec>& w) {
    return {w.router.r, w.gate_up.r, w.gate.r, w.up.r, w.down.r, w.scale.r};
  }
  void compare(const char* name, const Rows& y, int64_t n_terms) {
    const std::vector<float> got = a_.to_host(y.a), want = r_.to_host(y.r);
    double diff = 0, size = 0, most = 0;
    size_t worst = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      if (std::isfinite(want[i])) size += double(want[i]) * double(want[i]);
      if (got[i] == want[i]) continue;  // and where both are -inf
      const double d = double(got[i]) - double(want[i]);
      diff += d * d;
      if (!(std::abs(d) <= most)) worst = i, most = std::abs(d);
    }
    VerbDifference v;
    v.verb = compared_++;
    v.name = name, v.near = near_;
    v.rows = y.rows, v.cols = y.cols;
    v.rms = size > 0 ? std::sqrt(diff / size) : std::sqrt(diff);
    v.bound = 8 * round_of(name) + 0x1p-23 * std::sqrt(double(n_terms));
    if (!want.empty()) {
      v.row = int(worst / size_t(y.cols)), v.col = int(worst % size_t(y.cols));
      v.got = got[worst], v.want = want[worst];
    }
    if (v.over() && differences_.size() < 1000) differences_.push_back(v);
    count(v);
    r_.from_host(y.r, got);
  }

  void count(const VerbDifference& v) {
    LockstepReport::Verb* at = nullptr;
    for (LockstepReport::Verb& x : verbs_)
      if (x.name == v.name) at = &x;
    if (!at) at = &verbs_.emplace_back(), at->name = v.name, at->bound = v.bound;
    ++at->compared;
    at->over += v.over();
    if (!std::isnan(at->error) && !(v.rms / v.bound <= at->error / at->bound))
      at->error = v.rms, at->bound = v.bound;  // a NaN is worse than any
  }

  A a_;
  R r_;
  const char* near_ = "";
  std::vector<LockstepReport::Verb> verbs_;
  std::vector<VerbDifference> differences_;
  int64_t compared_ = 0;
};

}  // namespace facet
