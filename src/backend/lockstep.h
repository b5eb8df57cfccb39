#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/compose.h"
#include "backend/lockstep_report.h"
#include "backend/optional.h"
#include "backend/pass.h"
#include "backend/shard_spec.h"

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
    int head_dim = a.head_dim;
  };
  using Table = Pair<typename A::Table, typename R::Table>;
  template <class X, class Y>
  struct Values {  // the host reads A's
    X a{};
    Y r{};
    auto operator[](size_t i) const { return a[i]; }
  };
  using Ids = Values<typename A::Ids, typename R::Ids>;
  using Scores = Values<typename A::Scores, typename R::Scores>;

  template <class... Args>
  explicit Lockstep(const Args&... args) : a_(args...), r_(args...) {
    static_assert(Decorates<Lockstep, A>);
  }
  // Each with arguments of its own.
  template <class... X, class... Y>
  Lockstep(const std::tuple<X...>& a, const std::tuple<Y...>& r)
      : a_(std::make_from_tuple<A>(a)), r_(std::make_from_tuple<R>(r)) {
    static_assert(Decorates<Lockstep, A>);
  }

  Weight upload(const TensorView& t) { return {a_.upload(t), r_.upload(t)}; }
  Weight upload(const TensorView& t, const ShardSpec& spec) {
    return {upload_shard(a_, t, spec), upload_shard(r_, t, spec)};
  }
  int n_shard() const { return std::max(shards_of(a_), shards_of(r_)); }
  Vec upload(std::span<const float> v) { return {a_.upload(v), r_.upload(v)}; }
  Freqs upload(std::span<const double> v) { return {a_.upload(v), r_.upload(v)}; }
  Table upload(std::span<const int32_t> v) { return {a_.upload(v), r_.upload(v)}; }
  Rows new_rows(int rows, int cols) { return {a_.new_rows(rows, cols), r_.new_rows(rows, cols), rows, cols}; }
  Ids new_ids(int n) { return {a_.new_ids(n), r_.new_ids(n)}; }
  Scores new_scores(int n) { return {a_.new_scores(n), r_.new_scores(n)}; }
  void reserve(const BackendLimits& l) { a_.reserve(l), r_.reserve(l); }
  std::vector<float> to_host(Rows x) { return a_.to_host(x.a); }
  void from_host(Rows x, std::span<const float> values) { a_.from_host(x.a, values), r_.from_host(x.r, values); }
  A& tested() { return a_; }
  R& reference() { return r_; }
  void make_current() { facet::make_current(a_), facet::make_current(r_); }
  void take_drafters() requires TakesDrafters<A> { a_.take_drafters(); }
  Status status() const {
    const Status ok = memory_status(a_);
    return ok ? memory_status(r_) : ok;
  }

  void begin_step(const Step& s) {
    chained_.clear();
    if constexpr (BeginsSteps<A>) a_.begin_step(s);
  }
  void next_step(const Step& s) requires TakesNextStep<A> { a_.next_step(s); }

  // A's verb against R's, or against what it is made of.
#define RESULT(suffix, rows, terms) compare(verb + suffix, rows, terms, light());
#define PRODUCT(suffix, rows, terms) compare(verb + suffix, rows, terms, A::kRound);
#define CHOICE(ids, n) compare_ids(verb + ".ids", ids, n);
#define SCORES(floats, n) compare_scores(verb + "." #floats, floats, n);
#define UNSEEN entry(verb);
#define JUDGED(name, parameters, arguments, results, reference) \
  void name parameters requires(Has<A>::name) {                 \
    const std::string verb = #name;                             \
    near_noted_ = false;                                        \
    [&](const auto&... all) {                                   \
      (note_weight(all), ...);                                  \
      a_.name(of_a(all)...);                                    \
      reference(of_r(all)...);                                  \
    } arguments;                                                \
    results                                                     \
  }
#define VERB(name, parameters, arguments, results, ...) JUDGED(name, parameters, arguments, results, r_.name)
#define ENCODER VERB
#define MERGED(name, parameters, arguments, results, ...) \
  JUDGED(name, parameters, arguments, results, [&](const auto&... each) { facet::name(r_, each...); })
