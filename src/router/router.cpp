#include "router/router.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <algorithm>
#include <map>
#include <variant>

#include "base/print.h"
#include "base/worker.h"
#include "router/dispatch.h"
#include "router/report.h"
#include "router/request.h"
#include "server/access.h"
#include "server/api_fields.h"
#include "server/http_connection.h"
#include "server/info.h"
#include "server/ollama.h"
#include "server/page.h"
#include "server/routes.h"

namespace facet {
namespace {

namespace asio = boost::asio;

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr auto kAskProcesses = std::chrono::seconds(2);  // for what a process says of itself

// What one question to every loaded model's process came to.
struct Survey {
  std::map<std::string, std::string> bodies = {};
  std::vector<std::shared_ptr<Upstream>> open = {};
  size_t left = 0;
  std::unique_ptr<asio::steady_timer> timer = {};
  std::function<void(std::map<std::string, std::string>)> done = {};
};

class RouterImpl final : public Router, public HttpHandler {
 public:
  RouterImpl(RouterConfig c, std::unique_ptr<HttpServer> http, std::vector<ApiKey> keys)
      : c_(std::move(c)),
        log_("router", std::make_shared<spdlog::sinks::stderr_sink_mt>()),
        http_(std::move(http)),
        io_(io_of(*http_)),
        tick_(io_),
        pool_(io_, c_,
              {.ready = [this](Model& m) { dispatch_.ready(m); },
               .failed = [this](Model& m, int status, const std::string& why) { dispatch_.failed(m, status, why); },
               .died = [this](Model& m, const std::string& why) { dispatch_.died(m, why); },
               .log = [this](const std::string& what) { log_.info("{}", what); },
               .said = [](const Model& m,
                          const std::string& line) { print_err("[{}] {}\n", m.config.name, on_one_line(line)); }}),
        dispatch_(io_, c_, pool_, counts_, log_) {
    log_.set_pattern("%H:%M:%S.%e %L %n %v");
    access_.origins = c_.front.cors_origins;
    access_.page = c_.front.webui;
    access_.keys = std::move(keys);
  }

  std::string url() const override { return http_->url(); }
  Status run() override {
    tick();
    pool_.schedule();
    const Status ended = http_->run(*this);
    int most = 0;
    for (const auto& m : pool_.models()) most = std::max(most, m->config.stop_s);
    dispatch_.close();
    pool_.stop_all(most);
    return ended;
  }

  // --- HttpHandler

  std::vector<std::pair<std::string, std::string>> answer_headers(const HttpRequest& head) override {
    return access_.cors_headers(head);
  }
  std::optional<HttpResponse> gate(const HttpRequest& head) override {
    auto r = access_.gate(head);
    if (r && r->status >= 400) log_.info("refused status={}", r->status);
    return r;
  }
  HttpResponse refusal(int status, const std::string& what) override {
    log_.info("refused status={}", status);
    return error_response(Dialect::kOpenAi, {.status = status, .message = what, .param = "", .code = ""});
  }
  void hangup() override {
    auto keys = all_api_keys(c_.front.api_key, c_.front.api_key_file);
    if (!keys) return log_.warn("the keys stay as they were: {}", keys.error().message());
    access_.keys = std::move(*keys);
    log_.info("read {} keys", access_.keys.size());
  }

  void request(HttpRequest r, std::unique_ptr<HttpReply> reply) override {
    const Route& route = *find_route(r.path);
    if (auto answer = own_answer(route, r)) return reply->send(std::move(*answer));
    if (route.target == Target::kTags || route.target == Target::kRunning)
      return list_models(route.target == Target::kRunning, std::move(reply));
    if (route.target == Target::kHealth || route.target == Target::kMetrics)
      return survey(route.target, r, std::move(reply));
    auto p = std::make_shared<RoutedRequest>();
    p->dialect = dialect_of_path(r.path);
    p->key = std::string(access_.key_name(r));
    p->since = std::chrono::steady_clock::now();
    p->request = std::move(r);
    p->reply = std::move(reply);
    p->generates = route.target == Target::kGenerate;
    p->reply->on_gone = [weak = std::weak_ptr(p)](const char* why) {
      if (const auto gone = weak.lock()) gone->leave(why);
    };
    const bool control = route.target == Target::kLoadModel || route.target == Target::kUnloadModel;
    if (route.method == "GET" || route.target == Target::kSlot) {
      p->fields.model = query_field(p->request.query, "model");
      return handle(p, route.target, control);
    }
    // A body of megabytes takes long to read: a thread of its own does it, so that no stream waits.
    worker_.push([this, p, target = route.target, control] {
      auto fields = read_routed_fields(p->request.body);
      http_->post([this, p, target, control, fields = std::move(fields)] {
        if (p->gone) return;
        if (!fields)
          return dispatch_.refuse(*p, "",
                                  {.status = 400, .message = fields.error().message(), .param = "", .code = ""});
        p->fields = *fields;
        if (p->dialect == Dialect::kOllama) p->fields.stream = false;  // its lines have no comments
        if (query_field(p->request.query, "autoload") == "false") p->fields.autoload = false;
        handle(p, target, control);
      });
    });
  }

