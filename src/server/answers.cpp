#include "server/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/last_memory.h"
#include "server/info.h"
#include "server/slots.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

std::string answer_id(ApiKind kind, uint64_t number) {
  const char* prefix = kind == ApiKind::kChat        ? "chatcmpl-"
                       : kind == ApiKind::kMessages  ? "msg_"
                       : kind == ApiKind::kResponses ? "resp_"
                                                     : "cmpl-";
  return fmt::format("{}{:016x}", prefix, number);
}

// " drafted=120 accepted=80 per_step=3.1 methods=mtp@0,none@96", or nothing.
std::string draft_log(const Usage& u) {
  if (u.methods.empty()) return "";
  std::string s =
      fmt::format(" drafted={} accepted={} per_step={:.2f} methods=", u.drafted, u.accepted, u.tokens_per_step());
  for (size_t i = 0; i < u.methods.size(); ++i)
    s += fmt::format("{}{}@{}", i ? "," : "", u.methods[i].method, u.methods[i].at);
  return s;
}

}  // namespace

Answers::Answers(Engine& engine, const ServiceConfig& config, AnswersHooks hooks)
    : engine_(engine), c_(config), to_(std::move(hooks)) {
  std::random_device random;
  seeds_.seed((uint64_t(random()) << 32) | random());
}

// What the answer's writer repeats of the request.
WriterContext Answers::context_of(Arrival& a) const {
  WriterContext w{.request = {}, .prompt = {}, .n_ctx = engine_.config().n_ctx};
  if (a.request.ignore_eos) w.ends = engine_.tokenizer()->eog();
  if (a.request.kind == ApiKind::kNative || a.request.verbose)
    w.prompt = text_of_prompt(a.ids[0], *engine_.tokenizer(), /*show_special=*/true);
  a.request.prompt.clear();
  a.request.constraint.text.clear();
  const auto messages = std::exchange(a.request.messages, {});  // of megabytes, perhaps: not copied
  w.request = a.request;
  return w;
}

std::optional<ApiError> Answers::begin(Arrival& a) {
  ApiRequest& request = a.request;
  const size_t n = a.ids.size() * size_t(request.best_of), most = size_t(engine_.config().max_seq + c_.queue);
  if (n > most)
    return ApiError{.message = fmt::format("{} prompts with {} choices each: expected at most {} together",
                                           a.ids.size(), request.best_of, most),
                    .param = "prompt"};
  if (n > 1 && jobs_.size() + n > most)
    return ApiError{.status = 503, .message = "the queue is full", .param = "", .code = "queue_full"};
  if (const Dropped& l = request.left_out; l.any()) {
    to_.metrics->left_out("media", l.media), to_.metrics->left_out("tool", l.tools),
        to_.metrics->left_out("item", l.items);
    to_.log->info("left out kind={} media={} tools={} items={} ({})", kind_name(request.kind), l.media, l.tools,
                  l.items, fmt::join(l.names, ", "));
    std::string header;
    for (const auto& [name, count] : {std::pair{"media", l.media}, {"tools", l.tools}, {"items", l.items}})
      if (count > 0) header += fmt::format("{}{}={}", header.empty() ? "" : ";", name, count);
    a.reply->header("x-facet-left-out", header);
  }
  if (!request.seed_given) request.sampling.seed = seeds_() >> 1;
  // A client without tools has no use for a call: the token that begins one is never drawn.
  a.chat = request.chat();
  const WriterContext context = context_of(a);
  if (a.chat && request.tools.empty())
    request.sampling.logit_bias.emplace_back(engine_.tokenizer()->special().tool_call_open, -1e9f);
  const ApiAnswer head{.kind = request.kind,
                       .id = answer_id(request.kind, seeds_()),
                       .model = c_.model,
                       .created = unix_now(),
                       .fingerprint = "b" FACET_VERSION "-facet"};
  auto answer = std::make_shared<Answer>();
  answer->open = n, answer->n = request.n, answer->best_of = request.best_of, answer->kind = request.kind;
  if (!request.stream) answer->choices.resize(n);
  a.reply->on_gone = [this, p = std::weak_ptr(answer)](const char* why) {
    const auto gone = p.lock();
    if (!gone) return;
    gone->gone = why;
    gone->reply = nullptr;
    for (const RequestId id : gone->ids)
      if (jobs_.count(id)) engine_.cancel(id);
  };
  answer->reply = std::move(a.reply);
  for (size_t i = 0; i < n; ++i) {
    auto e = submit(a, int(i), head, context, answer);
    if (!e) continue;
    for (const RequestId id : answer->ids) engine_.cancel(id), jobs_.erase(id);
    a.reply = std::move(answer->reply);
    return e;
  }
  return std::nullopt;
}

