// Long: a step from its drafts to its tokens, in the order in which it happens.
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/sampler.h"
#include "engine/grammar_steps.h"
#include "engine/logprobs.h"
#include "engine/runner.h"
#include "engine/scheduler.h"
#include "engine/speculate.h"
#include "session/session_store.h"
#include "tokenizer/tokenizer.h"

namespace facet {

// What a step asks of the engine around it.
struct StepHooks {
  std::function<void(SlotId, Stop, const std::string& error)> finish;
  std::function<bool(SlotId)> make_room;  // for one more page of this session: something else was given up
  std::function<void(int tokens, double seconds)> prompt_took;  // a step that was mostly prompts
};

// One step: proposes drafts, runs the target once over prompts, newest tokens and drafts, keeps what it agrees with,
// and hands tokens to the requests.
template <Backend B>
class StepLoop {
 public:
  StepLoop(Runner<B>& runner, Speculator<B>& spec, SessionStore& sessions, const EngineConfig& c,
           const Tokenizer* tokenizer, int n_vocab, const EngineDebug& debug, PhaseTimes& phases, StepHooks hooks)
      : runner_(runner),
        spec_(spec),
        sessions_(sessions),
        cfg_(c),
        tokenizer_(tokenizer),
        n_vocab_(n_vocab),
        forced_drafts_(debug.forced_drafts),
        phases_(phases),
        hooks_(std::move(hooks)),
        scheduler_(c.chunk, c.max_stall),
        grammars_(debug.grammar_units) {}

  // Before the first request that has a grammar.
  void use_grammars(GrammarMasks* masks) {
    grammars_.use(masks);
    if (!tokenizer_) return;
    const auto& s = tokenizer_->special();
    asleep_ = {s.quote, s.tool_call_close, s.tool_response_close};
    asleep_and_suppressed_ = asleep_;
    asleep_and_suppressed_.insert(asleep_and_suppressed_.end(), tokenizer_->suppressed().begin(),
                                  tokenizer_->suppressed().end());
  }

  // Its tokens are being handed out, or were when an exception ended it.
  bool settling() const { return settling_; }

  // waiting: requests that wait for a session. False: no session runs.
  bool step(int waiting) {
    waiting_ = waiting;
    settling_ = false;
    std::vector<SeqDemand> demands;
    bool any = false;
    grammars_.begin_step();
    for (SlotId s = 0; s < sessions_.size(); ++s)
      if (Session& q = sessions_.at(s); q.use == Session::Use::kRunning) {
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
                           .unmapped = cache().asleep(s)});
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

 private:
  using Clock = Job::Clock;
  // Tokens of a prompt that one step may take at most: to the next snapshot, and to the next picture.
  int limit(SlotId s, int pending) const { return before_picture(at(s), cache().len(s), sessions_.limit(s, pending)); }
  static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }
  KvCache& cache() const { return *runner_.cache; }
  Session& at(SlotId s) const { return sessions_.at(s); }

  // A session that waits for a mask sits the step out.
  bool takes_part(SlotId s) {
    Job& w = at(s).work;
    std::string error;
    const auto turn = grammars_.turn(w, error);
    using enum GrammarSteps::Turn;
    if (turn == kEnds) hooks_.finish(s, Stop::kEos, "");
    w.usage.broken = w.usage.broken || turn == kBroken;
    w.usage.refused = turn == kRefused;
    if (!error.empty()) hooks_.finish(s, Stop::kError, error);
    return turn == kGo;
  }

