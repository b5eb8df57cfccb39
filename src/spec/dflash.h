#pragma once
#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/pass.h"
#include "backend/step_builder.h"
#include "base/check.h"
#include "cache/cache_of.h"
#include "model/dflash_bind.h"
#include "spec/drafter.h"

namespace facet {

// The K/V plan of a DFlash drafter beside a target's: as many slots and rows. Its rings have room for a block in flight
// beyond what the target can take back, so that a draft costs no rewind. Its layers are not the target's.
inline KvPlan dflash_plan(const KvPlan& target, const DflashCfg& c) {
  KvPlan p = target;
  p.layers.clear();
  p.max_step = std::max(target.max_step, target.max_seq * c.block);
  p.margin = target.margin + c.block;
  return p;
}

// A DFlash drafter at work. It owns K/V rows of every sequence: absorb() turns each feature row into one of them, once;
// nothing else writes rows that stay.
template <Backend B>
class Dflash final : public Drafter<B> {
 public:
  using typename Drafter<B>::Rows;

  // Binds the file to the target, allocates, and widens what the target's backend is reserved for. An error names
  // file, key and both values when the drafter belongs to another target.
  static Result<std::unique_ptr<Dflash>> open(const DrafterFile& file, const TargetView<B>& t) {
    auto cfg = dflash_config(file, t.m);
    if (!cfg) return cfg.error();
    return open(file, std::move(*cfg), t);
  }
  static Result<std::unique_ptr<Dflash>> open(const DrafterFile& file, DflashCfg cfg, const TargetView<B>& t) {
    std::unique_ptr<Dflash> d(new Dflash(t, std::move(cfg)));
    d->file_ = file;
    auto w = bind_dflash(t.b, file, d->c_);
    if (!w) return w.error();
    d->w_ = std::move(*w);
    auto cache = CacheOf<B>::create(t.b, d->c_.body, d->plan_, t.pool);
    if (!cache) return cache.error();
    d->cache_ = std::move(*cache);
    d->kv_ = CacheOf<B>::views(t.b, *d->cache_);
    t.b.reserve(dflash_limits(d->c_, t.m.d_model, d->plan_.max_step, d->plan_.max_ctx));
    const int rows = t.plan.max_seq * d->c_.block;
    d->work_ = make_work(t.b, d->c_.body, d->plan_.max_step, rows);
    d->kept_ = t.b.new_rows(t.plan.max_step, d->feature_cols());
    d->ids_ = t.b.new_ids(rows * kMaxTop);
    d->log_prob_ = t.b.new_scores(rows * kMaxTop);
    if (auto ok = memory_status(t.b); !ok) return ok.error();
    return d;
  }

  const char* name() const override { return "dflash"; }
  int max_draft() const override { return c_.block - 1; }
  std::span<const int> tap_layers() const override { return c_.taps; }
  bool wants_final_hidden() const override { return false; }

  void absorb(std::span<const Committed> rows, const Features<Rows>& f) override {
    steps_.begin();
    failed_.clear();
    bool in_place = true;  // the kept rows are the first rows of the features, in order
    int n_tok = 0;
    for (const Committed& c : rows) {
      CHECK(c.n > 0 && c.position == cache_->len(c.slot), "{} rows from {} on for slot {} that holds {}", c.n,
            c.position, c.slot, cache_->len(c.slot));
      if (!cache_->prepare(c.slot, c.n)) {  // no memory for it: drafting of this sequence ends, its text goes on
        cache_->clear(c.slot);
        failed_.push_back(c.slot);
        continue;
      }
      from_.clear();
      for (int i = 0; i < c.n; ++i) {
        from_.push_back(c.at(i));
        in_place &= c.at(i) == n_tok++;
      }
      steps_.add({.slot = c.slot,
                  .kv_len = c.position,
                  .token = std::span(no_token_).first(size_t(c.n)),
                  .out = Out::kGiven,
                  .out_row = from_});
    }
    if (n_tok == 0) return;
    const Step& s = steps_.finish();
    const void* key = in_place ? static_cast<const void*>(&kept_) : &from_;
    run_pass(t_.b, s, key, [&] {
      auto kept = in_place ? f.taps.view(n_tok, feature_cols()) : kept_.view(n_tok, feature_cols());
      if (!in_place) t_.b.gather(kept, f.taps, s);
      dflash_absorb(t_.b, c_.body, w_, kept, s, std::span<const typename B::KvLayer>(kv_), work_);
      return Rows{};
    });
    for (const Committed& c : rows)
      if (std::find(failed_.begin(), failed_.end(), c.slot) == failed_.end()) cache_->commit(c.slot, c.n);
  }

