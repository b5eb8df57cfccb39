#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <vector>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// A model file with what is read from it once.
struct LoadedModel {
  GgufFile file;
  ModelCfg cfg;
  std::optional<Tokenizer> tokenizer;
};

template <Backend B>
class EngineImpl final : public Engine {
 public:
  template <class... BackendArgs>
  static Result<std::unique_ptr<Engine>> create(LoadedModel model, const EngineConfig& c, BackendArgs... args) {
    std::unique_ptr<EngineImpl> e(new EngineImpl(std::move(model), c));
    auto r = Runner<B>::open(e->model_.file, e->model_.cfg, {.kv = kv_plan(c), .max_out = c.max_out}, args...);
    if (!r) return r.error();
    e->runner_ = std::move(*r);
    e->slots_.resize(size_t(c.max_seq));
    return std::unique_ptr<Engine>(std::move(e));
  }

  Result<RequestId> submit(Request r, Sink sink) override {
    if (r.prompt.empty()) return Error{"request", "prompt: expected at least one token, found none", "send some text"};
    for (int32_t id : r.prompt)
      if (id < 0 || id >= model_.cfg.n_vocab)
        return Error{"request", fmt::format("prompt: expected token ids in [0, {}), found {}", model_.cfg.n_vocab, id), "the ids belong to another vocabulary"};
    if (int(r.prompt.size()) >= cfg_.n_ctx)
      return Error{"request", fmt::format("prompt: expected fewer than {} tokens, found {}", cfg_.n_ctx, r.prompt.size()), "shorten it, or start with a larger -c"};
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
      if (const Slot& q = slots_[s]; q.active) demands.push_back({int(s), int(q.tokens.size()) - cache().len(int(s)), q.decoding});
    if (demands.empty()) return false;
    step(schedule(demands, cfg_.chunk));
    return true;
  }

  Status score(std::span<const int32_t> ids, int from, const std::function<void(int, std::span<const float>)>& f) override {
    for (const Slot& q : slots_)
      if (q.active) return Error{"score", "requests are running", "wait until they are done"};
    for (int32_t id : ids)
      if (id < 0 || id >= model_.cfg.n_vocab)
        return Error{"tokens", fmt::format("expected ids in [0, {}), found {}", model_.cfg.n_vocab, id), "the ids belong to another vocabulary"};
    cache().clear(0);
    slots_[0].tokens.clear();
    for (int at = 0, total = int(ids.size()); at < total;) {
      const bool wanted = at >= from;
      const int n = wanted ? std::min({cfg_.chunk, cfg_.max_out, total - at}) : std::min({cfg_.chunk, from - at, total - at});
      if (auto ok = cache().prepare(0, n); !ok) return ok;
      runner_->steps.begin();
      runner_->add({.slot = 0, .token = ids.subspan(size_t(at), size_t(n)), .out = wanted ? Out::kAll : Out::kNone});
      const auto logits = runner_->forward();
      cache().commit(0, n);
      if (wanted) f(at, {logits.row(0), size_t(n) * size_t(model_.cfg.n_vocab)});
      at += n;
    }
    cache().clear(0);
    return Ok{};
  }

  const Tokenizer* tokenizer() const override { return model_.tokenizer ? &*model_.tokenizer : nullptr; }
  const ModelCfg& model() const override { return model_.cfg; }
  const EngineConfig& config() const override { return cfg_; }
  std::string memory_table() const override { return plan_memory(model_.file, model_.cfg, cfg_).table(); }

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

  void start(int s, Waiting w, int shared) {
    Slot& q = slots_[size_t(s)];
    // The last prompt token is always computed: its logits are wanted.
    const int keep = std::min({shared, int(w.request.prompt.size()) - 1, cache().len(s)});
    if (cache().rewind(s, keep) != Rewind::kDone && cache().restore(s, keep) != Rewind::kDone) cache().clear(s);
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
  }

  void step(const std::vector<SeqGrant>& grants) {
    runner_->steps.begin();
    std::vector<SeqGrant> run;
    for (const SeqGrant& g : grants) {
      if (auto ok = cache().prepare(g.id, g.n); !ok) {
        finish(g.id, Stop::kError, ok.error().message());
        continue;
      }
      const Slot& q = slots_[size_t(g.id)];
      const size_t len = size_t(cache().len(g.id));
      const bool last = len + size_t(g.n) == q.tokens.size();
      runner_->add({.slot = g.id, .token = std::span(q.tokens).subspan(len, size_t(g.n)), .out = last ? Out::kLast : Out::kNone});
      run.push_back(g);
    }
    if (run.empty()) return;
    const auto logits = runner_->forward();
    std::vector<SampleRow> rows;
    std::vector<int> drawing;
    for (const SeqGrant& g : run) {
      Slot& q = slots_[size_t(g.id)];
      cache().commit(g.id, g.n);
      ++q.usage.steps;
      if (!q.decoding && q.sink.prefill) q.sink.prefill(q.id, cache().len(g.id), int(q.tokens.size()));
      if (cache().len(g.id) < int(q.tokens.size())) continue;
      drawing.push_back(g.id);
      rows.push_back({.sampling = &q.request.sampling, .position = int64_t(q.tokens.size()), .history = q.tokens, .draft = {},
                      .suppressed = q.request.suppress_special && tokenizer() ? tokenizer()->suppressed() : std::span<const int32_t>{}});
    }
    if (rows.empty()) return;
    runner_->b.sample(runner_->ids, logits, rows);
    for (size_t i = 0; i < drawing.size(); ++i) take(drawing[i], runner_->ids[i]);
  }

  // A token was drawn for slot s, whose tokens so far are all in the cache.
  void take(int s, int32_t id) {
    Slot& q = slots_[size_t(s)];
    if (!q.decoding) {
      q.decoding = true;
      q.first_token = Clock::now();
      cache().checkpoint(s);
    }
    if (id < 0) return finish(s, Stop::kError, "logits hold no finite number; the model file or a kernel is broken (run with --backend ref to tell which)");
    if (tokenizer() && tokenizer()->is_eog(id) && !q.request.ignore_eos) return finish(s, Stop::kEos);
    q.tokens.push_back(id);
    ++q.usage.generated;
    if (q.sink.tokens) q.sink.tokens(q.id, {&id, 1});
    if (q.usage.generated == q.request.max_tokens) return finish(s, Stop::kLength);
    if (int(q.tokens.size()) >= cfg_.n_ctx) return finish(s, Stop::kContext);
  }

  void finish(int s, Stop why, const std::string& error = "") {
    Slot& q = slots_[size_t(s)];
    q.active = false;
    const auto now = Clock::now();
    auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    q.usage.prefill_s = seconds((q.decoding ? q.first_token : now) - q.started);
    q.usage.decode_s = q.decoding ? seconds(now - q.first_token) : 0;
    q.tokens.resize(size_t(std::min(int(q.tokens.size()), cache().len(s))));  // what a later request can share
    if (q.sink.done) q.sink.done(q.id, why, q.usage, error);
  }

  LoadedModel model_;
  EngineConfig cfg_;
  std::unique_ptr<Runner<B>> runner_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Waiting> waiting_;       // under mutex_
  std::vector<RequestId> cancelled_;  // under mutex_
  RequestId last_id_ = 0;             // under mutex_
  std::atomic<bool> stopping_ = false;
};

}  // namespace facet
