#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/openai.h"
#include "server/slots.h"
#include "server/writers.h"
#include "tokenizer/json.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

Json envelope(const ApiAnswer& a, bool chunk) {
  const char* object = a.kind == ApiKind::kCompletion ? "text_completion"
                       : chunk                        ? "chat.completion.chunk"
                                                      : "chat.completion";
  Json j = {{"id", a.id}, {"object", object}, {"created", a.created}, {"model", a.model}};
  if (!a.fingerprint.empty()) j["system_fingerprint"] = a.fingerprint;
  return j;
}

Json with_choice(const ApiAnswer& a, bool chunk, const char* key, Json value, Json finish) {
  Json j = envelope(a, chunk);
  Json choice = {
      {"index", a.index}, {key, std::move(value)}, {"logprobs", nullptr}, {"finish_reason", std::move(finish)}};
  j["choices"] = Json::array({std::move(choice)});
  return j;
}

Json call_json(const ApiAnswer& a, const ParsedCall& c) {
  return {{"id", call_id("call_", a, c)},
          {"type", "function"},
          {"function", {{"name", c.name}, {"arguments", c.arguments}}}};
}

Json token_json(const std::string& bytes, float logprob) {
  return {
      {"token", token_name(bytes)}, {"logprob", logprob}, {"bytes", std::vector<uint8_t>(bytes.begin(), bytes.end())}};
}

// offset: characters before the tokens; moves behind them.
Json completion_logprobs(const std::vector<LoggedToken>& tokens, int& offset) {
  Json names = Json::array(), own = Json::array(), top = Json::array(), at = Json::array();
  for (const LoggedToken& t : tokens) {
    names.push_back(token_name(t.text));
    own.push_back(t.logprob ? Json(*t.logprob) : Json());
    Json best = Json();
    if (t.logprob) {
      best = Json::object();
      for (const LoggedToken::Other& o : t.top)
        if (const std::string name = token_name(o.text); !best.contains(name)) best[name] = o.logprob;
    }
    top.push_back(std::move(best));
    at.push_back(offset);
    offset += int(std::count_if(t.text.begin(), t.text.end(), [](char c) { return (uint8_t(c) & 0xC0) != 0x80; }));
  }
  return {{"tokens", std::move(names)},
          {"token_logprobs", std::move(own)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(at)}};
}

double ms(double seconds) { return std::round(seconds * 1e6) / 1e3; }
double rate(int n, double seconds) { return seconds > 0 ? std::round(n / seconds * 1e3) / 1e3 : 0; }

}  // namespace

// --- log-probabilities

std::string token_name(const std::string& bytes) {
  if (utf8_sanitize(bytes) == bytes) return bytes;
  std::string s = "bytes:";
  for (const char c : bytes) s += fmt::format("\\x{:02x}", uint8_t(c));
  return s;
}

Json chat_logprobs(const std::vector<LoggedToken>& tokens) {
  Json content = Json::array();
  for (const LoggedToken& t : tokens) {
    Json j = token_json(t.text, t.logprob.value_or(0));
    Json& top = j["top_logprobs"] = Json::array();
    for (const LoggedToken::Other& o : t.top) top.push_back(token_json(o.text, o.logprob));
    content.push_back(std::move(j));
  }
  return content;
}

// --- answers

const char* finish_reason(Stop why, bool stop_string, bool tool_calls) {
  if (!stop_string && is_cut(why)) return "length";
  return tool_calls ? "tool_calls" : "stop";
}

Json input_details(const AnswerUsage& u) {
  Json j = {{"cached_tokens", u.cached}};
  if (u.media.n > 0) j["image_tokens"] = u.media.image_tokens, j["audio_tokens"] = u.media.audio_tokens;
  return j;
}

Json usage_json(const AnswerUsage& u) {
  return {{"prompt_tokens", u.prompt},
          {"completion_tokens", u.generated},
          {"total_tokens", u.prompt + u.generated},
          {"prompt_tokens_details", input_details(u)},
          {"completion_tokens_details", {{"reasoning_tokens", u.thought}}}};
}