Generation Answers::generation_of(const Arrival& a, size_t prompt) const {
  const ApiRequest& r = a.request;
  const std::vector<int32_t>& ids = a.ids[prompt];
  const Tokenizer& t = *engine_.tokenizer();
  Generation::Options o{.prompt = int(ids.size()), .logged = r.logprobs >= 0, .media = a.media_use[prompt]};
  std::vector<std::string> names;
  for (const Json& tool : r.tools) names.push_back(tool.value("name", ""));
  if (r.echo) o.echo = text_of_prompt(ids, t, /*show_special=*/false);
  if (o.logged && r.echo)
    o.first.push_back({.id = ids[0], .text = t.is_special(ids[0]) ? t.text(ids[0]) : std::string(t.piece(ids[0]))});
  return Generation(t, AnswerText(a.chat, {.in_thought = a.in_thought, .tools = std::move(names)}, r.stop, r.one_call),
                    std::move(o));
}

void Answers::post_for(RequestId id, std::function<void()> work) {
  to_.post([this, id, work = std::move(work)] {
    try {
      work();
    } catch (const std::bad_alloc&) {
      lose(id);
    }
  });
}

void Answers::lose(RequestId id) {
  const auto at = jobs_.find(id);
  if (at == jobs_.end()) return;
  const auto answer = at->second.answer;
  if (!answer->gone) answer->gone = "memory";
  const auto reply = std::move(answer->reply);  // closes the connection
  for (const RequestId other : answer->ids)
    if (jobs_.count(other)) engine_.cancel(other);
}

// --- on the engine's thread

Sink Answers::sink_of(const ApiRequest& r, const std::vector<int32_t>& ids, std::shared_ptr<Generation> g,
                      bool tells_cached, Clock::time_point since) {
  // Memory may run out here as everywhere: then this answer ends.
  Sink sink{.tokens =
                [this, g, since](RequestId id, std::span<const int32_t> t) {
                  try {
                    if (g->stopped()) return;
                    if (g->count() == 0)
                      to_.metrics->first_token(std::chrono::duration<double>(Clock::now() - since).count());
                    else
                      to_.metrics->between_tokens(g->since_last(), t.size());
                    auto pieces = g->tokens(t);
                    if (g->stopped()) engine_.cancel(id);  // takes effect before the next step
                    if (!pieces.empty()) post_for(id, [this, id, pieces = std::move(pieces)] { deliver(id, pieces); });
                  } catch (const std::bad_alloc&) {
                    to_.post([this, id] { lose(id); });
                  }
                },
            .done =
                [this, g, ids](RequestId id, Stop why, const Usage& u, const std::string& error) {
                  try {
                    auto pieces = g->finish(why == Stop::kError, is_cut(why));
                    auto end = g->end(why, u);
                    end.usage.cache.miss_reason = miss_reason(u.cache, ids, *engine_.tokenizer());
                    post_for(id, [this, id, error, score = g->mean_logprob(), end = std::move(end),
                                  pieces = std::move(pieces), rest = g->take_rest()] {
                      deliver(id, pieces);
                      complete(id, end, rest, error, score);
                    });
                  } catch (const std::bad_alloc&) {
                    to_.post([this, id] {
                      lose(id);
                      jobs_.erase(id);
                    });
                  }
                }};
  const bool progress = r.stream && r.return_progress;
  if (progress || (r.stream && tells_cached))
    sink.prefill = [this, g, progress](RequestId id, int computed, int all) {
      Json p = g->prefill(computed, all);
      post_for(id, [this, id, progress, prompt = g->prompt(), cached = g->cached(), p = std::move(p)] {
        const auto at = jobs_.find(id);
        if (at == jobs_.end() || !at->second.answer->reply) return;
        Job& job = at->second;
        begin_stream(job, prompt, cached);
        if (progress) job.answer->reply->write(job.writer->progress(p));
      });
    };
  if (r.logprobs >= 0 || r.best_of > r.n)
    sink.logprobs = [g](RequestId, int at, std::span<const TokenLogprobs> l) { g->logprobs(at, l); };
  return sink;
}

