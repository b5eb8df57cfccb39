#include "engine/step_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace facet {
namespace {

double seconds(ActiveRequest::Clock::duration d) { return std::chrono::duration<double>(d).count(); }
bool echoes(const Sequence& q) { return !q.decoding && q.work.request.echo_logprobs; }
// Tokens from position `at` on that read selected blocks: of the prompt, all but the question at its end.
int selecting(const Sequence& q, int at) {
  return q.work.request.sparse_prefill ? std::max(0, int(q.work.request.prompt.size()) - kSelectQuestion - at) : 0;
}

}  // namespace

void StepLoop::use_grammars(GrammarMasks* masks) {
  grammars_.use(masks);
  if (!tokenizer_) return;
  const auto& s = tokenizer_->special();
  asleep_ = {s.quote, s.tool_call_close, s.tool_response_close};
  asleep_and_suppressed_ = asleep_;
  asleep_and_suppressed_.insert(asleep_and_suppressed_.end(), tokenizer_->suppressed().begin(),
                                tokenizer_->suppressed().end());
}

// --- who takes part, with how much

bool StepLoop::step() {
  waiting_ = admission_.waiting();
  finishing_ = false;
  std::vector<SeqDemand> demands;
  bool any = false;
  grammars_.begin_step();
  for (SlotId s = 0; s < sessions_.size(); ++s)
    if (Sequence& q = sessions_.at(s); q.running()) {
      any = true;
      if (!takes_part(s)) continue;
      int pending = int(q.tokens.size()) - cache().len(s);
      // One that was parked in the middle of its answer goes on with its newest token, and with drafts.
      if (q.work.answered && pending == 1) q.decoding = true;
      if (q.work.answered && !q.decoding) --pending;
      demands.push_back({.id = s,
                         .pending = q.decoding ? pending : limit(s, pending),
                         .decoding = q.decoding,
                         .arrival = q.work.id,
                         .priority = q.work.request.priority,
                         .unmapped = cache().unmapped(s)});
    }
  if (demands.empty()) {
    if (any) grammars_.wait();
    return any;
  }
  skip_unmapped(demands);
  limit_echoes(demands);
  run(with_whole_pictures(scheduler_.schedule(demands)));
  return true;
}

// A session that waits for a mask sits the step out.
bool StepLoop::takes_part(SlotId s) {
  ActiveRequest& w = at(s).work;
  std::string error;
  const auto turn = grammars_.turn(w, error);
  using enum GrammarSteps::Turn;
  if (turn == kEnds) admission_.finish(s, Stop::kEos, "");
  w.usage.broken = w.usage.broken || turn == kBroken;
  w.usage.refused = turn == kRefused;
  if (!error.empty()) admission_.finish(s, Stop::kError, error);
  return turn == kGo;
}

// Tokens of a prompt that one step may take at most: to the next snapshot, and to the next picture.
int StepLoop::limit(SlotId s, int pending) const {
  return before_picture(at(s), cache().len(s), sessions_.limit(s, pending));
}

// Tokens from position `at` on until the end of the picture that begins there, its <|image> included; 0: none does, or
// the model's pictures are causal and may be cut anywhere.
int StepLoop::picture_at(const Sequence& q, int at) const {
  if (!ops_.model().pictures_ahead) return 0;
  for (const MediaSpan& m : q.work.request.media)
    if (m.is_picture && m.begin - 1 <= at && at < m.end()) return m.end() - at;
  return 0;
}

// Tokens from position `at` on before the next picture begins, whose step is its own: where chunks end near a picture
// depends on the prompt alone.
int StepLoop::before_picture(const Sequence& q, int at, int n) const {
  if (ops_.model().pictures_ahead)
    for (const MediaSpan& m : q.work.request.media)
      if (m.is_picture && m.begin - 1 > at) n = std::min(n, m.begin - 1 - at);
  return n;
}

