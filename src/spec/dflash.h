#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
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

// A DFlash or DSpark drafter at work. It owns K/V rows of every sequence: absorb() turns each feature row into one of them, once;
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
    if (d->c_.markov.rank > 0) {
      const int S = t.plan.max_seq, V = d->c_.body.n_vocab;
      d->markov_ = t.b.new_rows(S, d->c_.markov.rank);
      d->bias_ = t.b.new_rows(S, V), d->slot_logits_ = t.b.new_rows(S, V);
    }
    if (d->c_.selector.rank > 0) d->selected_ = t.b.new_rows(rows, d->c_.selector.rank);
    if (d->c_.conv_taps > 0)
      d->conv_ = {t.b.new_rows(d->plan_.max_step, t.m.d_model), t.b.new_rows(d->plan_.max_step, conv_cols(d->c_))};
    d->ids_ = t.b.new_ids(rows * kMaxTop);
    d->log_prob_ = t.b.new_scores(rows * kMaxTop);
    if (auto ok = memory_status(t.b); !ok) return ok.error();
    return d;
  }

  const char* name() const override {
    return c_.markov.rank > 0 ? "dspark" : c_.selector.rank > 0 ? "dflash2" : "dflash";
  }
  int max_draft() const override { return c_.max_draft(); }
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
    const Rows logits = draft(drafts, /*all=*/false);
    if (!logits) return;
    int k = 1;
    for (const Draft& d : drafts) k = std::max(k, d.n_top);
    CHECK(k <= kMaxTop, "{} candidates a position, at most {}", k, kMaxTop);
    if (c_.markov.rank > 0) return chain(drafts, logits, k);
    if (c_.selector.rank > 0) return walk(drafts, logits);
    t_.b.top_k(ids_, log_prob_, logits, k);
    int row = 0;
    for (size_t i = 0; i < drafts.size(); row += n_row_[i], ++i)
      for (int at = 0; at < n_draft_[i]; ++at)
        if (!take(drafts[i], size_t(row + at) * size_t(k))) break;  // no finite logit: the target decides alone
  }

  // Logits [rows, V] of every slot of the drafts' blocks, slot 0 included, for tests and tools; without what a Markov
  // head adds.
  Rows logits(std::span<const Draft> drafts) { return draft(drafts, /*all=*/true); }
  // Where the scores that propose() chooses by are added to: logits, [V] a step, with a Markov head; of the candidates,
  // best first, with a selector. Null: nowhere.
  void watch(std::vector<float>* steps) { watched_ = steps; }

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
        chain_steps_(plan_.max_seq, plan_.max_seq, plan_.margin),
        no_token_(size_t(plan_.max_step), 0),
        block_(size_t(c_.block), c_.mask_id) {
    from_.reserve(size_t(plan_.max_step));
    n_draft_.reserve(size_t(plan_.max_seq));
    n_row_.reserve(size_t(plan_.max_seq));
    failed_.reserve(size_t(plan_.max_seq));
  }
  int feature_cols() const { return int(c_.taps.size()) * t_.m.d_model; }
  int32_t id_of(int32_t id) const { return id < 0 || c_.id_map.empty() ? id : c_.id_map[size_t(id)]; }

  // One pass over the blocks of all drafts that want tokens. n_draft_: tokens each will get; n_row_: rows of logits it
  // has, the first of them for the first draft.
  Rows draft(std::span<const Draft> drafts, bool all) {
    steps_.begin();
    n_draft_.clear(), n_row_.clear();
    for (const Draft& d : drafts) {
      const int room = plan_.max_ctx - d.position - 1, n = std::min({d.max_draft, max_draft(), room});
      const int n_slot = c_.whole_block() ? std::min(c_.block, room + 1) : c_.from_anchor ? n : n + 1;
      CHECK(cache_->len(d.slot) == d.position, "a draft at {} for slot {} that holds {}", d.position, d.slot,
            cache_->len(d.slot));
      const bool fits = n > 0 && cache_->prepare(d.slot, n_slot);
      n_draft_.push_back(fits ? n : 0);
      n_row_.push_back(!fits ? 0 : c_.from_anchor ? n_slot : n_slot - 1);
      if (!fits) continue;
      block_[0] = d.token[0];
      steps_.add({.slot = d.slot,
                  .kv_len = d.position,
                  .token = std::span(block_).first(size_t(n_slot)),
                  .out = all || c_.from_anchor ? Out::kAll : Out::kButFirst,
                  .mask = Mask::kBlock});
    }
    if (steps_.n_tok() == 0) return {};
    const Step& s = steps_.finish();
    states_ = (s.shape.all_out() ? work_.h : work_.out).view(s.shape.n_out, c_.body.d_model);
    return run_pass(t_.b, s, this, [&] {
      return dflash_draft(t_.b, c_.body, w_, t_.w, s, std::span<const typename B::KvLayer>(kv_), work_, conv_);
    });
  }

  // The next token of a draft from what top_k wrote at `from`. False: there is none.
  bool take(Draft& d, size_t from) const {
    const int32_t id = id_of(ids_[from]);
    if (id < 0) return false;
    d.token.push_back(id);
    for (size_t j = from; j < from + size_t(d.n_top); ++j) {
      d.top.push_back(id_of(ids_[j]));
      d.top_log_prob.push_back(log_prob_[j]);
    }
    return true;
  }

  // Slot after slot: of its likeliest tokens the one that the selector likes best behind the token before it. Where a
  // slot's n_top are asked for, their chances are among these.
  void walk(std::span<Draft> drafts, Rows logits) {
    const int K = c_.selector.top_k, R = c_.selector.rank;
    t_.b.top_k(ids_, log_prob_, logits, K);
    const Rows selected = selected_.view(logits.rows, R);
    t_.b.matmul(selected, states_, w_.selector);
    const std::vector<float> hidden = t_.b.to_host(selected);
    std::vector<int32_t> candidate(static_cast<size_t>(K));
    std::vector<float> score(candidate.size());
    size_t first = 0;
    for (size_t i = 0; i < drafts.size(); first += size_t(n_row_[i]), ++i)
      for (int at = 0; at < n_draft_[i]; ++at) {
        const size_t row = first + size_t(at);
        for (size_t j = 0; j < candidate.size(); ++j)
          candidate[j] = ids_[row * size_t(K) + j], score[j] = log_prob_[row * size_t(K) + j];
        Draft& d = drafts[i];
        const std::vector<int> order = select_candidates(
            c_.selector, d.token.back(), std::span(hidden).subspan(row * size_t(R), size_t(R)), candidate, score);
        if (order.empty() || !std::isfinite(score[size_t(order[0])])) break;  // the target decides alone
        if (watched_)
          for (const int j : order) watched_->push_back(score[size_t(j)]);
        d.token.push_back(candidate[size_t(order[0])]);
        double sum = 0;
        for (const int j : order) sum += std::exp(double(score[size_t(j)]) - double(score[size_t(order[0])]));
        for (int j = 0; j < d.n_top; ++j) {
          const bool is = size_t(j) < order.size();
          const size_t k = is ? size_t(order[size_t(j)]) : 0;
          d.top.push_back(is ? candidate[k] : -1);
          d.top_log_prob.push_back(is ? float(double(score[k]) - double(score[size_t(order[0])]) - std::log(sum))
                                      : -std::numeric_limits<float>::infinity());
        }
      }
  }

  // Slot after slot, each chosen with regard to the token before it, which is a token of the target in both alignments.
  void chain(std::span<Draft> drafts, Rows logits, int k) {
    const int D = c_.body.d_model;
    const std::vector<float> states = c_.markov.has_confidence ? t_.b.to_host(states_) : std::vector<float>{};
    first_.assign(drafts.size(), 0);
    for (size_t i = 1; i < drafts.size(); ++i) first_[i] = first_[i - 1] + n_row_[i - 1];
    for (int at = 0;; ++at) {
      running_.clear();
      chain_steps_.begin();
      for (size_t i = 0; i < drafts.size(); ++i) {
        const Draft& d = drafts[i];
        if (at >= n_draft_[i] || d.n_draft() < at) continue;
        running_.push_back(int(i));
        chain_steps_.add({.slot = d.slot,
                          .kv_len = d.position,
                          .token = std::span(d.token).last(1),
                          .mask = Mask::kPast,
                          .pos = d.position});
      }
      if (running_.empty()) return;
      const int n = int(running_.size());
      const Step& s = chain_steps_.finish();
      const Rows bias = run_pass(t_.b, s, &markov_, [&] {
        return markov_bias(t_.b, w_, markov_.view(n, c_.markov.rank), bias_.view(n, c_.body.n_vocab), s);
      });
      const Rows chosen = slot_logits_.view(n, c_.body.n_vocab);
      for (int j = 0; j < n; ++j)
        t_.b.copy_rows(chosen.rows_at(j, 1), logits.rows_at(first_[size_t(running_[size_t(j)])] + at, 1));
      t_.b.add(chosen, chosen, bias);
      t_.b.top_k(ids_, log_prob_, chosen, k);
      if (watched_)
        for (const float x : t_.b.to_host(chosen)) watched_->push_back(x);
      std::vector<float> before;
      if (c_.markov.has_confidence) before = t_.b.to_host(markov_.view(n, c_.markov.rank));
      for (int j = 0; j < n; ++j) {
        const size_t i = size_t(running_[size_t(j)]);
        if (!take(drafts[i], size_t(j) * size_t(k)) || !c_.markov.has_confidence) continue;
        drafts[i].confidence.push_back(
            confidence_of(c_.markov, std::span(states).subspan(size_t(first_[i] + at) * size_t(D), size_t(D)),
                          std::span(before).subspan(size_t(j) * size_t(c_.markov.rank), size_t(c_.markov.rank))));
      }
    }
  }

  TargetView<B> t_;
  DrafterFile file_;  // its mapping: weights stay where they are
  DflashCfg c_;
  KvPlan plan_;
  StepBuilder steps_, chain_steps_;
  std::vector<int32_t> no_token_, block_, from_, n_draft_, n_row_, first_, running_, failed_;
  DflashW<B> w_;
  std::unique_ptr<KvCache> cache_;
  std::vector<typename B::KvLayer> kv_;
  Work<B> work_;
  Rows kept_;
  Rows states_;                       // of the slots whose logits the newest pass gave
  Rows markov_, bias_, slot_logits_;  // [sequences, rank], [sequences, V]
  Rows selected_;                     // [slots, rank]
  ConvWork<B> conv_;
  std::vector<float>* watched_ = nullptr;
  typename B::Ids ids_{};
  typename B::Scores log_prob_{};
};

}  // namespace facet
