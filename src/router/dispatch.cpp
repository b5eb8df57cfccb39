#include "router/dispatch.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api_fields.h"

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTellEvery = std::chrono::milliseconds(500);
constexpr auto kReasonWithin = std::chrono::seconds(3);  // for a process's end to be known after its connections'

std::string request_text(const HttpRequest& r) {
  std::string s = fmt::format("{} {}{}{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                              r.method == "HEAD" ? "GET" : r.method, r.path, r.query.empty() ? "" : "?", r.query);
  // A name of a header may come several times; these count.
  for (const char* name : {"content-type", "accept", "anthropic-version", "anthropic-beta"})
    if (const auto value = r.header(name); !value.empty()) s += fmt::format("{}: {}\r\n", name, value);
  if (r.method == "POST") s += fmt::format("Content-Length: {}\r\n", r.body.size());
  return s + "\r\n" + r.body;
}

bool gives_stream(const RoutedRequest& p) { return p.generates && p.fields.stream && p.dialect != Dialect::kOllama; }

// The message of an error that a process answered with.
std::string message_of(const std::string& body) {
  const auto j = parse_json(body, "");
  if (!j || !j->is_object() || !j->contains("error")) return "the model's process refused the request";
  const Json& e = (*j)["error"];
  if (e.is_object() && e.contains("message") && e["message"].is_string()) return e["message"].get<std::string>();
  return e.is_string() ? e.get<std::string>() : "the model's process refused the request";
}

}  // namespace

void RoutedRequest::leave(const char* why) {
  gone = why;
  if (upstream) upstream->cancel();
  upstream = nullptr;
  reply = nullptr;
  if (const auto undo = std::exchange(left, nullptr)) undo();
}

void RoutedRequest::buffer(std::string_view piece) {
  no_room = no_room || !body_room.resize(body.size() + piece.size());
  if (!no_room)
    body += piece;
  else
    body = {}, body_room.release();
}

void Dispatch::recount(Model& m) {
  const Queues& q = queues_[&m];
  m.waiting = int(q.waiting.size());
  m.running = int(q.running.size());
  if (!q.waiting.empty()) m.waiting_since = q.waiting.front()->since;
}

void Dispatch::refuse(RoutedRequest& p, const std::string& model, const ApiError& e) {
  if (!model.empty()) ++counts_.requests[{model, e.status}];
  log_.info("refused status={}{}", e.status, model.empty() ? "" : " model=" + model);
  p.left = nullptr;
  if (!p.reply) return;
  if (p.begun) {
    p.reply->write(stream_error(p.dialect, e));
    p.reply->end();
  } else {
    p.reply->send(error_response(p.dialect, e));
  }
  p.reply = nullptr;
}

void Dispatch::route(const RoutedPtr& p, Model& m, bool may_load) {
  const std::string& name = m.config.name;
  if (m.takes_requests()) return hand(p, m);
  if (!may_load)
    return refuse(*p, name,
                  {.status = 400,
                   .message = fmt::format("the model {} is not loaded", name),
                   .param = "model",
                   .code = "model_not_loaded"});
  if (!pool_.may_load(m)) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(m.retry_at - Clock::now()).count();
    return refuse(
        *p, name,
        {.status = 503,
         .message = fmt::format("the model {} failed: {} (it is tried again in {} s, or when its file changes)", name,
                                m.failure, seconds),
         .param = "model",
         .code = "model_failed"});
  }
  if (queues_[&m].waiting.size() >= size_t(c_.front.queue))
    return refuse(*p, name, {.status = 503, .message = "the queue is full", .param = "", .code = "queue_full"});
  wait(p, m);
  pool_.schedule();
}

void Dispatch::wait(const RoutedPtr& p, Model& m) {
  queues_[&m].waiting.push_back(p);
  p->left = [this, weak = std::weak_ptr(p), &m] {
    std::erase(queues_[&m].waiting, weak.lock());
    recount(m);
  };
  recount(m);
}

