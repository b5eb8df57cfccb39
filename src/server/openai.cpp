#include "server/openai.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

namespace facet {
namespace {

constexpr size_t kMaxMessages = 1024, kMaxTools = 256, kMaxStops = 16, kMaxStopBytes = 256, kMaxBias = 1024;
constexpr int kMaxTokens = 1 << 24;

std::string shown(const Json& v) {
  std::string s = dump_json(v);
  if (s.size() <= 40) return s;
  return v.type_name();
}

// The fields of an object, each read once with its type and range. The first error stays; null counts as absent.
class Fields {
 public:
  explicit Fields(const Json& object, std::string prefix = "") : object_(object), prefix_(std::move(prefix)) {
    if (!object.is_object()) fail("", "expected an object", &object);
  }

  const Json* get(const char* key) {
    known_.insert(key);
    if (error_ || !object_.is_object()) return nullptr;
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const char* key) { return get(key) != nullptr; }

  void boolean(const char* key, bool& out) {
    const Json* v = get(key);
    if (!v) return;
    if (!v->is_boolean()) return fail(key, "expected true or false", v);
    out = v->get<bool>();
  }
  void integer(const char* key, int lo, int hi, int& out) {
    const Json* v = get(key);
    if (!v) return;
    const auto n = whole(*v, lo, hi);
    if (!n) return fail(key, fmt::format("expected an integer in [{}, {}]", lo, hi), v);
    out = int(*n);
  }
  void number(const char* key, double lo, double hi, float& out) {
    const Json* v = get(key);
    if (!v) return;
    if (!v->is_number() || !(v->get<double>() >= lo && v->get<double>() <= hi))
      return fail(key, fmt::format("expected a number in [{}, {}]", lo, hi), v);
    out = float(v->get<double>());
  }
  void string(const char* key, std::string& out) {
    const Json* v = get(key);
    if (!v) return;
    if (!v->is_string()) return fail(key, "expected a string", v);
    out = v->get<std::string>();
  }
  // A field of which only values that change nothing are supported.
  template <class... T>
  void only(const char* key, const char* expected, T... values) {
    const Json* v = get(key);
    if (v && !((*v == Json(values)) || ...)) fail(key, fmt::format("expected {}", expected), v, "not supported");
  }

  static std::optional<int64_t> whole(const Json& v, int64_t lo, int64_t hi) {
    if (!v.is_number_integer()) return std::nullopt;
    if (v.is_number_unsigned() && v.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max()))
      return std::nullopt;
    const int64_t n = v.get<int64_t>();
    if (n < lo || n > hi) return std::nullopt;
    return n;
  }

  std::string path(std::string_view key) const {
    return prefix_.empty() ? std::string(key) : key.empty() ? prefix_ : fmt::format("{}.{}", prefix_, key);
  }
  void fail(std::string_view key, std::string expected, const Json* found, std::string hint = "") {
    fail(Error{path(key), fmt::format("{}, found {}", expected, found ? shown(*found) : "nothing"), std::move(hint)});
  }
  void fail(Error e) {
    if (!error_) error_ = std::move(e);
  }
  void check(const Status& s) {
    if (!s) fail(s.error());
  }
  bool failed() const { return error_.has_value(); }

  // To be called last: what nobody asked for is unknown.
  Status done() {
    if (!error_)
      for (auto it = object_.begin(); it != object_.end(); ++it)
        if (!known_.count(it.key())) {
          fail(Error{path(it.key().substr(0, 64)), "not supported", "docs/server.md lists the fields"});
          break;
        }
    if (error_) return *error_;
    return Ok{};
  }

