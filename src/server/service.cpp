#include "server/service.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <unordered_map>

#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

constexpr const char* kRetrySeconds = "1";

enum class Target { kHealth, kModels, kProps, kChat, kCompletion };
struct Route {
  std::string_view path, method;
  Target target;
};
constexpr std::array<Route, 6> kRoutes = {{{"/health", "GET", Target::kHealth},
                                           {"/v1/health", "GET", Target::kHealth},
                                           {"/v1/models", "GET", Target::kModels},
                                           {"/props", "GET", Target::kProps},
                                           {"/v1/chat/completions", "POST", Target::kChat},
                                           {"/v1/completions", "POST", Target::kCompletion}}};

const Route* find_route(std::string_view path) {
  const auto at = std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return r.path == path; });
  return at == kRoutes.end() ? nullptr : &*at;
}

HttpResponse json_response(int status, const Json& body) {
  return {.status = status, .type = "application/json", .body = dump_json(body), .headers = {}};
}
HttpResponse error_response(const ApiError& e) { return json_response(e.status, error_json(e)); }

// " drafted=120 accepted=80 per_step=3.1 methods=mtp@0,none@96", or nothing.
std::string draft_log(const Usage& u) {
  if (u.methods.empty()) return "";
  std::string s =
      fmt::format(" drafted={} accepted={} per_step={:.2f} methods=", u.drafted, u.accepted, u.tokens_per_step());
  for (size_t i = 0; i < u.methods.size(); ++i)
    s += fmt::format("{}{}@{}", i ? "," : "", u.methods[i].method, u.methods[i].at);
  return s;
}

// What the engine's thread keeps of a request.
struct Generation {
  StreamDecoder decoder;
  AnswerText text;
  int n = 0;             // tokens up to the stop string
  bool stopped = false;  // by a stop string
};

// What the server's thread keeps of it.
struct Job {
  std::unique_ptr<HttpReply> reply;
  ApiAnswer answer;
  ParsedMessage message;
  bool stream = false, include_usage = false;
  uint64_t seed = 0;
  const char* gone = nullptr;  // why nobody waits for the answer any more
};

// A request whose body is being read.
struct Arrival {
  ApiKind kind;
  std::string body;
  std::unique_ptr<HttpReply> reply;  // the server's thread alone looks at it
  const char* gone = nullptr;        // likewise
  std::optional<ApiError> error = {};
  ApiRequest request = {};
  std::vector<int32_t> ids = {};
  bool in_thought = false;
};

