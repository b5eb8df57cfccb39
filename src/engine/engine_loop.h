#pragma once
#include <memory>
#include <mutex>

#include "api/engine.h"
#include "engine/admission.h"
#include "engine/device_ops.h"
#include "engine/loaded_model.h"
#include "engine/request_queue.h"
#include "engine/speculate.h"
#include "engine/step_loop.h"
#include "session/fingerprint.h"
#include "session/session_rows.h"
#include "session/session_store.h"
#include "session/tiers.h"

namespace facet {

// The engine: what other threads ask of it, and a tick, which admits requests and runs a step.
class EngineLoop final : public Engine {
 public:
  EngineLoop(std::unique_ptr<LoadedModel> model, const EngineConfig& c, std::unique_ptr<DeviceOps> ops);
  ~EngineLoop() override;
  Status start();  // before anything else

  Result<RequestId> submit(Request r, Sink sink) override;
  void cancel(RequestId id) override { queue_.cancel(id); }
  Status prepare_grammars(const GrammarPtr& first) override;
  void run() override;
  void stop() override { queue_.stop(); }
  bool tick() override;
  Status score(std::span<const int32_t> ids, int from,
               const std::function<void(int, std::span<const float>)>& f) override;
  SparsePrefill scored_sparse() const override { return sparse_prefill_of(scored_); }

  CacheStats cache_stats() const override;
  void list_slots(std::function<void(const std::vector<SlotInfo>&)> done) override;
  void save_slot(int id, const std::string& path, SlotSink done) override;
  void restore_slot(int id, const std::string& path, SlotSink done) override;
  void erase_slot(int id, SlotSink done) override;

  MediaEncoder* media() const override { return model_->media.get(); }
  const Tokenizer* tokenizer() const override { return model_->tokenizer ? &*model_->tokenizer : nullptr; }
  const ModelCfg& model() const override { return model_->cfg; }
  const EngineConfig& config() const override { return cfg_; }
  LockstepReport lockstep_report() const override { return ops_->report(); }
  VerbCosts verb_costs() const override { return ops_->costs(); }

 private:
  static constexpr int64_t kWaiting = 64 << 20;  // bytes that may wait for the disk at least

  Status check_prompt(const Request& r) const;
  Result<std::unique_ptr<DiskTier>> open_disk();
  const SessionHeader::Fingerprint& fingerprint();
  bool map_ahead();
  bool step();
  void publish();
  bool is_slot(int id) const { return id >= 0 && id < sessions_.size(); }
  Error no_slot(int id) const;
  void flush(SlotId s);

  std::unique_ptr<LoadedModel> model_;
  EngineConfig cfg_;
  PhaseTimes phases_;
  bool idle_ = true;  // nothing ran in the last tick
  std::unique_ptr<DeviceOps> ops_;
  SessionRows rows_;
  SessionStore sessions_;
  Speculator spec_;
  int64_t staged_ = 0;  // pages that are no sequence's
  std::once_flag fingerprint_once_;
  SessionHeader::Fingerprint fingerprint_ = {};
  mutable std::mutex stats_mutex_;
  CacheStats stats_;  // as other threads see it
  Selected scored_;   // by score()
  std::once_flag grammars_once_;
  std::unique_ptr<GrammarMasks> grammar_masks_;
  RequestQueue queue_;
  std::unique_ptr<Tiers> tiers_;  // its threads use the queue
  std::unique_ptr<Admission> admission_;
  std::unique_ptr<StepLoop> steps_;
};

}  // namespace facet
