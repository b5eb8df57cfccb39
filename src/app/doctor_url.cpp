// facet doctor --url: a server that runs, facet's or another that speaks OpenAI's API.
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "app/doctor.h"
#include "router/upstream.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr int kConnectMs = 5000;
constexpr auto kAnswers = std::chrono::seconds(120);  // a model may have to be loaded first
constexpr int kDisconnects = 5;

struct Answer {
  int status = 0;  // 0: there was none, and `body` says why
  std::string type = {}, body = {};
  int pieces = 0;       // that its body came in
  double spread_s = 0;  // between the first and the last of them
  Json json() const {
    auto j = parse_json(body, "");
    return j ? *j : Json();
  }
};

class Remote {
 public:
  static Result<Remote> at(const std::string& url, const std::string& key) {
    Remote r;
    std::string rest = url;
    if (rest.starts_with("https://"))
      return Error{"--url", "expected http://, found https://", "look at the server behind its proxy"};
    if (rest.starts_with("http://")) rest.erase(0, 7);
    const size_t slash = std::min(rest.find('/'), rest.size());
    r.base_ = rest.substr(slash);
    while (r.base_.ends_with('/')) r.base_.pop_back();
    if (r.base_.ends_with("/v1")) r.base_.resize(r.base_.size() - 3);
    rest.resize(slash);
    const size_t colon = rest.rfind(':'), bracket = rest.rfind(']');
    const bool port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
    r.port_ = port ? rest.substr(colon + 1) : "80";
    r.host_ = port ? rest.substr(0, colon) : rest;
    if (r.host_.starts_with('[') && r.host_.ends_with(']')) r.host_ = r.host_.substr(1, r.host_.size() - 2);
    r.authority_ = rest;
    const auto plain = [](char c) { return c > ' ' && c <= '~'; };
    if (r.host_.empty() || !std::all_of(url.begin(), url.end(), plain) || !std::all_of(key.begin(), key.end(), plain))
      return Error{"--url", fmt::format("expected http://ADDRESS:PORT, found \"{}\"", url), ""};
    r.key_ = key;
    return r;
  }

  Answer get(const std::string& path) const { return ask("GET", path, ""); }
  Answer post(const std::string& path, const Json& body) const { return ask("POST", path, dump_json(body)); }

  // Closes the connection after the first words of the answer.
  void drop(const std::string& path, const Json& body) const { ask("POST", path, dump_json(body), /*after_bytes=*/1); }

 private:
  Result<int> connect() const {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int e = ::getaddrinfo(host_.c_str(), port_.c_str(), &hints, &found); e != 0)
      return Error{"", ::gai_strerror(e), ""};
    std::string why = "no address";
    int fd = -1;
    for (const addrinfo* a = found; a && fd < 0; a = a->ai_next) {
      fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd < 0) continue;
      int error = ::connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        pollfd p{fd, POLLOUT, 0};
        socklen_t size = sizeof error;
        if (::poll(&p, 1, kConnectMs) != 1)
          error = ETIMEDOUT;
        else
          ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
      }
      if (error == 0) break;
      why = std::strerror(error);
      ::close(std::exchange(fd, -1));
    }
    ::freeaddrinfo(found);
    if (fd < 0) return Error{"", why, ""};
    return fd;
  }

  Answer ask(const char* method, const std::string& path, const std::string& body, size_t after_bytes = 0) const {
    Answer a;
    auto fd = connect();
    if (!fd) return {.status = 0, .body = fd.error().what};
    std::string text =
        fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", method, base_, path, authority_);
    if (!key_.empty()) text += fmt::format("Authorization: Bearer {}\r\n", key_);
    if (!body.empty()) text += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
    text += "\r\n" + body;
    boost::asio::io_context io;
    bool over = false, whole = false;
    std::chrono::steady_clock::time_point first, last;
    std::shared_ptr<Upstream> call;
    const auto close = [&] {
      over = true;
      call->cancel();
    };
    call = Upstream::start(io, *fd, text,
                           {.head = [&](const UpstreamHead& h) { a.status = h.status, a.type = h.type; },
                            .body =
                                [&](std::string_view piece) {
                                  last = std::chrono::steady_clock::now();
                                  if (a.pieces++ == 0) first = last;
                                  a.body += piece;
                                  if ((after_bytes > 0 && a.body.size() >= after_bytes) || a.body.size() > (64 << 20))
                                    boost::asio::post(io, close);
                                },
                            .done = [&](bool w) { over = true, whole = w; }});
    const auto until = std::chrono::steady_clock::now() + kAnswers;
    while (!over && std::chrono::steady_clock::now() < until) io.run_one_for(std::chrono::milliseconds(200));
    if (!over) close();
    a.spread_s = a.pieces > 1 ? std::chrono::duration<double>(last - first).count() : 0;
    if (!whole && after_bytes == 0) return {.status = 0, .body = a.status > 0 ? "the answer was cut off" : "no answer"};
    return a;
  }

  std::string host_, port_, authority_, base_, key_;
};

