#include "server/responses.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api_fields.h"
#include "server/constraint.h"
#include "server/request_media.h"
#include "tokenizer/media_part.h"

namespace facet {
namespace {

// Fields that change nothing here.
constexpr const char* kUnused[] = {"store",          "metadata",         "user",
                                   "service_tier",   "prompt_cache_key", "prompt_cache_retention",
                                   "max_tool_calls", "truncation",       "safety_identifier",
                                   "stream_options", "client_metadata",  "context_management"};

const std::string* string_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? &it->get_ref<const std::string&>() : nullptr;
}

// Parts: input_text, output_text, those of thoughts, and what is no text.
Result<std::vector<ContentPart>> parts_of(const Json& content, const std::string& where) {
  using Kind = ContentPart::Kind;
  std::vector<ContentPart> parts;
  if (content.is_null()) return parts;
  if (content.is_string()) {
    parts.push_back({Kind::kText, content.get<std::string>()});
    return parts;
  }
  if (!content.is_array())
    return Error{where, fmt::format("expected a string or an array of parts, found {}", shown(content)), ""};
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string at = fmt::format("{}[{}]", where, i);
    const std::string* type = part.is_object() ? string_of(part, "type") : nullptr;
    if (!type) return Error{at + ".type", "expected a string", ""};
    const auto url = part.find("image_url");
    if (*type == "input_image" && url != part.end() && url->is_string()) {
      parts.push_back(media_from_url(Kind::kImage, url->get_ref<const std::string&>(), at + ".image_url"));
      read_detail(parts.back(), part, at);
      continue;
    }
    if (*type == "input_image" || *type == "computer_screenshot" || *type == "input_audio" || *type == "input_file") {
      parts.push_back({*type == "input_audio" ? Kind::kAudio : *type == "input_file" ? Kind::kFile : Kind::kImage, ""});
      continue;
    }
    const bool refusal = *type == "refusal";
    if (!refusal && *type != "input_text" && *type != "output_text" && *type != "text" && *type != "summary_text" &&
        *type != "reasoning_text")
      return Error{at + ".type", fmt::format("expected text, found {}", cut(*type)), "not supported"};
    const std::string* s = string_of(part, refusal ? "refusal" : "text");
    if (!s) return Error{at + ".text", "expected a string", ""};
    parts.push_back({Kind::kText, *s});
  }
  return parts;
}

// The name by which the model knows a function of a namespace.
std::string spaced_name(const std::string& space, const std::string& name) {
  if (space.empty()) return name;
  return space + (space.ends_with('_') ? "" : "__") + name;
}

// Items to messages. What the model wrote in a row (a thought, a text, calls) is one message of the assistant.
class ItemReader {
 public:
  explicit ItemReader(ApiRequest& r) : out_(r.messages), left_out_(r.left_out) {}

  Status read(const Json& item, const std::string& where) {
    if (!item.is_object()) return Error{where, "expected an object, found " + shown(item), ""};
    const std::string* type = string_of(item, "type");
    if (!type || *type == "message") return message(item, where);
    if (*type == "function_call" || *type == "custom_tool_call") return call(item, where);
    if (*type == "reasoning") return reasoning(item, where);
    if (*type == "item_reference")
      return Error{where + ".type", "expected an item, found item_reference",
                   "nothing is stored here; send the item itself"};
    if (*type == "function_call_output" || *type == "custom_tool_call_output") return output(item, where);
    // Calls of tools that are no functions, with a result or with none.
    const bool paired = item.contains("call_id") && item["call_id"].is_string();
    if (paired && type->ends_with("_output")) return output(item, where);
    if (paired && type->ends_with("_call")) return built_in_call(item, type->substr(0, type->size() - 5));
    if (type->ends_with("_output") || type->ends_with("_call") || type->find("compaction") != std::string::npos ||
        type->starts_with("mcp_") || *type == "ghost_snapshot" || *type == "additional_tools") {
      left_out_.add(&Dropped::items, *type);
      return Ok{};
    }
    return Error{where + ".type",
                 fmt::format("expected message, reasoning, or a call and its output, found {}", cut(*type)),
                 "not supported"};
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
    auto parts = parts_of(*content, where + ".content");
    if (!parts) return parts.error();
    const bool media = *role == "user" && std::any_of(parts->begin(), parts->end(), [](const ContentPart& p) {
      return p.kind != ContentPart::Kind::kText;
    });
    if (media) {  // of the last message an error, which is known at the end
      out_.push_back({.role = *role, .content = std::move(*parts)});
      return Ok{};
    }
    std::string text = text_without_media(*parts, left_out_);
    if (*role == "assistant") {
      assistant(/*may_have_text=*/false, /*may_have_calls=*/false).content = std::move(text);
      return Ok{};
    }
    const bool first_system = *role != "user" && out_.size() == 1 && out_[0].role == "system";
    if (first_system) {  // after `instructions`: one system turn
      std::get<std::string>(out_[0].content) += "\n\n" + text;
      return Ok{};
    }
    out_.push_back({.role = *role, .content = std::move(text)});
    return Ok{};
  }