 private:
  const Json& object_;
  std::string prefix_;
  std::set<std::string, std::less<>> known_;
  std::optional<Error> error_;
};

void read_stop(Fields& f, ApiRequest& r) {
  const Json* v = f.get("stop");
  if (!v) return;
  auto add = [&](const Json& s, const std::string& key) {
    if (!s.is_string() || s.get_ref<const std::string&>().empty() ||
        s.get_ref<const std::string&>().size() > kMaxStopBytes)
      return f.fail(key, fmt::format("expected a string of 1 to {} bytes", kMaxStopBytes), &s);
    r.stop.push_back(s.get<std::string>());
  };
  if (!v->is_array()) return add(*v, "stop");
  if (v->size() > kMaxStops)
    return f.fail(Error{"stop", fmt::format("expected at most {} strings, found {}", kMaxStops, v->size()), ""});
  for (size_t i = 0; i < v->size(); ++i) add((*v)[i], fmt::format("stop[{}]", i));
}

void read_bias(Fields& f, ApiRequest& r, int n_vocab) {
  const Json* v = f.get("logit_bias");
  if (!v) return;
  if (!v->is_object()) return f.fail("logit_bias", "expected an object of token ids and numbers", v);
  if (v->size() > kMaxBias)
    return f.fail(Error{"logit_bias", fmt::format("expected at most {} entries, found {}", kMaxBias, v->size()), ""});
  r.sampling.logit_bias.clear();
  for (auto it = v->begin(); it != v->end(); ++it) {
    int id = -1;
    const std::string& key = it.key();
    const auto [end, ec] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (ec != std::errc() || end != key.data() + key.size() || id < 0 || id >= n_vocab)
      return f.fail(
          Error{"logit_bias",
                fmt::format("expected token ids in [0, {}) as keys, found \"{}\"", n_vocab, key.substr(0, 40)), ""});
    if (!it->is_number() || !(std::abs(it->get<double>()) <= 100))
      return f.fail("logit_bias." + key, "expected a number in [-100, 100]", &*it);
    r.sampling.logit_bias.emplace_back(id, float(it->get<double>()));
  }
}

// One limit under three names.
void read_max_tokens(Fields& f, ApiRequest& r) {
  const char* given = nullptr;
  for (const char* key : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    const Json* v = f.get(key);
    if (!v) continue;
    const auto n = Fields::whole(*v, -1, kMaxTokens);
    if (!n || *n == 0)
      return f.fail(key, fmt::format("expected an integer in [1, {}], or -1 for no limit", kMaxTokens), v);
    if (given && *n != r.max_tokens) return f.fail(key, fmt::format("expected the same value as {}", given), v);
    r.max_tokens = int(*n);
    given = key;
  }
}

void read_common(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.sampling = d.sampling;
  r.seed_given = d.seed_given;
  r.max_tokens = d.max_tokens;

  std::string ignored;
  f.string("model", ignored);
  f.boolean("stream", r.stream);
  if (const Json* v = f.get("stream_options")) {
    Fields o(*v, "stream_options");
    o.boolean("include_usage", r.include_usage);
    o.get("include_obfuscation");
    f.check(o.done());
    if (!r.stream) f.fail(Error{"stream_options", "expected only with stream: true", ""});
  }
  read_max_tokens(f, r);
  Sampling& s = r.sampling;
  f.number("temperature", 0, 100, s.temperature);
  f.number("top_p", 0, 1, s.top_p);
  f.number("min_p", 0, 1, s.min_p);
  f.integer("top_k", -1, kMaxTokens, s.top_k);
  f.number("presence_penalty", -100, 100, s.presence_penalty);
  f.number("frequency_penalty", -100, 100, s.frequency_penalty);
  f.number("repeat_penalty", .01, 100, s.repeat_penalty);
  f.integer("repeat_last_n", -1, kMaxTokens, s.repeat_last_n);
  if (const Json* v = f.get("seed")) {
    const auto n = Fields::whole(*v, -1, std::numeric_limits<int64_t>::max());
    if (!n)
      f.fail("seed", "expected an integer from 0 on, or -1 for a random one", v);
    else if ((r.seed_given = *n >= 0))
      s.seed = uint64_t(*n);
  }
  read_stop(f, r);
  read_bias(f, r, d.n_vocab);
  f.boolean("ignore_eos", r.ignore_eos);

  f.only("n", "1", 1);
  if (const Json* v = f.get("response_format");
      v && !(v->is_object() && v->size() == 1 && v->value("type", Json()) == "text"))
    f.fail("response_format", "expected {\"type\":\"text\"}", v, "not supported");
  // These change nothing here.
  for (const char* key : {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
    f.get(key);
}

void read_thinking(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.thinking = d.thinking;
  f.boolean("enable_thinking", r.thinking);
  const Json* v = f.get("chat_template_kwargs");
  if (!v) return;
  Fields k(*v, "chat_template_kwargs");
  bool thinking = r.thinking;
  k.boolean("enable_thinking", thinking);
  k.boolean("preserve_thinking", r.preserve_thinking);
  f.check(k.done());
  if (f.has("enable_thinking") && thinking != r.thinking)
    f.fail(Error{"chat_template_kwargs.enable_thinking", "contradicts enable_thinking", "give one of them"});
  r.thinking = thinking;
}

void read_messages(Fields& f, ApiRequest& r) {
  const Json* v = f.get("messages");
  if (!v || !v->is_array() || v->empty()) return f.fail("messages", "expected an array of at least one message", v);
  if (v->size() > kMaxMessages)
    return f.fail(
        Error{"messages", fmt::format("expected at most {} messages, found {}", kMaxMessages, v->size()), ""});
  auto messages = messages_from_json(*v);
  if (!messages) return f.fail(messages.error());
  r.messages = std::move(*messages);
  for (size_t i = 0; i < r.messages.size(); ++i)
    if (const auto* parts = std::get_if<std::vector<ContentPart>>(&r.messages[i].content))
      for (size_t p = 0; p < parts->size(); ++p)
        if ((*parts)[p].kind != ContentPart::Kind::kText)
          return f.fail(Error{fmt::format("messages[{}].content[{}].type", i, p),
                              "expected text, found a picture, sound or video", "not supported"});
}

void read_tools(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("tools")) {
    if (v->is_array() && v->size() > kMaxTools)
      return f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
    auto tools = tools_from_json(*v);
    if (!tools) return f.fail(tools.error());
    r.tools = std::move(*tools);
  }
  f.only("tool_choice", "\"auto\" or \"none\"", "auto", "none");
  if (const Json* v = f.get("tool_choice"); v && *v == "none") r.tools.clear();
  f.only("parallel_tool_calls", "true", true);
}

void read_prompt(Fields& f, ApiRequest& r, int n_vocab) {
  const Json* v = f.get("prompt");
  if (v && v->is_array() && v->size() == 1 && (*v)[0].is_string()) v = &(*v)[0];
  if (v && v->is_string()) {
    r.prompt = v->get<std::string>();
    return;
  }
  if (!v || !v->is_array() || v->empty())
    return f.fail("prompt", "expected a string or an array of token ids", v, "one prompt a request");
  r.prompt_ids.reserve(v->size());
  for (size_t i = 0; i < v->size(); ++i) {
    const auto id = Fields::whole((*v)[i], 0, n_vocab - 1);
    if (!id)
      return f.fail(fmt::format("prompt[{}]", i), fmt::format("expected a token id in [0, {})", n_vocab), &(*v)[i],
                    "one prompt a request");
    r.prompt_ids.push_back(int32_t(*id));
  }
}

Json envelope(const ApiAnswer& a, bool chunk) {
  const char* object = a.kind == ApiKind::kCompletion ? "text_completion"
                       : chunk                        ? "chat.completion.chunk"
                                                      : "chat.completion";
  return {{"id", a.id}, {"object", object}, {"created", a.created}, {"model", a.model}};
}

Json with_choice(const ApiAnswer& a, bool chunk, const char* key, Json value, Json finish) {
  Json j = envelope(a, chunk);
  Json choice = {{"index", 0}, {key, std::move(value)}, {"logprobs", nullptr}, {"finish_reason", std::move(finish)}};
  j["choices"] = Json::array({std::move(choice)});
  return j;
}

// Ids of calls are unique among answers: clients match results to calls by them.
Json call_json(const ApiAnswer& a, const ParsedCall& c) {
  const std::string answer = a.id.substr(a.id.find('-') + 1);
  return {{"id", fmt::format("call_{}_{}", answer, c.id.substr(c.id.find('_') + 1))},
          {"type", "function"},
          {"function", {{"name", c.name}, {"arguments", c.arguments}}}};
}

double ms(double seconds) { return std::round(seconds * 1e6) / 1e3; }
double rate(int n, double seconds) { return seconds > 0 ? std::round(n / seconds * 1e3) / 1e3 : 0; }

}  // namespace

Result<ApiRequest> parse_api_request(ApiKind kind, const Json& body, const ApiDefaults& d) {
  ApiRequest r;
  r.kind = kind;
  if (!body.is_object())
    return Error{"", fmt::format("expected a JSON object as the body, found {}", body.type_name()), ""};
  Fields f(body);
  read_common(f, r, d);
  if (kind == ApiKind::kChat) {
    read_messages(f, r);
    read_tools(f, r);
    read_thinking(f, r, d);
    f.only("logprobs", "false", false);
    f.only("top_logprobs", "0", 0);
    if (const Json* v = f.get("modalities"); v && *v != Json::array({"text"}))
      f.fail("modalities", "expected [\"text\"]", v, "not supported");
  } else {
    read_prompt(f, r, d.n_vocab);
    f.only("echo", "false", false);
    f.only("best_of", "1", 1);
    f.only("suffix", "null or \"\"", "");
    f.only("logprobs", "null", nullptr);
  }
  if (auto ok = f.done(); !ok) return ok.error();
  return r;
}

// --- stop strings

std::string StopMatcher::push(std::string_view text) {
  if (stopped_) return "";
  held_ += text;
  if (stop_.empty()) return std::exchange(held_, {});
  size_t end = std::string::npos, begin = 0;
  for (const std::string& s : stop_) {
    const size_t at = held_.find(s);
    if (at == std::string::npos) continue;
    if (at + s.size() < end || (at + s.size() == end && at < begin)) end = at + s.size(), begin = at;
  }
  if (end != std::string::npos) {
    stopped_ = true;
    held_.resize(begin);
    return std::exchange(held_, {});
  }
  // The longest end that begins a stop string stays.
  size_t keep = 0;
  for (const std::string& s : stop_)
    for (size_t n = std::min(s.size() - 1, held_.size()); n > keep; --n)
      if (std::string_view(held_).ends_with(std::string_view(s).substr(0, n))) keep = n;
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

std::vector<ParseEvent> AnswerText::filter(std::vector<ParseEvent> events) {
  std::vector<ParseEvent> out;
  for (ParseEvent& e : events) {
    if (stopped()) break;
    if (e.kind == ParseEvent::Kind::kContent) e.text = stop_.push(e.text);
    if (e.kind == ParseEvent::Kind::kToolCall || !e.text.empty()) out.push_back(std::move(e));
  }
  return out;
}

std::vector<ParseEvent> AnswerText::push(std::string_view text) {
  if (stopped() || text.empty()) return {};
  if (kind_ == ApiKind::kChat) return filter(parser_.push(text));
  return filter({{ParseEvent::Kind::kContent, std::string(text), {}}});
}

std::vector<ParseEvent> AnswerText::finish() {
  if (stopped()) return {};
  std::vector<ParseEvent> out;
  if (kind_ == ApiKind::kChat) out = filter(parser_.finish());
  if (std::string held = stop_.finish(); !stopped() && !held.empty())
    out.push_back({ParseEvent::Kind::kContent, std::move(held), {}});
  return out;
}

// --- answers

void add_event(ParsedMessage& m, const ParseEvent& e) {
  switch (e.kind) {
    case ParseEvent::Kind::kContent:
      m.content += e.text;
      break;
    case ParseEvent::Kind::kReasoning:
      m.reasoning += e.text;
      break;
    case ParseEvent::Kind::kToolCall:
      m.tool_calls.push_back(e.call);
      break;
  }
}

const char* finish_reason(Stop why, bool stop_string, bool tool_calls) {
  if (!stop_string && (why == Stop::kLength || why == Stop::kContext)) return "length";
  return tool_calls ? "tool_calls" : "stop";
}

Json usage_json(const Usage& u) {
  return {{"prompt_tokens", u.prompt},
          {"completion_tokens", u.generated},
          {"total_tokens", u.prompt + u.generated},
          {"prompt_tokens_details", {{"cached_tokens", u.cached}}}};
}

Json timings_json(const Usage& u) {
  const int n = u.prompt - u.cached;
  Json j = {{"cache_n", u.cached},
            {"prompt_n", n},
            {"prompt_ms", ms(u.prefill_s)},
            {"prompt_per_token_ms", n > 0 ? ms(u.prefill_s / n) : 0},
            {"prompt_per_second", rate(n, u.prefill_s)},
            {"predicted_n", u.generated},
            {"predicted_ms", ms(u.decode_s)},
            {"predicted_per_token_ms", u.generated > 0 ? ms(u.decode_s / u.generated) : 0},
            {"predicted_per_second", rate(u.generated, u.decode_s)}};
  if (u.drafted > 0) {
    j["draft_n"] = u.drafted, j["draft_n_accepted"] = u.accepted;
    j["draft_rounds"] = u.rounds;
    j["draft_tokens_per_step"] = std::round(u.tokens_per_step() * 1e3) / 1e3;
    Json& at = j["draft_accepted_at"] =
        Json::array();  // of the rounds that came to the k-th draft, the share where it was right
    for (size_t k = 0; k < u.offered_at.size(); ++k)
      at.push_back(u.offered_at[k] > 0 ? std::round(1e3 * u.accepted_at[k] / u.offered_at[k]) / 1e3 : 0);
    Json& methods = j["draft_methods"] = Json::array();
    for (const Usage::Change& m : u.methods) methods.push_back({{"at", m.at}, {"method", m.method}});
  }
  if (!u.draft_inactive_reason.empty()) j["draft_inactive_reason"] = u.draft_inactive_reason;
  return j;
}

Json api_response(const ApiAnswer& a, const ParsedMessage& m, const char* finish, const Usage& usage) {
  Json j;
  if (a.kind == ApiKind::kCompletion) {
    j = with_choice(a, false, "text", m.content, finish);
  } else {
    Json message = {{"role", "assistant"},
                    {"content", m.content.empty() && !m.tool_calls.empty() ? Json() : Json(m.content)}};
    if (!m.reasoning.empty()) message["reasoning_content"] = m.reasoning;
    for (const ParsedCall& c : m.tool_calls) message["tool_calls"].push_back(call_json(a, c));
    j = with_choice(a, false, "message", std::move(message), finish);
  }
  j["usage"] = usage_json(usage);
  j["timings"] = timings_json(usage);
  return j;
}

Json chunk_role(const ApiAnswer& a) {
  return with_choice(a, true, "delta", {{"role", "assistant"}, {"content", ""}}, nullptr);
}

Json chunk_event(const ApiAnswer& a, const ParseEvent& e, int tool_index) {
  if (a.kind == ApiKind::kCompletion) return with_choice(a, true, "text", e.text, nullptr);
  Json delta = Json::object();
  if (e.kind == ParseEvent::Kind::kToolCall) {
    Json call = {{"index", tool_index}};
    call.update(call_json(a, e.call));
    delta["tool_calls"] = Json::array({std::move(call)});
  } else {
    delta[e.kind == ParseEvent::Kind::kReasoning ? "reasoning_content" : "content"] = e.text;
  }
  return with_choice(a, true, "delta", std::move(delta), nullptr);
}

Json chunk_finish(const ApiAnswer& a, const char* finish, const Usage& usage) {
  Json j = a.kind == ApiKind::kCompletion ? with_choice(a, true, "text", "", finish)
                                          : with_choice(a, true, "delta", Json::object(), finish);
  j["timings"] = timings_json(usage);
  return j;
}

Json chunk_usage(const ApiAnswer& a, const Usage& usage) {
  Json j = envelope(a, true);
  j["choices"] = Json::array();
  j["usage"] = usage_json(usage);
  return j;
}

std::string sse(const Json& chunk) { return "data: " + dump_json(chunk) + "\n\n"; }

// --- errors

ApiError api_error(const Error& e) { return {.status = 400, .message = e.message(), .param = e.where, .code = ""}; }

Json error_json(const ApiError& e) {
  const char* type = e.status == 401   ? "authentication_error"
                     : e.status == 403 ? "permission_error"
                     : e.status == 404 ? "not_found_error"
                     : e.status == 503 ? "unavailable_error"
                     : e.status >= 500 ? "server_error"
                                       : "invalid_request_error";
  auto text = [](const std::string& s) { return s.empty() ? Json() : Json(s); };
  return {{"error", {{"message", e.message}, {"type", type}, {"param", text(e.param)}, {"code", text(e.code)}}}};
}

}  // namespace facet
