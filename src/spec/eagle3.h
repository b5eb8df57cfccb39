#pragma once
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/pass.h"
#include "backend/step_builder.h"
#include "base/check.h"
#include "cache/cache_of.h"
#include "model/eagle3_bind.h"
#include "spec/drafter.h"

namespace facet {

// The K/V plan of an EAGLE-3 drafter beside a target's, with room for a chain in flight.
inline KvPlan eagle3_plan(const KvPlan& target, const Eagle3Cfg& c) {
  KvPlan p = target;
  p.layers.clear();
  p.margin = target.margin + c.max_draft() + 1;
  return p;
}

// An EAGLE-3 drafter at work. Of a sequence of n rows it has K/V rows [0, n - 1), which take the token behind each row,
// and the state of row n - 1, whose token is not settled: a draft begins with it and whatever token it is asked about.
// After a rewind the state is missing until the next row comes, and the K/V rows are [0, n).
template <Backend B>
class Eagle3 final : public Drafter<B> {
 public:
  using typename Drafter<B>::Rows;

  // As Dflash::open.
  static Result<std::unique_ptr<Eagle3>> open(const DrafterFile& file, const TargetView<B>& t) {
    auto cfg = eagle3_config(file, t.m);
    if (!cfg) return cfg.error();
    return open(file, std::move(*cfg), t);
  }
  static Result<std::unique_ptr<Eagle3>> open(const DrafterFile& file, Eagle3Cfg cfg, const TargetView<B>& t) {
    std::unique_ptr<Eagle3> d(new Eagle3(t, std::move(cfg)));
    d->file_ = file;
    auto w = bind_eagle3(t.b, file, d->c_);
    if (!w) return w.error();
    d->w_ = std::move(*w);
    auto cache = CacheOf<B>::create(t.b, d->c_.body, d->plan_, t.pool);
    if (!cache) return cache.error();
    d->cache_ = std::move(*cache);
    d->kv_ = CacheOf<B>::views(t.b, *d->cache_);
    const int T = d->plan_.max_step, S = t.plan.max_seq, D = t.m.d_model;
    t.b.reserve(eagle3_limits(d->c_, T, d->plan_.max_ctx));
    d->work_ = {make_work(t.b, d->c_.body, T, S), t.b.new_rows(T, 2 * D)};
    d->kept_ = t.b.new_rows(T, d->feature_cols());
    d->fused_ = t.b.new_rows(T, D), d->before_ = t.b.new_rows(T, D);
    d->pending_ = t.b.new_rows(t.plan.resident(), D), d->state_ = t.b.new_rows(S, D);
    d->ids_ = t.b.new_ids(S * kMaxTop);
    d->log_prob_ = t.b.new_scores(S * kMaxTop);
    if (auto ok = memory_status(t.b); !ok) return ok.error();
    return d;
  }

  const char* name() const override { return "eagle3"; }
  int max_draft() const override { return c_.max_draft(); }
  std::span<const int> tap_layers() const override { return c_.taps; }
  bool wants_final_hidden() const override { return false; }

  void absorb(std::span<const Committed> rows, const Features<Rows>& f) override {
    fuse(rows, f);
    // The pairs that are complete now: the row before the first, if its state waits, and all but the last.
    steps_.begin();
    int first = 0, at = 0;
    for (const Committed& c : rows) {
      Slot& q = slots_[size_t(c.slot)];
      CHECK(c.n > 0 && c.position == q.held && int(c.token.size()) == c.n,
            "{} rows and {} tokens from {} on for slot {} that holds {}", c.n, c.token.size(), c.position, c.slot,
            q.held);
      const int old = q.state ? 1 : 0, n = old + c.n - 1;
      if (n > 0 && !cache_->prepare(c.slot, n)) {  // no memory for it: drafting of this sequence ends, its text goes on
        cache_->clear(c.slot);
        q = {};
      } else {
        if (old) t_.b.copy_rows(before_.rows_at(at, 1), pending_.rows_at(c.slot, 1));
        if (c.n > 1) t_.b.copy_rows(before_.rows_at(at + old, c.n - 1), fused_.rows_at(first, c.n - 1));
        if (n > 0)
          steps_.add(
              {.slot = c.slot, .kv_len = cache_->len(c.slot), .token = c.token.last(size_t(n)), .mask = Mask::kCausal});
        at += n;
        t_.b.copy_rows(pending_.rows_at(c.slot, 1), fused_.rows_at(first + c.n - 1, 1));
        q = {c.position + c.n, true};
      }
      first += c.n;
    }
    if (at == 0) return;
    const Step& s = steps_.finish();
    run_pass(t_.b, s, &before_, [&] {
      eagle3_rows(t_.b, c_.body, w_, t_.w, before_.view(at, t_.m.d_model), s, kv_[0], work_);
      if (s.shape.staged) t_.b.kv_settle(kv_[0], s);
      return Rows{};
    });
    for (const Committed& c : rows)
      if (const int n = held(c.slot) - 1 - cache_->len(c.slot); n > 0) cache_->commit(c.slot, n);
  }