  Status call(const Json& item, const std::string& where) {
    ToolCall c;
    if (const std::string* id = string_of(item, "call_id")) c.id = *id;
    const std::string* name = string_of(item, "name");
    if (!name || name->empty()) return Error{where + ".name", "expected the name of a function", ""};
    const std::string* space = string_of(item, "namespace");
    c.name = spaced_name(space ? *space : "", *name);
    if (const std::string* input = string_of(item, "input")) {  // of a custom tool
      c.arguments = Json{{"input", *input}};
    } else if (const std::string* text = string_of(item, "arguments"); text && !text->empty()) {
      auto arguments = parse_json(*text, where + ".arguments");
      if (!arguments) return arguments.error();
      if (!arguments->is_object()) return Error{where + ".arguments", "expected the JSON text of an object", ""};
      c.arguments = std::move(*arguments);
    }
    assistant(/*may_have_text=*/true, /*may_have_calls=*/true).tool_calls.push_back(std::move(c));
    return Ok{};
  }

  // local_shell_call and others of its kind: what they do is their argument.
  Status built_in_call(const Json& item, std::string name) {
    ToolCall c{.id = item["call_id"].get<std::string>(), .name = std::move(name)};
    for (const char* key : {"action", "operation", "arguments"})
      if (const auto it = item.find(key); it != item.end() && it->is_object() && c.arguments.is_null())
        c.arguments = *it;
    assistant(/*may_have_text=*/true, /*may_have_calls=*/true).tool_calls.push_back(std::move(c));
    return Ok{};
  }

  Status output(const Json& item, const std::string& where) {
    const std::string* id = string_of(item, "call_id");
    if (!id) return Error{where + ".call_id", "expected a string", ""};
    const auto output = item.find("output");
    if (output == item.end()) return Error{where + ".output", "expected a string or an array of parts", ""};
    Content content;
    const bool own =
        *string_of(item, "type") == "function_call_output" || *string_of(item, "type") == "custom_tool_call_output";
    const bool typed =
        output->is_array() && !output->empty() && (*output)[0].is_object() && (*output)[0].contains("type");
    if (!own && !output->is_string() && !typed) {
      content = dump_json(*output);
    } else {
      auto parts = parts_of(*output, where + ".output");
      if (!parts) return parts.error();
      content = content_of(std::move(*parts));
    }
    out_.push_back({.role = "tool", .content = std::move(content), .tool_call_id = *id});
    return Ok{};
  }

  Status reasoning(const Json& item, const std::string& where) {
    std::string thought;
    for (const char* key : {"content", "summary"}) {
      const auto it = item.find(key);
      if (it == item.end() || !thought.empty()) continue;
      auto parts = parts_of(*it, fmt::format("{}.{}", where, key));
      if (!parts) return parts.error();
      thought = text_without_media(*parts, left_out_);
    }
    // An encrypted thought alone is nothing that this model could read.
    if (!thought.empty()) assistant(false, false).reasoning += thought;
    return Ok{};
  }