// Pictures are granted whole: the step grows for them, as far as it can hold beside what may be drafted in it; other
// prompts wait.
std::vector<SeqGrant> StepLoop::with_whole_pictures(std::vector<SeqGrant> grants) const {
  int total = 0;
  bool any = false;
  for (SeqGrant& g : grants) {
    const Sequence& q = at(g.id);
    if (const int n = q.decoding ? 0 : picture_at(q, cache().len(g.id)); n > 0) g.n = n, any = true;
    const bool drafts = q.decoding && spec_.has_drafters() && q.work.request.draft;
    total += drafts ? std::max(g.n, 1 + cfg_.draft.rows()) : g.n;
  }
  if (!any) return grants;
  const int most = ops_.steps().max_tok();
  for (const bool pictures : {false, true})
    for (size_t i = grants.size(); i-- > 0 && total > most;) {
      SeqGrant& g = grants[i];
      const bool is_picture = !at(g.id).decoding && picture_at(at(g.id), cache().len(g.id)) > 0;
      if (at(g.id).decoding || is_picture != pictures || total == g.n) continue;
      total -= g.n;
      g.n = 0;
    }
  std::erase_if(grants, [](const SeqGrant& g) { return g.n == 0; });
  // One that grew is no longer among the leading short sequences (StepShape::n_small), and perhaps one of the last
  // (StepShape::n_blocks).
  const auto rest =
      std::stable_partition(grants.begin(), grants.end(), [](const SeqGrant& g) { return g.n <= kSmallT; });
  if (cfg_.weights_in_ram())
    std::stable_partition(rest, grants.end(), [](const SeqGrant& g) { return g.n < kStreamBlock; });
  return grants;
}

// A prompt whose log-probabilities are wanted takes a row of logits for every token: what the other sequences leave
// of them, and few enough for row-invariant kernels, so that nothing else in the step changes them.
void StepLoop::limit_echoes(std::vector<SeqDemand>& demands) const {
  int left = cfg_.max_out;
  for (const SeqDemand& d : demands)
    left -= d.decoding && spec_.has_drafters() && at(d.id).work.request.draft ? 1 + cfg_.draft.rows() : 1;
  for (SeqDemand& d : demands)
    if (echoes(at(d.id))) {
      const int n = std::min({d.pending, kSmallT, 1 + std::max(0, left)});
      left -= n - 1;
      d.pending = n;
    }
}

// --- building and running

void StepLoop::run(const std::vector<SeqGrant>& grants) {
  const PhaseTimes::Scope phase(phases_, Phase::kDraft);
  const auto begun = Clock::now();
  propose(grants);
  phases_.enter(Phase::kPrepare);
  const auto start = Clock::now();
  std::vector<SeqGrant> run;
  for (const SeqGrant& g : grants)
    if (const int n = prepare(g); n > 0) run.push_back({g.id, n});
  // Making room for one may have parked another.
  std::erase_if(run, [&](const SeqGrant& g) { return !at(g.id).running(); });
  if (run.empty()) return;
  ops_.steps().begin();
  int prompts = 0;
  for (const SeqGrant& g : run) {
    add(g);
    if (!at(g.id).decoding) prompts += g.n;
  }
  phases_.enter(Phase::kForward);
  ops_.forward(/*with_features=*/true);
  sample_rows(run);
  draw();
  phases_.enter(Phase::kSettle);
  const auto drawn = Clock::now();
  observe(run, prompts, seconds(drawn - start), seconds(drawn - begun));
  finishing_ = true;
  finish_step(run, seconds(drawn - start));
  finishing_ = false;
}

void StepLoop::draw() {
  if (rows_.empty()) return;
  ops_.sample(rows_);
  const auto start = Clock::now();
  while (admission_.map_ahead() && seconds(Clock::now() - start) < wait_s_ / 4) {  // the device computes meanwhile
  }
  phases_.enter(Phase::kWait);
  drawn_.resize(rows_.size());
  ops_.read_ids(drawn_);  // the one place where the host waits for the device
  wait_s_ = seconds(Clock::now() - start);
}