  void propose(std::span<Draft> drafts) override {
    begin_chains(drafts);
    int k = 1;
    for (const Draft& d : drafts) k = std::max(k, d.n_top);
    CHECK(k <= kMaxTop, "{} candidates a position, at most {}", k, kMaxTop);
    for (int pass = 0, n = 0; (n = running(drafts, pass)) > 0; ++pass) {
      const Rows logits = step(drafts, n, pass);
      t_.b.top_k(ids_, log_prob_, logits, k);
      if (watched_)
        for (const float x : t_.b.to_host(logits)) watched_->push_back(x);
      for (int i = 0; i < n; ++i) {
        Draft& d = drafts[size_t(order_[size_t(i)])];
        const size_t from = size_t(i) * size_t(k);
        if (ids_[from] < 0) return;  // no finite logit: the target decides alone
        d.token.push_back(id_of(ids_[from]));
        for (size_t j = from; j < from + size_t(d.n_top); ++j) {
          d.top.push_back(id_of(ids_[j]));
          d.top_log_prob.push_back(log_prob_[j]);
        }
      }
    }
  }
  // Where the logits of each pass are added to, for tests; null: nowhere.
  void watch(std::vector<float>* passes) { watched_ = passes; }

  int held(SlotId s) const override { return slots_[size_t(s)].held; }
  bool ready(SlotId s) const override { return slots_[size_t(s)].state; }
  int rewind(SlotId s, int len) override {
    Slot& q = slots_[size_t(s)];
    if (len >= q.held) return q.held;
    const int left = rows_left(len);
    if (cache_->len(s) > left && cache_->rewind(s, left) != Rewind::kDone) cache_->clear(s);
    q = {cache_->len(s), false};
    return q.held;
  }
  // Row len - 1 would take another token than it did, and its state is lost.
  int rows_left(int len) const override { return std::max(0, len - 1); }
  void forget(SlotId s) override {
    cache_->release(s);
    slots_[size_t(s)] = {};
  }
  bool prepare(SlotId s, int n) override {
    return bool(cache_->prepare(s, std::min({n + 1, plan_.max_step, plan_.max_ctx - cache_->len(s)})));
  }
  Status fork(SlotId from, SlotId to) override {
    if (auto ok = cache_->fork(from, to); !ok) return ok;
    if (slots_[size_t(from)].state) t_.b.copy_rows(pending_.rows_at(to, 1), pending_.rows_at(from, 1));
    slots_[size_t(to)] = slots_[size_t(from)];
    return Ok{};
  }
  KvCache* rows() override { return cache_.get(); }
  std::vector<float> save(SlotId s) override {
    return slots_[size_t(s)].state ? t_.b.to_host(pending_.rows_at(s, 1)) : std::vector<float>{};
  }
  bool load(SlotId s, int held, std::span<const float> beside) override {
    const bool state = !beside.empty();
    if ((state && beside.size() != size_t(t_.m.d_model)) || cache_->len(s) != held - int(state)) return false;
    if (state) t_.b.from_host(pending_.rows_at(s, 1), beside);
    slots_[size_t(s)] = {held, state};
    return true;
  }

  const Eagle3Cfg& cfg() const { return c_; }
  const KvPlan& plan() const { return plan_; }

 private:
  struct Slot {
    int held = 0;
    bool state = false;  // pending_ has that of row held - 1, and the K/V rows end before it
  };
  Eagle3(const TargetView<B>& t, Eagle3Cfg cfg)
      : t_(t),
        c_(std::move(cfg)),
        plan_(eagle3_plan(t.plan, c_)),
        steps_(plan_.max_step, plan_.max_seq, plan_.margin),
        no_token_(size_t(plan_.max_step), 0),
        slots_(size_t(t.plan.resident())) {
    from_.reserve(size_t(plan_.max_step));
    order_.reserve(size_t(plan_.max_seq));
  }
  int feature_cols() const { return int(c_.taps.size()) * t_.m.d_model; }
  int32_t id_of(int32_t id) const { return id < 0 || c_.id_map.empty() ? id : c_.id_map[size_t(id)]; }