// --- on the server's

// One choice: a request of the engine's.
std::optional<ApiError> Answers::submit(Arrival& a, int index, ApiAnswer head, const WriterContext& context,
                                        const std::shared_ptr<Answer>& answer) {
  const ApiRequest& r = a.request;
  const size_t prompt = size_t(index / r.best_of);
  const std::vector<int32_t>& ids = a.ids[prompt];
  if (const int32_t bos = engine_.tokenizer()->bos(); !ids.empty() && ids.front() != bos && !told_bos_) {
    told_bos_ = true;
    to_.log->warn(
        "a prompt of token ids does not begin with <bos> ({}), as every text does that the model knows: it is computed "
        "as it is (told once)",
        bos);
  }
  head.index = index;
  Job job{.answer = answer,
          .index = index,
          .writer = make_writer(std::move(head), context),
          .kind = r.kind,
          .stream = r.stream,
          .return_tokens = r.return_tokens,
          .begun = r.kind != ApiKind::kMessages,  // Anthropic's stream begins with what was cached
          .seed = r.sampling.seed + uint64_t(index % r.best_of),
          .key = a.key};
  // shared_ptr: std::function copies what it holds.
  Sink sink = sink_of(r, ids, std::make_shared<Generation>(generation_of(a, prompt)), !job.begun, a.since);
  const int logprobs = sink.logprobs ? std::max(0, r.logprobs) : -1;
  Sampling sampling = r.sampling;
  sampling.seed = job.seed;
  auto id = engine_.submit({.prompt = ids,
                            .media = a.spans[prompt],
                            .max_tokens = r.max_tokens,
                            .sampling = std::move(sampling),
                            .ignore_eos = r.ignore_eos,
                            .draft = r.draft,
                            .max_draft = r.max_draft,
                            .cache = r.cache,
                            .cache_salt = r.cache_salt,
                            .owner = a.key,
                            .sparse_prefill = r.sparse_prefill,
                            .priority = r.priority,
                            .min_tokens = r.min_tokens,
                            .max_loops = r.max_loops,
                            .stop_ids = r.stop_ids,
                            .logprobs = logprobs,
                            .drawn_logprobs = r.drawn_probs,
                            .echo_logprobs = r.logprobs >= 0 && r.echo,
                            .thought_budget = a.chat ? r.thought_budget : -1,
                            .in_thought = a.in_thought,
                            .grammar = a.grammar},
                           std::move(sink));
  if (!id) return api_error(id.error());
  if (job.stream) {
    if (index == 0) answer->reply->begin(job.writer->stream_type(), job.writer->keep_alive());
    if (job.begun) answer->reply->write(job.writer->begin(int(ids.size()), 0));
  }
  answer->ids.push_back(*id);
  jobs_.emplace(*id, std::move(job));
  return std::nullopt;
}

void Answers::begin_stream(Job& job, int prompt, int cached) {
  if (!std::exchange(job.begun, true) && job.stream) job.answer->reply->write(job.writer->begin(prompt, cached));
}

void Answers::deliver(RequestId id, const std::vector<AnswerPiece>& pieces) {
  const auto at = jobs_.find(id);
  if (at == jobs_.end() || !at->second.answer->reply) return;
  Job& job = at->second;
  for (const AnswerPiece& p : pieces) {
    if (job.stream) {
      job.answer->reply->write(job.writer->piece(p));
      if (!job.answer->reply) return;
      continue;
    }
    add_event(job.message, p.event);
    job.logprobs.insert(job.logprobs.end(), p.logprobs.begin(), p.logprobs.end());
    if (job.return_tokens) job.tokens.insert(job.tokens.end(), p.tokens.begin(), p.tokens.end());
  }
}

