// Anthropic's messages: what is answered.
#include <fmt/format.h>

#include "server/writers.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

std::string event(const char* name, const Json& data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, dump_json(data));
}

// Its input_tokens are those that were computed.
Json usage_of(int prompt, int cached, int generated) {
  return {{"input_tokens", prompt - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", generated}};
}

const char* stop_reason(const AnswerEnd& e, bool calls) {
  if (!e.stop_word.empty()) return "stop_sequence";
  if (!e.stopped && is_cut(e.why)) return "max_tokens";
  return calls ? "tool_use" : "end_turn";
}

Json call_block(const ApiAnswer& a, const ParsedCall& c, Json input) {
  return {{"type", "tool_use"}, {"id", call_id("toolu_", a, c)}, {"name", c.name}, {"input", std::move(input)}};
}

class AnthropicWriter final : public AnswerWriter {
 public:
  explicit AnthropicWriter(ApiAnswer a) : a_(std::move(a)) {}
  const char* keep_alive() const override { return "event: ping\ndata: {\"type\":\"ping\"}\n\n"; }

  std::string begin(int prompt_tokens, int cached) override {
    Json m = head();
    m["content"] = Json::array();
    m["stop_reason"] = nullptr;
    m["stop_sequence"] = nullptr;
    m["usage"] = usage_of(prompt_tokens, cached, 0);
    return event("message_start", {{"type", "message_start"}, {"message", std::move(m)}});
  }

  std::string piece(const AnswerPiece& p) override {
    const ParseEvent& e = p.event;
    if (e.kind == ParseEvent::Kind::kToolCall) {
      calls_ = true;
      std::string out = close();  // one after the other: each of these counts
      out += open(call_block(a_, e.call, Json::object()));
      out += delta({{"type", "input_json_delta"}, {"partial_json", e.call.arguments}});
      return out += close();
    }
    const bool thought = e.kind == ParseEvent::Kind::kReasoning;
    std::string out;
    if (!open_ || thought != thought_) {
      out = close();
      out += open(thought ? Json{{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}
                          : Json{{"type", "text"}, {"text", ""}});
      thought_ = thought;
    }
    return out + delta(thought ? Json{{"type", "thinking_delta"}, {"thinking", e.text}}
                               : Json{{"type", "text_delta"}, {"text", e.text}});
  }

  std::string end(const AnswerEnd& e) override {
    const Json word = e.stop_word.empty() ? Json() : Json(e.stop_word);
    std::string out = close();
    return out +
           event("message_delta", {{"type", "message_delta"},
                                   {"delta", {{"stop_reason", stop_reason(e, calls_)}, {"stop_sequence", word}}},
                                   {"usage", usage_of(e.usage.prompt, e.usage.cached, e.usage.generated)}}) +
           event("message_stop", {{"type", "message_stop"}});
  }

  std::string error(const ApiError& e) override { return event("error", error_json(Dialect::kAnthropic, e)); }

  Json whole(const ParsedMessage& m, const std::vector<int32_t>&, const AnswerEnd& e) override {
    Json j = head();
    Json& content = j["content"] = Json::array();
    if (!m.reasoning.empty()) content.push_back({{"type", "thinking"}, {"thinking", m.reasoning}, {"signature", ""}});
    if (!m.content.empty()) content.push_back({{"type", "text"}, {"text", m.content}});
    for (const ParsedCall& c : m.tool_calls) {
      auto input = parse_json(c.arguments, "");
      content.push_back(call_block(a_, c, input ? std::move(*input) : Json::object()));
    }
    j["stop_reason"] = stop_reason(e, !m.tool_calls.empty());
    j["stop_sequence"] = e.stop_word.empty() ? Json() : Json(e.stop_word);
    j["usage"] = usage_of(e.usage.prompt, e.usage.cached, e.usage.generated);
    return j;
  }

 private:
  Json head() const { return {{"id", a_.id}, {"type", "message"}, {"role", "assistant"}, {"model", a_.model}}; }
  std::string open(Json block) {
    open_ = true;
    return event("content_block_start",
                 {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
  }
  std::string delta(Json d) const {
    return event("content_block_delta", {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(d)}});
  }
  std::string close() {
    if (!open_) return "";
    open_ = false;
    std::string out;
    if (std::exchange(thought_, false)) out = delta({{"type", "signature_delta"}, {"signature", ""}});
    return out + event("content_block_stop", {{"type", "content_block_stop"}, {"index", index_++}});
  }

  ApiAnswer a_;
  int index_ = 0;
  bool open_ = false, thought_ = false, calls_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_anthropic_writer(ApiAnswer a) {
  return std::make_unique<AnthropicWriter>(std::move(a));
}

}  // namespace facet
