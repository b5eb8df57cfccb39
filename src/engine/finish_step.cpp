#include <algorithm>
#include <chrono>

#include "engine/logprobs.h"
#include "engine/step_loop.h"

// What a step left: rows that become permanent, features for drafters, snapshots, and tokens for the requests.
namespace facet {
namespace {

double seconds(ActiveRequest::Clock::duration d) { return std::chrono::duration<double>(d).count(); }
bool echoes(const Sequence& q) { return !q.decoding && q.work.request.echo_logprobs; }
bool is_stop(const Request& r, int32_t id) {
  return std::find(r.stop_ids.begin(), r.stop_ids.end(), id) != r.stop_ids.end();
}

}  // namespace

// Commits what the step leaves of every sequence, hands the features to the drafters, takes the snapshots that are
// due, then hands the tokens to the requests.
void StepLoop::finish_step(const std::vector<SeqGrant>& run, double step_s) {
  const auto start = Clock::now();
  std::vector<Committed> committed;
  int row = 0;
  size_t out = 0;
  for (const SeqGrant& g : run) {
    if (const Committed c = commit(g, row, out, step_s); c.n > 0) committed.push_back(c);
    row += g.n;
  }
  spec_.absorb(committed);
  for (const SeqGrant& g : run) {
    if (!at(g.id).running()) continue;
    if (at(g.id).decoding)
      admission_.keep_prompt(g.id);
    else if (sessions_.snapshot_is_due(g.id))
      admission_.snapshot(g.id, cache().len(g.id), false);
  }
  const double committed_s = seconds(Clock::now() - start);
  for (const SeqGrant& g : run) {
    Sequence& q = at(g.id);
    if (q.drawn.empty()) continue;
    ActiveRequest& w = q.work;
    if (q.decoding) w.usage.accept_s += committed_s;
    if (!q.drawn_logprobs.empty() && w.sink.logprobs && w.request.max_tokens != 0)
      w.sink.logprobs(w.id, int(q.tokens.size()), q.drawn_logprobs);
    take(g.id);
  }
}

// The rows of a sequence that become permanent, of those from `row` on; out: its rows of logits, which go past them.
Committed StepLoop::commit(const SeqGrant& g, int row, size_t& out, double step_s) {
  Sequence& q = at(g.id);
  Committed c{.slot = g.id, .position = cache().len(g.id), .row = row, .n = g.n};
  ++q.work.usage.steps;
  q.drawn.clear();
  q.drawn_logprobs.clear();
  if (is_skipped(g.id))
    commit_skipped(g, c, out);
  else if (q.decoding)
    commit_drafts(g, c, out, step_s);
  else
    commit_chunk(g, out);
  return c;
}

// Its mask was not there in time: the last token is computed again when it is.
void StepLoop::commit_skipped(const SeqGrant& g, Committed& c, size_t& out) {
  Sequence& q = at(g.id);
  if (echoes(q)) echo(q, c.position, g.n, int(out));
  out += size_t(q.decoding || echoes(q) ? g.n : 1);
  c.n = q.decoding ? 0 : g.n - 1;
  cache().commit(g.id, c.n);
  grammars_.sit_out(q.work);
}

void StepLoop::commit_drafts(const SeqGrant& g, Committed& c, size_t& out, double step_s) {
  Sequence& q = at(g.id);
  const std::span<int32_t> drawn = std::span(drawn_).subspan(out, size_t(g.n));
  c.path = keep(g.id, drawn, std::span<const SampleRow>(rows_).subspan(out, size_t(g.n)));
  report_round(g.id, c.position, drawn, int(c.path.size()) - 1, step_s);
  c.n = int(c.path.size());
  if (q.work.request.logprobs >= 0)
    for (size_t i = 0; i < q.drawn.size(); ++i)
      q.drawn_logprobs.push_back(logprobs_of_draw(q, int(out) + c.path[i], q.drawn[i]));
  out += size_t(g.n);
  q.work.usage.verify_s += step_s;
}

void StepLoop::commit_chunk(const SeqGrant& g, size_t& out) {
  Sequence& q = at(g.id);
  const bool last = prompt_ends(g);
  if (echoes(q)) {
    echo(q, cache().len(g.id), g.n, int(out));
    out += size_t(g.n - last);
  }
  cache().commit(g.id, g.n);
  if (q.work.sink.prefill) q.work.sink.prefill(q.work.id, cache().len(g.id), int(q.tokens.size()));
  if (!last) return;
  report_selected(g.id);
  q.drawn.assign(1, replayed(q, 0, drawn_[out]));
  if (q.work.request.logprobs >= 0) q.drawn_logprobs.push_back(logprobs_of_draw(q, int(out), q.drawn[0]));
  ++out;
}

// What became of a prompt that was read approximately.
void StepLoop::report_selected(SlotId s) {
  ActiveRequest& w = at(s).work;
  if (!w.request.sparse_prefill || w.usage.sparse) return;
  const auto selected = ops_.take_selected(s);
  if (!selected) return;
  w.usage.sparse = sparse_prefill_of(*selected);
  w.usage.sparse->approximate |= w.usage.cached > 0;
}

TokenLogprobs StepLoop::logprobs_of_row(int row, int32_t id, int k) { return logprobs_of(ops_.logits(row, 1), id, k); }

// What the request wants to know of a token that was drawn from a row.
TokenLogprobs StepLoop::logprobs_of_draw(const Sequence& q, int row, int32_t id) {
  const Request& r = q.work.request;
  if (!r.drawn_logprobs) return logprobs_of_row(row, id, r.logprobs);
  return drawn_logprobs_of(chances_of(ops_.logits(row, 1), rows_[size_t(row)], scratch_), id, r.logprobs);
}

// n rows of logits, from `row` on, are those of the prompt's tokens from position `from` on.
void StepLoop::echo(Sequence& q, int from, int n, int row) {
  ActiveRequest& w = q.work;
  std::vector<TokenLogprobs> all;
  const int end = std::min(from + n + 1, int(w.request.prompt.size()));
  const int first = std::max(from + 1, w.echoed);  // it may have been reported before the request was parked
  for (int p = first; p < end; ++p)
    all.push_back(logprobs_of_row(row + p - 1 - from, q.tokens[size_t(p)], w.request.logprobs));
  if (all.empty()) return;
  w.echoed = end;
  if (w.sink.logprobs) w.sink.logprobs(w.id, first, all);
}

// Accepts and commits drafts of a session given the target's tokens after each node. Fills Sequence::drawn, the tokens
// that the answer goes on with; returns the nodes whose rows are kept.
std::span<const int16_t> StepLoop::keep(SlotId s, std::span<int32_t> drawn, std::span<const SampleRow> rows) {
  Sequence& q = at(s);
  const DraftTree& tree = spec_.tree(s);
  if (!forced_drafts_.empty()) force(s, drawn, rows);
  for (size_t i = 0; replay_ && i < drawn.size(); ++i)
    drawn[i] = replayed(q, tree.is_chain ? int(i) : tree.depth[i], drawn[i]);
  const Accepted& a = spec_.verify(s, drawn, q.work.usage, q.work.usage.generated);
  for (size_t i = 1; i < a.path.size(); ++i) q.drawn.push_back(tree.token[size_t(a.path[i])]);
  q.drawn.push_back(a.next);
  if (tree.is_chain)
    cache().commit(s, int(a.path.size()));
  else
    cache().commit_path(s, a.path);
  return a.path;
}

void StepLoop::report_round(SlotId s, int position, std::span<const int32_t> drawn, int accepted, double step_s) const {
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

// EngineDebug::replay: what the recorded answer has `at` tokens behind those that were generated. Behind a draft that is
// not the recorded token it does not matter.
int32_t StepLoop::replayed(const Sequence& q, int at, int32_t drawn) const {
  const size_t n = size_t(q.work.usage.generated + at);
  return replay_ && n < replay_->size() ? (*replay_)[n] : drawn;
}

// EngineDebug::forced_drafts: a chain's drafts are right with given probabilities. The same seed, the same script.
void StepLoop::force(SlotId s, std::span<int32_t> drawn, std::span<const SampleRow> rows) const {
  const std::span<const float> p = forced_drafts_;
  const DraftTree& tree = spec_.tree(s);
  const Sequence& q = at(s);
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
void StepLoop::take(SlotId s) {
  Sequence& q = at(s);
  ActiveRequest& w = q.work;
  const std::span<const int32_t> drawn = q.drawn;
  const bool prompt_done = !q.decoding;
  if (prompt_done) {
    q.decoding = true;
    if (!w.answered) w.first_token = Clock::now();
    w.answered = true;
    q.prompt_end = cache().len(s);
    if (w.request.max_tokens == 0) return admission_.finish(s, Stop::kLength);  // the prompt was all that was wanted
  }
  size_t n = 0;
  std::optional<Stop> why;
  bool whole = false, taken = true;
  std::string error;
  for (; n < drawn.size() && taken && !why; n += taken) taken = take_one(q, drawn[n], why, whole, error);
  if (w.grammar && !why) grammars_.stepped(w);
  // A draft may go on behind a token of stop_ids; its rows were kept.
  for (size_t i = n; why == Stop::kEos && i + 1 < drawn.size(); ++i) q.tokens.push_back(drawn[i]);
  if (!prompt_done) w.usage.decoded += int(n) + (why == Stop::kEos && !whole);
  if (n > 0 && w.sink.tokens) w.sink.tokens(w.id, drawn.first(n));
  if (why) admission_.finish(s, *why, error);
}

// The answer's next token. False: it is none, and `why` says what it ends with instead; with the token, `why` says
// whether the answer ends behind it. whole: the grammar allows nothing but the end.
bool StepLoop::take_one(Sequence& q, int32_t id, std::optional<Stop>& why, bool& whole, std::string& error) {
  ActiveRequest& w = q.work;
  if (id < 0) {
    w.usage.broken = !(w.grammar && grammars_.no_way_on(w, n_vocab_));
    error = !w.usage.broken
                ? "the grammar allows no token of this vocabulary here"
                : "logits hold no finite number; the model file or a kernel is broken (run with --backend ref to "
                  "tell which)";
    why = Stop::kError;
    return false;
  }
  if ((tokenizer_ && tokenizer_->is_eog(id) && !w.request.ignore_eos) || is_stop(w.request, id)) {
    why = Stop::kEos;
    return false;
  }
  if (w.grammar && !grammars_.advance(w, id)) {
    w.usage.broken = true;
    error = GrammarSteps::kForbidden;
    why = Stop::kError;
    return false;
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
  return true;
}

}  // namespace facet
