#include "router/report.h"
#include "tokenizer/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace facet {
namespace {

// "facet_x_seconds" of its buckets, sum and count: the family that HELP and TYPE name.
std::string_view sample_name(std::string_view line) { return line.substr(0, line.find_first_of("{ ")); }

std::string labelled(std::string_view line, const std::string& model) {
  const std::string_view name = sample_name(line);
  std::string_view rest = line.substr(name.size());
  const bool has = rest.starts_with('{');
  return fmt::format("{}{{model=\"{}\"{}{}\n", name, model, has ? "," : "}", has ? rest.substr(1) : rest);
}

void family(std::string& out, const char* name, const char* type, const char* help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

}  // namespace

Json model_entry(const Model& m, int64_t started) {
  Json status = {{"value", state_name(m.state)}};
  if (m.state == ModelState::kLoading) status["progress"] = m.progress;
  if (m.state == ModelState::kFailed) status["failed"] = true, status["exit_code"] = m.exit_code;
  if (!m.failure.empty()) status["reason"] = m.failure;
  Json plan, meta;
  if (m.plan_bytes > 0) plan = {{"bytes", m.plan_bytes}, {"summary", m.plan}};
  if (m.n_ctx > 0) meta = {{"n_ctx", m.n_ctx}, {"n_vocab", m.n_vocab}, {"n_seq", m.n_seq}};
  Json entry = {{"id", m.config.name},
                {"object", "model"},
                {"created", started},
                {"owned_by", "facet"},
                {"aliases", m.config.aliases},
                {"status", std::move(status)},
                {"last_used_ms", m.last_used_ms},
                {"size", model_bytes(m.config.path)},
                {"plan", std::move(plan)},
                {"meta", std::move(meta)},
                {"pinned", m.config.pinned},
                {"loads", m.loads},
                {"unloads", m.unloads_limit + m.unloads_asked + m.unloads_idle},
                {"deaths", m.deaths}};
  // Not made beforehand: -c 0 takes what is free when the model is loaded, and the GPU is its process's.
  if (m.plan_bytes == 0)
    entry["plan_reason"] = "the model has not been loaded: its plan depends on the memory then free";
  return entry;
}

Json router_props(const RouterConfig& config, bool sleeping) {
  return {{"role", "router"},
          {"max_instances", config.models_max},
          {"models_autoload", config.autoload},
          {"is_sleeping", sleeping},
          {"build_info", "facet " FACET_VERSION}};
}

HttpResponse router_health(const std::vector<std::unique_ptr<Model>>& models, const HealthAnswers& answers,
                           bool named) {
  Json each = Json::object();
  std::string reason;
  size_t failed = 0;
  bool starting = false;
  const auto note = [&](const Model& m, const std::string& why) {
    if (!reason.empty()) reason += "; ";
    reason += named ? fmt::format("{}: {}", m.config.name, why) : "a model is not well";
  };
  for (const auto& m : models) {
    Json j = {{"status", state_name(m->state)}};
    if (m->state == ModelState::kFailed) {
      ++failed;
      j["health"] = "failed", j["reason"] = m->failure;
      note(*m, m->failure);
    } else if (m->state == ModelState::kLoaded) {
      const auto a = answers.find(m->config.name);
      const auto body = parse_json(a == answers.end() ? "" : a->second, "");
      const std::string health = body && body->is_object() && body->contains("status") && (*body)["status"].is_string()
                                     ? (*body)["status"].get<std::string>()
                                     : "unresponsive";
      j["health"] = health;
      if (body && body->is_object() && body->contains("reason")) j["reason"] = (*body)["reason"];
      if (health != "ok") note(*m, j.contains("reason") ? j["reason"].get<std::string>() : "it does not answer");
    }
    if (m->deaths > 0) j["deaths"] = m->deaths, j["last_death"] = m->last_death;
    // At the start, what is pinned has to be there first.
    starting |= m->asked && m->loads == 0 && m->failures == 0;
    each[m->config.name] = std::move(j);
  }
  const char* status = failed == models.size() ? "failed" : starting ? "loading" : reason.empty() ? "ok" : "degraded";
  const bool up = std::string_view(status) == "ok" || std::string_view(status) == "degraded";
  if (starting && reason.empty()) reason = "a model that is loaded at the start is not there yet";
  Json body = up ? Json::object()
                 : error_json(Dialect::kOpenAi, {.status = 503, .message = reason, .param = "", .code = status});
  body["status"] = status;
  if (!reason.empty()) body["reason"] = reason;
  if (named) body["models"] = std::move(each);
  HttpResponse r = json_response(up ? 200 : 503, body);
  if (!up) r.headers.emplace_back("Retry-After", "1");
  return r;
}

void MetricsMerge::add(std::string_view text, const std::string& model) {
  std::string current;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(text.size(), end + 1));
    if (line.empty()) continue;
    if (line.starts_with("# ")) {
      const std::string_view rest = line.substr(line.find(' ', 2) + 1);
      current = rest.substr(0, rest.find(' '));
    } else if (!sample_name(line).starts_with(current) || current.empty()) {
      current = sample_name(line);
    }
    const auto [at, fresh] = families_.try_emplace(current);
    if (fresh) order_.push_back(current);
    if (!line.starts_with('#'))
      at->second.samples += model.empty() ? std::string(line) + "\n" : labelled(line, model);
    else if (at->second.samples.empty() && at->second.head.find(line) == std::string::npos)
      at->second.head += std::string(line) + "\n";
  }
}

