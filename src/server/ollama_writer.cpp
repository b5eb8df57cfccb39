// Ollama's chat and generate: what is answered. A stream is one JSON object a line.
#include <fmt/format.h>

#include <cmath>

#include "server/ollama.h"
#include "server/writers.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

int64_t nanoseconds(double seconds) { return int64_t(std::llround(seconds * 1e9)); }
std::string line(const Json& j) { return dump_json(j) + "\n"; }

Json head(const ApiAnswer& a) { return {{"model", a.model}, {"created_at", rfc3339(a.created)}}; }

Json call_json(const ParsedCall& c) {
  auto arguments = parse_json(c.arguments, "");
  return {{"function", {{"name", c.name}, {"arguments", arguments ? std::move(*arguments) : Json::object()}}}};
}

class OllamaWriter final : public AnswerWriter {
 public:
  explicit OllamaWriter(ApiAnswer a) : a_(std::move(a)) {}
  const char* stream_type() const override { return "application/x-ndjson"; }
  const char* keep_alive() const override { return ""; }  // a line of nothing would be no JSON
  std::string begin(int, int) override { return ""; }

  std::string piece(const AnswerPiece& p) override {
    if (p.event.kind == ParseEvent::Kind::kToolCall && p.event.call.partial) return "";
    ParsedMessage m;
    add_event(m, p.event);
    Json j = filled(m);
    j["done"] = false;
    return line(j);
  }
  std::string end(const AnswerEnd& e) override { return line(last({}, e)); }
  std::string error(const ApiError& e) override { return line(error_json(Dialect::kOllama, e)); }
  Json whole(const ParsedMessage& m, const std::vector<int32_t>&, const AnswerEnd& e) override { return last(m, e); }

 private:
  Json filled(const ParsedMessage& m) const {
    Json j = head(a_);
    if (a_.kind == ApiKind::kOllamaGenerate) {
      j["response"] = m.content;
      if (!m.reasoning.empty()) j["thinking"] = m.reasoning;
      return j;
    }
    Json message = {{"role", "assistant"}, {"content", m.content}};
    if (!m.reasoning.empty()) message["thinking"] = m.reasoning;
    // A call that was cut is none: its arguments are an object here, which a client would take for all of them.
    for (const ParsedCall& c : m.tool_calls)
      if (!c.partial) message["tool_calls"].push_back(call_json(c));
    j["message"] = std::move(message);
    return j;
  }

  Json last(const ParsedMessage& m, const AnswerEnd& e) const {
    const Usage& u = e.usage;
    Json j = filled(m);
    j["done"] = true;
    j["done_reason"] = finish_reason(e.why, e.stopped, false);
    j["total_duration"] = nanoseconds(u.prefill_s + u.decode_s);
    j["load_duration"] = 0;
    j["prompt_eval_count"] = u.prompt;
    j["prompt_eval_duration"] = nanoseconds(u.prefill_s);
    j["eval_count"] = u.generated;
    j["eval_duration"] = nanoseconds(u.decode_s);
    return j;
  }

  ApiAnswer a_;
};

}  // namespace

Json ollama_loaded(const ApiAnswer& a, bool unload) {
  Json j = head(a);
  if (a.kind == ApiKind::kOllamaGenerate)
    j["response"] = "";
  else
    j["message"] = {{"role", "assistant"}, {"content", ""}};
  j["done"] = true;
  j["done_reason"] = unload ? "unload" : "load";
  return j;
}

std::unique_ptr<AnswerWriter> make_ollama_writer(ApiAnswer a) { return std::make_unique<OllamaWriter>(std::move(a)); }

}  // namespace facet