std::string first_model(const Json& list, const std::string& wanted) {
  if (!list.is_object() || !list.contains("data") || !list["data"].is_array()) return "";
  for (const Json& m : list["data"])
    if (m.is_object() && m.contains("id") && m["id"].is_string() && (wanted.empty() || m["id"] == wanted))
      return m["id"].get<std::string>();
  return "";
}

int64_t last_used(const Json& list, const std::string& model) {
  if (list.is_object() && list.contains("data") && list["data"].is_array())
    for (const Json& m : list["data"])
      if (m.is_object() && m.value("id", "") == model && m.contains("last_used_ms") && m["last_used_ms"].is_number())
        return m["last_used_ms"].get<int64_t>();
  return -1;
}

std::string why(const Answer& a) {
  if (a.status == 0) return a.body;
  const Json j = a.json();
  if (j.is_object() && j.contains("error") && j["error"].is_object())
    return fmt::format("status {}: {}", a.status, j["error"].value("message", ""));
  return fmt::format("status {}", a.status);
}

Json chat(const std::string& model, const char* text, int tokens) {
  return {{"model", model},
          {"max_tokens", tokens},
          {"temperature", 0},
          {"chat_template_kwargs", {{"enable_thinking", false}}},
          {"messages", Json::array({{{"role", "user"}, {"content", text}}})}};
}

// The message of a whole answer, or null.
Json message_of(const Json& answer) {
  if (!answer.is_object() || !answer.contains("choices") || !answer["choices"].is_array() || answer["choices"].empty())
    return {};
  const Json& c = answer["choices"][0];
  return c.is_object() && c.contains("message") ? c["message"] : Json();
}
bool has_text(const Json& m, const char* key) {
  return m.is_object() && m.contains(key) && m[key].is_string() && !m[key].get<std::string>().empty();
}

void look_at_answer(Findings& f, const Remote& r, const std::string& model) {
  // Long enough for a drafter to be worth its while, and for a thought to end.
  const Answer a = r.post("/v1/chat/completions", chat(model, "Tell me a short story about a cat.", 96));
  if (a.status != 200) return f.fail("answer", why(a), "see the server's log");
  const Json j = a.json(), m = message_of(j);
  if (!has_text(m, "content") && !has_text(m, "reasoning_content"))
    return f.fail("answer", "an empty message", "is it an instruct model? facet doctor -m says");
  f.ok("answer", fmt::format("{} tokens", j.contains("usage") ? j["usage"].value("completion_tokens", 0) : 0));
  if (!j.contains("timings") || !j["timings"].is_object()) return f.ok("drafting", "the server says nothing of it");
  const Json& t = j["timings"];
  const int drafted = t.value("draft_n", 0), right = t.value("draft_n_accepted", 0);
  const std::string inactive = t.contains("draft_inactive_reason") && t["draft_inactive_reason"].is_string()
                                   ? t["draft_inactive_reason"].get<std::string>()
                                   : "";
  if (drafted > 0 && right == 0)
    f.fail("drafting", fmt::format("none of {} drafted tokens was right", drafted),
           "the drafter belongs to another model");
  else if (drafted > 0)
    f.ok("drafting", fmt::format("{} of {} drafted tokens were right", right, drafted));
  else
    f.warn("drafting", inactive.empty() ? "nothing was drafted" : inactive,
           "no drafter is loaded, or plain steps are as fast");
}

void look_at_stream(Findings& f, const Remote& r, const std::string& model) {
  Json body = chat(model, "Tell me a short story about a dog.", 64);
  body["stream"] = true;
  const Answer a = r.post("/v1/chat/completions", body);
  if (a.status != 200) return f.fail("streaming", why(a), "see the server's log");
  int events = 0;
  for (size_t at = a.body.find("data: {"); at != std::string::npos; at = a.body.find("data: {", at + 1)) ++events;
  const bool ended = a.body.find("data: [DONE]") != std::string::npos;
  if (!ended || events < 2)
    f.fail("streaming", fmt::format("{} events, {}", events, ended ? "whole" : "no [DONE] at the end"),
           "a proxy cuts the stream, or the server does not stream");
  else if (events > 8 && a.pieces < 2)
    f.fail("streaming", fmt::format("{} events came all at once", events),
           "a proxy buffers: proxy_buffering off in nginx");
  else
    f.ok("streaming", fmt::format("{} events over {:.2f} s", events, a.spread_s));
}

