#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/cache_stats.h"
#include "api/config.h"
#include "api/events.h"
#include "api/request.h"
#include "backend/lockstep_report.h"
#include "backend/verb_cost.h"
#include "base/result.h"

namespace facet {

class Tokenizer;
struct ModelCfg;

// A loaded model and its scheduler. The server, the daemon, the CLI and the benches see this header
// and nothing below it: no tensor, cache or device type appears here.
class Engine {
 public:
  // Everything is allocated here.
  static Result<std::unique_ptr<Engine>> open(const EngineConfig&, const EngineDebug& = {});
  virtual ~Engine() = default;

  virtual Result<RequestId> submit(Request, Sink) = 0;  // any thread
  virtual void cancel(RequestId) = 0;                   // any thread
  // Any thread: makes what grammars need of the vocabulary, once, or says why there are none. submit() does it too, and
  // then takes as long. first: also the first mask of this one, which may say that it is too ambiguous.
  virtual Status prepare_grammars(const GrammarPtr& first = {}) = 0;
  virtual bool tick() = 0;  // one step; false when there is nothing to do
  virtual void run() = 0;   // tick until stop(), waiting when idle
  virtual void stop() = 0;  // any thread

  // Logits of the positions of ids from `from` on, in pieces of at most config().max_out: f(first row, rows * n_vocab
  // floats). Fails when requests are running.
  virtual Status score(std::span<const int32_t> ids, int from,
                       const std::function<void(int, std::span<const float>)>& f) = 0;

  // What became of the prompts that score() read approximately, all together.
  virtual SparsePrefill scored_sparse() const { return {}; }

  virtual CacheStats cache_stats() const = 0;  // any thread; as of the last step, the disk's as it is
  // Any thread. The sequences in memory, each under its number; told on the engine's thread.
  virtual void list_slots(std::function<void(const std::vector<SlotInfo>&)> told) = 0;
  // Any thread. Writes the state of a sequence to a file; it stays in memory, and may be running.
  virtual void save_slot(int id, const std::string& path, SlotSink done) = 0;
  // Any thread. Reads a state that save_slot wrote, for the same model, drafters and options, into a slot in which
  // nothing runs; requests go on from it. What was kept there is given up.
  virtual void restore_slot(int id, const std::string& path, SlotSink done) = 0;
  virtual void erase_slot(int id, SlotSink done) = 0;  // any thread

  // Encoders of pictures and sound, for Request::media; null: the engine was opened without.
  virtual MediaEncoder* media() const = 0;
  virtual const Tokenizer* tokenizer() const = 0;  // null: the file has no vocabulary
  virtual const ModelCfg& model() const = 0;
  virtual const EngineConfig& config() const = 0;                // with n_ctx, n_threads and the rest decided
  virtual LockstepReport lockstep_report() const { return {}; }  // of EngineDebug::lockstep
  virtual VerbCosts verb_costs() const { return {}; }            // of EngineDebug::explain, since the start
};

}  // namespace facet