// What the step took, for those who learn from it, and its line for the caller.
void StepLoop::observe(const std::vector<SeqGrant>& run, int prompts, double step_s, double all_s) {
  const int n_tok = ops_.steps().n_tok();
  if (prompts == 0)
    spec_.observe_step(n_tok, step_s);
  else if (!rows_.empty() && waited_) {  // else it says how long launching took, or what the steps before left
    scheduler_.observe(prompts, step_s);
    if (prompts > n_tok / 2) tiers_.observe_prompt(prompts, step_s);
  }
  waited_ = !rows_.empty();
  const int64_t pages = ops_.pool().next_step();
  if (cfg_.stepped)
    cfg_.stepped({.sequences = int(run.size()),
                  .waiting = waiting_,
                  .prompt_tokens = prompts,
                  .tokens = n_tok - prompts,
                  .seconds = all_s,
                  .phase_s = phases_.take(),
                  .pages = pages});
}

void StepLoop::propose(const std::vector<SeqGrant>& grants) {
  std::vector<DraftRequest> requests;
  std::vector<GrammarWork> works(grants.size(), grammars_.for_drafts(grants.size()));
  const auto start = Clock::now();
  for (const SeqGrant& g : grants)
    if (const Sequence& q = at(g.id); q.decoding)
      requests.push_back({.slot = g.id,
                          .position = cache().len(g.id),
                          .newest = q.tokens.back(),
                          .history = q.tokens,
                          .room = draft_room(q),
                          .stops = q.work.request.ignore_eos ? nullptr : tokenizer_,
                          .grammar = q.work.grammar ? &*q.work.grammar : nullptr,
                          .masks = grammars_.masks(),
                          .work = &works[requests.size()],
                          .tokenizer = tokenizer_});
  draft_s_ = 0;
  for (const DraftRequest& r : requests)
    while (at(r.slot).running() && !spec_.prepare(r.slot, r.position, 1 + spec_.draft_rows(r.room)) &&
           admission_.make_room(r.slot)) {
    }
  // Making room for one may have parked another.
  std::erase_if(requests, [&](const DraftRequest& r) { return !at(r.slot).running(); });
  // A drafter may read the target's rows: those of a fork that goes on with an answer need not be mapped yet. Where
  // that fails nothing is drafted, and prepare() says why.
  for (DraftRequest& r : requests)
    if (!cache().map_all(r.slot)) r.room = 0;
  if (requests.empty()) return;
  spec_.propose(requests);
  draft_s_ = seconds(Clock::now() - start);
  for (const DraftRequest& r : requests)
    if (r.grammar) grammars_.drafted(at(r.slot).work, *r.work);
  for (const DraftRequest& r : requests)
    if (spec_.drafted(r.slot)) at(r.slot).work.usage.draft_s += seconds(Clock::now() - start);
}

// Drafts that could still become tokens of the answer, and have room in the context.
int StepLoop::draft_room(const Sequence& q) const {
  const ActiveRequest& w = q.work;
  if (!spec_.has_drafters() || !w.request.draft || w.slow > 0) return 0;
  int room = cfg_.n_ctx - int(q.tokens.size()) - 1;
  if (w.request.max_draft >= 0) room = std::min(room, w.request.max_draft);
  return w.request.max_tokens < 0 ? room : std::min(room, w.request.max_tokens - w.usage.generated - 1);
}

// Memory for a piece of a sequence's prompt, or for its newest token and drafts. Returns their number; 0: the
// sequence runs no more.
int StepLoop::prepare(const SeqGrant& g) {
  Sequence& q = at(g.id);
  while (q.running()) {
    const int n = q.decoding ? spec_.tree(g.id).size() : g.n;
    if (const auto ok = cache().prepare(g.id, n); !ok) {
      const bool context = cache().len(g.id) + n > cfg_.n_ctx;
      if (context || !admission_.make_room(g.id)) admission_.finish(g.id, Stop::kError, ok.error().message());
    } else {
      spec_.make_place(g.id, cache().len(g.id), n);
      if (spec_.prepare(g.id, cache().len(g.id), n) || !admission_.make_room(g.id)) return n;
    }
  }
  return 0;
}

