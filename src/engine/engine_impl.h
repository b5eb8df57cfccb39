#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "backend/cpu/sampler.h"
#include "base/check.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/speculate.h"
#include "model/drafter_file.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// Opens the drafters that go with a target; whatever they allocate is allocated here.
template <Backend B>
using DrafterFactory = std::function<Result<Drafters<B>>(const TargetView<B>&)>;

// Files with what is read from them once.
struct LoadedModel {
  GgufFile file;
  std::vector<DrafterFile> drafters;
  ModelCfg cfg;
  std::optional<Tokenizer> tokenizer;
};
Result<LoadedModel> load_model(const std::string& path);

template <Backend B>
class EngineImpl final : public Engine {
 public:
  // open_drafters: null for plain decoding.
  template <class... BackendArgs>
  static Result<std::unique_ptr<Engine>> create(LoadedModel model, const EngineConfig& c,
                                                const DrafterFactory<B>& open_drafters, BackendArgs... args) {
    std::unique_ptr<EngineImpl> e(new EngineImpl(std::move(model), c));
    auto r = Runner<B>::open(e->model_.file, e->model_.cfg,
                             {.kv = kv_plan(c), .max_out = c.max_out, .loading = c.loading}, args...);
    if (!r) return r.error();
    e->runner_ = std::move(*r);
    Runner<B>& run = *e->runner_;
    Drafters<B> drafters;
    if (open_drafters) {
      auto opened = open_drafters({.b = run.b, .m = run.m, .w = run.w, .kv = run.kv, .plan = run.cache->plan()});
      if (!opened) return opened.error();
      drafters = std::move(*opened);
    }
    e->spec_ = std::make_unique<Speculator<B>>(run, c, e->model_.cfg.n_vocab, std::move(drafters));
    if (auto ok = memory_status(run.b); !ok) return ok.error();
    e->slots_.resize(size_t(c.max_seq));
    return std::unique_ptr<Engine>(std::move(e));
  }

  Result<RequestId> submit(Request r, Sink sink) override {
    if (r.prompt.empty()) return Error{"request", "prompt: expected at least one token, found none", "send some text"};
    for (int32_t id : r.prompt)
      if (id < 0 || id >= model_.cfg.n_vocab)
        return Error{"request", fmt::format("prompt: expected token ids in [0, {}), found {}", model_.cfg.n_vocab, id),
                     "the ids belong to another vocabulary"};
    if (int(r.prompt.size()) >= cfg_.n_ctx)
      return Error{"request",
                   fmt::format("prompt: expected fewer than {} tokens, found {}", cfg_.n_ctx, r.prompt.size()),
                   "shorten it, or start with a larger -c"};
    std::lock_guard lock(mutex_);
    const RequestId id = ++last_id_;
    waiting_.push_back({id, std::move(r), std::move(sink)});
    wake_.notify_one();
    return id;
  }

  void cancel(RequestId id) override {
    std::lock_guard lock(mutex_);
    cancelled_.push_back(id);
    wake_.notify_one();
  }