  void run(const std::vector<SeqGrant>& grants) {
    const PhaseTimes::Scope phase(phases_, Phase::kDraft);
    const auto begun = Clock::now();
    propose(grants);
    phases_.enter(Phase::kPrepare);
    const auto start = Clock::now();
    std::vector<SeqGrant> run;
    for (const SeqGrant& g : grants)
      if (const int n = prepare(g); n > 0) run.push_back({g.id, n});
    // Making room for one may have parked another.
    std::erase_if(run, [&](const SeqGrant& g) { return at(g.id).use != Session::Use::kRunning; });
    if (run.empty()) return;
    runner_.steps.begin();
    int prompts = 0;
    for (const SeqGrant& g : run) {
      add(g);
      if (!at(g.id).decoding) prompts += g.n;
    }
    phases_.enter(Phase::kForward);
    const auto logits = runner_.forward(spec_.taps(runner_.steps.n_tok()));
    sample_rows(run);
    const std::span<const SampleRow> rows = rows_;
    if (!rows.empty()) {
      runner_.b.sample(runner_.ids, logits, rows);
      phases_.enter(Phase::kWait);
      drawn_.resize(rows.size());
      for (size_t i = 0; i < rows.size(); ++i)
        drawn_[i] = runner_.ids[i];  // the one place where the host waits for the device
    }
    phases_.enter(Phase::kSettle);
    const auto drawn = Clock::now();
    if (prompts == 0)
      spec_.observe_step(runner_.steps.n_tok(), seconds(drawn - start));
    else if (!rows.empty() && waited_) {  // else it says how long launching took, or what the steps before left
      scheduler_.observe(prompts, seconds(drawn - start));
      if (prompts > runner_.steps.n_tok() / 2) hooks_.prompt_took(prompts, seconds(drawn - start));
    }
    waited_ = !rows.empty();
    const int64_t pages = runner_.pool->next_step();
    if (cfg_.stepped)
      cfg_.stepped({.sequences = int(run.size()),
                    .waiting = waiting_,
                    .prompt_tokens = prompts,
                    .tokens = runner_.steps.n_tok() - prompts,
                    .seconds = seconds(drawn - begun),
                    .phase_s = phases_.take(),
                    .pages = pages});
    settling_ = true;
    settle(run, logits, seconds(drawn - start));
    settling_ = false;
  }

  // Tokens from position `at` on until the end of the picture that begins there, its <|image> included; 0: none does, or
  // the model's pictures are causal and may be cut anywhere.
  int picture_at(const Session& q, int at) const {
    if (!runner_.m.pictures_ahead) return 0;
    for (const MediaSpan& m : q.work.request.media)
      if (m.is_picture && m.begin - 1 <= at && at < m.end()) return m.end() - at;
    return 0;
  }
  // Tokens from position `at` on before the next picture begins, whose step is its own: where chunks end near a picture
  // depends on the prompt alone.
  int before_picture(const Session& q, int at, int n) const {
    if (runner_.m.pictures_ahead)
      for (const MediaSpan& m : q.work.request.media)
        if (m.is_picture && m.begin - 1 > at) n = std::min(n, m.begin - 1 - at);
    return n;
  }
  // Pictures are granted whole: the step grows for them, as far as it can hold; other prompts wait.
  std::vector<SeqGrant> with_whole_pictures(std::vector<SeqGrant> grants) const {
    int total = 0;
    bool any = false;
    for (SeqGrant& g : grants) {
      if (const int n = at(g.id).decoding ? 0 : picture_at(at(g.id), cache().len(g.id)); n > 0) g.n = n, any = true;
      total += g.n;
    }
    if (!any) return grants;
    const int most = runner_.steps.max_tok();
    for (const bool pictures : {false, true})
      for (size_t i = grants.size(); i-- > 0 && total > most;) {
        SeqGrant& g = grants[i];
        const bool is_picture = !at(g.id).decoding && picture_at(at(g.id), cache().len(g.id)) > 0;
        if (at(g.id).decoding || is_picture != pictures || total == g.n) continue;
        total -= g.n;
        g.n = 0;
      }
    std::erase_if(grants, [](const SeqGrant& g) { return g.n == 0; });
    // One that grew is no longer among the leading short sequences (StepShape::n_small).
    std::stable_partition(grants.begin(), grants.end(), [](const SeqGrant& g) { return g.n <= kSmallT; });
    return grants;
  }

  static bool echoes(const Session& q) { return !q.decoding && q.work.request.echo_logprobs; }

