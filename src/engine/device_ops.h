#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/optional.h"
#include "engine/loaded_model.h"
#include "engine/runner.h"
#include "spec/drafter.h"

// The one place of the engine that knows backends' types. Everything else of it is compiled once.
namespace facet {

template <Backend B>
using Drafters = std::vector<std::unique_ptr<Drafter<B>>>;
// Opens the drafters that go with a target; whatever they allocate is allocated here.
template <Backend B>
using DrafterFactory = std::function<Result<Drafters<B>>(const TargetView<B>&)>;

// A model on a backend with its cache and drafters, as the engine uses it. Each of these is called a few times a step.
class DeviceOps {
 public:
  virtual ~DeviceOps() = default;
  DeviceOps(const DeviceOps&) = delete;
  DeviceOps& operator=(const DeviceOps&) = delete;

  const ModelCfg& model() const { return *model_; }
  KvCache& cache() const { return *cache_; }
  PagePool& pool() const { return cache_->pool(); }
  StepBuilder& steps() const { return *steps_; }  // the step that is built, and then runs
  std::span<AnyDrafter* const> drafters() const { return drafters_; }
  bool can_copy() const { return can_copy_; }  // false: two engines side by side, with two of every row
  // Adds a sequence to the step that is built; the cache must have been prepared for its tokens.
  void add(SeqStep q) const {
    q.kv_len = cache_->len(q.slot);
    steps_->add(q);
  }

  virtual void make_current() = 0;                        // before work on a thread
  virtual Status memory() const = 0;                      // an error if some ran out while it was opened
  virtual int add_soft(std::span<const float> rows) = 0;  // Runner::add_soft

  // Runs the step. Its logits stay until the next; with_features: what drafters want of its rows, too.
  virtual void forward(bool with_features) = 0;
  virtual void sample(std::span<const SampleRow> rows) = 0;  // one of each row of logits
  virtual void read_ids(std::span<int32_t> ids) = 0;         // what it drew: waits for the device
  // Rows of logits on the host, until the next call.
  virtual std::span<const float> logits(int row, int n) = 0;

  // Features of the step's rows, to a drafter; or into the rows of a buffer from `to` on, where they wait for it.
  virtual void absorb(size_t drafter, std::span<const Committed> rows) = 0;
  virtual void buffer_features(size_t drafter, int to, int from, int n) = 0;
  virtual void absorb_buffered(size_t drafter, const Committed& rows) = 0;
  // Rows of the buffer that each running sequence has; 0: features of this drafter cannot wait.
  int buffer_rows(size_t drafter) const { return buffer_rows_[drafter]; }

  virtual std::optional<Selected> take_selected(SlotId) { return {}; }
  virtual void trace() {}
  virtual void take_laps() {}
  virtual LockstepReport report() const { return {}; }
  virtual VerbCosts costs() { return {}; }

 protected:
  DeviceOps() = default;
  const ModelCfg* model_ = nullptr;
  KvCache* cache_ = nullptr;
  StepBuilder* steps_ = nullptr;
  std::vector<AnyDrafter*> drafters_;
  std::vector<int> buffer_rows_;
  bool can_copy_ = true;
};

template <Backend B>
class DeviceOpsOn final : public DeviceOps {
 public:
  using Rows = typename B::Rows;
  // open_drafters: null for plain decoding.
  template <class... BackendArgs>
  static Result<std::unique_ptr<DeviceOps>> open(const LoadedModel& model, const RunnerOptions& o,
                                                 const DrafterFactory<B>& open_drafters, BackendArgs&&... args) {
    auto r = Runner<B>::open(model.file, model.cfg, o, std::forward<BackendArgs>(args)...);
    if (!r) return r.error();
    std::unique_ptr<DeviceOpsOn> ops(new DeviceOpsOn(std::move(*r)));
    if (open_drafters) {
      Runner<B>& run = *ops->run_;
      auto opened = open_drafters(
          {.b = run.b, .m = run.m, .w = run.w, .kv = run.kv, .plan = run.cache->plan(), .pool = run.pool.get()});
      if (!opened) return opened.error();
      ops->take_drafters(std::move(*opened));
    }
    return std::unique_ptr<DeviceOps>(std::move(ops));
  }