 private:
  void tick() {
    tick_.expires_after(kTick);
    tick_.async_wait([this](boost::system::error_code ec) {
      if (ec) return;
      pool_.tick();
      dispatch_.tick();
      tick();
    });
  }

  // The model that a request names, or an error.
  std::variant<Model*, ApiError> resolve(const RoutedRequest& p, Target target) {
    const std::string& name = p.fields.model;
    if (Model* m = pool_.find(name)) return m;
    if (name.empty() || name == "any") {
      if (Model* m = pool_.most_recent()) return m;
      if (name.empty() && target != Target::kUnloadModel) return pool_.models().front().get();
      return ApiError{.status = 400,
                      .message = "no model is currently resident in memory",
                      .param = "model",
                      .code = "no_resident_model"};
    }
    return ApiError{
        .status = 404,
        .message = fmt::format("no such model: {} (GET /v1/models lists those there are)", shown(Json(name))),
        .param = "model",
        .code = "model_not_found"};
  }

  void handle(const std::shared_ptr<RoutedRequest>& p, Target target, bool control) {
    auto resolved = resolve(*p, target);
    if (const auto* e = std::get_if<ApiError>(&resolved)) return dispatch_.refuse(*p, "", *e);
    Model& m = *std::get<Model*>(resolved);
    if (control && p->fields.model.empty())
      return dispatch_.refuse(*p, "",
                              {.status = 400,
                               .message = "model: expected the name of a model, found none (GET /v1/models lists "
                                          "those there are; \"any\" is the one that was used last)",
                               .param = "model",
                               .code = "model_required"});
    if (control) return target == Target::kLoadModel ? dispatch_.load(p, m) : dispatch_.unload(p, m);
    // Without a name and with no model in memory it is the router's own.
    if (target == Target::kProps && p->fields.model.empty() && !m.takes_requests())
      return p->reply->send(json_response(200, router_props(c_, m.state == ModelState::kSleeping)));
    // What tells of a model, and does not use it, does not load it.
    const bool tells = target == Target::kProps || target == Target::kSlots || target == Target::kSlot;
    if (target == Target::kShow && !m.takes_requests())
      return with_facts({{&m, 0}}, std::move(p->reply),
                        [](const std::vector<OllamaModel>& all, const auto&) { return ollama_show(all.front()); });
    dispatch_.route(p, m, !tells && c_.autoload && p->fields.autoload);
  }

  // Facts of models' files, which take a while to read the first time: on the worker's thread, which keeps them.
  using Asked = std::vector<std::pair<const Model*, uint64_t>>;  // bytes: that its process planned
  using Told = std::function<Json(const std::vector<OllamaModel>&, const std::vector<uint64_t>&)>;
  void with_facts(const Asked& asked, std::unique_ptr<HttpReply> reply, Told told) {
    std::vector<OllamaModel> all;
    std::vector<uint64_t> bytes;
    std::vector<std::string> paths;
    for (const auto& [m, planned] : asked) {
      all.push_back({m->config.name, "", started_, m->n_ctx});
      bytes.push_back(planned);
      paths.push_back(m->config.path);
    }
    const auto held = std::make_shared<std::unique_ptr<HttpReply>>(std::move(reply));
    worker_.push([this, held, told = std::move(told), all = std::move(all), bytes = std::move(bytes),
                  paths = std::move(paths)]() mutable {
      for (size_t i = 0; i < all.size(); ++i) {
        const auto [at, fresh] = facts_.try_emplace(fmt::format("{} {}", paths[i], model_bytes(paths[i])));
        if (fresh) at->second = model_facts(paths[i]);
        all[i].facts = at->second;
      }
      http_->post([held, body = told(all, bytes)] {
        if (const auto r = std::exchange(*held, nullptr)) r->send(json_response(200, body));
      });
    });
  }
  void list_models(bool running, std::unique_ptr<HttpReply> reply) {
    Asked asked;
    for (const auto& m : pool_.models())
      if (!running || m->state == ModelState::kLoaded) asked.emplace_back(m.get(), m->plan_bytes);
    with_facts(asked, std::move(reply), [running](const auto& all, const auto& bytes) {
      Json list = Json::array();
      for (size_t i = 0; i < all.size(); ++i)
        list.push_back(running ? ollama_running(all[i], bytes[i], unix_now()) : ollama_entry(all[i]));
      return Json{{"models", std::move(list)}};
    });
  }