void Dispatch::hand(const RoutedPtr& p, Model& m) {
  const auto fd = m.child->connect();
  if (!fd) return wait(p, m);  // it is about to be known that it ended
  Queues& q = queues_[&m];
  q.running.insert(p);
  p->handed = true;
  p->left = [this, weak = std::weak_ptr(p), &m] {
    const RoutedPtr gone = weak.lock();
    log_.info("model={} stop={} seconds={:.2f}", m.config.name, gone->gone,
              std::chrono::duration<double>(Clock::now() - gone->since).count());
    queues_[&m].running.erase(gone);
    queues_[&m].broken.erase(gone);
    recount(m);
    pool_.used(m);
    boost::asio::post(io_, [this] { pool_.schedule(); });
  };
  recount(m);
  pool_.used(m);
  p->body_room = Room::Part(answers_);
  std::string text = request_text(p->request);
  p->request.body.clear();
  p->request.body.shrink_to_fit();
  p->upstream = Upstream::start(io_, *fd, std::move(text),
                                {.head =
                                     [p](const UpstreamHead& h) {
                                       p->head = h;
                                       p->request.body_room.release();  // the process has read it
                                       p->streaming = h.stream && h.status == 200;
                                       if (p->streaming && !p->begun && p->reply) p->reply->begin(h.type);
                                     },
                                 .body =
                                     [p](std::string_view piece) {
                                       if (p->streaming && p->reply) p->reply->write(piece);
                                       if (!p->streaming) p->buffer(piece);
                                     },
                                 .done = [this, p, &m](bool whole) { answered(p, m, whole); }});
}

void Dispatch::answered(const RoutedPtr& p, Model& m, bool whole) {
  p->upstream = nullptr;
  if (!whole) {
    queues_[&m].broken.emplace(p, Clock::now());
    return;
  }
  if (p->head.status == 200) m.restarted = false;
  if (p->no_room) {
    HttpResponse r = error_response(
        p->dialect, {.status = 503,
                     .message = "the answers of other requests take all of the memory there is (--answer-memory)",
                     .param = "",
                     .code = ""});
    p->head = {.status = r.status, .type = r.type, .headers = r.headers};
    p->body = std::move(r.body);
  }
  if (p->reply && p->streaming) p->reply->end();
  if (p->reply && !p->streaming) finish_buffered(*p);
  end(p, m, p->head.status);
}

// An answer that is no stream, where one may have begun in the meantime.
void Dispatch::finish_buffered(RoutedRequest& p) {
  if (!p.begun)
    return p.reply->send(
        {.status = p.head.status, .type = p.head.type, .body = std::move(p.body), .headers = p.head.headers});
  if (p.head.status == 200)
    p.reply->write(p.body);
  else
    p.reply->write(stream_error(p.dialect, {.status = p.head.status, .message = message_of(p.body), .param = ""}));
  p.reply->end();
}

void Dispatch::end(const RoutedPtr& p, Model& m, int status) {
  Queues& q = queues_[&m];
  q.running.erase(p);
  q.broken.erase(p);
  p->left = nullptr;
  p->reply = nullptr;
  p->body_room.release();
  ++counts_.requests[{m.config.name, status}];
  log_.info("model={} status={} seconds={:.2f}{}{}", m.config.name, status,
            std::chrono::duration<double>(Clock::now() - p->since).count(), p->key.empty() ? "" : " key=", p->key);
  recount(m);
  pool_.used(m);
  boost::asio::post(io_, [this] { pool_.schedule(); });
}

void Dispatch::give_up(const RoutedPtr& p, Model& m, const std::string& why) {
  if (p->upstream) p->upstream->cancel();
  p->upstream = nullptr;
  const ApiError e{.status = 502,
                   .message = fmt::format("the model {} ended before the answer was complete: {}", m.config.name, why),
                   .param = "",
                   .code = "model_died"};
  if (p->reply && (p->begun || p->streaming)) {
    p->reply->write(stream_error(p->dialect, e));
    p->reply->end();
  } else if (p->reply) {
    p->reply->send(error_response(p->dialect, e));
  }
  end(p, m, e.status);
}

void Dispatch::ready(Model& m) {
  answer_watchers(m);
  const auto waiting = std::exchange(queues_[&m].waiting, {});
  for (const RoutedPtr& p : waiting) {
    p->left = nullptr;
    hand(p, m);
  }
  recount(m);
}