void StepLoop::add(const SeqGrant& g) {
  const Sequence& q = at(g.id);
  if (q.decoding) {
    const DraftTree& t = spec_.tree(g.id);
    ops_.add({.slot = g.id,
              .token = t.token,
              .out = Out::kAll,
              .mask = t.is_chain ? Mask::kCausal : Mask::kTree,
              .parent = t.parent});
  } else {
    add_soft(q, cache().len(g.id), g.n);
    ops_.add({.slot = g.id,
              .token = std::span(q.tokens).subspan(size_t(cache().len(g.id)), size_t(g.n)),
              .out = echoes(q)        ? Out::kAll
                     : prompt_ends(g) ? Out::kLast
                                      : Out::kNone,
              .n_select = selecting(q, cache().len(g.id)),
              .soft = soft_,
              .ahead = ahead_});
  }
}

// Rows of pictures and sounds among n tokens from position `from` on: soft_ and ahead_, empty where there are none.
void StepLoop::add_soft(const Sequence& q, int from, int n) {
  soft_.clear(), ahead_.clear();
  const int D = ops_.model().d_model;
  for (const MediaSpan& m : q.work.request.media) {
    const int begin = std::max(from, m.begin), end = std::min(from + n, m.end());
    if (begin >= end) continue;
    if (soft_.empty()) soft_.assign(size_t(n), -1), ahead_.assign(size_t(n), 0);
    int row =
        ops_.add_soft(std::span(*m.rows).subspan(size_t(begin - m.begin) * size_t(D), size_t(end - begin) * size_t(D)));
    for (int i = begin; i < end; ++i) {
      soft_[size_t(i - from)] = row++;
      if (m.is_picture && ops_.model().pictures_ahead) ahead_[size_t(i - from)] = end - 1 - i;
    }
  }
}

// One row per row of logits, in the order of the step.
void StepLoop::sample_rows(const std::vector<SeqGrant>& run) {
  rows_.clear();
  skipped_.clear();
  for (const SeqGrant& g : run) {
    const Sequence& q = at(g.id);
    if (echoes(q))  // what is drawn there is not used
      rows_.insert(rows_.end(), size_t(g.n - prompt_ends(g)), SampleRow{.sampling = &greedy_});
    if (!q.decoding && !prompt_ends(g)) continue;
    if (!sample_rows_of(g)) skipped_.push_back(g.id);
  }
}

// The rows of a sequence that draw its next tokens. False: a mask was not there in time.
bool StepLoop::sample_rows_of(const SeqGrant& g) {
  Sequence& q = at(g.id);
  SampleRow row{
      .sampling = &q.work.request.sampling, .position = int64_t(q.tokens.size()), .history = q.tokens, .draft = {}};
  const bool suppress = q.work.request.suppress_special && tokenizer_;
  GrammarPath path;
  bool skip = q.work.grammar && !grammars_.follow(q.work, q.decoding ? &spec_.tree(g.id) : nullptr, path);
  std::vector<ThoughtBudget> thoughts;
  for (int node = 0; node < (q.decoding ? g.n : 1); ++node) {
    row.suppressed = suppress ? tokenizer_->suppressed() : std::span<const int32_t>{};
    row.allowed = {};
    if (q.work.grammar && !skip) {
      const GrammarState& state = path.states[size_t(node)];
      if (state.asleep()) {  // no mask, but a call's other tokens mean nothing where none is open
        row.suppressed = suppress ? asleep_and_suppressed_ : asleep_;
      } else {
        const auto mask = grammars_.mask(q.work, state, node, n_vocab_);
        skip = !mask;
        if (mask) row.allowed = *mask;
      }
    }
    if (q.work.thought) {
      thoughts.push_back(node == 0 ? *q.work.thought : thoughts[size_t(spec_.tree(g.id).parent[size_t(node)])]);
      if (node > 0) thoughts.back().advance(spec_.tree(g.id).token[size_t(node)]);
      if (const auto forced = thoughts.back().forced(); forced) row.allowed = grammars_.only(*forced, n_vocab_);
    }
    row.draft = q.decoding ? spec_.path_to(g.id, node) : std::span<const int32_t>{};
    row.position = int64_t(q.tokens.size() + row.draft.size());
    if (q.work.usage.generated + int(row.draft.size()) < q.work.request.min_tokens) row.suppressed = q.work.no_end;
    rows_.push_back(row);
  }
  return !skip;
}

bool StepLoop::is_skipped(SlotId s) const { return std::find(skipped_.begin(), skipped_.end(), s) != skipped_.end(); }

}  // namespace facet