Json timings_json(const AnswerUsage& u) {
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
  if (u.cache.source != CacheUse::Source::kNone || u.cache.miss != CacheUse::Miss::kNone)
    j["cache"] = cache_json(u.cache, u.cached);
  if (u.media.n > 0)
    j["media"] = {{"n", u.media.n},
                  {"encoded_n", u.media.n_encoded},
                  {"encode_ms", ms(u.media.encode_s)},
                  {"ready_ms", ms(u.media.wait_s)}};
  if (u.sparse)
    j["sparse_prefill"] = {{"approximate", u.sparse->approximate},
                           {"blocks_kept", std::round(u.sparse->kept * 1e4) / 1e4},
                           {"estimated_recall", std::round(u.sparse->recall * 1e4) / 1e4}};
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

Json api_response(const ApiAnswer& a, const ParsedMessage& m, const char* finish, const AnswerUsage& usage) {
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
  return with_choice(a, true, "delta", {{"role", "assistant"}, {"content", nullptr}}, nullptr);
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

Json chunk_finish(const ApiAnswer& a, const char* finish, const AnswerUsage& usage) {
  Json j = a.kind == ApiKind::kCompletion ? with_choice(a, true, "text", "", finish)
                                          : with_choice(a, true, "delta", Json::object(), finish);
  j["timings"] = timings_json(usage);
  return j;
}

Json chunk_usage(const ApiAnswer& a, const AnswerUsage& usage) {
  Json j = envelope(a, true);
  j["choices"] = Json::array();
  j["usage"] = usage_json(usage);
  j["timings"] = timings_json(usage);
  return j;
}

std::string sse(const Json& chunk) { return "data: " + dump_json(chunk) + "\n\n"; }

Json chunk_progress(const ApiAnswer& a, const Json& progress) {
  Json j = a.kind == ApiKind::kCompletion ? with_choice(a, true, "text", "", nullptr)
                                          : with_choice(a, true, "delta", Json::object(), nullptr);
  j["prompt_progress"] = progress;
  return j;
}

// --- the stream as a whole

namespace {

class OpenAiWriter final : public AnswerWriter {
 public:
  OpenAiWriter(ApiAnswer a, WriterContext c)
      : a_(std::move(a)),
        c_(std::move(c)),
        include_usage_(c_.request.include_usage),
        continuous_(c_.request.continuous_usage),
        timings_(c_.request.timings_per_token),
        logprobs_(c_.request.logprobs >= 0) {}
  std::string begin(int, int) override { return a_.kind == ApiKind::kChat ? sse(chunk_role(a_)) : ""; }
  std::string progress(const Json& p) override { return sse(chunk_progress(a_, p)); }
  std::string piece(const AnswerPiece& p) override {
    Json j = chunk_event(a_, p.event, calls_);
    calls_ += p.event.kind == ParseEvent::Kind::kToolCall;
    add_logprobs(j, p.logprobs);
    if (continuous_) j["usage"] = usage_json(p.usage);
    if (timings_) {
      j["timings"] = timings_json(p.usage);
      if (p.drafted > 0) j["drafted_tokens"] = p.drafted;
    }
    return sse(j);
  }
  std::string end(const AnswerEnd& e) override {
    Json j = chunk_finish(a_, finish_reason(e.why, e.stopped, calls_ > 0), e.usage);
    if (!e.logprobs.empty()) add_logprobs(j, e.logprobs);
    if (continuous_) j["usage"] = usage_json(e.usage);
    if (c_.request.verbose) j["__verbose"] = native_json(a_, c_, "", {}, e);
    return sse(j);
  }
  std::string close(const AnswerUsage& total) override {
    return (include_usage_ ? sse(chunk_usage(a_, total)) : "").append(kSseDone);
  }
  std::string error(const ApiError& e) override { return sse(error_json(Dialect::kOpenAi, e)); }
  Json whole(const ParsedMessage& m, const std::vector<int32_t>&, const AnswerEnd& e) override {
    Json j = api_response(a_, m, finish_reason(e.why, e.stopped, !m.tool_calls.empty()), e.usage);
    add_logprobs(j, e.logprobs);
    if (c_.request.verbose) j["__verbose"] = native_json(a_, c_, m.content, {}, e);
    return j;
  }

 private:
  void add_logprobs(Json& j, const std::vector<LoggedToken>& tokens) {
    if (!logprobs_) return;
    j["choices"][0]["logprobs"] = a_.kind == ApiKind::kCompletion
                                      ? completion_logprobs(tokens, offset_)
                                      : Json{{"content", chat_logprobs(tokens)}, {"refusal", nullptr}};
  }

  ApiAnswer a_;
  WriterContext c_;
  bool include_usage_, continuous_, timings_, logprobs_;
  int calls_ = 0, offset_ = 0;
};

}  // namespace

Json join_choices(std::vector<Json> choices, const AnswerUsage& total) {
  Json j = std::move(choices.front());
  for (size_t i = 1; i < choices.size(); ++i) j["choices"].push_back(std::move(choices[i]["choices"][0]));
  for (size_t i = 0; i < choices.size(); ++i) j["choices"][i]["index"] = i;
  j["usage"] = usage_json(total);
  j["timings"] = timings_json(total);
  return j;
}

std::unique_ptr<AnswerWriter> make_openai_writer(ApiAnswer a, WriterContext c) {
  return std::make_unique<OpenAiWriter>(std::move(a), std::move(c));
}

}  // namespace facet