  // The answer of what needs no model.
  std::optional<HttpResponse> own_answer(const Route& route, const HttpRequest& r) {
    switch (route.target) {
      case Target::kPage:
        return front_response(r);
      case Target::kDocs:
        return docs_response(r);
      case Target::kOpenApi:
        return openapi_response(r);
      case Target::kVersion:
        return json_response(200, ollama_version());
      case Target::kModels: {
        Json data = Json::array();
        for (const auto& m : pool_.models()) data.push_back(model_entry(*m, started_));
        return json_response(200, {{"object", "list"}, {"data", std::move(data)}});
      }
      case Target::kModel: {
        const Model* m = pool_.find(percent_decoded(std::string_view(r.path).substr(route.path.size())));
        if (m) return json_response(200, model_entry(*m, started_));
        return error_response(Dialect::kOpenAi, {.status = 404,
                                                 .message = "no such model (GET /v1/models lists those there are)",
                                                 .param = "model",
                                                 .code = "model_not_found"});
      }
      case Target::kEmbeddings:
        return error_response(dialect_of_path(r.path),
                              {.status = 501,
                               .message = "embeddings are no capability of a Gemma 4 text model",
                               .param = "",
                               .code = "not_supported"});
      default:
        return std::nullopt;
    }
  }

  // Asks every loaded model's process, for at most kAskProcesses.
  void ask_all(const char* path, std::function<void(std::map<std::string, std::string>)> done) {
    auto s = std::make_shared<Survey>();
    s->done = std::move(done);
    const auto finish = [s] {
      const auto tell = std::exchange(s->done, nullptr);
      for (const auto& u : s->open) u->cancel();
      s->open.clear();
      s->timer.reset();
      if (tell) tell(std::move(s->bodies));
    };
    for (const auto& m : pool_.models()) {
      if (m->state != ModelState::kLoaded || !m->child) continue;
      const auto fd = m->child->connect();
      if (!fd) continue;
      ++s->left;
      auto body = std::make_shared<std::string>();
      s->open.push_back(Upstream::start(
          io_, *fd, fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path),
          {.body = [body](std::string_view piece) { *body += piece; },
           .done =
               [this, s, body, finish, name = m->config.name](bool whole) {
                 if (whole) s->bodies[name] = std::move(*body);
                 if (--s->left == 0) asio::post(io_, finish);
               }}));
    }
    if (s->left == 0) return finish();
    s->timer = std::make_unique<asio::steady_timer>(io_, kAskProcesses);
    s->timer->async_wait([finish](boost::system::error_code ec) {
      if (!ec) finish();
    });
  }

  void survey(Target target, const HttpRequest& r, std::unique_ptr<HttpReply> reply) {
    const bool named = access_.keys.empty() || !access_.key_name(r).empty();
    const std::shared_ptr<HttpReply> held = std::move(reply);
    if (target == Target::kHealth)
      return ask_all("/health", [this, held, named](const HealthAnswers& answers) {
        held->send(router_health(pool_.models(), answers, named));
      });
    ask_all("/metrics", [this, held](const auto& bodies) {
      MetricsMerge merged;
      merged.add(router_metrics(pool_.models(), counts_), "");
      for (const auto& [name, text] : bodies) merged.add(text, name);
      held->send(
          {.status = 200, .type = "text/plain; version=0.0.4; charset=utf-8", .body = merged.text(), .headers = {}});
    });
  }

  RouterConfig c_;
  spdlog::logger log_;
  Access access_;
  RouterCounts counts_;
  int64_t started_ = unix_now();
  std::unique_ptr<HttpServer> http_;
  asio::io_context& io_;
  asio::steady_timer tick_;
  Pool pool_;
  Dispatch dispatch_;
  std::map<std::string, ModelFacts> facts_ = {};  // by path and size, of the worker's thread
  Worker worker_;                                 // ends before what it uses
};

}  // namespace

Result<std::unique_ptr<Router>> Router::open(RouterConfig config) {
  if (auto ok = check_router(config); !ok) return ok.error();
  auto& front = config.front;
  const bool keyed = !front.api_key.empty() || !front.api_key_file.empty();
  if (auto ok = check_reach(front.http.host, keyed, front.cors_origins); !ok) return ok.error();
  front.http.catch_hangup = !front.api_key_file.empty();
  auto keys = all_api_keys(front.api_key, front.api_key_file);
  if (!keys) return keys.error();
  auto http = HttpServer::listen(front.http);
  if (!http) return http.error();
  return std::unique_ptr<Router>(std::make_unique<RouterImpl>(std::move(config), std::move(*http), std::move(*keys)));
}

}  // namespace facet