void Answers::complete(RequestId id, AnswerEnd end, const std::vector<int32_t>& rest, const std::string& error,
                       double score) {
  const auto at = jobs_.find(id);
  if (at == jobs_.end()) return;
  Job job = std::move(at->second);
  jobs_.erase(at);
  Answer& answer = *job.answer;
  log_request(id, job, end);
  if (end.usage.broken)
    to_.health->fail(error);
  else if (end.why != Stop::kError && end.usage.generated > 0)
    to_.health->succeed();
  --answer.open;
  add_usage(answer.total, end.usage, /*new_prompt=*/job.index % answer.best_of == 0);
  if (!answer.reply) return;
  if (end.why == Stop::kError) return fail(id, job, error, end.usage.refused);
  if (!job.stream) {
    job.tokens.insert(job.tokens.end(), rest.begin(), job.return_tokens ? rest.end() : rest.begin());
    job.logprobs.insert(job.logprobs.end(), end.logprobs.begin(), end.logprobs.end());
    end.logprobs = std::move(job.logprobs);
    // shared_ptr: std::function copies what it holds.
    auto last = std::make_shared<Job>(std::move(job));
    to_.write([this, last, end = std::move(end), score, all = answer.open == 0] {
      Answer& a = *last->answer;
      try {
        a.choices[size_t(last->index)] = {last->writer->whole(last->message, last->tokens, end), score};
        if (!all) return;
        to_.post([answer = last->answer, text = text_of(a)]() mutable {
          if (const auto reply = std::exchange(answer->reply, nullptr)) reply->send(written_response(std::move(text)));
        });
      } catch (const std::bad_alloc&) {
        const MayNotFail scope;
        to_.post([answer = last->answer] { answer->reply = nullptr; });  // closes the connection
      }
    });
    return;
  }
  begin_stream(job, end.usage.prompt, end.usage.cached);
  if (answer.reply) answer.reply->write(job.writer->end(end));
  if (answer.open > 0 || !answer.reply) return;
  answer.reply->write(job.writer->close(answer.ids.size() > 1 ? answer.total : end.usage));
  if (answer.reply) answer.reply->end();
}

// All choices are there; of each prompt's, the n best stay.
std::string Answers::text_of(Answer& a) {
  std::vector<Json> kept;
  const auto better = [](const Answer::Choice& x, const Answer::Choice& y) { return x.score > y.score; };
  for (auto at = a.choices.begin(); at != a.choices.end(); at += a.best_of) {
    if (a.best_of > a.n) std::stable_sort(at, at + a.best_of, better);
    for (int i = 0; i < a.n; ++i) kept.push_back(std::move(at[i].json));
  }
  if (a.choices.size() == 1) return dump_json(kept[0]);
  return dump_json(a.kind == ApiKind::kNative ? Json(std::move(kept)) : join_choices(std::move(kept), a.total));
}

// A choice ended in an error: so does the answer.
void Answers::fail(RequestId id, Job& job, const std::string& error, bool refused) {
  Answer& answer = *job.answer;
  to_.log->error("request id={} error=\"{}\"", id, error);
  for (const RequestId other : answer.ids)
    if (jobs_.count(other)) engine_.cancel(other);
  const auto reply = std::move(answer.reply);
  const ApiError e = refused ? ApiError{.message = error, .param = "grammar", .code = "grammar_too_ambiguous"}
                             : ApiError{.status = 500, .message = error, .param = "", .code = ""};
  if (!job.stream) return reply->send(error_response(dialect_of(job.kind), e));
  reply->write(job.writer->error(e));
  reply->end();
}

void Answers::log_request(RequestId id, const Job& job, const AnswerEnd& end) {
  const Usage& u = end.usage;
  to_.metrics->ended(kind_name(job.kind), end.stopped ? "string" : stop_name(end.why), u);
  const char* stop = end.stopped        ? (end.stop_word.empty() ? "call" : "string")
                     : job.answer->gone ? job.answer->gone
                                        : stop_name(end.why);
  to_.log->info(
      "request id={} kind={} stream={}{}{} prompt={} cached={} generated={} prefill_ms={:.1f} decode_ms={:.1f}{} "
      "stop={} seed={} running={}",
      id, kind_name(job.kind), int(job.stream), job.key.empty() ? "" : " key=", job.key, u.prompt, u.cached,
      u.generated, u.prefill_s * 1e3, u.decode_s * 1e3, draft_log(u), stop, job.seed, jobs_.size());
}

}  // namespace facet