void look_at_tools(Findings& f, const Remote& r, const std::string& model) {
  Json body = chat(model, "What is the weather in London?", 128);
  body["tool_choice"] = "required";
  body["tools"] = Json::array({{{"type", "function"},
                                {"function",
                                 {{"name", "get_weather"},
                                  {"description", "Get the weather of a city"},
                                  {"parameters",
                                   {{"type", "object"},
                                    {"properties", {{"city", {{"type", "string"}}}}},
                                    {"required", Json::array({"city"})}}}}}}});
  const Answer a = r.post("/v1/chat/completions", body);
  if (a.status != 200) return f.fail("tools", why(a), "the server was started without tools, or the model has none");
  const Json m = message_of(a.json());
  const bool called =
      m.is_object() && m.contains("tool_calls") && m["tool_calls"].is_array() && !m["tool_calls"].empty();
  const Json call = called ? m["tool_calls"][0] : Json();
  const bool named = call.is_object() && call.contains("function") && call["function"].is_object() &&
                     call["function"].value("name", "") == "get_weather";
  if (!named)
    return f.fail("tools", "a required call did not come", "calls may be written as text: check the chat template");
  const auto arguments = parse_json(call["function"].value("arguments", ""), "");
  if (!arguments) return f.fail("tools", "the call's arguments are no JSON", "");
  f.ok("tools", "a call with arguments came");
}

void look_at_disconnects(Findings& f, const Remote& r, const std::string& model) {
  Json body = chat(model, "Tell me a long story.", 2000);
  body["stream"] = true;
  for (int i = 0; i < kDisconnects; ++i) r.drop("/v1/chat/completions", body);
  const Answer a = r.post("/v1/chat/completions", chat(model, "Hello", 8));
  if (a.status != 200)
    f.fail("disconnects", fmt::format("after {} streams that were left: {}", kDisconnects, why(a)),
           "it does not let go of requests whose clients have gone");
  else
    f.ok("disconnects", fmt::format("it answers after {} streams that were left", kDisconnects));
}

}  // namespace

void look_at_url(Findings& f, const DoctorOptions& o) {
  const auto r = Remote::at(o.url, o.key);
  if (!r) return f.fail("url", r.error());
  const Answer health = r->get("/health");
  if (health.status == 0)
    return f.fail("url", fmt::format("{}: {}", o.url, health.body), "is it started, and is the port right?");
  const Json h = health.json();
  const std::string state =
      h.is_object() && h.contains("status") && h["status"].is_string() ? h["status"].get<std::string>() : "";
  const std::string reason =
      h.is_object() && h.contains("reason") && h["reason"].is_string() ? ": " + h["reason"].get<std::string>() : "";
  if (health.status != 200)
    f.fail("health", fmt::format("status {}{}", health.status, reason),
           state == "loading" ? "wait for it" : "see the server's log");
  else if (state == "degraded")
    f.warn("health", state + reason, "");
  else
    f.ok("health", state.empty() ? "200" : state);
  if (state == "loading") return;
  const Answer models = r->get("/v1/models");
  if (models.status == 401 || models.status == 403) return f.fail("models", why(models), "give its key: --api-key");
  const std::string model = first_model(models.json(), o.url_model);
  if (models.status != 200 || model.empty())
    return f.fail("models", models.status == 200 ? "the list has no such model" : why(models),
                  "GET /v1/models lists what it has");
  f.ok("models", model);
  const int64_t before = last_used(models.json(), model);
  look_at_answer(f, *r, model);
  if (f.all().back().name == "answer") return;  // it failed: the rest would, too
  look_at_stream(f, *r, model);
  look_at_tools(f, *r, model);
  const int64_t after = last_used(r->get("/v1/models").json(), model);
  if (after < 0)
    f.ok("last used", "the server does not say");
  else if (after > before)
    f.ok("last used", "last_used_ms goes on");
  else
    f.fail("last used", fmt::format("last_used_ms stays {} after answers", after),
           "idle models will be unloaded while they are in use");
  look_at_disconnects(f, *r, model);
}

}  // namespace facet