  std::vector<Message>& out_;
  Dropped& left_out_;
};

void read_input(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  std::string instructions;
  f.string("instructions", instructions);
  if (!instructions.empty()) r.messages.push_back({.role = "system", .content = instructions});
  const Json* v = f.get("input");
  if (v && v->is_string()) return r.messages.push_back({.role = "user", .content = v->get<std::string>()});
  if (!v || !v->is_array() || v->empty()) return f.fail("input", "expected a string or an array of items", v);
  if (v->size() > kMaxMessages)
    return f.fail(Error{"input", fmt::format("expected at most {} items, found {}", kMaxMessages, v->size()), ""});
  ItemReader reader(r);
  for (size_t i = 0; i < v->size(); ++i)
    if (Status s = reader.read((*v)[i], fmt::format("input[{}]", i)); !s) return f.fail(s.error());
  if (r.messages.empty()) return f.fail("input", "expected some content", v);
  leave_media_out(f, r, d, media_place(*v, "input"));
}

// A tool of free text, as a function of one.
Json custom_function(const Json& t) {
  const std::string* description = string_of(t, "description");
  std::string text = description ? *description : "";
  const auto format = t.find("format");
  if (format != t.end() && format->is_object())
    if (const std::string* definition = string_of(*format, "definition"))
      text += fmt::format("{}The input follows this grammar:\n{}", text.empty() ? "" : "\n", *definition);
  Json input = {{"type", "string"}, {"description", "The whole text"}};
  return {{"name", t.value("name", Json())},
          {"description", std::move(text)},
          {"parameters",
           {{"type", "object"}, {"properties", {{"input", std::move(input)}}}, {"required", Json::array({"input"})}}}};
}

// One tool; of a namespace each of its functions. Those that OpenAI's servers or the client itself run are left out.
void read_tool(Fields& f, ApiRequest& r, const Json& t, const std::string& at, const std::string& space) {
  const std::string* type = t.is_object() ? string_of(t, "type") : nullptr;
  if (!type) return f.fail(at + ".type", "expected a string", t.is_object() ? nullptr : &t);
  if (*type == "namespace" && space.empty()) {
    const std::string* name = string_of(t, "name");
    const auto inner = t.find("tools");
    if (!name || name->empty()) return f.fail(at + ".name", "expected a string", nullptr);
    if (inner == t.end() || !inner->is_array()) return f.fail(at + ".tools", "expected an array", nullptr);
    for (size_t i = 0; i < inner->size(); ++i) read_tool(f, r, (*inner)[i], fmt::format("{}.tools[{}]", at, i), *name);
    return;
  }
  if (!is_type_name(*type)) return f.fail(Error{at + ".type", "expected function, found " + cut(*type), ""});
  if (*type != "function" && *type != "custom") return r.left_out.add(&Dropped::tools, *type);
  if (r.tools.size() >= kMaxTools)
    return f.fail(Error{"tools", fmt::format("expected at most {} tools, found more", kMaxTools), ""});
  const bool custom = *type == "custom";
  auto tool = tool_from_json(custom ? custom_function(t) : t, at);
  if (!tool) return f.fail(tool.error());
  tool->erase("type");
  const auto name = (*tool)["name"].get<std::string>();
  const std::string known = spaced_name(space, name);
  if (custom || !space.empty()) r.forms[known] = {.custom = custom, .name = name, .space = space};
  (*tool)["name"] = known;
  r.tools.push_back(std::move(*tool));
}

void read_tools(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("tools")) {
    if (!v->is_array()) return f.fail("tools", "expected an array", v);
    if (v->size() > kMaxTools)
      return f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
    for (size_t i = 0; i < v->size() && !f.failed(); ++i) read_tool(f, r, (*v)[i], fmt::format("tools[{}]", i), "");
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
  for (const char* key : {"conversation", "prompt"})
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
  read_input(f, r, d);
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
