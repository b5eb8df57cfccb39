#include "server/service.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <unordered_map>

#include "base/worker.h"
#include "server/access.h"
#include "server/anthropic.h"
#include "server/chat_prompt.h"
#include "server/constraint.h"
#include "server/info.h"
#include "server/ollama.h"
#include "server/page.h"
#include "server/routes.h"
#include "server/slots.h"
#include "server/text_api.h"
#include "server/writer.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

// The writer behind a request, and what its dialect calls an answer.
std::string answer_id(ApiKind kind, uint64_t number) {
  const char* prefix = kind == ApiKind::kChat ? "chatcmpl-" : kind == ApiKind::kMessages ? "msg_" : "cmpl-";
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

using Clock = std::chrono::steady_clock;
double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// What the engine's thread keeps of a request.
struct Generation {
  StreamDecoder decoder;
  AnswerText text;
  int prompt = 0;
  std::vector<int32_t> ids = {};  // of the prompt
  Clock::time_point start = Clock::now(), first = {};
  int n = 0;                         // tokens up to the stop string
  bool stopped = false;              // by a stop string
  bool logged = false;               // log-probabilities are told
  int cached = -1;                   // of the prompt; -1: not known yet
  std::vector<int32_t> tokens = {};  // that no piece has told of yet
  std::string echo = {};             // the prompt's text, where the answer begins with it; until that was told
  std::vector<LoggedToken> logprobs = {}, fresh = {};  // of `tokens` and the echo; of tokens that are about to come
  double sum_logprobs = 0;

  Usage so_far() const {
    Usage u{.prompt = prompt, .generated = n};
    u.prefill_s = seconds(first - start);
    u.decode_s = seconds(Clock::now() - first);
    return u;
  }
};

// What several choices share.
struct Answer {
  std::unique_ptr<HttpReply> reply;
  std::vector<RequestId> ids = {};
  size_t open = 0;  // choices that are not complete
  int n = 1, best_of = 1;
  bool stream = false;
  const char* gone = nullptr;  // why nobody waits for the answer any more
  struct Choice {
    Json json = {};
    double score = 0;  // mean log-probability of its tokens
  };
  std::vector<Choice> choices = {};  // unless it is a stream
  Usage total = {};
};

// What the server's thread keeps of a choice.
struct Job {
  std::shared_ptr<Answer> answer;
  int index = 0;
  std::unique_ptr<AnswerWriter> writer;
  ApiKind kind = ApiKind::kChat;
  ParsedMessage message;
  std::vector<int32_t> tokens;  // of the answer, where it repeats them
  std::vector<LoggedToken> logprobs;
  bool stream = false, return_tokens = false;
  bool begun = true;  // a stream's first words were written
  uint64_t seed = 0;
  std::string key;  // name of the client's
};

// A request whose body is being read.
struct Arrival {
  const Route* route;
  std::string body, key;
  std::unique_ptr<HttpReply> reply;  // the server's thread alone looks at it
  const char* gone = nullptr;        // likewise
  std::optional<ApiError> error = {};
  std::optional<Json> answer = {};  // of what needs no model
  ApiRequest request = {};
  std::vector<std::vector<int32_t>> ids = {};  // of each prompt
  bool in_thought = false;
  bool chat = false, no_tools = false;
  GrammarPtr grammar = {};
};

class ServiceImpl final : public Service, public HttpHandler {
 public:
  ServiceImpl(Engine& engine, ServiceConfig c)
      : engine_(engine), c_(std::move(c)), log_("server", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    log_.set_pattern("%H:%M:%S.%e %L %n %v");
    const Tokenizer& t = *engine_.tokenizer();
    for (int32_t id = 0; id < t.size(); ++id)
      longest_piece_ = std::max(longest_piece_, std::max(t.text(id).size(), t.piece(id).size()));
    std::random_device random;
    seeds_.seed((uint64_t(random()) << 32) | random());
    access_.origins = c_.cors_origins;
    access_.page = c_.webui;
    c_.defaults.n_seq = engine_.config().max_seq;
    c_.defaults.tokenize = [&t](std::string_view text) { return t.encode(text, false, false); };
    info_ = {.model = c_.model,
             .file = c_.model_file,
             .chat_template = t.vocab().chat_template,
             .bos = t.text(t.bos()),
             .eos = t.text(t.special().eos),
             .version = FACET_VERSION,
             .started = now(),
             .n_ctx = engine_.config().n_ctx,
             .n_vocab = c_.defaults.n_vocab,
             .n_seq = engine_.config().max_seq,
             .max_tokens = c_.defaults.max_tokens,
             .sampling = c_.defaults.sampling};
  }

  Status load_keys() {
    std::vector<ApiKey> keys;
    if (!c_.api_key.empty()) keys.push_back({c_.api_key, "key"});
    if (!c_.api_key_file.empty()) {
      auto more = read_api_keys(c_.api_key_file);
      if (!more) return more.error();
      keys.insert(keys.end(), more->begin(), more->end());
    }
    access_.keys = std::move(keys);
    return Ok{};
  }
  Status listen() {
    auto http = HttpServer::listen(c_.http);
    if (!http) return http.error();
    http_ = std::move(*http);
    return Ok{};
  }
  std::string url() const override { return http_->url(); }
  Status run() override { return http_->run(*this); }

  std::vector<std::pair<std::string, std::string>> answer_headers(const HttpRequest& head) override {
    return access_.cors_headers(head);
  }

  std::optional<HttpResponse> gate(const HttpRequest& head) override {
    const auto e = access_.refusal(head);
    if (!e) {
      if (access_.preflight(head)) return HttpResponse{.status = 200, .type = "text/plain"};
      return std::nullopt;
    }
    HttpResponse r = error_response(dialect_of_path(head.path), *e);
    if (e->status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
    if (e->status == 405) r.headers.emplace_back("Allow", allowed(*find_route(head.path)));
    log_.info("refused status={}", e->status);
    return r;
  }

  void request(HttpRequest r, std::unique_ptr<HttpReply> reply) override {
    const Route* route = find_route(r.path);
    if (auto answer = immediate(*route, r)) return reply->send(std::move(*answer));
    if (route->target == Target::kSlots) return list_slots(std::move(reply));
    if (route->target == Target::kSlot) return act_on_slot(r, std::move(reply));
    if (jobs_.size() + size_t(arriving_) >= size_t(engine_.config().max_seq) + size_t(c_.queue))
      return refuse(*reply, dialect_of_path(r.path),
                    {.status = 503, .message = "the queue is full", .param = "", .code = "queue_full"});
    // A body of megabytes takes long to read: a thread of its own does it, so that no stream waits.
    auto a = std::make_shared<Arrival>(
        Arrival{route, std::move(r.body), std::string(access_.key_name(r)), std::move(reply)});
    a->reply->on_gone = [p = std::weak_ptr(a)](const char* why) {
      if (const auto arrival = p.lock()) arrival->gone = why, arrival->reply = nullptr;
    };
    ++arriving_;
    worker_.push([this, a] {
      read(*a);
      http_->post([this, a] {
        --arriving_;
        if (a->gone) return log_.info("dropped stop={} running={}", a->gone, jobs_.size());
        if (!a->error && a->answer) return a->reply->send(json_response(200, *a->answer));
        if (!a->error) a->error = generate(*a);
        if (a->error) refuse(*a->reply, dialect_of_path(a->route->path), *a->error);
      });
    });
  }

  HttpResponse refusal(int status, const std::string& what) override {
    log_.info("refused status={}", status);
    return error_response(Dialect::kOpenAi, {.status = status, .message = what, .param = "", .code = ""});
  }

  void hangup() override {
    if (auto ok = load_keys(); !ok)
      log_.warn("the keys stay as they were: {}", ok.error().message());
    else
      log_.info("read {} keys", access_.keys.size());
  }

 private:
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  // The answer of what needs neither a body nor the model.
  std::optional<HttpResponse> immediate(const Route& route, const HttpRequest& r) const {
    switch (route.target) {
      case Target::kHealth:
        return json_response(200, {{"status", "ok"}});
      case Target::kPage:
        return page_response();
      case Target::kModels:
        return json_response(200, models_json(info_));
      case Target::kModel:
        if (percent_decoded(std::string_view(r.path).substr(route.path.size())) == c_.model)
          return json_response(200, model_json(info_));
        return error_response(Dialect::kOpenAi, {.status = 404,
                                                 .message = "no such model (GET /v1/models lists the one there is)",
                                                 .param = "model",
                                                 .code = "model_not_found"});
      case Target::kProps:
        return json_response(200, props_json(info_));
      case Target::kEmbeddings:
        return error_response(Dialect::kOpenAi, {.status = 501,
                                                 .message = "embeddings are no capability of a Gemma 4 text model",
                                                 .param = "",
                                                 .code = "not_supported"});
      case Target::kVersion:
        return json_response(200, {{"version", FACET_VERSION}});
      case Target::kTags:
        return json_response(200, ollama_tags(ollama_model()));
      case Target::kShow:
        return json_response(200, ollama_show(ollama_model()));
      default:
        return std::nullopt;
    }
  }
  OllamaModel ollama_model() const { return {c_.model, info_.chat_template, info_.started, info_.n_ctx}; }

  // A reply that the engine's thread causes and the server's gives.
  using Held = std::shared_ptr<std::unique_ptr<HttpReply>>;
  void reply_later(const Held& held, HttpResponse r) {
    http_->post([held, r = std::move(r)]() mutable {
      if (const auto reply = std::exchange(*held, nullptr)) reply->send(std::move(r));
    });
  }
  void list_slots(std::unique_ptr<HttpReply> reply) {
    const auto held = std::make_shared<std::unique_ptr<HttpReply>>(std::move(reply));
    engine_.list_slots([this, held](const std::vector<SlotInfo>& slots) {
      reply_later(held,
                  json_response(200, slots_json(slots, engine_.config().n_ctx, !engine_.config().draft.files.empty())));
    });
  }
  void act_on_slot(const HttpRequest& r, std::unique_ptr<HttpReply> reply) {
    auto action = parse_slot_action(r.path, r.query, r.body);
    if (!action) return refuse(*reply, Dialect::kOpenAi, api_error(action.error()));
    if (needs_file(action->kind) && c_.slot_save_path.empty())
      return refuse(*reply, Dialect::kOpenAi,
                    {.status = 501, .message = "the server was started without --slot-save-path", .param = "action"});
    const auto held = std::make_shared<std::unique_ptr<HttpReply>>(std::move(reply));
    const SlotSink done = [this, held, a = *action](Result<SlotDone> d) {
      reply_later(
          held, d ? json_response(200, slot_done_json(a, *d)) : error_response(Dialect::kOpenAi, api_error(d.error())));
    };
    const std::string path = c_.slot_save_path + "/" + action->filename;
    if (action->kind == SlotAction::Kind::kSave) return engine_.save_slot(action->id, path, done);
    if (action->kind == SlotAction::Kind::kRestore) return engine_.restore_slot(action->id, path, done);
    engine_.erase_slot(action->id, done);
  }

  // The prompt's ids, or an error; in_thought is where the answer begins.
  Result<std::vector<int32_t>> prompt(ApiRequest& r, bool& in_thought) const {
    if (r.chat()) {
      auto rendered = chat_prompt(r, c_.variant);
      if (!rendered) return rendered.error();
      in_thought = rendered->in_thought;
      r.prompt = {std::move(rendered->text)};
    }
    // Too long whatever its tokens are: not worth encoding.
    size_t least = 0;
    for (const PromptPart& p : r.prompt)
      least += p.index() == 0 ? std::get<0>(p).size() / longest_piece_ : std::get<1>(p).size();
    if (least > size_t(engine_.config().n_ctx)) return std::vector<int32_t>(least);
    return encode_prompt(r.prompt, *engine_.tokenizer());
  }

  void refuse(HttpReply& reply, Dialect dialect, const ApiError& e) {
    log_.info("refused status={} running={}", e.status, jobs_.size());
    reply.send(error_response(dialect, e));
  }

  Result<ApiRequest> parse(const Route& route, const Json& json) const {
    switch (route.kind) {
      case ApiKind::kMessages:
        return parse_anthropic_request(json, c_.defaults);
      case ApiKind::kOllamaChat:
      case ApiKind::kOllamaGenerate:
        return parse_ollama_request(route.kind, json, c_.defaults);
      default:
        return parse_api_request(route.kind, json, c_.defaults);
    }
  }

  // On the worker's thread: text to a checked request and its tokens.
  void read(Arrival& a) {
    auto json = parse_json(std::exchange(a.body, {}), "");
    if (!json) return void(a.error = api_error(json.error()));
    if (a.route->target == Target::kTokenize || a.route->target == Target::kDetokenize) {
      const bool encode = a.route->target == Target::kTokenize;
      const Tokenizer& t = *engine_.tokenizer();
      auto answer =
          encode ? tokenize_json(*json, t, c_.defaults.strict) : detokenize_json(*json, t, c_.defaults.strict);
      if (answer)
        a.answer = std::move(*answer);
      else
        a.error = api_error(answer.error());
      return;
    }
    auto request = parse(*a.route, *json);
    if (!request) return void(a.error = api_error(request.error()));
    a.request = std::move(*request);
    if (a.route->target == Target::kTemplate) {
      auto text = chat_prompt(a.request, c_.variant);
      if (!text) return void(a.error = api_error(text.error()));
      return void(a.answer = Json{{"prompt", std::move(text->text)}});
    }
    if (!a.request.chat() && a.request.prompt.empty())  // Ollama's way to load a model
      return void(a.answer = ollama_loaded({.kind = a.request.kind, .model = c_.model, .created = now()}));
    read_prompt(a);
    if (!a.error && !a.answer) read_grammar(a);
  }

  // Compiling takes up to half a second, and the first grammar needs the vocabulary's.
  void read_grammar(Arrival& a) {
    auto grammar = grammars_.of(a.request, a.in_thought);
    if (!grammar) return void(a.error = api_error(grammar.error()));
    a.grammar = std::move(*grammar);
    if (!a.grammar) return;
    if (auto ok = engine_.prepare_grammars(); !ok) a.error = api_error(ok.error());
  }

  void read_prompt(Arrival& a) const {
    const int n_ctx = engine_.config().n_ctx;
    read_prompt(a, prompt(a.request, a.in_thought), n_ctx);
    for (std::vector<PromptPart>& p : std::exchange(a.request.more_prompts, {})) {
      if (a.error) return;
      a.request.prompt = std::move(p);
      read_prompt(a, prompt(a.request, a.in_thought), n_ctx);
    }
  }
  void read_prompt(Arrival& a, Result<std::vector<int32_t>> ids, int n_ctx) const {
    if (!ids) return void(a.error = api_error(ids.error()));
    if (ids->size() >= size_t(n_ctx))
      a.error = {
          .status = 400,
          .message = fmt::format("the prompt of {} tokens or more exceeds the available context size of {} tokens",
                                 ids->size(), n_ctx),
          .param = a.request.chat() ? "messages" : "prompt",
          .code = "context_length_exceeded",
          .n_prompt = ids->size(),
          .n_ctx = size_t(n_ctx)};
    else if (a.route->target == Target::kCountTokens)
      a.answer = Json{{"input_tokens", ids->size()}};
    a.ids.push_back(std::move(*ids));
  }

  // What the answer's writer repeats of the request.
  WriterContext context_of(Arrival& a) const {
    a.chat = a.request.chat();
    a.no_tools = a.request.tools.empty();
    WriterContext w{.request = {}, .prompt = {}, .n_ctx = engine_.config().n_ctx};
    if (a.request.kind == ApiKind::kNative) w.prompt = engine_.tokenizer()->decode(a.ids[0], /*show_special=*/true);
    a.request.messages.clear();
    a.request.tools.clear();
    a.request.prompt.clear();
    a.request.constraint.text.clear();
    w.request = a.request;
    return w;
  }

  std::optional<ApiError> generate(Arrival& a) {
    ApiRequest& request = a.request;
    const size_t n = a.ids.size() * size_t(request.best_of), most = size_t(engine_.config().max_seq + c_.queue);
    if (n > most)
      return ApiError{.message = fmt::format("{} prompts with {} choices each: expected at most {} together",
                                             a.ids.size(), request.best_of, most),
                      .param = "prompt"};
    if (n > 1 && jobs_.size() + n > most)
      return ApiError{.status = 503, .message = "the queue is full", .param = "", .code = "queue_full"};
    if (!request.seed_given) request.sampling.seed = seeds_() >> 1;
    const WriterContext context = context_of(a);
    // A client without tools has no use for a call: the token that begins one is never drawn.
    if (a.chat && a.no_tools)
      request.sampling.logit_bias.emplace_back(engine_.tokenizer()->special().tool_call_open, -1e9f);
    const ApiAnswer head{.kind = request.kind,
                         .id = answer_id(request.kind, seeds_()),
                         .model = c_.model,
                         .created = now(),
                         .fingerprint = "b" FACET_VERSION "-facet"};
    auto answer = std::make_shared<Answer>();
    answer->open = n, answer->n = request.n, answer->best_of = request.best_of, answer->stream = request.stream;
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

  // One choice: a request of the engine's.
  std::optional<ApiError> submit(Arrival& a, int index, ApiAnswer head, const WriterContext& context,
                                 const std::shared_ptr<Answer>& answer) {
    const ApiRequest& request = a.request;
    const std::vector<int32_t>& ids = a.ids[size_t(index / request.best_of)];
    head.index = index;
    Job job;
    job.answer = answer;
    job.index = index;
    job.writer = make_writer(std::move(head), context);
    job.kind = request.kind;
    job.stream = request.stream;
    job.return_tokens = request.return_tokens;
    job.seed = request.sampling.seed + uint64_t(index % request.best_of);
    job.key = a.key;
    // shared_ptr: std::function copies what it holds.
    auto g = std::make_shared<Generation>(Generation{
        StreamDecoder(*engine_.tokenizer()),
        AnswerText(a.chat, {.in_thought = a.in_thought}, request.stop, request.one_call), int(ids.size()), ids});
    if (request.echo) g->echo = engine_.tokenizer()->decode(ids, /*show_special=*/false);
    Sink sink{.tokens = [this, g](RequestId id, std::span<const int32_t> t) { on_tokens(*g, id, t); },
              .done = [this, g](RequestId id, Stop why, const Usage& u,
                                const std::string& error) { on_done(*g, id, why, u, error); }};
    const bool progress = request.stream && request.return_progress;
    // Anthropic's stream begins with what was cached.
    job.begun = request.kind != ApiKind::kMessages;
    if (progress || (request.stream && !job.begun))
      sink.prefill = [this, g, progress](RequestId id, int computed, int all) {
        on_prefill(*g, id, computed, all, progress);
      };
    const bool logged = request.logprobs >= 0;
    if (logged && request.echo) g->logprobs.push_back({.text = logged_text(ids[0])});
    if (logged || request.best_of > request.n)
      sink.logprobs = [this, g, logged](RequestId, int at, std::span<const TokenLogprobs> l) {
        on_logprobs(*g, at, l, logged);
      };
    const int k = sink.logprobs ? std::max(0, request.logprobs) : -1;
    Sampling sampling = request.sampling;
    sampling.seed = job.seed;
    auto id = engine_.submit({.prompt = ids,
                              .max_tokens = request.max_tokens,
                              .sampling = std::move(sampling),
                              .ignore_eos = request.ignore_eos,
                              .draft = request.draft,
                              .cache = request.cache,
                              .cache_salt = request.cache_salt,
                              .min_tokens = request.min_tokens,
                              .stop_ids = request.stop_ids,
                              .logprobs = k,
                              .echo_logprobs = logged && request.echo,
                              .grammar = a.grammar},
                             std::move(sink));
    if (!id) return api_error(id.error());
    if (job.stream) {
      if (index == 0) answer->reply->begin(job.writer->stream_type(), job.writer->keep_alive());
      if (job.begun) answer->reply->write(job.writer->begin(g->prompt, 0));
    }
    answer->ids.push_back(*id);
    jobs_.emplace(*id, std::move(job));
    return std::nullopt;
  }

  // --- on the engine's thread

  void on_prefill(Generation& g, RequestId id, int computed, int all, bool progress) {
    if (g.cached < 0) g.cached = computed;  // the first time
    Json p = {{"total", all},
              {"cache", g.cached},
              {"processed", computed},
              {"time_ms", int64_t(seconds(Clock::now() - g.start) * 1e3)}};
    http_->post([this, id, progress, prompt = g.prompt, cached = g.cached, p = std::move(p)] {
      const auto at = jobs_.find(id);
      if (at == jobs_.end() || !at->second.answer->reply) return;
      Job& job = at->second;
      begin(job, prompt, cached);
      if (progress) job.answer->reply->write(job.writer->progress(p));
    });
  }

  std::string logged_text(int32_t id) const {
    const Tokenizer& t = *engine_.tokenizer();
    return t.is_special(id) ? t.text(id) : std::string(t.piece(id));
  }

  void on_logprobs(Generation& g, int at, std::span<const TokenLogprobs> told, bool logged) {
    if (at >= g.prompt) g.fresh.clear();
    for (const TokenLogprobs& t : told) {
      LoggedToken l{.text = logged ? logged_text(t.id) : "", .logprob = t.logprob};
      for (const auto& [id, logprob] : t.top) l.top.emplace_back(logged_text(id), logprob);
      (at < g.prompt ? g.logprobs : g.fresh).push_back(std::move(l));
    }
    g.logged = logged;
  }

  // The prompt, where the answer begins with it.
  void begin_with_echo(Generation& g, std::vector<AnswerPiece>& pieces) {
    if (g.echo.empty()) return;
    pieces.push_back(
        {{ParseEvent::Kind::kContent, std::exchange(g.echo, {}), {}}, {}, g.so_far(), std::exchange(g.logprobs, {})});
  }

  void on_tokens(Generation& g, RequestId id, std::span<const int32_t> tokens) {
    if (g.n == 0) g.first = Clock::now();
    std::vector<AnswerPiece> pieces;
    begin_with_echo(g, pieces);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const int32_t t = tokens[i];
      if (g.stopped) break;  // a step may bring more tokens than the answer wants
      ++g.n;
      g.tokens.push_back(t);
      if (i < g.fresh.size()) {
        g.sum_logprobs += double(g.fresh[i].logprob.value_or(0));
        if (g.logged) g.logprobs.push_back(std::move(g.fresh[i]));
      }
      for (ParseEvent& e : g.text.push(g.decoder.push(t)))
        pieces.push_back({std::move(e), std::exchange(g.tokens, {}), g.so_far(), std::exchange(g.logprobs, {})});
      if (!g.text.stopped()) continue;
      g.stopped = true;
      engine_.cancel(id);  // takes effect before the next step
    }
    if (!pieces.empty()) http_->post([this, id, pieces = std::move(pieces)] { deliver(id, pieces); });
  }

  void on_done(Generation& g, RequestId id, Stop why, Usage u, const std::string& error) {
    std::vector<AnswerPiece> pieces;
    if (why != Stop::kError) begin_with_echo(g, pieces);
    for (bool last : {false, true})
      for (ParseEvent& e : last ? g.text.finish() : g.text.push(g.decoder.finish()))
        pieces.push_back({std::move(e), std::exchange(g.tokens, {}), g.so_far(), std::exchange(g.logprobs, {})});
    u.generated = g.n;
    u.cache.miss_reason = miss_reason(u.cache, g.ids, *engine_.tokenizer());
    AnswerEnd end{.why = why,
                  .stopped = g.text.stopped(),
                  .stop_word = g.text.stop_word(),
                  .usage = std::move(u),
                  .logprobs = std::move(g.logprobs)};
    const double score = g.n > 0 ? g.sum_logprobs / g.n : 0;
    http_->post([this, id, error, score, end = std::move(end), pieces = std::move(pieces), rest = std::move(g.tokens)] {
      deliver(id, pieces);
      complete(id, end, rest, error, score);
    });
  }

  // --- on the server's

  static void begin(Job& job, int prompt, int cached) {
    if (!std::exchange(job.begun, true) && job.stream) job.answer->reply->write(job.writer->begin(prompt, cached));
  }

  void deliver(RequestId id, const std::vector<AnswerPiece>& pieces) {
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

  void complete(RequestId id, AnswerEnd end, const std::vector<int32_t>& rest, const std::string& error, double score) {
    const auto at = jobs_.find(id);
    if (at == jobs_.end()) return;
    Job job = std::move(at->second);
    jobs_.erase(at);
    Answer& answer = *job.answer;
    log_request(id, job, end);
    --answer.open;
    const Usage& u = end.usage;
    if (job.index % answer.best_of == 0) answer.total.prompt += u.prompt, answer.total.cached += u.cached;
    answer.total.generated += u.generated;
    if (!answer.reply) return;
    if (end.why == Stop::kError) return fail(id, job, error);
    if (!job.stream) {
      job.tokens.insert(job.tokens.end(), rest.begin(), job.return_tokens ? rest.end() : rest.begin());
      job.logprobs.insert(job.logprobs.end(), end.logprobs.begin(), end.logprobs.end());
      end.logprobs = std::move(job.logprobs);
      answer.choices[size_t(job.index)] = {job.writer->whole(job.message, job.tokens, end), score};
      if (answer.open == 0) send(answer);
      return;
    }
    begin(job, u.prompt, u.cached);
    if (answer.reply) answer.reply->write(job.writer->end(end));
    if (answer.open > 0 || !answer.reply) return;
    if (answer.ids.size() > 1)
      answer.reply->write(job.writer->close(answer.total));
    else
      answer.reply->write(job.writer->close(u));
    if (answer.reply) answer.reply->end();
  }

  // All choices are there; of each prompt's, the n best stay.
  static void send(Answer& a) {
    std::vector<Json> kept;
    const auto better = [](const Answer::Choice& x, const Answer::Choice& y) { return x.score > y.score; };
    for (auto at = a.choices.begin(); at != a.choices.end(); at += a.best_of) {
      if (a.best_of > a.n) std::stable_sort(at, at + a.best_of, better);
      for (int i = 0; i < a.n; ++i) kept.push_back(std::move(at[i].json));
    }
    if (a.choices.size() > 1)
      a.reply->send(json_response(200, join_choices(std::move(kept), a.total)));
    else
      a.reply->send(json_response(200, kept[0]));
  }

  // A choice ended in an error: so does the answer.
  void fail(RequestId id, Job& job, const std::string& error) {
    Answer& answer = *job.answer;
    log_.error("request id={} error=\"{}\"", id, error);
    for (const RequestId other : answer.ids)
      if (jobs_.count(other)) engine_.cancel(other);
    const auto reply = std::move(answer.reply);
    const ApiError e{.status = 500, .message = error, .param = "", .code = ""};
    if (!job.stream) return reply->send(error_response(dialect_of(job.kind), e));
    reply->write(job.writer->error(e));
    reply->end();
  }

  void log_request(RequestId id, const Job& job, const AnswerEnd& end) {
    const Usage& u = end.usage;
    const char* stop = end.stopped        ? (end.stop_word.empty() ? "call" : "string")
                       : job.answer->gone ? job.answer->gone
                                          : stop_name(end.why);
    log_.info(
        "request id={} kind={} stream={}{}{} prompt={} cached={} generated={} prefill_ms={:.1f} decode_ms={:.1f}{} "
        "stop={} seed={} running={}",
        id, kind_name(job.kind), int(job.stream), job.key.empty() ? "" : " key=", job.key, u.prompt, u.cached,
        u.generated, u.prefill_s * 1e3, u.decode_s * 1e3, draft_log(u), stop, job.seed, jobs_.size());
  }

  Engine& engine_;
  ServiceConfig c_;
  spdlog::logger log_;
  size_t longest_piece_ = 1;
  std::mt19937_64 seeds_;
  Access access_;
  ServerInfo info_;
  std::unordered_map<RequestId, Job> jobs_;  // running and waiting
  int arriving_ = 0;                         // being read
  std::unique_ptr<HttpServer> http_;
  GrammarCache grammars_;  // of the worker's thread
  Worker worker_;          // ends before what it uses
};

}  // namespace

Result<std::unique_ptr<Service>> Service::open(Engine& engine, ServiceConfig config) {
  auto loopback = is_loopback(config.http.host);
  if (!loopback) return Error{"--host", loopback.error().what, loopback.error().hint};
  const bool keys = !config.api_key.empty() || !config.api_key_file.empty();
  if (!*loopback && !keys)
    return Error{"--host",
                 fmt::format("{} can be reached from other machines, and there is no --api-key", config.http.host),
                 "give --api-key or --api-key-file, or serve 127.0.0.1"};
  if (!keys && std::count(config.cors_origins.begin(), config.cors_origins.end(), "*") > 0)
    return Error{"--cors-origin",
                 "* lets every page in a browser on this machine use the server, and there is no --api-key",
                 "give --api-key or --api-key-file, or name the origins"};
  config.http.catch_hangup = !config.api_key_file.empty();
  auto s = std::make_unique<ServiceImpl>(engine, std::move(config));
  if (auto ok = s->load_keys(); !ok) return ok.error();
  if (auto ok = s->listen(); !ok) return ok.error();
  return std::unique_ptr<Service>(std::move(s));
}

}  // namespace facet
