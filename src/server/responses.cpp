#include "server/responses.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api_fields.h"
#include "server/constraint.h"

namespace facet {
namespace {

// Fields that change nothing here.
constexpr const char* kUnused[] = {"store",          "metadata",         "user",
                                   "service_tier",   "prompt_cache_key", "prompt_cache_retention",
                                   "max_tool_calls", "truncation",       "safety_identifier",
                                   "stream_options", "client_metadata"};

const std::string* string_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? &it->get_ref<const std::string&>() : nullptr;
}

// Parts of text: input_text, output_text, and those of thoughts.
Result<std::string> text_of(const Json& content, const std::string& where) {
  if (content.is_null()) return std::string();
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    return Error{where, fmt::format("expected a string or an array of parts, found {}", shown(content)), ""};
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    const std::string* type = part.is_object() ? string_of(part, "type") : nullptr;
    if (!type) return Error{at + ".type", "expected a string", ""};
    const bool refusal = *type == "refusal";
    if (!refusal && *type != "input_text" && *type != "output_text" && *type != "text" && *type != "summary_text" &&
        *type != "reasoning_text")
      return Error{at + ".type", fmt::format("expected text, found {}", cut(*type)), "not supported"};
    const std::string* s = string_of(part, refusal ? "refusal" : "text");
    if (!s) return Error{at + ".text", "expected a string", ""};
    text += *s;
  }
  return text;
}

// Items to messages. What the model wrote in a row (a thought, a text, calls) is one message of the assistant.
class ItemReader {
 public:
  explicit ItemReader(std::vector<Message>& out) : out_(out) {}

  Status read(const Json& item, const std::string& where) {
    if (!item.is_object()) return Error{where, "expected an object, found " + shown(item), ""};
    const std::string* type = string_of(item, "type");
    if (!type || *type == "message") return message(item, where);
    if (*type == "function_call") return call(item, where);
    if (*type == "function_call_output") return output(item, where);
    if (*type == "reasoning") return reasoning(item, where);
    return Error{
        where + ".type",
        fmt::format("expected message, function_call, function_call_output or reasoning, found {}", cut(*type)),
        *type == "item_reference" ? "nothing is stored here; send the item itself" : "not supported"};
  }

 private:
  // The assistant's message that goes on; a new one where the last one cannot.
  Message& assistant(bool may_have_text, bool may_have_calls) {
    if (!out_.empty() && out_.back().role == "assistant") {
      Message& m = out_.back();
      const bool text = !std::holds_alternative<std::monostate>(m.content);
      if ((may_have_text || !text) && (may_have_calls || m.tool_calls.empty())) return m;
    }
    out_.push_back({.role = "assistant"});
    return out_.back();
  }

  Status message(const Json& item, const std::string& where) {
    const std::string* role = string_of(item, "role");
    if (!role || (*role != "user" && *role != "assistant" && *role != "system" && *role != "developer"))
      return Error{
          where + ".role",
          fmt::format("expected user, assistant, system or developer, found {}", role ? cut(*role) : "nothing"), ""};
    const auto content = item.find("content");
    if (content == item.end()) return Error{where + ".content", "expected a string or an array of parts", ""};
    auto text = text_of(*content, where + ".content");
    if (!text) return text.error();
    if (*role == "assistant") {
      assistant(/*may_have_text=*/false, /*may_have_calls=*/false).content = std::move(*text);
      return Ok{};
    }
    const bool first_system = *role != "user" && out_.size() == 1 && out_[0].role == "system";
    if (first_system) {  // after `instructions`: one system turn
      std::get<std::string>(out_[0].content) += "\n\n" + *text;
      return Ok{};
    }
    out_.push_back({.role = *role, .content = std::move(*text)});
    return Ok{};
  }

  Status call(const Json& item, const std::string& where) {
    ToolCall c;
    if (const std::string* id = string_of(item, "call_id")) c.id = *id;
    const std::string* name = string_of(item, "name");
    if (!name || name->empty()) return Error{where + ".name", "expected the name of a function", ""};
    c.name = *name;
    if (const std::string* text = string_of(item, "arguments"); text && !text->empty()) {
      auto arguments = parse_json(*text, where + ".arguments");
      if (!arguments) return arguments.error();
      if (!arguments->is_object()) return Error{where + ".arguments", "expected the JSON text of an object", ""};
      c.arguments = std::move(*arguments);
    }
    assistant(/*may_have_text=*/true, /*may_have_calls=*/true).tool_calls.push_back(std::move(c));
    return Ok{};
  }

  Status output(const Json& item, const std::string& where) {
    const std::string* id = string_of(item, "call_id");
    if (!id) return Error{where + ".call_id", "expected a string", ""};
    const auto output = item.find("output");
    if (output == item.end()) return Error{where + ".output", "expected a string or an array of parts", ""};
    auto text = text_of(*output, where + ".output");
    if (!text) return text.error();
    out_.push_back({.role = "tool", .content = std::move(*text), .tool_call_id = *id});
    return Ok{};
  }

  Status reasoning(const Json& item, const std::string& where) {
    std::string thought;
    for (const char* key : {"content", "summary"}) {
      const auto it = item.find(key);
      if (it == item.end() || !thought.empty()) continue;
      auto text = text_of(*it, fmt::format("{}.{}", where, key));
      if (!text) return text.error();
      thought = std::move(*text);
    }
    // An encrypted thought alone is nothing that this model could read.
    if (!thought.empty()) assistant(false, false).reasoning += thought;
    return Ok{};
  }

  std::vector<Message>& out_;
};