void Dispatch::failed(Model& m, int status, const std::string& why) {
  answer_watchers(m);
  const auto waiting = std::exchange(queues_[&m].waiting, {});
  for (const RoutedPtr& p : waiting)
    refuse(*p, m.config.name,
           {.status = status,
            .message = fmt::format("the model {} cannot be loaded: {}", m.config.name, why),
            .param = "model",
            .code = "model_failed"});
  recount(m);
}

void Dispatch::died(Model& m, const std::string& why) {
  const auto running = queues_[&m].running;
  for (const RoutedPtr& p : running) give_up(p, m, why);
}

void Dispatch::load(const RoutedPtr& p, Model& m) {
  if (m.state != ModelState::kLoaded || m.leaving) m.asked = true;
  if (!p->fields.wait || m.takes_requests())
    p->reply->send(json_response(200, {{"success", true}}));
  else
    queues_[&m].watching.push_back(p);
  pool_.schedule();
}

void Dispatch::unload(const RoutedPtr& p, Model& m) {
  pool_.unload(m);
  if (!p->fields.wait)
    p->reply->send(json_response(200, {{"success", true}}));
  else
    queues_[&m].watching.push_back(p);
  answer_watchers(m);
}

void Dispatch::answer_watchers(Model& m) {
  Queues& q = queues_[&m];
  std::erase_if(q.watching, [&](const RoutedPtr& p) {
    if (p->gone || !p->reply) return true;
    const bool loads = p->request.path.ends_with("/load");
    const bool up = m.state == ModelState::kLoaded, failed = m.state == ModelState::kFailed;
    if (loads && failed)
      refuse(*p, m.config.name, {.status = 500, .message = m.failure, .param = "model", .code = "model_failed"});
    else if (loads ? up : failed || m.state == ModelState::kUnloaded || m.state == ModelState::kSleeping)
      p->reply->send(json_response(200, {{"success", true}}));
    else
      return false;
    return true;
  });
}

// Keeps a stream alive while its model is loaded; with return_progress it says how far that is.
void Dispatch::tell_progress(RoutedRequest& p, const Model& m) {
  const auto now = Clock::now();
  const auto silence = std::chrono::seconds(c_.front.http.ping_s);
  if (!p.reply || !gives_stream(p) || (!p.fields.progress && now - p.since < silence)) return;
  if (p.begun && now - p.told_at < (p.fields.progress ? kTellEvery : Clock::duration(silence))) return;
  if (!p.begun) p.reply->begin("text/event-stream");
  p.begun = true, p.told_at = now;
  const bool loading = m.state == ModelState::kLoading;
  if (p.fields.progress && p.dialect == Dialect::kOpenAi)
    p.reply->write(sse({{"object", "load_progress"},
                        {"model", m.config.name},
                        {"choices", Json::array()},
                        {"load_progress", {{"status", state_name(m.state)}, {"value", loading ? m.progress : 0.}}}}));
  else
    p.reply->write(fmt::format(": {} {:.0f} %\n\n", state_name(m.state), loading ? 100 * m.progress : 0.));
}

void Dispatch::tick() {
  const auto now = Clock::now();
  const auto most = std::chrono::seconds(c_.load_s);
  for (auto& [model, q] : queues_) {
    Model& m = *model;
    while (!q.waiting.empty() && now - q.waiting.front()->since >= most) {
      const RoutedPtr p = q.waiting.front();
      q.waiting.pop_front();
      refuse(*p, m.config.name,
             {.status = 504,
              .message = fmt::format("the model {} was not loaded within {} s", m.config.name, c_.load_s),
              .param = "model",
              .code = "load_timeout"});
    }
    for (const RoutedPtr& p : q.waiting) tell_progress(*p, m);
    std::vector<RoutedPtr> broken;
    for (const auto& [p, at] : q.broken)
      if (now - at >= kReasonWithin) broken.push_back(p);
    for (const RoutedPtr& p : broken) give_up(p, m, "its process closed the connection");
    answer_watchers(m);
    recount(m);
  }
}

void Dispatch::close() {
  for (auto& [m, q] : queues_) {
    for (const RoutedPtr& p : q.running)
      if (p->upstream) p->upstream->cancel();
    q = {};
    recount(*m);
  }
}

}  // namespace facet