  // A prompt whose log-probabilities are wanted takes a row of logits for every token: what the other sequences leave
  // of them, and few enough for row-invariant kernels, so that nothing else in the step changes them.
  void limit_echoes(std::vector<SeqDemand>& demands) const {
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

  void propose(const std::vector<SeqGrant>& grants) {
    std::vector<DraftRequest> requests;
    std::vector<GrammarWork> works(grants.size(), grammars_.for_drafts(grants.size()));
    const auto start = Clock::now();
    for (const SeqGrant& g : grants)
      if (const Session& q = at(g.id); q.decoding)
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
      while (at(r.slot).use == Session::Use::kRunning &&
             !spec_.prepare(r.slot, r.position, 1 + spec_.draft_rows(r.room)) && hooks_.make_room(r.slot)) {
      }
    // Making room for one may have parked another.
    std::erase_if(requests, [&](const DraftRequest& r) { return at(r.slot).use != Session::Use::kRunning; });
    // A drafter may read the target's rows: those of a fork that goes on with an answer need not be mapped yet. Where
    // that fails nothing is drafted, and prepare() says why.
    for (DraftRequest& r : requests)
      if (!cache().wake(r.slot)) r.room = 0;
    if (requests.empty()) return;
    spec_.propose(requests);
    draft_s_ = seconds(Clock::now() - start);
    for (const DraftRequest& r : requests)
      if (r.grammar) grammars_.drafted(at(r.slot).work, *r.work);
    for (const DraftRequest& r : requests)
      if (spec_.drafted(r.slot)) at(r.slot).work.usage.draft_s += seconds(Clock::now() - start);
  }

  // Drafts that could still become tokens of the answer, and have room in the context.
  int draft_room(const Session& q) const {
    const Job& w = q.work;
    if (!spec_.has_drafters() || !w.request.draft || w.slow > 0) return 0;
    int room = cfg_.n_ctx - int(q.tokens.size()) - 1;
    if (w.request.max_draft >= 0) room = std::min(room, w.request.max_draft);
    return w.request.max_tokens < 0 ? room : std::min(room, w.request.max_tokens - w.usage.generated - 1);
  }

  // Memory for a piece of a sequence's prompt, or for its newest token and drafts. Returns their number; 0: the
  // sequence runs no more.
  int prepare(const SeqGrant& g) {
    Session& q = at(g.id);
    while (q.use == Session::Use::kRunning) {
      const int n = q.decoding ? spec_.tree(g.id).size() : g.n;
      if (const auto ok = cache().prepare(g.id, n); !ok) {
        const bool context = cache().len(g.id) + n > cfg_.n_ctx;
        if (context || !hooks_.make_room(g.id)) hooks_.finish(g.id, Stop::kError, ok.error().message());
      } else {
        spec_.make_place(g.id, cache().len(g.id), n);
        if (spec_.prepare(g.id, cache().len(g.id), n) || !hooks_.make_room(g.id)) return n;
      }
    }
    return 0;
  }

  void add(const SeqGrant& g) {
    const Session& q = at(g.id);
    if (q.decoding) {
      const DraftTree& t = spec_.tree(g.id);
      runner_.add({.slot = g.id,
                   .token = t.token,
                   .out = Out::kAll,
                   .mask = t.is_chain ? Mask::kCausal : Mask::kTree,
                   .parent = t.parent});
    } else {
      add_soft(q, cache().len(g.id), g.n);
      runner_.add({.slot = g.id,
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
  void add_soft(const Session& q, int from, int n) {
    soft_.clear(), ahead_.clear();
    const int D = runner_.m.d_model;
    for (const MediaSpan& m : q.work.request.media) {
      const int begin = std::max(from, m.begin), end = std::min(from + n, m.end());
      if (begin >= end) continue;
      if (soft_.empty()) soft_.assign(size_t(n), -1), ahead_.assign(size_t(n), 0);
      int row = runner_.add_soft(
          std::span(*m.rows).subspan(size_t(begin - m.begin) * size_t(D), size_t(end - begin) * size_t(D)));
      for (int i = begin; i < end; ++i) {
        soft_[size_t(i - from)] = row++;
        if (m.is_picture && runner_.m.pictures_ahead) ahead_[size_t(i - from)] = end - 1 - i;
      }
    }
  }

  // Tokens from position `at` on that read selected blocks: of the prompt, all but the question at its end.
  static int selecting(const Session& q, int at) {
    return q.work.request.sparse_prefill ? std::max(0, int(q.work.request.prompt.size()) - kSelectQuestion - at) : 0;
  }
  // What became of a prompt that is read.
  void tell_selected(SlotId s) {
    Job& w = at(s).work;
    if constexpr (requires { runner_.b.take_selected(s); })
      if (w.request.sparse_prefill && !w.usage.sparse) {
        w.usage.sparse = told(runner_.b.take_selected(s));
        w.usage.sparse->approximate |= w.usage.cached > 0;
      }
  }

  bool prompt_ends(const SeqGrant& g) const { return cache().len(g.id) + g.n == int(at(g.id).tokens.size()); }

  // One row per row of logits, in the order of the step.
  void sample_rows(const std::vector<SeqGrant>& run) {
    std::vector<SampleRow>& rows = rows_;
    rows.clear();
    skipped_.clear();
    std::vector<ThoughtBudget> thoughts;
    for (const SeqGrant& g : run) {
      Session& q = at(g.id);
      if (echoes(q))  // what is drawn there is not used
        rows.insert(rows.end(), size_t(g.n - prompt_ends(g)), SampleRow{.sampling = &greedy_});
      if (!q.decoding && !prompt_ends(g)) continue;
      SampleRow row{
          .sampling = &q.work.request.sampling, .position = int64_t(q.tokens.size()), .history = q.tokens, .draft = {}};
      const bool suppress = q.work.request.suppress_special && tokenizer_;
      GrammarPath path;
      bool skip = q.work.grammar && !grammars_.follow(q.work, q.decoding ? &spec_.tree(g.id) : nullptr, path);
      thoughts.clear();
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
        rows.push_back(row);
      }
      if (skip) skipped_.push_back(g.id);
    }
  }
  bool is_skipped(SlotId s) const { return std::find(skipped_.begin(), skipped_.end(), s) != skipped_.end(); }

  // Commits what the step leaves of every sequence, hands the features to the drafters, takes the snapshots that are
  // due, then hands the tokens to the requests.
  void settle(const std::vector<SeqGrant>& run, const typename B::Rows& logits, double step_s) {
    const auto start = Clock::now();
    std::vector<Committed> committed;
    std::vector<Fresh> fresh;
    int row = 0;
    size_t out = 0;
    for (const SeqGrant& g : run) {
      Session& q = at(g.id);
      Committed c{.slot = g.id, .position = cache().len(g.id), .row = row, .n = g.n};
      row += g.n;
      ++q.work.usage.steps;
      if (is_skipped(g.id)) {  // its mask was not there in time: the last token is computed again when it is
        if (echoes(q)) echo(q, c.position, g.n, logits, int(out));
        out += size_t(q.decoding || echoes(q) ? g.n : 1);
        c.n = q.decoding ? 0 : g.n - 1;
        cache().commit(g.id, c.n);
        if (c.n > 0) committed.push_back(c);
        grammars_.sit_out(q.work);
        continue;
      }
      if (q.decoding) {
        Fresh& f = fresh.emplace_back(Fresh{g.id});
        c.path = keep(g.id, std::span(drawn_).subspan(out, size_t(g.n)),
                      std::span<const SampleRow>(rows_).subspan(out, size_t(g.n)), f.tokens);
        tell_round(g.id, c.position, std::span(drawn_).subspan(out, size_t(g.n)), int(c.path.size()) - 1, step_s);
        c.n = int(c.path.size());
        if (q.work.request.logprobs >= 0)
          for (size_t i = 0; i < f.tokens.size(); ++i)
            f.logprobs.push_back(opinion_of(q, logits, int(out) + c.path[i], f.tokens[i]));
        out += size_t(g.n);
        q.work.usage.verify_s += step_s;
      } else {
        const bool last = prompt_ends(g);
        if (echoes(q)) {
          echo(q, cache().len(g.id), g.n, logits, int(out));
          out += size_t(g.n - last);
        }
        cache().commit(g.id, g.n);
        if (q.work.sink.prefill) q.work.sink.prefill(q.work.id, cache().len(g.id), int(q.tokens.size()));
        if (last) {
          tell_selected(g.id);
          Fresh& f = fresh.emplace_back(Fresh{g.id, {drawn_[out]}});
          if (q.work.request.logprobs >= 0) f.logprobs.push_back(opinion_of(q, logits, int(out), f.tokens[0]));
          ++out;
        }
      }
      committed.push_back(c);
    }
    spec_.absorb(committed);
    for (const SeqGrant& g : run)
      if (at(g.id).use == Session::Use::kRunning && !at(g.id).decoding) sessions_.snapshot_if_due(g.id);
    const double settled = seconds(Clock::now() - start);
    for (const Fresh& f : fresh) {
      Job& w = at(f.slot).work;
      if (at(f.slot).decoding) w.usage.accept_s += settled;
      if (!f.logprobs.empty() && w.sink.logprobs && w.request.max_tokens != 0)
        w.sink.logprobs(w.id, int(at(f.slot).tokens.size()), f.logprobs);
      take(f.slot, f.tokens);
    }
  }

  // Tokens that a step drew for a session.
  struct Fresh {
    SlotId slot;
    std::vector<int32_t> tokens = {};
    std::vector<TokenLogprobs> logprobs = {};  // theirs, if they are wanted
  };

  // f(row `row` of the logits, on the host)
  template <class F>
  auto with_logits(const typename B::Rows& logits, int row, F f) {
    if constexpr (requires { logits.row(0); })
      return f(std::span<const float>(logits.row(row), size_t(n_vocab_)));
    else
      return f(std::span<const float>(runner_.b.to_host(logits.rows_at(row, 1))));
  }
  TokenLogprobs logprobs_at(const typename B::Rows& logits, int row, int32_t id, int k) {
    return with_logits(logits, row, [&](std::span<const float> l) { return logprobs_of(l, id, k); });
  }
  // What the request wants to know of a token that was drawn from a row.
  TokenLogprobs opinion_of(const Session& q, const typename B::Rows& logits, int row, int32_t id) {
    const Request& r = q.work.request;
    if (!r.drawn_logprobs) return logprobs_at(logits, row, id, r.logprobs);
    return with_logits(logits, row, [&](std::span<const float> l) {
      return drawn_logprobs_of(chances_of(l, rows_[size_t(row)], scratch_), id, r.logprobs);
    });
  }

  // n rows of logits, from `row` on, are those of the prompt's tokens from position `from` on.
  void echo(Session& q, int from, int n, const typename B::Rows& logits, int row) {
    Job& w = q.work;
    std::vector<TokenLogprobs> told;
    const int end = std::min(from + n + 1, int(w.request.prompt.size()));
    const int first = std::max(from + 1, w.echoed);  // it may have been told before the request was parked
    for (int p = first; p < end; ++p)
      told.push_back(logprobs_at(logits, row + p - 1 - from, q.tokens[size_t(p)], w.request.logprobs));
    if (told.empty()) return;
    w.echoed = end;
    if (w.sink.logprobs) w.sink.logprobs(w.id, first, told);
  }

  // Accepts and commits drafts of a session given the target's tokens after each node. Fills the tokens that the answer
  // goes on with; returns the nodes whose rows are kept.
  std::span<const int16_t> keep(SlotId s, std::span<int32_t> drawn, std::span<const SampleRow> rows,
                                std::vector<int32_t>& tokens) {
    Job& w = at(s).work;
    const DraftTree& tree = spec_.tree(s);
    if (!forced_drafts_.empty()) force(s, drawn, rows);
    const Accepted& a = spec_.verify(s, drawn, w.usage, w.usage.generated);
    for (size_t i = 1; i < a.path.size(); ++i) tokens.push_back(tree.token[size_t(a.path[i])]);
    tokens.push_back(a.next);
    if (tree.is_chain)
      cache().commit(s, int(a.path.size()));
    else
      cache().commit_path(s, a.path);
    return a.path;
  }

  void tell_round(SlotId s, int position, std::span<const int32_t> drawn, int accepted, double step_s) const {
    const DraftTree& t = spec_.tree(s);
    if (!cfg_.drafted || t.size() == 1) return;
    cfg_.drafted({.request = at(s).work.id,
                  .position = position,
                  .method = spec_.method(s),
                  .token = t.token,
                  .parent = t.is_chain ? std::span<const int16_t>{} : std::span<const int16_t>(t.parent),
                  .drawn = drawn,
                  .accepted = accepted,
                  .draft_s = draft_s_,
                  .verify_s = step_s});
  }

  // EngineDebug::forced_drafts: a chain's drafts are right with given probabilities. The same seed, the same script.
  void force(SlotId s, std::span<int32_t> drawn, std::span<const SampleRow> rows) const {
    const std::span<const float> p = forced_drafts_;
    const DraftTree& tree = spec_.tree(s);
    const Session& q = at(s);
    for (size_t i = 0; i + 1 < drawn.size(); ++i) {
      const int32_t draft = tree.token[i + 1];
      const bool right =
          uniform_at(q.work.request.sampling.seed, int64_t(q.tokens.size() + i)) < double(p[std::min(i, p.size() - 1)]);
      int32_t other = (draft + 1) % n_vocab_;
      if (q.work.grammar && !rows[i].allowed.empty()) other = allowed_token(rows[i].allowed, grammars_.vocab(), other);
      drawn[i] = right || other < 0 ? draft : other;
    }
  }

  // Tokens were drawn for a session. They end where the answer does.
  void take(SlotId s, std::span<const int32_t> drawn) {
    Session& q = at(s);
    Job& w = q.work;
    const bool prompt_done = !q.decoding;
    if (prompt_done) {
      q.decoding = true;
      if (!w.answered) w.first_token = Clock::now();
      w.answered = true;
      sessions_.snapshot(s);
      if (w.request.max_tokens == 0) return hooks_.finish(s, Stop::kLength, "");  // the prompt was all that was wanted
    }
    size_t n = 0;
    std::optional<Stop> why;
    bool whole = false;
    std::string error;
    for (; n < drawn.size() && !why; ++n) {
      const int32_t id = drawn[n];
      if (id < 0)
        w.usage.broken = !(w.grammar && grammars_.no_way_on(w, n_vocab_)),
        error = !w.usage.broken
                    ? "the grammar allows no token of this vocabulary here"
                    : "logits hold no finite number; the model file or a kernel is broken (run with --backend ref to "
                      "tell which)",
        why = Stop::kError;
      else if ((tokenizer_ && tokenizer_->is_eog(id) && !w.request.ignore_eos) || is_stop(w.request, id))
        why = Stop::kEos;
      if (why) break;
      if (w.grammar && !grammars_.advance(w, id)) {
        w.usage.broken = true;
        error = GrammarSteps::kForbidden;
        why = Stop::kError;
        break;
      }
      if (w.thought) w.thought->advance(id);
      q.tokens.push_back(id);
      ++w.usage.generated;
      if (w.usage.generated == w.request.max_tokens)
        why = Stop::kLength;
      else if (int(q.tokens.size()) >= cfg_.n_ctx)
        why = Stop::kContext;
      if (w.loops && w.loops->advance(q.tokens)) why = Stop::kLoop;
      if (w.grammar && grammars_.finished(w)) whole = true, why = Stop::kEos;  // nothing but the end may come
    }
    if (w.grammar && !why) grammars_.stepped(w);
    // A draft may go on behind a token of stop_ids; its rows were kept.
    for (size_t i = n; why == Stop::kEos && i + 1 < drawn.size(); ++i) q.tokens.push_back(drawn[i]);
    if (!prompt_done) w.usage.decoded += int(n) + (why == Stop::kEos && !whole);
    if (n > 0 && w.sink.tokens) w.sink.tokens(w.id, drawn.first(n));
    if (why) hooks_.finish(s, *why, error);
  }

  static bool is_stop(const Request& r, int32_t id) {
    return std::find(r.stop_ids.begin(), r.stop_ids.end(), id) != r.stop_ids.end();
  }
  Runner<B>& runner_;
  Speculator<B>& spec_;
  SessionStore& sessions_;
  const EngineConfig& cfg_;
  const Tokenizer* tokenizer_;
  int n_vocab_;
  std::span<const float> forced_drafts_;  // EngineDebug's
  PhaseTimes& phases_;
  StepHooks hooks_;
  Scheduler scheduler_;
  const Sampling greedy_{.temperature = 0};
  int waiting_ = 0;
  bool settling_ = false;
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
};

}  // namespace facet
