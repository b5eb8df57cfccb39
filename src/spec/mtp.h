#pragma once
#include <algorithm>
#include <list>
#include <memory>
#include <numeric>
#include <vector>

#include "backend/pass.h"
#include "backend/step_builder.h"
#include "base/check.h"
#include "model/mtp_bind.h"
#include "spec/drafter.h"

namespace facet {

// An MTP assistant at work. It has no K/V: it reads the target's. Its state is one row a slot, the target's final
// hidden state of the newest committed token.
template <Backend B>
class Mtp final : public Drafter<B> {
 public:
  using typename Drafter<B>::Rows;
  static constexpr int kMaxChain = 15;  // with the newest token: 16 rows to verify

  // As Dflash::open.
  static Result<std::unique_ptr<Mtp>> open(const DrafterFile& file, const TargetView<B>& t, int window_extra = 0) {
    auto cfg = mtp_config(file, t.m, window_extra);
    if (!cfg) return cfg.error();
    return open(file, std::move(*cfg), t);
  }
  static Result<std::unique_ptr<Mtp>> open(const DrafterFile& file, MtpCfg cfg, const TargetView<B>& t) {
    std::unique_ptr<Mtp> d(new Mtp(t, std::move(cfg)));
    d->file_ = file;
    auto w = bind_mtp(t.b, file, d->c_, t.w);
    if (!w) return w.error();
    d->w_ = std::move(*w);
    const int S = t.plan.max_seq, D = t.m.d_model;
    t.b.reserve(mtp_limits(d->c_, S, t.plan.max_ctx));
    d->work_ = {make_work(t.b, d->c_.body, S, S), t.b.new_rows(S, 2 * D)};
    d->state_ = t.b.new_rows(t.plan.resident(), D);
    d->h_ = t.b.new_rows(S, D);
    for (int pass = 0; pass < (ChainsPasses<B> ? kMaxChain : 1); ++pass)
      d->chosen_.push_back({t.b.new_ids(S * kMaxTop), t.b.new_scores(S * kMaxTop)});
    if (auto ok = memory_status(t.b); !ok) return ok.error();
    return d;
  }

  const char* name() const override { return "mtp"; }
  int max_draft() const override { return kMaxChain; }
  std::span<const int> tap_layers() const override { return {}; }
  bool wants_final_hidden() const override { return true; }

  void absorb(std::span<const Committed> rows, const Features<Rows>& f) override {
    // Rows of neighbours that lie beside each other are one copy: so are those of all sequences that decode together.
    for (size_t i = 0; i < rows.size();) {
      const int slot = rows[i].slot, row = rows[i].at(rows[i].n - 1);
      int n = 0;
      for (; i < rows.size() && rows[i].slot == slot + n && rows[i].at(rows[i].n - 1) == row + n; ++i, ++n) {
        const Committed& c = rows[i];
        Slot& q = slots_[size_t(c.slot)];
        CHECK(c.n > 0 && c.position == q.held, "{} rows from {} on for slot {} that holds {}", c.n, c.position, c.slot,
              q.held);
        q = {c.position + c.n, true};
      }
      t_.b.copy_rows(state_.rows_at(slot, n), f.final_hidden.rows_at(row, n));
    }
  }

  void propose(std::span<Draft> drafts) override {
    begin_chains(drafts);
    int k = 1;
    for (const Draft& d : drafts) k = std::max(k, d.n_top);
    CHECK(k <= kMaxTop, "{} candidates a position, at most {}", k, kMaxTop);
    if constexpr (ChainsPasses<B>) {  // the host waits after the last pass
      for (int pass = 0, n = 0; (n = running(drafts, pass)) > 0;) {
        Passes p{.first = pass, .n = 0, .k = k, .last = false};
        while (running(drafts, pass) == n) ++p.n, ++pass;
        p.last = running(drafts, pass) == 0;
        run(drafts, n, p);
      }
      for (int pass = 0, n = 0; (n = running(drafts, pass)) > 0; ++pass)
        if (!extend(drafts, n, chosen_[size_t(pass)], k)) return;
    } else {
      for (int pass = 0, n = running(drafts, 0); n > 0; ++pass) {
        const int n_next = running(drafts, pass + 1);
        t_.b.top_k(chosen_[0].id, chosen_[0].log_prob, step(drafts, n, n_next == 0), k);
        if (!extend(drafts, n, chosen_[0], k)) return;
        n = n_next;
      }
    }
  }

  // The pass after the newest token of each draft: logits [drafts, V], for tests and tools. first: from the target's
  // state, else from that of the pass before.
  Rows logits(std::span<Draft> drafts, bool first) {
    if (first) begin_chains(drafts);
    return step(drafts, int(drafts.size()), false);
  }

  int held(SlotId s) const override { return slots_[size_t(s)].held; }
  bool ready(SlotId s) const override { return slots_[size_t(s)].state; }
  int rewind(SlotId s, int len) override {
    Slot& q = slots_[size_t(s)];
    if (len != q.held) q = {len, false};  // the state of another row; the next absorb brings the right one
    return len;
  }
  void forget(SlotId s) override { slots_[size_t(s)] = {}; }
  Status fork(SlotId from, SlotId to) override {
    if (slots_[size_t(from)].state) t_.b.copy_rows(state_.rows_at(to, 1), state_.rows_at(from, 1));
    slots_[size_t(to)] = slots_[size_t(from)];
    return Ok{};
  }
  std::vector<float> save(SlotId s) override {
    return slots_[size_t(s)].state ? t_.b.to_host(state_.rows_at(s, 1)) : std::vector<float>{};
  }
  bool load(SlotId s, int held, std::span<const float> beside) override {
    if (!beside.empty() && beside.size() != size_t(t_.m.d_model)) return false;
    if (!beside.empty()) t_.b.from_host(state_.rows_at(s, 1), beside);
    slots_[size_t(s)] = {held, !beside.empty()};
    return true;
  }

