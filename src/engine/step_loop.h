#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "api/config.h"
#include "api/phases.h"
#include "backend/cpu/sampler.h"
#include "engine/admission.h"
#include "engine/device_ops.h"
#include "engine/grammar_steps.h"
#include "engine/scheduler.h"
#include "engine/speculate.h"
#include "session/session_store.h"
#include "session/tiers.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// One step: proposes drafts, runs the target once over prompts, newest tokens and drafts, keeps what it agrees with,
// and hands tokens to the requests. step_loop.cpp builds and runs the step, finish_step.cpp hands out what it left.
class StepLoop {
 public:
  StepLoop(const EngineConfig& c, const EngineDebug& debug, const Tokenizer* tokenizer, DeviceOps& ops,
           Speculator& spec, SessionStore& sessions, Tiers& tiers, Admission& admission, PhaseTimes& phases)
      : cfg_(c),
        tokenizer_(tokenizer),
        ops_(ops),
        spec_(spec),
        sessions_(sessions),
        tiers_(tiers),
        admission_(admission),
        phases_(phases),
        n_vocab_(ops.model().n_vocab),
        forced_drafts_(debug.forced_drafts),
        replay_(debug.replay),
        scheduler_(c.chunk, c.max_stall, c.weights_in_ram() ? kStreamBlock : 0),
        grammars_(debug.grammar_units) {}

  // Before the first request that has a grammar.
  void use_grammars(GrammarMasks* masks);
  // Its tokens are being handed out, or were when an exception ended it.
  bool is_finishing() const { return finishing_; }
  // False: no session runs.
  bool step();

 private:
  using Clock = ActiveRequest::Clock;
  KvCache& cache() const { return ops_.cache(); }
  Sequence& at(SlotId s) const { return sessions_.at(s); }
  bool prompt_ends(const SeqGrant& g) const { return cache().len(g.id) + g.n == int(at(g.id).tokens.size()); }
  bool is_skipped(SlotId s) const;

  bool takes_part(SlotId s);
  int limit(SlotId s, int pending) const;
  int picture_at(const Sequence& q, int at) const;
  int before_picture(const Sequence& q, int at, int n) const;
  std::vector<SeqGrant> with_whole_pictures(std::vector<SeqGrant> grants) const;
  void limit_echoes(std::vector<SeqDemand>& demands) const;

  void run(const std::vector<SeqGrant>& grants);
  void propose(const std::vector<SeqGrant>& grants);
  int draft_room(const Sequence& q) const;
  int prepare(const SeqGrant& g);
  void add(const SeqGrant& g);
  void add_soft(const Sequence& q, int from, int n);
  void sample_rows(const std::vector<SeqGrant>& run);
  bool sample_rows_of(const SeqGrant& g);
  void draw();
  void observe(const std::vector<SeqGrant>& run, int prompts, double step_s, double all_s);

  void finish_step(const std::vector<SeqGrant>& run, double step_s);
  Committed commit(const SeqGrant& g, int row, size_t& out, double step_s);
  void commit_skipped(const SeqGrant& g, Committed& c, size_t& out);
  void commit_drafts(const SeqGrant& g, Committed& c, size_t& out, double step_s);
  void commit_chunk(const SeqGrant& g, size_t& out);
  void report_selected(SlotId s);
  void report_round(SlotId s, int position, std::span<const int32_t> drawn, int accepted, double step_s) const;
  TokenLogprobs logprobs_of_row(int row, int32_t id, int k);
  TokenLogprobs logprobs_of_draw(const Sequence& q, int row, int32_t id);
  void echo(Sequence& q, int from, int n, int row);
  std::span<const int16_t> keep(SlotId s, std::span<int32_t> drawn, std::span<const SampleRow> rows);
  void force(SlotId s, std::span<int32_t> drawn, std::span<const SampleRow> rows) const;
  int32_t replayed(const Sequence& q, int at, int32_t drawn) const;
  void take(SlotId s);
  bool take_one(Sequence& q, int32_t id, std::optional<Stop>& why, bool& whole, std::string& error);

  const EngineConfig& cfg_;
  const Tokenizer* tokenizer_;
  DeviceOps& ops_;
  Speculator& spec_;
  SessionStore& sessions_;
  Tiers& tiers_;
  Admission& admission_;
  PhaseTimes& phases_;
  int n_vocab_;
  std::span<const float> forced_drafts_;  // EngineDebug's
  const std::vector<int32_t>* replay_;    // likewise
  Scheduler scheduler_;
  const Sampling greedy_{.temperature = 0};
  int waiting_ = 0;  // requests that waited for a session when the step began
  bool finishing_ = false;
  std::vector<SampleRow> rows_;  // of the step, by row of its logits
  SamplerScratch scratch_;
  std::vector<int32_t> soft_, ahead_;  // Step::soft and Step::ahead of the sequence that is being added
  std::vector<int32_t> drawn_;         // by row of the step's logits
  GrammarSteps grammars_;
  // Tokens that are not drawn while a lazy grammar is asleep, and those that never are.
  std::vector<int32_t> asleep_ = {}, asleep_and_suppressed_ = {};
  std::vector<SlotId> skipped_;  // of the step: their masks were not there in time
  double draft_s_ = 0;           // of the last step
  bool waited_ = true;           // the host waited for the last step
  double wait_s_ = 0;            // from the last step's launch to its tokens
};

}  // namespace facet