// One thread that runs what it is given, in order. What it has not begun when it is destroyed is dropped.
class Worker {
 public:
  Worker() : thread_([this] { loop(); }) {}
  ~Worker() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void push(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
    }
    wake_.notify_one();
  }

 private:
  void loop() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
        if (stop_) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
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
    started_ = now();
  }

  Status listen() {
    auto http = HttpServer::listen(c_.http);
    if (!http) return http.error();
    http_ = std::move(*http);
    return Ok{};
  }
  std::string url() const override { return http_->url(); }
  Status run() override { return http_->run(*this); }

  std::optional<HttpResponse> gate(const HttpRequest& head) override {
    if (auto e = refused(head)) {
      HttpResponse r = error_response(*e);
      if (e->status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
      if (e->status == 405) r.headers.emplace_back("Allow", find_route(head.path)->method);
      log_.info("refused status={}", e->status);
      return r;
    }
    return std::nullopt;
  }

  void request(HttpRequest r, std::unique_ptr<HttpReply> reply) override {
    const Target target = find_route(r.path)->target;
    if (target == Target::kHealth) return reply->send(json_response(200, {{"status", "ok"}}));
    if (target == Target::kModels) return reply->send(json_response(200, models()));
    if (target == Target::kProps) return reply->send(json_response(200, props()));
    if (jobs_.size() + size_t(arriving_) >= size_t(engine_.config().max_seq) + size_t(c_.queue))
      return refuse(*reply, {.status = 503, .message = "the queue is full", .param = "", .code = "queue_full"});
    // A body of megabytes takes long to read: a thread of its own does it, so that no stream waits.
    auto a = std::make_shared<Arrival>(
        Arrival{target == Target::kChat ? ApiKind::kChat : ApiKind::kCompletion, std::move(r.body), std::move(reply)});
    a->reply->on_gone = [p = std::weak_ptr(a)](const char* why) {
      if (const auto arrival = p.lock()) arrival->gone = why, arrival->reply = nullptr;
    };
    ++arriving_;
    worker_.push([this, a] {
      read(*a);
      http_->post([this, a] {
        --arriving_;
        if (a->gone) return log_.info("dropped stop={} running={}", a->gone, jobs_.size());
        if (!a->error) a->error = generate(*a);
        if (a->error) refuse(*a->reply, *a->error);
      });
    });
  }

  HttpResponse refusal(int status, const std::string& what) override {
    log_.info("refused status={}", status);
    HttpResponse r = error_response({.status = status, .message = what, .param = "", .code = ""});
    if (status == 503) r.headers.emplace_back("Retry-After", kRetrySeconds);
    return r;
  }

 private:
  static int64_t now() {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  static bool is_local(std::string_view name) {
    const auto loopback = is_loopback(std::string(name));
    return loopback && *loopback;
  }

  std::optional<ApiError> refused(const HttpRequest& head) const {
    // Pages of other sites reach this machine's ports through the user's browser: by their origin, or by a name of
    // theirs that resolves to this machine. A key keeps them out; without one, names do.
    if (c_.api_key.empty()) {
      for (const char* key : {"host", "origin"})
        if (const std::string_view value = head.header(key); !value.empty() && !is_local(host_name(value)))
          return ApiError{
              .status = 403,
              .message = fmt::format(
                  "{}: expected a name of this machine (start the server with --api-key to allow others)", key),
              .param = "",
              .code = ""};
    }
    const Route* route = find_route(head.path);
    if (route && route->target == Target::kHealth && head.method == "GET") return std::nullopt;
    if (!c_.api_key.empty()) {
      std::string_view given = head.header("authorization");
      if (given.starts_with("Bearer ") || given.starts_with("bearer "))
        given.remove_prefix(7);
      else
        given = head.header("x-api-key");
      if (!same_key(given, c_.api_key))
        return ApiError{.status = 401,
                        .message = "expected the API key in the header: Authorization: Bearer KEY",
                        .param = "",
                        .code = "invalid_api_key"};
    }
    if (!route)
      return ApiError{.status = 404, .message = "no such path (docs/server.md lists them)", .param = "", .code = ""};
    if (head.method != route->method)
      return ApiError{.status = 405, .message = fmt::format("expected {}", route->method), .param = "", .code = ""};
    return std::nullopt;
  }

  Json models() const {
    Json m = {{"id", c_.model},
              {"object", "model"},
              {"created", started_},
              {"owned_by", "facet"},
              {"meta", {{"n_ctx", engine_.config().n_ctx}, {"n_vocab", c_.defaults.n_vocab}}}};
    return {{"object", "list"}, {"data", Json::array({std::move(m)})}};
  }

  Json props() const {
    const Sampling& s = c_.defaults.sampling;
    Json params = {{"temperature", s.temperature},
                   {"top_k", s.top_k},
                   {"top_p", s.top_p},
                   {"min_p", s.min_p},
                   {"n_predict", c_.defaults.max_tokens}};
    return {{"default_generation_settings", {{"n_ctx", engine_.config().n_ctx}, {"params", std::move(params)}}},
            {"total_slots", engine_.config().max_seq},
            {"model_alias", c_.model},
            {"modalities", {{"vision", false}, {"audio", false}}},
            {"build_info", "facet " FACET_VERSION}};
  }

  // The prompt's ids, or an error; in_thought is where the answer begins.
  Result<std::vector<int32_t>> prompt(ApiRequest& r, bool& in_thought) const {
    if (!r.prompt_ids.empty()) return std::move(r.prompt_ids);
    std::string text = std::move(r.prompt);
    if (r.kind == ApiKind::kChat) {
      auto rendered = render_chat(r.messages, r.tools,
                                  {.add_generation_prompt = true,
                                   .enable_thinking = r.thinking,
                                   .preserve_thinking = r.preserve_thinking,
                                   .variant = c_.variant});
      if (!rendered) return rendered.error();
      text = std::move(*rendered);
      in_thought = ends_in_thought(text);
    }
    // Too long whatever its tokens are: not worth encoding.
    if (text.size() / longest_piece_ > size_t(engine_.config().n_ctx))
      return std::vector<int32_t>(text.size() / longest_piece_);
    return engine_.tokenizer()->encode(text, /*add_bos=*/true, /*parse_special=*/true);
  }

  void refuse(HttpReply& reply, const ApiError& e) {
    HttpResponse answer = error_response(e);
    if (e.status == 503) answer.headers.emplace_back("Retry-After", kRetrySeconds);
    log_.info("refused status={} running={}", e.status, jobs_.size());
    reply.send(std::move(answer));
  }

  // On the worker's thread: text to a checked request and its tokens.
  void read(Arrival& a) const {
    const int n_ctx = engine_.config().n_ctx;
    auto json = parse_json(std::exchange(a.body, {}), "");
    if (!json) return void(a.error = api_error(json.error()));
    auto request = parse_api_request(a.kind, *json, c_.defaults);
    if (!request) return void(a.error = api_error(request.error()));
    a.request = std::move(*request);
    auto ids = prompt(a.request, a.in_thought);
    if (!ids) return void(a.error = api_error(ids.error()));
    if (ids->size() >= size_t(n_ctx))
      a.error = {.status = 400,
                 .message = fmt::format("the prompt has {} tokens or more; the context holds {}", ids->size(), n_ctx),
                 .param = a.kind == ApiKind::kChat ? "messages" : "prompt",
                 .code = "context_length_exceeded"};
    a.ids = std::move(*ids);
  }

  std::optional<ApiError> generate(Arrival& a) {
    const ApiKind kind = a.kind;
    ApiRequest* const request = &a.request;
    if (!request->seed_given) request->sampling.seed = seeds_() >> 1;
    // A client without tools has no use for a call: the token that begins one is never drawn.
    if (kind == ApiKind::kChat && request->tools.empty())
      request->sampling.logit_bias.emplace_back(engine_.tokenizer()->special().tool_call_open, -1e9f);

    Job job;
    job.answer = {.kind = kind,
                  .id = fmt::format("{}-{:016x}", kind == ApiKind::kChat ? "chatcmpl" : "cmpl", seeds_()),
                  .model = c_.model,
                  .created = now()};
    job.stream = request->stream;
    job.include_usage = request->include_usage;
    job.seed = request->sampling.seed;
    // shared_ptr: std::function copies what it holds.
    auto g = std::make_shared<Generation>(
        Generation{StreamDecoder(*engine_.tokenizer()),
                   AnswerText(kind, {.in_thought = a.in_thought}, std::move(request->stop)), 0, false});
    Sink sink{.tokens = [this, g](RequestId id, std::span<const int32_t> t) { on_tokens(*g, id, t); },
              .done = [this, g](RequestId id, Stop why, const Usage& u,
                                const std::string& error) { on_done(*g, id, why, u, error); }};
    auto id = engine_.submit({.prompt = std::move(a.ids),
                              .max_tokens = request->max_tokens,
                              .sampling = std::move(request->sampling),
                              .ignore_eos = request->ignore_eos},
                             std::move(sink));
    if (!id) return api_error(id.error());

    a.reply->on_gone = [this, id = *id](const char* why) {
      const auto at = jobs_.find(id);
      if (at == jobs_.end()) return;
      at->second.gone = why;
      at->second.reply = nullptr;
      engine_.cancel(id);
    };
    job.reply = std::move(a.reply);
    if (job.stream) {
      job.reply->begin("text/event-stream");
      if (kind == ApiKind::kChat) job.reply->write(sse(chunk_role(job.answer)));
    }
    jobs_.emplace(*id, std::move(job));
    return std::nullopt;
  }

  // --- on the engine's thread

  void on_tokens(Generation& g, RequestId id, std::span<const int32_t> tokens) {
    std::vector<ParseEvent> events;
    for (const int32_t t : tokens) {
      if (g.stopped) break;  // a step may bring more tokens than the answer wants
      ++g.n;
      for (ParseEvent& e : g.text.push(g.decoder.push(t))) events.push_back(std::move(e));
      if (!g.text.stopped()) continue;
      g.stopped = true;
      engine_.cancel(id);  // takes effect before the next step
    }
    if (!events.empty()) http_->post([this, id, events = std::move(events)] { deliver(id, events); });
  }

  void on_done(Generation& g, RequestId id, Stop why, Usage u, const std::string& error) {
    std::vector<ParseEvent> events = g.text.push(g.decoder.finish());
    for (ParseEvent& e : g.text.finish()) events.push_back(std::move(e));
    u.generated = g.n;
    http_->post([this, id, why, u, error, stopped = g.text.stopped(), events = std::move(events)] {
      deliver(id, events);
      complete(id, why, u, error, stopped);
    });
  }

  // --- on the server's

  void deliver(RequestId id, const std::vector<ParseEvent>& events) {
    const auto at = jobs_.find(id);
    if (at == jobs_.end() || !at->second.reply) return;
    Job& job = at->second;
    for (const ParseEvent& e : events) {
      if (job.stream) job.reply->write(sse(chunk_event(job.answer, e, int(job.message.tool_calls.size()))));
      add_event(job.message, e);
    }
  }

  void complete(RequestId id, Stop why, const Usage& u, const std::string& error, bool stopped) {
    const auto at = jobs_.find(id);
    if (at == jobs_.end()) return;
    Job job = std::move(at->second);
    jobs_.erase(at);
    const char* stop = stopped ? "string" : job.gone ? job.gone : stop_name(why);
    log_.info(
        "request id={} kind={} stream={} prompt={} cached={} generated={} prefill_ms={:.1f} decode_ms={:.1f}{} stop={} "
        "seed={} running={}",
        id, job.answer.kind == ApiKind::kChat ? "chat" : "completion", int(job.stream), u.prompt, u.cached, u.generated,
        u.prefill_s * 1e3, u.decode_s * 1e3, draft_log(u), stop, job.seed, jobs_.size());
    if (!job.reply) return;
    if (why == Stop::kError) {
      log_.error("request id={} error=\"{}\"", id, error);
      const ApiError e{.status = 500, .message = error, .param = "", .code = ""};
      if (!job.stream) return job.reply->send(error_response(e));
      job.reply->write(sse(error_json(e)));
      return job.reply->end();
    }
    const char* reason = finish_reason(why, stopped, !job.message.tool_calls.empty());
    if (!job.stream) return job.reply->send(json_response(200, api_response(job.answer, job.message, reason, u)));
    std::string last = sse(chunk_finish(job.answer, reason, u));
    if (job.include_usage) last += sse(chunk_usage(job.answer, u));
    job.reply->write(last.append(kSseDone));
    job.reply->end();
  }

  Engine& engine_;
  ServiceConfig c_;
  spdlog::logger log_;
  size_t longest_piece_ = 1;
  std::mt19937_64 seeds_;
  int64_t started_ = 0;
  std::unordered_map<RequestId, Job> jobs_;  // running and waiting
  int arriving_ = 0;                         // being read
  std::unique_ptr<HttpServer> http_;
  Worker worker_;  // ends before what it uses
};

}  // namespace

bool same_key(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= unsigned(uint8_t(given[i]) ^ uint8_t(expected.empty() ? 1 : expected[i % expected.size()]));
  return difference == 0 && !expected.empty();
}

Result<std::unique_ptr<Service>> Service::open(Engine& engine, ServiceConfig config) {
  auto loopback = is_loopback(config.http.host);
  if (!loopback) return Error{"--host", loopback.error().what, loopback.error().hint};
  if (!*loopback && config.api_key.empty())
    return Error{"--host",
                 fmt::format("{} can be reached from other machines, and there is no --api-key", config.http.host),
                 "give --api-key or --api-key-file, or serve 127.0.0.1"};
  auto s = std::make_unique<ServiceImpl>(engine, std::move(config));
  if (auto ok = s->listen(); !ok) return ok.error();
  return std::unique_ptr<Service>(std::move(s));
}

}  // namespace facet
