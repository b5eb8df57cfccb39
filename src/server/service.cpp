#include "server/service.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/last_memory.h"
#include "base/worker.h"
#include "server/access.h"
#include "server/answers.h"
#include "server/arrival.h"
#include "server/cache_metrics.h"
#include "server/grammar_pool.h"
#include "server/info.h"
#include "server/ollama.h"
#include "server/page.h"
#include "server/routes.h"
#include "server/slots.h"
#include "server/text_api.h"
#include "server/writer.h"
#include "tokenizer/json.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

// Not memory that one request ran out for; it takes none itself.
struct NoMemoryToBegin : std::exception {
  const char* what() const noexcept override { return "memory ran out while the server began"; }
};

// What there is once the model is loaded.
struct Loaded {
  Loaded(Engine& e, const ServiceConfig& c, AnswersHooks hooks)
      : engine(e),
        answers(e, c, with_writer(std::move(hooks))),
        reader(e, c),
        grammars([&e](const GrammarPtr& g) { return e.prepare_grammars(g); }, grammar_threads()),
        media(kMediaThreads),
        fetches(c.defaults.fetch_media ? kFetchThreads : 0) {}
  ~Loaded() { media.stop(), fetches.stop(); }  // they and the worker give each other work
  static constexpr int kMediaThreads = 2;      // one decodes while the other one encodes
  static constexpr int kFetchThreads = 4;
  static int grammar_threads() { return std::clamp(int(std::thread::hardware_concurrency()) / 2, 2, 4); }
  AnswersHooks with_writer(AnswersHooks hooks) {
    hooks.write = [this](std::function<void()> work) { writer.push(std::move(work)); };
    return hooks;
  }
  std::string media_metrics() const { return engine.media() ? facet::media_metrics(reader.media_stats()) : ""; }
  Engine& engine;
  ServerInfo info = {};
  int arriving = 0;  // bodies that are read, and those whose grammars are compiled
  Answers answers;
  RequestReader reader;  // of the worker's thread
  GrammarPool grammars;
  TurnPool media, fetches;
  Worker worker = {}, writer = {};  // of bodies, and of answers; they end before what they use
};

ServerInfo info_of(const Engine& e, const ServiceConfig& c) {
  const Tokenizer& t = *e.tokenizer();
  return {.model = c.model,
          .aliases = c.aliases,
          .file = c.model_file,
          .chat_template = t.vocab().chat_template,
          .bos = t.text(t.bos()),
          .eos = t.text(t.special().eos),
          .version = FACET_VERSION,
          .started = unix_now(),
          .n_ctx = e.config().n_ctx,
          .n_vocab = c.defaults.n_vocab,
          .n_seq = e.config().max_seq,
          .max_tokens = c.defaults.max_tokens,
          .sampling = c.defaults.sampling,
          .takes_pictures = c.defaults.takes_pictures,
          .takes_sound = c.defaults.takes_sound};
}

class ServiceImpl final : public Service, public HttpHandler {
 public:
  explicit ServiceImpl(ServiceConfig c)
      : c_(std::move(c)), log_("server", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    log_.set_pattern("%H:%M:%S.%e %L %n %v");
    access_.origins = c_.cors_origins;
    access_.page = c_.webui;
  }