  // States of all rows to fused_, side by side.
  void fuse(std::span<const Committed> rows, const Features<Rows>& f) {
    steps_.begin();
    from_.clear();
    for (const Committed& c : rows) {
      for (int i = 0; i < c.n; ++i) from_.push_back(c.at(i));
      steps_.add({.slot = c.slot,
                  .kv_len = c.position,
                  .token = std::span(no_token_).first(size_t(c.n)),
                  .out = Out::kGiven,
                  .mask = Mask::kPast,
                  .out_row = std::span(from_).last(size_t(c.n)),
                  .pos = c.position});
    }
    const int n = int(from_.size());
    const Step& s = steps_.finish();
    run_pass(t_.b, s, &fused_, [&] {
      const Rows kept = kept_.view(n, feature_cols());
      t_.b.gather(kept, f.taps, s);
      eagle3_fuse(t_.b, c_.body, w_, fused_.view(n, t_.m.d_model), kept);
      return Rows{};
    });
  }

  // Longest chain first, so that those which still run are the first rows; their states side by side.
  void begin_chains(std::span<const Draft> drafts) {
    order_.resize(drafts.size());
    std::iota(order_.begin(), order_.end(), 0);
    most_.clear();
    for (const Draft& d : drafts) {
      const Slot& q = slots_[size_t(d.slot)];
      CHECK(q.held == d.position && q.state, "a draft at {} for slot {} that holds {}, with its state: {}", d.position,
            d.slot, q.held, q.state);
      const int n = std::min({d.max_draft, max_draft(), plan_.max_ctx - d.position - 1});
      most_.push_back(n > 0 && cache_->prepare(d.slot, n) ? n : 0);
    }
    std::sort(order_.begin(), order_.end(), [&](int a, int b) {
      return most_[size_t(a)] != most_[size_t(b)] ? most_[size_t(a)] > most_[size_t(b)] : a < b;
    });
    for (size_t i = 0; i < order_.size(); ++i)
      t_.b.copy_rows(state_.rows_at(int(i), 1), pending_.rows_at(drafts[size_t(order_[i])].slot, 1));
  }
  // How many chains have a pass of this number.
  int running(std::span<const Draft> drafts, int pass) const {
    int n = 0;
    while (n < int(drafts.size()) && pass < most_[size_t(order_[size_t(n)])]) ++n;
    return n;
  }
  // One more pass of the first n chains.
  Rows step(std::span<const Draft> drafts, int n, int pass) {
    steps_.begin();
    for (int i = 0; i < n; ++i) {
      const Draft& d = drafts[size_t(order_[size_t(i)])];
      steps_.add({.slot = d.slot,
                  .kv_len = d.position - 1 + pass,
                  .token = std::span(d.token).last(1),
                  .out = Out::kLast,
                  .mask = Mask::kCausal});
    }
    const Step& s = steps_.finish();
    return run_pass(t_.b, s, this, [&] {
      return eagle3_step(t_.b, c_.body, w_, t_.w, state_.view(n, t_.m.d_model), s, kv_[0], work_,
                         c_.norm_before_residual, c_.norm_output);
    });
  }

  TargetView<B> t_;
  DrafterFile file_;  // its mapping: weights stay where they are
  Eagle3Cfg c_;
  KvPlan plan_;
  StepBuilder steps_;
  std::vector<int32_t> no_token_, from_;
  std::vector<Slot> slots_;
  std::vector<int> order_, most_;  // of the drafts of a round: by length; tokens of each
  Eagle3W<B> w_;
  std::unique_ptr<KvCache> cache_;
  std::vector<typename B::KvLayer> kv_;
  Eagle3Work<B> work_;
  Rows kept_, fused_, before_;  // [T, n_tap * D], [T, D]: of an absorb
  Rows pending_, state_;        // [resident, D], [chains, D]
  std::vector<float>* watched_ = nullptr;
  typename B::Ids ids_{};
  typename B::Scores log_prob_{};
};

}  // namespace facet