#define CHAINED(name, parameters, arguments, results, ...) \
  JUDGED(name, parameters, arguments, results, [&](const auto&... each) { after_##name(each...); })
#include "backend/verbs.def"
#undef JUDGED
#undef UNSEEN
#undef SCORES
#undef CHOICE
#undef PRODUCT
#undef RESULT

  const std::vector<VerbDifference>& differences() const { return differences_; }  // the first ones over their bound
  int64_t compared() const { return compared_; }
  LockstepReport report() const {
    LockstepReport r{.verbs = verbs_, .first_over = {}};
    if (!differences_.empty()) r.first_over = differences_.front().message();
    return r;
  }

 private:
  // Results that are no matrix product of a rounded input may round less.
  static constexpr double light() { return round_light<A>(); }

  // What an argument is on either side.
  template <class X>
  static const auto& of_a(const X& x) requires requires {
    x.a, x.r;
  }
  { return x.a; }
  template <class X>
  static const auto& of_r(const X& x) requires requires {
    x.a, x.r;
  }
  { return x.r; }
  template <class X>
  static const X& of_a(const X& x) {
    return x;
  }
  template <class X>
  static const X& of_r(const X& x) {
    return x;
  }
  static ResidualSpec<typename A::Vec> of_a(const ResidualSpec<Vec>& p) {
    return {p.post.a, p.next.a, p.out_scale, p.eps};
  }
  static ResidualSpec<typename R::Vec> of_r(const ResidualSpec<Vec>& p) {
    return {p.post.r, p.next.r, p.out_scale, p.eps};
  }
  static MoeWeights<typename A::Weight, typename A::Vec> of_a(const MoeWeights<Weight, Vec>& w) {
    return {w.router.a, w.gate_up.a, w.gate.a, w.up.a, w.down.a, w.scale.a};
  }
  static MoeWeights<typename R::Weight, typename R::Vec> of_r(const MoeWeights<Weight, Vec>& w) {
    return {w.router.r, w.gate_up.r, w.gate.r, w.up.r, w.down.r, w.scale.r};
  }
  static ClusteredHead<typename A::Weight, typename A::Table> of_a(const ClusteredHead<Weight, Table>& w) {
    return {w.head.a, w.centroid.a, w.order.a, w.top_k};
  }
  static ClusteredHead<typename R::Weight, typename R::Table> of_r(const ClusteredHead<Weight, Table>& w) {
    return {w.head.r, w.centroid.r, w.order.r, w.top_k};
  }
  // R has no step of its own: where A goes on with tokens that it chose itself, these are told to R.
  Step of_r(const Step& s) const {
    Step t = s;
    if (!chained_.empty()) t.token = chained_.data();
    return t;
  }

  // Weights name the place in the model: the first of a verb, or of those before it.
  void note_weight(const Weight& w) {
    if (!near_noted_ && w) near_ = w.r.name, near_noted_ = true;
  }
  void note_weight(const MoeWeights<Weight, Vec>& w) { note_weight(w.router); }
  void note_weight(const ClusteredHead<Weight, Table>& w) { note_weight(w.head); }
  template <class X>
  void note_weight(const X&) {}

  // R's part of next_tokens.
  void after_next_tokens(typename R::Ids ids, typename R::Scores log_probs, typename R::Rows logits, int k) {
    r_.top_k(ids, log_probs, logits, k);
    chained_.resize(size_t(logits.rows));
    for (size_t i = 0; i < chained_.size(); ++i) chained_[i] = std::max(ids[i * size_t(k)], 0);
  }

  // How large the differences are, and where the largest is.
  struct Compared {
    double diff = 0, size = 0, most = 0;
    size_t worst = 0;
    void add(size_t i, double got, double want) {
      if (std::isfinite(want)) size += want * want;
      if (got == want) return;  // and where both are -inf
      const double d = got - want;
      diff += d * d;
      if (!(std::abs(d) <= most)) worst = i, most = std::abs(d);
    }
    double rms() const { return size > 0 ? std::sqrt(diff / size) : std::sqrt(diff); }
  };
  void compare(const std::string& name, const Rows& y, int64_t n_terms, double round) {
    const std::vector<float> got = a_.to_host(y.a), want = r_.to_host(y.r);
    Compared c;
    for (size_t i = 0; i < want.size(); ++i) c.add(i, double(got[i]), double(want[i]));
    judge(name, c, y.rows, y.cols, got, want, 8 * round + 0x1p-23 * std::sqrt(double(n_terms)));
    r_.from_host(y.r, got);
  }
  // The root of how many differ, against less than one.
  void compare_ids(const std::string& name, const Ids& ids, int n) {
    Compared c;
    for (int i = 0; i < n; ++i) c.add(size_t(i), ids.a[size_t(i)] == ids.r[size_t(i)] ? 0 : 1, 0);
    judge(name, c, 1, n, ids.a, ids.r, 0.5);
  }
  // Logarithms of probabilities: a difference is a relative error of the probability, also where it is nearly one.
  void compare_scores(const std::string& name, const Scores& v, int n) {
    Compared c;
    for (int i = 0; i < n; ++i) {
      const double want = double(v.r[size_t(i)]);
      c.add(size_t(i), double(v.a[size_t(i)]), want);
      if (std::abs(want) < 1) c.size += 1 - want * want;
    }
    judge(name, c, 1, n, v.a, v.r, 8 * light());
  }
  template <class Got, class Want>
  void judge(const std::string& name, const Compared& c, int rows, int cols, const Got& got, const Want& want,
             double bound) {
    VerbDifference v;
    v.verb = compared_++;
    v.name = name, v.near = near_;
    v.rows = rows, v.cols = cols;
    v.rms = c.rms(), v.bound = bound;
    if (rows > 0 && cols > 0) {
      v.row = int(c.worst / size_t(cols)), v.col = int(c.worst % size_t(cols));
      v.got = float(got[c.worst]), v.want = float(want[c.worst]);
    }
    if (v.over() && differences_.size() < 1000) differences_.push_back(v);
    count(v);
  }
  LockstepReport::Verb& entry(const std::string& name) {
    for (LockstepReport::Verb& x : verbs_)
      if (x.name == name) return x;
    return verbs_.emplace_back(LockstepReport::Verb{.name = name});
  }

  void count(const VerbDifference& v) {
    LockstepReport::Verb& at = entry(v.name);
    if (++at.compared == 1) at.bound = v.bound;
    at.over += v.over();
    if (!std::isnan(at.error) && !(v.rms / v.bound <= at.error / at.bound))
      at.error = v.rms, at.bound = v.bound;  // a NaN is worse than any
  }

  A a_;
  R r_;
  const char* near_ = "";
  bool near_noted_ = false;       // by the verb at hand
  std::vector<int32_t> chained_;  // tokens that next_tokens chose for the step; empty: it has its own
  std::vector<LockstepReport::Verb> verbs_;
  std::vector<VerbDifference> differences_;
  int64_t compared_ = 0;
};

}  // namespace facet