std::string MetricsMerge::text() const {
  std::string out;
  for (const std::string& name : order_) {
    const Family& f = families_.find(name)->second;
    out += f.head + f.samples;
  }
  return out;
}

std::string router_metrics(const std::vector<std::unique_ptr<Model>>& models, const RouterCounts& counts) {
  std::string out;
  family(out, "facet_router_requests_total", "counter", "Requests that named a model, by the answer's status.");
  for (const auto& [by, n] : counts.requests)
    out += fmt::format("facet_router_requests_total{{model=\"{}\",status=\"{}\"}} {}\n", by.first, by.second, n);
  const auto each = [&](const char* name, const char* type, const char* help, auto&& value) {
    family(out, name, type, help);
    for (const auto& m : models) out += fmt::format("{}{{model=\"{}\"}} {}\n", name, m->config.name, value(*m));
  };
  each("facet_router_loads_total", "counter", "Loads that succeeded.", [](const Model& m) { return m.loads; });
  each("facet_router_failed_loads_total", "counter", "Loads that did not.",
       [](const Model& m) { return m.failed_loads; });
  family(out, "facet_router_unloads_total", "counter", "Unloads, by why.");
  for (const auto& m : models)
    for (const auto& [why, n] :
         {std::pair("limit", m->unloads_limit), {"asked", m->unloads_asked}, {"idle", m->unloads_idle}})
      out += fmt::format("facet_router_unloads_total{{model=\"{}\",why=\"{}\"}} {}\n", m->config.name, why, n);
  each("facet_router_deaths_total", "counter", "Processes that ended unasked.",
       [](const Model& m) { return m.deaths; });
  each("facet_router_restarts_total", "counter", "Of them, those that were started again at once.",
       [](const Model& m) { return m.restarts; });
  each("facet_router_requests_running", "gauge", "Requests that a process has.",
       [](const Model& m) { return m.running; });
  each("facet_router_requests_waiting", "gauge", "Requests that wait for a model.",
       [](const Model& m) { return m.waiting; });
  each("facet_router_model_loaded", "gauge", "Whether the model is in memory.",
       [](const Model& m) { return int(m.state == ModelState::kLoaded); });
  each("facet_router_model_failed", "gauge", "Whether it failed.",
       [](const Model& m) { return int(m.state == ModelState::kFailed); });
  each("facet_router_model_plan_bytes", "gauge", "Bytes that its last load planned.",
       [](const Model& m) { return m.plan_bytes; });
  return out;
}

}  // namespace facet