  const MtpCfg& cfg() const { return c_; }

 private:
  struct Slot {
    int held = 0;
    bool state = false;  // state_ holds the row of token held - 1
  };
  struct Chosen {  // by a pass: [chains, k]
    typename B::Ids id{};
    typename B::Scores log_prob{};
  };
  Mtp(const TargetView<B>& t, MtpCfg cfg)
      : t_(t),
        c_(std::move(cfg)),
        steps_(t.plan.max_seq, t.plan.max_seq, t.plan.margin),
        slots_(size_t(t.plan.resident())) {
    order_.reserve(size_t(t.plan.max_seq));
  }

  // Longest chain first, so that those which still run are the first rows; their states side by side in h_.
  void begin_chains(std::span<const Draft> drafts) {
    order_.resize(drafts.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int a, int b) {
      return drafts[size_t(a)].max_draft != drafts[size_t(b)].max_draft
                 ? drafts[size_t(a)].max_draft > drafts[size_t(b)].max_draft
                 : a < b;
    });
    for (size_t i = 0; i < order_.size(); ++i) {
      const Draft& d = drafts[size_t(order_[i])];
      CHECK(slots_[size_t(d.slot)].held == d.position, "a draft at {} for slot {} that holds {}", d.position, d.slot,
            slots_[size_t(d.slot)].held);
      CHECK(slots_[size_t(d.slot)].state, "a draft for slot {} without a row since its rewind", d.slot);
      t_.b.copy_rows(h_.rows_at(int(i), 1), state_.rows_at(d.slot, 1));
    }
  }
  // How many chains have a pass of this number.
  int running(std::span<const Draft> drafts, int pass) const {
    int n = 0;
    while (n < int(order_.size()) && pass < std::min(drafts[size_t(order_[size_t(n)])].max_draft, kMaxChain)) ++n;
    return n;
  }
  // The running chains go on with what a pass chose. False: a row had no finite logit, and the target decides alone.
  bool extend(std::span<Draft> drafts, int n, const Chosen& c, int k) const {
    for (int i = 0; i < n; ++i) {
      Draft& d = drafts[size_t(order_[size_t(i)])];
      const size_t first = size_t(i) * size_t(k);
      if (c.id[first] < 0) return false;
      d.token.push_back(c.id[first]);
      for (size_t j = first; j < first + size_t(d.n_top); ++j) {
        d.top.push_back(c.id[j]);
        d.top_log_prob.push_back(c.log_prob[j]);
      }
    }
    return true;
  }
  // Passes of the same chains, one after another.
  struct Passes {
    int first, n, k;  // k: candidates that each chooses
    bool last;        // none follows
    bool operator==(const Passes&) const = default;
  };
  const Step& step_after(std::span<const Draft> drafts, int n) {
    steps_.begin();
    for (int i = 0; i < n; ++i) {
      const Draft& d = drafts[size_t(order_[size_t(i)])];
      steps_.add({.slot = d.slot,
                  .kv_len = d.position,
                  .token = std::span(d.token).last(1),
                  .out = Out::kLast,
                  .mask = Mask::kPast,
                  .pos = d.position});
    }
    return steps_.finish();
  }
  // Logits of a pass after the newest token of each of the first n chains.
  Rows pass_of(int n, const Step& s, bool last) {
    return mtp_step(t_.b, c_.body, w_, t_.m, t_.w, h_.view(n, t_.m.d_model), s, t_.kv, work_, last);
  }
  Rows step(std::span<const Draft> drafts, int n, bool last) {
    const Step& s = step_after(drafts, n);
    return run_pass(t_.b, s, reinterpret_cast<const char*>(this) + last, [&] { return pass_of(n, s, last); });
  }
  // The first pass after the newest tokens or those that the pass before chose, the others each after its own.
  void run(std::span<const Draft> drafts, int n, Passes p) requires ChainsPasses<B> {
    const Step& s = step_after(drafts, n);
    auto choose = [&](int pass, Rows logits) {
      t_.b.next_tokens(chosen_[size_t(pass)].id, chosen_[size_t(pass)].log_prob, logits, p.k);
    };
    auto passes = [&] {
      for (int i = 0; i + 1 < p.n; ++i) choose(p.first + i, pass_of(n, s, false));
      return pass_of(n, s, p.last);
    };
    auto at = std::find(passes_.begin(), passes_.end(), p);
    if (at == passes_.end()) at = passes_.insert(at, p);
    choose(p.first + p.n - 1, p.first > 0 ? run_next_pass(t_.b, s, &*at, passes) : run_pass(t_.b, s, &*at, passes));
  }

  TargetView<B> t_;
  DrafterFile file_;  // its mapping: weights stay where they are
  MtpCfg c_;
  StepBuilder steps_;
  std::vector<Slot> slots_;
  std::vector<int> order_;
  MtpW<B> w_;
  MtpWork<B> work_;
  Rows state_, h_;  // [resident, D] of committed tokens; [chains, D] of those in flight
  std::vector<Chosen> chosen_;
  std::list<Passes> passes_;  // that there have been: their addresses are the backend's keys
};

}  // namespace facet
