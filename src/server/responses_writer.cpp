// OpenAI's responses: what is answered. A stream is a sequence of numbered events; items of the output come one after
// the other: a thought, the text, calls.
#include <fmt/format.h>

#include <optional>

#include "server/writers.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

Json usage_of(const AnswerUsage& u) {
  return {{"input_tokens", u.prompt},
          {"input_tokens_details", input_details(u)},
          {"output_tokens", u.generated},
          {"output_tokens_details", {{"reasoning_tokens", u.thought}}},
          {"total_tokens", u.prompt + u.generated}};
}

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(ApiAnswer a, WriterContext c) : a_(std::move(a)), c_(std::move(c)) {}

  std::string begin(int, int) override {
    const Json r = response("in_progress", {});
    std::string out = event("response.created", {{"response", r}});  // numbered in this order
    return out += event("response.in_progress", {{"response", r}});
  }
  std::string progress(const Json& p) override {
    return event("response.in_progress", {{"response", response("in_progress", {})}, {"prompt_progress", p}});
  }
  std::string piece(const AnswerPiece& p) override {
    using Kind = ParseEvent::Kind;
    std::string out;
    if (p.event.kind == Kind::kToolCall) {
      out = close();
      return out + call(p.event.call);
    }
    if (!open_ || *open_ != p.event.kind) {
      out = close();
      out += open(p.event.kind);
    }
    text_ += p.event.text;
    Json delta = place();
    delta["delta"] = p.event.text;
    if (p.event.kind == Kind::kContent) {
      Json logged = c_.request.logprobs >= 0 ? chat_logprobs(p.logprobs) : Json::array();
      for (const Json& l : logged) logprobs_.push_back(l);
      delta["logprobs"] = std::move(logged);
    }
    if (c_.request.timings_per_token) delta["timings"] = timings_json(p.usage);
    return out +
           event(p.event.kind == Kind::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
                 std::move(delta));
  }
  std::string end(const AnswerEnd& e) override {
    std::string out = close();
    if (output_.empty()) {  // an answer of nothing is an empty text
      out += open(ParseEvent::Kind::kContent);
      out += close();
    }
    const bool cut_off = is_cut(e);
    return out + event(cut_off ? "response.incomplete" : "response.completed",
                       {{"response", finished(e)}, {"timings", timings_json(e.usage)}});
  }
  std::string error(const ApiError& e) override {
    Json r = response("failed", {});
    r["error"] = {{"code", "server_error"}, {"message", e.message}};
    return event("response.failed", {{"response", std::move(r)}});
  }
  Json whole(const ParsedMessage& m, const std::vector<int32_t>&, const AnswerEnd& e) override {
    if (c_.request.logprobs >= 0) logprobs_ = chat_logprobs(e.logprobs);
    if (!m.reasoning.empty()) output_.push_back(reasoning_item(m.reasoning));
    if (!m.content.empty() || m.tool_calls.empty()) output_.push_back(message_item(m.content, "completed"));
    for (const ParsedCall& c : m.tool_calls) output_.push_back(call_item(c, c.arguments, status_of(c)));
    Json r = finished(e);
    r["timings"] = timings_json(e.usage);
    return r;
  }

 private:
  static bool is_cut(const AnswerEnd& e) { return !e.stopped && facet::is_cut(e.why); }
  std::string event(const char* type, Json data) {
    data["type"] = type;
    data["sequence_number"] = sequence_++;
    return fmt::format("event: {}\ndata: {}\n\n", type, dump_json(data));
  }
  std::string own_id(const char* prefix) const {
    return fmt::format("{}_{}_{}", prefix, a_.id.substr(a_.id.find('_') + 1), output_.size());
  }
  Json response(const char* status, const AnswerEnd& e) const {
    const Sampling& s = c_.request.sampling;
    Json r = {{"id", a_.id},
              {"object", "response"},
              {"created_at", a_.created},
              {"status", status},
              {"background", false},
              {"error", nullptr},
              {"incomplete_details", is_cut(e) ? Json{{"reason", "max_output_tokens"}} : Json()},
              {"model", a_.model},
              {"output", output_},
              {"previous_response_id", nullptr},
              {"service_tier", "default"},
              {"store", false},
              {"temperature", s.temperature},
              {"top_p", s.top_p},
              {"usage", nullptr}};
    if (c_.request.repeated.is_object()) r.update(c_.request.repeated);
    return r;
  }
  Json finished(const AnswerEnd& e) const {
    Json r = response(is_cut(e) ? "incomplete" : "completed", e);
    r["usage"] = usage_of(e.usage);
    return r;
  }

  Json part(const std::string& text) const {
    return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", logprobs_}};
  }
  Json message_item(const std::string& text, const char* status) const {
    return {{"id", own_id("msg")},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", *status == 'c' ? Json::array({part(text)}) : Json::array()}};
  }
  Json reasoning_item(const std::string& text) const {
    Json content = Json::array();
    if (!text.empty()) content.push_back({{"type", "reasoning_text"}, {"text", text}});
    return {{"id", own_id("rs")}, {"type", "reasoning"}, {"summary", Json::array()}, {"content", std::move(content)}};
  }
  static const char* status_of(const ParsedCall& c) { return c.partial ? "incomplete" : "completed"; }
  const ToolForm* form_of(const ParsedCall& c) const {
    const auto at = c_.request.forms.find(c.name);
    return at == c_.request.forms.end() ? nullptr : &at->second;
  }
  // arguments: none yet, or all. Of a custom tool they are the text itself.
  Json call_item(const ParsedCall& c, const std::string& arguments, const char* status) const {
    const ToolForm* form = form_of(c);
    const bool custom = form && form->custom;
    Json j = {{"id", own_id(custom ? "ctc" : "fc")},
              {"type", custom ? "custom_tool_call" : "function_call"},
              {"status", status},
              {"call_id", call_id("call_", a_, c)},
              {"name", form ? form->name : c.name},
              {custom ? "input" : "arguments", custom ? custom_input(arguments) : arguments}};
    if (form && !form->space.empty()) j["namespace"] = form->space;
    return j;
  }
  // {"input": TEXT}, or its beginning.
  static std::string custom_input(const std::string& arguments) {
    if (arguments.empty()) return "";
    for (const char* end : {"", "\"}", "}"}) {
      const auto j = parse_json(arguments + end, "");
      if (!j || !j->is_object()) continue;
      const auto input = j->find("input");
      if (input != j->end() && input->is_string()) return input->get<std::string>();
      if (!j->empty() && j->begin()->is_string()) return j->begin()->get<std::string>();  // under a name of its own
      return j->empty() ? "" : dump_json(*j);
    }
    return "";
  }

  // Where an event belongs.
  Json place() const {
    const bool thought = open_ && *open_ == ParseEvent::Kind::kReasoning;
    return {{"item_id", own_id(thought ? "rs" : "msg")}, {"output_index", output_.size()}, {"content_index", 0}};
  }
  std::string open(ParseEvent::Kind kind) {
    open_ = kind;
    text_.clear();
    logprobs_ = Json::array();
    const bool thought = kind == ParseEvent::Kind::kReasoning;
    std::string out = event(
        "response.output_item.added",
        {{"output_index", output_.size()}, {"item", thought ? reasoning_item("") : message_item("", "in_progress")}});
    Json added = place();
    added["part"] = thought ? Json{{"type", "reasoning_text"}, {"text", ""}} : part("");
    return out + event("response.content_part.added", std::move(added));
  }
  std::string close() {
    if (!open_) return "";
    const bool thought = *open_ == ParseEvent::Kind::kReasoning;
    Json done = place(), part_done = place();
    done["text"] = text_;
    if (!thought) done["logprobs"] = logprobs_;
    part_done["part"] = thought ? Json{{"type", "reasoning_text"}, {"text", text_}} : part(text_);
    const Json item = thought ? reasoning_item(text_) : message_item(text_, "completed");
    std::string out = event(thought ? "response.reasoning_text.done" : "response.output_text.done", std::move(done));
    out += event("response.content_part.done", std::move(part_done));
    out += event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(item);
    open_.reset();
    return out;
  }
  std::string call(const ParsedCall& c) {
    const size_t index = output_.size();
    const Json item = call_item(c, c.arguments, status_of(c)), id = item["id"];
    const bool custom = item["type"] == "custom_tool_call";
    const char* key = custom ? "input" : "arguments";
    std::string out =
        event("response.output_item.added", {{"output_index", index}, {"item", call_item(c, "", "in_progress")}});
    out += event(custom ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta",
                 {{"item_id", id}, {"output_index", index}, {"delta", item[key]}});
    Json done = {{"item_id", id}, {"output_index", index}, {key, item[key]}};
    if (!custom) done["name"] = item["name"];
    out += event(custom ? "response.custom_tool_call_input.done" : "response.function_call_arguments.done",
                 std::move(done));
    out += event("response.output_item.done", {{"output_index", index}, {"item", item}});
    output_.push_back(item);
    return out;
  }

  ApiAnswer a_;
  WriterContext c_;
  int64_t sequence_ = 0;
  Json output_ = Json::array(), logprobs_ = Json::array();  // items that are complete; of the open one
  std::optional<ParseEvent::Kind> open_ = {};
  std::string text_ = {};  // of the open item
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(ApiAnswer a, WriterContext c) {
  return std::make_unique<ResponsesWriter>(std::move(a), std::move(c));
}

}  // namespace facet