  void propose(std::span<Draft> drafts) override {
    const Rows logits = draft(drafts, Out::kButFirst);
    if (!logits) return;
    int k = 1;
    for (const Draft& d : drafts) k = std::max(k, d.n_top);
    CHECK(k <= kMaxTop, "{} candidates a position, at most {}", k, kMaxTop);
    t_.b.top_k(ids_, log_prob_, logits, k);
    int row = 0;
    for (size_t i = 0; i < drafts.size(); ++i) {
      Draft& d = drafts[i];
      const int end = row + n_draft_[i];
      for (; row < end; ++row) {
        const int32_t id = id_of(ids_[size_t(row) * size_t(k)]);
        if (id < 0) break;  // no finite logit: the target decides alone
        d.token.push_back(id);
        for (int j = 0; j < d.n_top; ++j) {
          d.top.push_back(id_of(ids_[size_t(row) * size_t(k) + size_t(j)]));
          d.top_log_prob.push_back(log_prob_[size_t(row) * size_t(k) + size_t(j)]);
        }
      }
      row = end;
    }
  }

  // Logits [rows, V] of every slot of the drafts' blocks, slot 0 included, for tests and tools.
  Rows logits(std::span<const Draft> drafts) { return draft(drafts, Out::kAll); }

  int held(SlotId s) const override { return cache_->len(s); }
  int rewind(SlotId s, int len) override {
    if (cache_->rewind(s, len) == Rewind::kDone) return len;
    cache_->clear(s);
    return 0;
  }
  void forget(SlotId s) override { cache_->release(s); }
  bool prepare(SlotId s, int n) override {
    return bool(cache_->prepare(s, std::min({n, plan_.max_step, plan_.max_ctx - cache_->len(s)})));
  }
  Status fork(SlotId from, SlotId to) override { return cache_->fork(from, to); }
  KvCache* rows() override { return cache_.get(); }
  bool load(SlotId s, int held, std::span<const float> beside) override {
    return beside.empty() && cache_->len(s) <= held;
  }

  const DflashCfg& cfg() const { return c_; }
  const KvPlan& plan() const { return plan_; }

 private:
  Dflash(const TargetView<B>& t, DflashCfg cfg)
      : t_(t),
        c_(std::move(cfg)),
        plan_(dflash_plan(t.plan, c_)),
        steps_(plan_.max_step, plan_.max_seq, plan_.margin),
        no_token_(size_t(plan_.max_step), 0),
        block_(size_t(c_.block), c_.mask_id) {
    from_.reserve(size_t(plan_.max_step));
    n_draft_.reserve(size_t(plan_.max_seq));
    failed_.reserve(size_t(plan_.max_seq));
  }
  int feature_cols() const { return int(c_.taps.size()) * t_.m.d_model; }
  int32_t id_of(int32_t id) const { return id < 0 || c_.id_map.empty() ? id : c_.id_map[size_t(id)]; }

  // One pass over the blocks of all drafts that want tokens. n_draft_: tokens each will get.
  Rows draft(std::span<const Draft> drafts, Out out) {
    steps_.begin();
    n_draft_.clear();
    for (const Draft& d : drafts) {
      const int n = std::min({d.max_draft, max_draft(), plan_.max_ctx - d.position - 1});
      CHECK(cache_->len(d.slot) == d.position, "a draft at {} for slot {} that holds {}", d.position, d.slot,
            cache_->len(d.slot));
      n_draft_.push_back(n > 0 && cache_->prepare(d.slot, n + 1) ? n : 0);
      if (n_draft_.back() == 0) continue;
      block_[0] = d.token[0];
      steps_.add({.slot = d.slot,
                  .kv_len = d.position,
                  .token = std::span(block_).first(size_t(n + 1)),
                  .out = out,
                  .mask = Mask::kBlock});
    }
    if (steps_.n_tok() == 0) return {};
    const Step& s = steps_.finish();
    return run_pass(t_.b, s, this, [&] {
      return dflash_draft(t_.b, c_.body, w_, t_.w, s, std::span<const typename B::KvLayer>(kv_), work_);
    });
  }

  TargetView<B> t_;
  DrafterFile file_;  // its mapping: weights stay where they are
  DflashCfg c_;
  KvPlan plan_;
  StepBuilder steps_;
  std::vector<int32_t> no_token_, block_, from_, n_draft_, failed_;
  DflashW<B> w_;
  std::unique_ptr<KvCache> cache_;
  std::vector<typename B::KvLayer> kv_;
  Work<B> work_;
  Rows kept_;
  typename B::Ids ids_{};
  typename B::Scores log_prob_{};
};

}  // namespace facet