void read_input(Fields& f, ApiRequest& r) {
  std::string instructions;
  f.string("instructions", instructions);
  if (!instructions.empty()) r.messages.push_back({.role = "system", .content = instructions});
  const Json* v = f.get("input");
  if (v && v->is_string()) return r.messages.push_back({.role = "user", .content = v->get<std::string>()});
  if (!v || !v->is_array() || v->empty()) return f.fail("input", "expected a string or an array of items", v);
  if (v->size() > kMaxMessages)
    return f.fail(Error{"input", fmt::format("expected at most {} items, found {}", kMaxMessages, v->size()), ""});
  ItemReader reader(r.messages);
  for (size_t i = 0; i < v->size(); ++i)
    if (Status s = reader.read((*v)[i], fmt::format("input[{}]", i)); !s) return f.fail(s.error());
  if (r.messages.empty()) f.fail("input", "expected some content", v);
}

void read_tools(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("tools")) {
    if (!v->is_array()) return f.fail("tools", "expected an array", v);
    if (v->size() > kMaxTools)
      return f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
    for (size_t i = 0; i < v->size(); ++i) {
      const std::string* type = (*v)[i].is_object() ? string_of((*v)[i], "type") : nullptr;
      if (!type || *type != "function")
        return f.fail(fmt::format("tools[{}].type", i), "expected function", &(*v)[i],
                      "tools that OpenAI's servers run are not there");
    }
    auto tools = tools_from_json(*v);
    if (!tools) return f.fail(tools.error());
    r.tools = std::move(*tools);
    for (Json& t : r.tools) t.erase("type");
  }
  read_tool_choice(f, r);
  bool parallel = true;
  f.boolean("parallel_tool_calls", parallel);
  r.one_call = !parallel;
}

// {"format": {"type": "json_schema", "schema": {...}}}
void read_text(Fields& f, ApiRequest& r) {
  const Json* v = f.get("text");
  if (!v) return;
  if (!v->is_object()) return f.fail("text", "expected an object", v);
  const auto format = v->find("format");
  if (format == v->end() || format->is_null()) return;
  const std::string* type = format->is_object() ? string_of(*format, "type") : nullptr;
  if (type && *type == "text") return;
  if (type && *type == "json_object") return constrain_to_schema(f, r, "text.format", Json{{"type", "object"}});
  const auto schema = format->is_object() ? format->find("schema") : format->end();
  if (!type || *type != "json_schema" || schema == format->end())
    return f.fail("text.format", "expected the type text, json_object, or json_schema with a schema", &*format);
  constrain_to_schema(f, r, "text.format.schema", *schema);
}

void read_reasoning(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.thinking = d.thinking;
  r.thought_budget = d.thought_budget, r.max_loops = d.max_loops;
  const Json* v = f.get("reasoning");
  if (v) {
    Fields o(*v, /*strict=*/false, "reasoning");
    if (const Json* effort = o.get("effort")) read_effort(f, r, "reasoning.effort", effort);
    f.check(o.done());
  }
  read_thought_budget(f, r, {"thinking_budget", "thinking_budget_tokens"});
}

void read_refused(Fields& f) {
  if (const Json* v = f.get("previous_response_id"))
    f.fail("previous_response_id", "expected null", v, "nothing is stored here; send the whole conversation as input");
  for (const char* key : {"conversation", "prompt", "context_management"})
    if (const Json* v = f.get(key)) f.fail(key, "expected null", v, "nothing is stored here");
  f.only("background", "false", false);
}

// What is told of tokens: only the log-probabilities of the text.
void read_include(Fields& f, ApiRequest& r) {
  int top = 0;
  f.integer("top_logprobs", 0, kMaxLogprobs, top);
  const Json* v = f.get("include");
  if (!v) return;
  if (!v->is_array()) return f.fail("include", "expected an array of strings", v);
  for (const Json& what : *v)
    if (what == "message.output_text.logprobs") r.logprobs = top;
}

// What the answer repeats.
Json repeated(const Json& body) {
  Json j = Json::object();
  for (const auto& [key, otherwise] : {std::pair<const char*, Json>{"instructions", nullptr},
                                       {"max_output_tokens", nullptr},
                                       {"metadata", Json::object()},
                                       {"parallel_tool_calls", true},
                                       {"reasoning", Json{{"effort", nullptr}, {"summary", nullptr}}},
                                       {"text", Json{{"format", {{"type", "text"}}}}},
                                       {"tool_choice", "auto"},
                                       {"tools", Json::array()},
                                       {"truncation", "disabled"},
                                       {"user", nullptr}}) {
    const auto it = body.find(key);
    j[key] = it == body.end() || it->is_null() ? otherwise : *it;
  }
  return j;
}

}  // namespace

Result<ApiRequest> parse_responses_request(const Json& body, const ApiDefaults& d) {
  ApiRequest r;
  r.kind = ApiKind::kResponses;
  if (!body.is_object())
    return Error{"", fmt::format("expected a JSON object as the body, found {}", body.type_name()), ""};
  Fields f(body, d.strict);
  std::string model;
  f.string("model", model);
  f.boolean("stream", r.stream);
  r.max_tokens = d.max_tokens;
  if (f.has("max_output_tokens")) f.integer("max_output_tokens", 1, kMaxTokens, r.max_tokens);
  read_refused(f);
  read_sampling(f, r, d);
  read_stop(f, r, "stop");
  read_limits(f, r, d);
  read_input(f, r);
  read_tools(f, r);
  read_text(f, r);
  read_reasoning(f, r, d);
  read_include(f, r);
  for (const char* key : kUnused) f.get(key);
  if (auto ok = f.done(); !ok) return ok.error();
  if (auto ok = settle_continuation(r, false); !ok) return ok.error();
  r.repeated = repeated(body);
  return r;
}

}  // namespace facet
