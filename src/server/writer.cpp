#include "server/writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>

#include "server/writers.h"
#include "tokenizer/json.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr size_t kMaxMessage = 1000;  // bytes; each part that comes from a client is cut shorter where it is quoted

const char* openai_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 501:
      return "not_supported_error";
    case 503:
      return "unavailable_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

const char* anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

}  // namespace

ApiError api_error(const Error& e) { return {.status = 400, .message = e.message(), .param = e.where, .code = ""}; }

Dialect dialect_of(ApiKind kind) {
  if (kind == ApiKind::kMessages) return Dialect::kAnthropic;
  return kind == ApiKind::kOllamaChat || kind == ApiKind::kOllamaGenerate ? Dialect::kOllama : Dialect::kOpenAi;
}

Json error_json(Dialect dialect, const ApiError& e) {
  const std::string message = cut(e.message, kMaxMessage);
  if (dialect == Dialect::kOllama) return {{"error", message}};
  if (dialect == Dialect::kAnthropic)
    return {{"type", "error"}, {"error", {{"type", anthropic_type(e.status)}, {"message", message}}}};
  auto text = [](const std::string& s) { return s.empty() ? Json() : Json(cut(s)); };
  Json j = {{"message", message}, {"type", openai_type(e.status)}, {"param", text(e.param)}, {"code", text(e.code)}};
  if (e.n_ctx > 0) {  // as llama-server says it
    j["type"] = "exceed_context_size_error";
    j["n_prompt_tokens"] = e.n_prompt;
    j["n_ctx"] = e.n_ctx;
  }
  return {{"error", std::move(j)}};
}

HttpResponse json_response(int status, const Json& body) {
  return {.status = status, .type = "application/json", .body = dump_json(body), .headers = {}};
}

ApiError no_memory() {
  return {.status = 503,
          .message = "memory ran out while the request was read; make it smaller, or try again",
          .param = "",
          .code = "out_of_memory"};
}

HttpResponse written_response(std::string json) {
  return {.status = 200, .type = "application/json", .body = std::move(json), .headers = {}};
}

HttpResponse error_response(Dialect dialect, const ApiError& e) {
  HttpResponse r = json_response(e.status, error_json(dialect, e));
  if (e.status == 503) r.headers.emplace_back("Retry-After", "1");
  if (e.status == 501) r.headers.emplace_back("X-Should-Retry", "false");  // OpenAI's clients retry after a 5xx
  return r;
}

std::string call_id(const char* prefix, const ApiAnswer& a, const ParsedCall& c) {
  const std::string answer = a.id.substr(a.id.find_first_of("-_") + 1);
  return fmt::format("{}{}_{}", prefix, answer, c.id.substr(c.id.find('_') + 1));
}

void add_usage(AnswerUsage& total, const AnswerUsage& u, bool new_prompt) {
  if (new_prompt) total.prompt += u.prompt, total.cached += u.cached;
  total.generated += u.generated;
  total.thought += u.thought;
  if (new_prompt) {
    total.media.image_tokens += u.media.image_tokens, total.media.audio_tokens += u.media.audio_tokens;
    total.media.n += u.media.n, total.media.n_encoded += u.media.n_encoded;
    total.media.encode_s += u.media.encode_s, total.media.wait_s = std::max(total.media.wait_s, u.media.wait_s);
  }
  total.prefill_s = std::max(total.prefill_s, u.prefill_s);
  total.decode_s = std::max(total.decode_s, u.decode_s);
  total.steps += u.steps, total.drafted += u.drafted, total.accepted += u.accepted;
  total.decode_steps += u.decode_steps, total.rounds += u.rounds, total.decoded += u.decoded;
  const size_t n = std::max(total.offered_at.size(), u.offered_at.size());
  total.offered_at.resize(n), total.accepted_at.resize(n);
  for (size_t k = 0; k < u.offered_at.size(); ++k)
    total.offered_at[k] += u.offered_at[k], total.accepted_at[k] += u.accepted_at[k];
  if (total.methods.empty()) total.methods = u.methods;
}

std::string rfc3339(int64_t unix_seconds) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time_t(unix_seconds)));
}

std::unique_ptr<AnswerWriter> make_writer(ApiAnswer a, WriterContext c) {
  switch (a.kind) {
    case ApiKind::kNative:
      return make_native_writer(std::move(a), std::move(c));
    case ApiKind::kMessages:
      return make_anthropic_writer(std::move(a));
    case ApiKind::kOllamaChat:
    case ApiKind::kOllamaGenerate:
      return make_ollama_writer(std::move(a));
    case ApiKind::kResponses:
      return make_responses_writer(std::move(a), std::move(c));
    default:
      return make_openai_writer(std::move(a), std::move(c));
  }
}

}  // namespace facet