  void run() override {
    while (!stopping_) {
      if (tick()) continue;
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || !waiting_.empty() || !cancelled_.empty(); });
    }
  }
  void stop() override {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }

  bool tick() override {
    admit();
    std::vector<SeqDemand> demands;
    for (size_t s = 0; s < slots_.size(); ++s)
      if (const Slot& q = slots_[s]; q.active)
        demands.push_back({int(s), int(q.tokens.size()) - cache().len(int(s)), q.decoding});
    if (demands.empty()) return false;
    step(schedule(demands, cfg_.chunk));
    return true;
  }

  Status score(std::span<const int32_t> ids, int from,
               const std::function<void(int, std::span<const float>)>& f) override {
    for (const Slot& q : slots_)
      if (q.active) return Error{"score", "requests are running", "wait until they are done"};
    for (int32_t id : ids)
      if (id < 0 || id >= model_.cfg.n_vocab)
        return Error{"tokens", fmt::format("expected ids in [0, {}), found {}", model_.cfg.n_vocab, id),
                     "the ids belong to another vocabulary"};
    cache().clear(0);
    spec_->forget(0);
    slots_[0].tokens.clear();
    for (int at = 0, total = int(ids.size()); at < total;) {
      const bool wanted = at >= from;
      const int n =
          wanted ? std::min({cfg_.chunk, cfg_.max_out, total - at}) : std::min({cfg_.chunk, from - at, total - at});
      if (auto ok = cache().prepare(0, n); !ok) return ok;
      runner_->steps.begin();
      runner_->add({.slot = 0, .token = ids.subspan(size_t(at), size_t(n)), .out = wanted ? Out::kAll : Out::kNone});
      const auto logits = runner_->forward();
      cache().commit(0, n);
      if (wanted) {
        if constexpr (requires { logits.row(0); })
          f(at, {logits.row(0), size_t(n) * size_t(model_.cfg.n_vocab)});
        else
          f(at, runner_->b.to_host(logits));
      }
      at += n;
    }
    cache().clear(0);
    return Ok{};
  }

  const Tokenizer* tokenizer() const override { return model_.tokenizer ? &*model_.tokenizer : nullptr; }
  const ModelCfg& model() const override { return model_.cfg; }
  const EngineConfig& config() const override { return cfg_; }
  LockstepReport lockstep_report() const override {
    if constexpr (requires { runner_->b.report(); })
      return runner_->b.report();
    else
      return {};
  }
  std::string memory_table() const override {
    return plan_memory(model_.file, model_.cfg, cfg_, model_.drafters).table();
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    RequestId id;
    Request request;
    Sink sink;
  };
  struct Slot {
    bool active = false, decoding = false;
    std::vector<int32_t> tokens;  // in the cache up to its length, then the ones still to be computed
    RequestId id = 0;
    Request request;
    Sink sink;
    Usage usage;
    Clock::time_point started, first_token;
  };

  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

  EngineImpl(LoadedModel model, const EngineConfig& c) : model_(std::move(model)), cfg_(c) {}
  KvCache& cache() { return *runner_->cache; }

  // Cancellations, then waiting requests into free slots: the slot that shares the longest prefix.
  void admit() {
    std::vector<RequestId> cancelled;
    {
      std::lock_guard lock(mutex_);
      cancelled.swap(cancelled_);
    }
    for (RequestId id : cancelled) {
      for (size_t s = 0; s < slots_.size(); ++s)
        if (slots_[s].active && slots_[s].id == id) finish(int(s), Stop::kCancelled);
      std::optional<Waiting> gone;
      {
        std::lock_guard lock(mutex_);
        const auto at = std::find_if(waiting_.begin(), waiting_.end(), [&](const Waiting& w) { return w.id == id; });
        if (at != waiting_.end()) gone = std::move(*at), waiting_.erase(at);
      }
      if (gone && gone->sink.done) gone->sink.done(id, Stop::kCancelled, {}, "");
    }
    while (true) {
      int best = -1;
      size_t best_shared = 0;
      std::lock_guard lock(mutex_);
      if (waiting_.empty()) return;
      for (size_t s = 0; s < slots_.size(); ++s) {
        if (slots_[s].active) continue;
        const size_t shared = shared_prefix(slots_[s].tokens, waiting_.front().request.prompt);
        if (best < 0 || shared > best_shared) best = int(s), best_shared = shared;
      }
      if (best < 0) return;
      start(best, std::move(waiting_.front()), int(best_shared));
      waiting_.pop_front();
    }
  }

  static size_t shared_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
    size_t n = 0;
    while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
    return n;
  }

  // Takes the slot back to at most `len` rows, as many as target and drafters all have.
  void go_back(int s, int len) {
    while (len > 0) {
      if (cache().rewind(s, len) != Rewind::kDone && cache().restore(s, len) != Rewind::kDone) break;
      const int kept = spec_->rewind(s, len);
      if (kept == len) return;
      len = kept;
    }
    cache().clear(s);
    spec_->forget(s);
  }

  void start(int s, Waiting w, int shared) {
    Slot& q = slots_[size_t(s)];
    // The last prompt token is always computed: its logits are wanted.
    go_back(s, std::min({shared, int(w.request.prompt.size()) - 1, cache().len(s)}));
    q.active = true;
    q.decoding = false;
    q.id = w.id;
    q.request = std::move(w.request);
    q.sink = std::move(w.sink);
    q.tokens = q.request.prompt;
    q.usage = {};
    q.usage.prompt = int(q.tokens.size());
    q.usage.cached = cache().len(s);
    q.started = Clock::now();
    spec_->begin(s);
  }

  // Drafts that could still become tokens of the answer, and have room in the context.
  int draft_room(const Slot& q) const {
    if (!spec_->has_drafters() || !q.request.draft) return 0;
    const int room = cfg_.n_ctx - int(q.tokens.size()) - 1;
    return q.request.max_tokens < 0 ? room : std::min(room, q.request.max_tokens - q.usage.generated - 1);
  }

  // One step: proposes drafts, runs the target once over prompts, newest tokens and drafts, keeps what it agrees with.
  void step(const std::vector<SeqGrant>& grants) {
    propose(grants);
    const auto start = Clock::now();
    runner_->steps.begin();
    std::vector<SeqGrant> run;
    bool prompts = false;
    for (const SeqGrant& g : grants) {
      const int n = add(g);
      if (n == 0) continue;
      run.push_back({g.id, n});
      prompts |= !slots_[size_t(g.id)].decoding;
    }
    if (run.empty()) return;
    const auto logits = runner_->forward(spec_->taps(runner_->steps.n_tok()));
    const std::vector<SampleRow> rows = sample_rows(run);
    if (!rows.empty()) {
      if constexpr (requires { runner_->b.sample(runner_->ids, logits, rows, true); })
        runner_->b.sample(runner_->ids, logits, rows, !prompts && goes_on(run));
      else
        runner_->b.sample(runner_->ids, logits, rows);
      drawn_.resize(rows.size());
      for (size_t i = 0; i < rows.size(); ++i)
        drawn_[i] = runner_->ids[i];  // the one place where the host waits for the device
    }
    const auto drawn = Clock::now();
    if (!prompts) spec_->observe_step(runner_->steps.n_tok(), seconds(drawn - start));
    settle(run, seconds(drawn - start));
  }

  void propose(const std::vector<SeqGrant>& grants) {
    std::vector<DraftRequest> requests;
    const auto start = Clock::now();
    for (const SeqGrant& g : grants)
      if (const Slot& q = slots_[size_t(g.id)]; q.decoding)
        requests.push_back({.slot = g.id,
                            .position = cache().len(g.id),
                            .newest = q.tokens.back(),
                            .room = draft_room(q),
                            .stops = q.request.ignore_eos ? nullptr : tokenizer()});
    if (requests.empty()) return;
    spec_->propose(requests);
    for (const DraftRequest& r : requests)
      if (spec_->drafted(r.slot)) slots_[size_t(r.slot)].usage.draft_s += seconds(Clock::now() - start);
  }

  // Adds a sequence to the step: a piece of its prompt, or its newest token and drafts. Returns its tokens; 0: it
  // failed.
  int add(const SeqGrant& g) {
    Slot& q = slots_[size_t(g.id)];
    const int n = q.decoding ? spec_->tree(g.id).size() : g.n;
    if (auto ok = cache().prepare(g.id, n); !ok) {
      finish(g.id, Stop::kError, ok.error().message());
      return 0;
    }
    if (q.decoding) {
      const DraftTree& t = spec_->tree(g.id);
      runner_->add({.slot = g.id,
                    .token = t.token,
                    .out = Out::kAll,
                    .mask = t.is_chain ? Mask::kCausal : Mask::kTree,
                    .parent = t.parent});
    } else {
      const size_t len = size_t(cache().len(g.id));
      const bool last = len + size_t(n) == q.tokens.size();
      runner_->add(
          {.slot = g.id, .token = std::span(q.tokens).subspan(len, size_t(n)), .out = last ? Out::kLast : Out::kNone});
    }
    return n;
  }

  bool prompt_ends(const SeqGrant& g) { return cache().len(g.id) + g.n == int(slots_[size_t(g.id)].tokens.size()); }

  // Whether the next step is likely to be this one's sequences again, each with the token that is drawn now. Then there
  // is room for it.
  bool goes_on(const std::vector<SeqGrant>& run) {
    if (spec_->has_drafters()) return false;
    {
      std::lock_guard lock(mutex_);
      if (stopping_ || !waiting_.empty() || !cancelled_.empty()) return false;
    }
    for (const SeqGrant& g : run) {
      const Slot& q = slots_[size_t(g.id)];
      if (q.usage.generated + 1 == q.request.max_tokens || int(q.tokens.size()) + 1 >= cfg_.n_ctx) return false;
      if (!cache().prepare(g.id, g.n + 1)) return false;
    }
    return true;
  }

  // One row per row of logits, in the order of the step.
  std::vector<SampleRow> sample_rows(const std::vector<SeqGrant>& run) {
    std::vector<SampleRow> rows;
    for (const SeqGrant& g : run) {
      const Slot& q = slots_[size_t(g.id)];
      if (!q.decoding && !prompt_ends(g)) continue;
      SampleRow row{.sampling = &q.request.sampling,
                    .position = int64_t(q.tokens.size()),
                    .history = q.tokens,
                    .draft = {},
                    .suppressed = q.request.suppress_special && tokenizer() ? tokenizer()->suppressed()
                                                                            : std::span<const int32_t>{}};
      for (int node = 0; node < (q.decoding ? g.n : 1); ++node) {
        row.draft = q.decoding ? spec_->path_to(g.id, node) : std::span<const int32_t>{};
        row.position = int64_t(q.tokens.size() + row.draft.size());
        rows.push_back(row);
      }
    }
    return rows;
  }

  // Commits what the step leaves of every sequence, hands the features to the drafters, then the tokens to the
  // requests.
  void settle(const std::vector<SeqGrant>& run, double step_s) {
    const auto start = Clock::now();
    std::vector<Committed> committed;
    std::vector<std::pair<int, std::vector<int32_t>>> fresh;  // tokens drawn, by slot
    int row = 0;
    size_t out = 0;
    for (const SeqGrant& g : run) {
      Slot& q = slots_[size_t(g.id)];
      Committed c{.slot = g.id, .position = cache().len(g.id), .row = row, .n = g.n};
      row += g.n;
      ++q.usage.steps;
      if (q.decoding) {
        auto& tokens = fresh.emplace_back(g.id, std::vector<int32_t>{}).second;
        c.path = keep(g.id, std::span(drawn_).subspan(out, size_t(g.n)), tokens);
        c.n = int(c.path.size());
        out += size_t(g.n);
        q.usage.verify_s += step_s;
      } else {
        const bool last = prompt_ends(g);
        cache().commit(g.id, g.n);
        if (q.sink.prefill) q.sink.prefill(q.id, cache().len(g.id), int(q.tokens.size()));
        if (last) fresh.emplace_back(g.id, std::vector<int32_t>{drawn_[out++]});
      }
      committed.push_back(c);
    }
    spec_->absorb(committed);
    const double settled = seconds(Clock::now() - start);
    for (auto& [s, tokens] : fresh) {
      if (slots_[size_t(s)].decoding) slots_[size_t(s)].usage.accept_s += settled;
      take(s, tokens);
    }
  }

  // Accepts and commits drafts of slot s given the target's tokens after each node. Fills the tokens that the answer
  // goes on with; returns the nodes whose rows are kept.
  std::span<const int16_t> keep(int s, std::span<int32_t> drawn, std::vector<int32_t>& tokens) {
    Slot& q = slots_[size_t(s)];
    const DraftTree& tree = spec_->tree(s);
    if (!cfg_.draft.forced.empty()) force(s, drawn);
    const Accepted& a = spec_->verify(s, drawn, q.usage, q.usage.generated);
    for (size_t i = 1; i < a.path.size(); ++i) tokens.push_back(tree.token[size_t(a.path[i])]);
    tokens.push_back(a.next);
    if (tree.is_chain)
      cache().commit(s, int(a.path.size()));
    else
      cache().commit_path(s, a.path);
    return a.path;
  }

  // DraftConfig::forced: a chain's drafts are right with given probabilities. The same seed, the same script.
  void force(int s, std::span<int32_t> drawn) const {
    const std::vector<float>& p = cfg_.draft.forced;
    const DraftTree& tree = spec_->tree(s);
    const Slot& q = slots_[size_t(s)];
    for (size_t i = 0; i + 1 < drawn.size(); ++i) {
      const int32_t draft = tree.token[i + 1];
      const bool right =
          uniform_at(q.request.sampling.seed, int64_t(q.tokens.size() + i)) < double(p[std::min(i, p.size() - 1)]);
      drawn[i] = right ? draft : (draft + 1) % model_.cfg.n_vocab;
    }
  }

  // Tokens were drawn for slot s. They end where the answer does.
  void take(int s, std::span<const int32_t> drawn) {
    Slot& q = slots_[size_t(s)];
    const bool first = !q.decoding;
    if (first) {
      q.decoding = true;
      q.first_token = Clock::now();
      cache().checkpoint(s);
      spec_->checkpoint(s);
      if (q.request.max_tokens == 0) return finish(s, Stop::kLength);  // the prompt was all that was wanted
    }
    size_t n = 0;
    std::optional<Stop> why;
    std::string error;
    for (; n < drawn.size() && !why; ++n) {
      const int32_t id = drawn[n];
      if (id < 0)
        error =
            "logits hold no finite number; the model file or a kernel is broken (run with --backend ref to tell which)",
        why = Stop::kError;
      else if (tokenizer() && tokenizer()->is_eog(id) && !q.request.ignore_eos)
        why = Stop::kEos;
      if (why) break;
      q.tokens.push_back(id);
      ++q.usage.generated;
      if (q.usage.generated == q.request.max_tokens)
        why = Stop::kLength;
      else if (int(q.tokens.size()) >= cfg_.n_ctx)
        why = Stop::kContext;
    }
    if (!first) q.usage.decoded += int(n) + (why == Stop::kEos);
    if (n > 0 && q.sink.tokens) q.sink.tokens(q.id, drawn.first(n));
    if (why) finish(s, *why, error);
  }

  void finish(int s, Stop why, const std::string& error = "") {
    Slot& q = slots_[size_t(s)];
    q.active = false;
    const auto now = Clock::now();
    q.usage.prefill_s = seconds((q.decoding ? q.first_token : now) - q.started);
    q.usage.decode_s = q.decoding ? seconds(now - q.first_token) : 0;
    q.usage.draft_inactive_reason = spec_->inactive_reason(q.request.draft, q.usage);
    q.tokens.resize(size_t(std::min(int(q.tokens.size()), cache().len(s))));  // what a later request can share
    if (q.sink.done) q.sink.done(q.id, why, q.usage, error);
  }

  LoadedModel model_;
  EngineConfig cfg_;
  std::unique_ptr<Runner<B>> runner_;
  std::unique_ptr<Speculator<B>> spec_;
  std::vector<Slot> slots_;
  std::vector<int32_t> drawn_;  // by row of the step's logits
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;       // under mutex_
  std::vector<RequestId> cancelled_;  // under mutex_
  RequestId last_id_ = 0;             // under mutex_
  std::atomic<bool> stopping_ = false;
};

}  // namespace facet