  void make_current() override { facet::make_current(run_->b); }
  Status memory() const override { return memory_status(run_->b); }
  int add_soft(std::span<const float> rows) override { return run_->add_soft(rows); }

  void forward(bool with_features) override { logits_ = run_->forward(with_features ? taps() : Taps<B>{}); }
  void sample(std::span<const SampleRow> rows) override { run_->b.sample(run_->ids, logits_, rows); }
  void read_ids(std::span<int32_t> ids) override {
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = run_->ids[i];
  }
  std::span<const float> logits(int row, int n) override {
    if constexpr (HostRows<Rows>) return {logits_.row(row), size_t(n) * size_t(logits_.cols)};
    host_logits_ = run_->b.to_host(logits_.rows_at(row, n));
    return host_logits_;
  }

  void absorb(size_t d, std::span<const Committed> rows) override {
    kept_[d]->absorb(rows, {.taps = taps_[d], .final_hidden = kept_[d]->wants_final_hidden() ? final_hidden_ : Rows{}});
  }
  void buffer_features(size_t d, int to, int from, int n) override {
    run_->b.copy_rows(buffers_[d].rows_at(to, n), taps_[d].rows_at(from, n));
  }
  void absorb_buffered(size_t d, const Committed& rows) override {
    kept_[d]->absorb({&rows, 1}, {.taps = buffers_[d], .final_hidden = {}});
  }

  std::optional<Selected> take_selected(SlotId s) override {
    if constexpr (CountsSelected<B>) return run_->b.take_selected(s);
    return {};
  }
  void trace() override {
    if constexpr (Traces<B>) run_->b.trace(true);
  }
  void take_laps() override {
    if constexpr (Traces<B>) run_->b.take_laps();
  }
  LockstepReport report() const override {
    if constexpr (Reports<B>) return run_->b.report();
    return {};
  }
  VerbCosts costs() override {
    if constexpr (PricesVerbs<B>) return run_->b.costs();
    return {};
  }

 private:
  explicit DeviceOpsOn(std::unique_ptr<Runner<B>> run) : run_(std::move(run)) {
    model_ = &run_->m, cache_ = run_->cache.get(), steps_ = &run_->steps;
    can_copy_ = !Reports<B>;
  }
  // With memory for the features that they want of a step, and for those that wait.
  void take_drafters(Drafters<B> drafters) {
    kept_ = std::move(drafters);
    const KvPlan& kv = cache_->plan();
    for (auto& d : kept_) {
      drafters_.push_back(d.get());
      const auto layers = d->tap_layers();
      layer_.insert(layer_.end(), layers.begin(), layers.end());
      const int cols = int(layers.size()) * run_->m.d_model;
      taps_.push_back(layers.empty() ? Rows{} : run_->b.new_rows(kv.max_step, cols));
      const int most = std::min(waiting_features(cols), kv.max_step);
      buffers_.push_back(layers.empty() ? Rows{} : run_->b.new_rows(kv.max_seq * most, cols));
      buffer_rows_.push_back(layers.empty() || d->wants_final_hidden() || !buffers_.back() ? 0 : most);
      if (d->wants_final_hidden() && !final_hidden_) final_hidden_ = run_->b.new_rows(kv.max_step, run_->m.d_model);
    }
  }
  // What the step's forward pass has to keep.
  Taps<B> taps() {
    const int n_tok = run_->steps.n_tok();
    dst_.clear();
    for (size_t d = 0; d < kept_.size(); ++d)
      for (size_t i = 0; i < kept_[d]->tap_layers().size(); ++i)
        dst_.push_back(taps_[d].view(n_tok, taps_[d].cols).cols_at(int(i) * run_->m.d_model, run_->m.d_model));
    Taps<B> t{.layer = layer_, .dst = dst_, .final_hidden = {}};
    if (final_hidden_) t.final_hidden = final_hidden_.view(n_tok, run_->m.d_model);
    return t;
  }

  std::unique_ptr<Runner<B>> run_;
  Drafters<B> kept_;
  Rows logits_{};
  std::vector<float> host_logits_;
  std::vector<int> layer_;                  // taps of all drafters
  std::vector<Rows> taps_, buffers_, dst_;  // taps_, buffers_: by drafter
  Rows final_hidden_{};
};

}  // namespace facet