  Status load_keys() {
    auto keys = all_api_keys(c_.api_key, c_.api_key_file);
    if (!keys) return keys.error();
    access_.keys = std::move(*keys);
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
  void stop() override { http_->drain(); }
  Health& health() override { return health_; }
  Metrics& metrics() override { return metrics_; }

  void attach(Engine& engine, std::function<void(ServiceConfig&)> complete, std::function<void()> ready) override {
    http_->post([this, &engine, complete = std::move(complete), ready = std::move(ready)] {
      try {
        begin(engine, complete, ready);
      } catch (const std::bad_alloc&) {  // of no request: the server cannot begin, and its loop ends with this
        throw NoMemoryToBegin();
      }
    });
  }

  std::vector<std::pair<std::string, std::string>> answer_headers(const HttpRequest& head) override {
    return access_.cors_headers(head);
  }

  std::optional<HttpResponse> gate(const HttpRequest& head) override {
    auto r = access_.gate(head);
    if (r && r->status >= 400) note_refusal(r->status);
    return r;
  }

  void request(HttpRequest r, std::unique_ptr<HttpReply> reply) override {
    const Route* route = find_route(r.path);
    if (auto answer = immediate(*route, r)) return reply->send(std::move(*answer));
    if (!loaded_)
      return refuse(*reply, dialect_of_path(r.path),
                    {.status = 503, .message = "the model is loading", .param = "", .code = "loading"});
    Loaded& l = *loaded_;
    if (route->target == Target::kSlots) return list_slots(l.engine, std::move(reply));
    if (route->target == Target::kSlot) return act_on_slot(l.engine, r, std::move(reply));
    if (l.answers.size() + size_t(l.arriving) >= size_t(l.engine.config().max_seq) + size_t(c_.queue))
      return refuse(*reply, dialect_of_path(r.path),
                    {.status = 503, .message = "the queue is full", .param = "", .code = "queue_full"});
    // A body of megabytes takes long to read: a thread of its own does it, so that no stream waits.
    const std::shared_ptr<Arrival> a(new Arrival{route, std::move(r.body), std::string(access_.key_name(r)),
                                                 std::move(r.body_room), std::move(reply)});
    a->reply->on_gone = [this, p = std::weak_ptr(a)](const char* why) {
      const auto arrival = p.lock();
      if (!arrival) return;
      arrival->gone = why, arrival->reply = nullptr, arrival->left = true;
      if (loaded_) loaded_->grammars.look();
    };
    ++l.arriving;
    l.worker.push([this, &l, a] { proceed(l, a, l.reader.read(*a)); });
  }

  HttpResponse refusal(int status, const std::string& what) override {
    note_refusal(status);
    return error_response(Dialect::kOpenAi, {.status = status, .message = what, .param = "", .code = ""});
  }

  void hangup() override {
    if (auto ok = load_keys(); !ok)
      log_.warn("the keys stay as they were: {}", ok.error().message());
    else
      log_.info("read {} keys", access_.keys.size());
  }

 private:
  void begin(Engine& engine, const std::function<void(ServiceConfig&)>& complete, const std::function<void()>& ready) {
    complete(c_);
    const Tokenizer& t = *engine.tokenizer();
    c_.defaults.n_seq = engine.config().max_seq;
    c_.defaults.tokenize = [&t](std::string_view text) { return t.encode(text, false, false); };
    const MediaEncoder* media = engine.media();
    c_.defaults.takes_pictures = media && media->sees();
    c_.defaults.takes_sound = media && media->hears();
    c_.defaults.no_media =
        media
            ? "the mmproj file of this model has no encoder of it"
            : "this model has no encoder: start the server with its mmproj file (--mmproj FILE), which its publishers "
              "have beside the model";
    c_.defaults.tokens_with = [&t](std::string_view text) { return tokens_with(t, text); };
    loaded_ = std::make_unique<Loaded>(engine, c_,
                                       AnswersHooks{.log = &log_,
                                                    .metrics = &metrics_,
                                                    .health = &health_,
                                                    .post = [this](std::function<void()> work) { post(work); }});
    loaded_->info = info_of(engine, c_);
    health_.ready();
    ready();
  }

  // On the worker's thread: a request goes to the pool of pictures and sounds and comes back, to that of grammars, or
  // is there.
  void proceed(Loaded& l, const std::shared_ptr<Arrival>& a, bool needs_media) {
    try {
      if (needs_media) {
        TurnPool::Job job = l.reader.media_job(*a);
        job.done = [this, &l, a](bool out_of_memory) {
          l.worker.push([this, &l, a, out_of_memory] { proceed(l, a, l.reader.go_on(*a, out_of_memory)); });
        };
        const bool fetches = a->media.stage == MediaOfRequest::Stage::kFetch;
        return (fetches ? l.fetches : l.media).run(std::move(job));
      }
      if (!a->recipe || a->error) return arrived(l, a);
      l.grammars.make(std::move(*a->recipe), a->key, a->left, [this, &l, a](GrammarAnswer g) {
        a->grammar = std::move(g.grammar), a->error = std::move(g.error);
        arrived(l, a);
      });
    } catch (const std::bad_alloc&) {
      a->error = no_memory();
      arrived(l, a);
    }
  }

  void note_refusal(int status) {
    metrics_.refused(status);
    log_.info("refused status={}", status);
  }

  void refuse(HttpReply& reply, Dialect dialect, const ApiError& e) {
    metrics_.refused(e.status);
    log_.info("refused status={} running={}", e.status, loaded_ ? loaded_->answers.size() : 0);
    reply.send(error_response(dialect, e));
  }

  // Work for the server's thread. Where memory has run out, others give some back soon; without this work a request
  // would never end.
  void post(const std::function<void()>& work) {
    for (int tries = 0; tries < 1000; ++tries) {
      try {
        return http_->post(work);
      } catch (const std::bad_alloc&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    log_.error("memory has run out, and none came back");
    std::terminate();  // whoever waits for this answer would wait for ever
  }

  // A request was read, its grammar is compiled.
  void arrived(Loaded& l, const std::shared_ptr<Arrival>& a) {
    const MayNotFail scope;
    post([this, &l, a] {
      --l.arriving;
      if (a->gone) return log_.info("dropped stop={} running={}", a->gone, l.answers.size());
      if (!a->error && a->answer) return a->reply->send(written_response(std::move(*a->answer)));
      if (!a->error) a->error = l.answers.begin(*a);
      if (a->error) refuse(*a->reply, dialect_of_path(a->route->path), *a->error);
    });
  }

  // A reply that the engine's thread causes and the server's gives.
  using Held = std::shared_ptr<std::unique_ptr<HttpReply>>;
  void reply_later(const Held& held, HttpResponse r) {
    post([held, r = std::move(r)] {
      if (const auto reply = std::exchange(*held, nullptr)) reply->send(r);
    });
  }
  void list_slots(Engine& engine, std::unique_ptr<HttpReply> reply) {
    const auto held = std::make_shared<std::unique_ptr<HttpReply>>(std::move(reply));
    engine.list_slots([this, &engine, held](const std::vector<SlotInfo>& slots) {
      const bool drafts = engine.config().draft.any();
      reply_later(held, json_response(200, slots_json(slots, engine.config().n_ctx, drafts)));
    });
  }
  void act_on_slot(Engine& engine, const HttpRequest& r, std::unique_ptr<HttpReply> reply) {
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
    if (action->kind == SlotAction::Kind::kSave) return engine.save_slot(action->id, path, done);
    if (action->kind == SlotAction::Kind::kRestore) return engine.restore_slot(action->id, path, done);
    engine.erase_slot(action->id, done);
  }

  HttpResponse metrics_response() const {
    Metrics::Gauges now{.state = health_.state(), .http = http_->use()};
    if (loaded_) {
      const size_t open = loaded_->answers.size(), most = size_t(loaded_->engine.config().max_seq);
      now.running = std::min(open, most);
      now.waiting = open - now.running + size_t(loaded_->arriving);
    }
    return {.status = 200,
            .type = "text/plain; version=0.0.4; charset=utf-8",
            .body = metrics_.text(now, c_.metrics_compatible) +
                    (loaded_ ? cache_metrics(loaded_->engine.cache_stats()) + loaded_->media_metrics() : ""),
            .headers = {}};
  }

  // The answer of what needs neither a body nor the model.
  std::optional<HttpResponse> immediate(const Route& route, const HttpRequest& r) {
    switch (route.target) {
      case Target::kHealth:
        if (loaded_) note_cache_errors(loaded_->engine.cache_stats(), health_);
        return health_.response();
      case Target::kMetrics:
        return metrics_response();
      case Target::kPage:
        return front_response(r);
      case Target::kDocs:
        return docs_response(r);
      case Target::kOpenApi:
        return openapi_response(r);
      case Target::kEmbeddings:
        return not_supported("embeddings are no capability of a Gemma 4 text model", dialect_of_path(r.path));
      case Target::kSlots:
      case Target::kSlot:
        if (!c_.slots) return not_supported("the server was started with --no-slots");
        return std::nullopt;
      case Target::kVersion:
        return json_response(200, ollama_version());
      case Target::kLoadModel:
      case Target::kUnloadModel:
        return error_response(Dialect::kOpenAi, {.status = 501,
                                                 .message = "this server has one model, which stays (docs/server.md "
                                                            "tells how to serve several)",
                                                 .param = "",
                                                 .code = "not_supported"});
      default:
        return loaded_ ? about_model(route, r, loaded_->info) : std::nullopt;
    }
  }

  static HttpResponse not_supported(std::string message, Dialect dialect = Dialect::kOpenAi) {
    return error_response(dialect,
                          {.status = 501, .message = std::move(message), .param = "", .code = "not_supported"});
  }

  std::optional<HttpResponse> about_model(const Route& route, const HttpRequest& r, const ServerInfo& info) const {
    const OllamaModel ollama{c_.model, info.chat_template,  info.started,    info.n_ctx,
                             c_.facts, info.takes_pictures, info.takes_sound};
    switch (route.target) {
      case Target::kModels:
        return json_response(200, models_json(info));
      case Target::kModel:
        if (is_name(percent_decoded(std::string_view(r.path).substr(route.path.size()))))
          return json_response(200, model_json(info));
        return error_response(Dialect::kOpenAi, {.status = 404,
                                                 .message = "no such model (GET /v1/models lists the one there is)",
                                                 .param = "model",
                                                 .code = "model_not_found"});
      case Target::kTokenizerInfo:
        return json_response(200, tokenizer_json(info));
      case Target::kProps:
        return json_response(200, props_json(info));
      case Target::kTags:
        return json_response(200, ollama_tags(ollama));
      case Target::kRunning:
        return json_response(200, {{"models", Json::array({ollama_running(ollama, 0, unix_now())})}});
      case Target::kShow:
        return json_response(200, ollama_show(ollama));
      default:
        return std::nullopt;
    }
  }

  bool is_name(const std::string& name) const {
    return name == c_.model || std::find(c_.aliases.begin(), c_.aliases.end(), name) != c_.aliases.end();
  }

  ServiceConfig c_;
  spdlog::logger log_;
  Access access_;
  Health health_;
  Metrics metrics_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Loaded> loaded_;  // ends before what it posts to
};

}  // namespace

Result<std::unique_ptr<Service>> Service::open(ServiceConfig config) {
  keep_last_memory();
  const bool keys = !config.api_key.empty() || !config.api_key_file.empty();
  if (auto ok = check_reach(config.http.host, keys, config.cors_origins); !ok) return ok.error();
  config.http.catch_hangup = !config.api_key_file.empty();
  auto s = std::make_unique<ServiceImpl>(std::move(config));
  if (auto ok = s->load_keys(); !ok) return ok.error();
  if (auto ok = s->listen(); !ok) return ok.error();
  return std::unique_ptr<Service>(std::move(s));
}

}  // namespace facet
