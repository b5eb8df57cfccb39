#include "server/anthropic.h"

#include <fmt/format.h>

#include "server/api_fields.h"
#include "server/constraint.h"

namespace facet {
namespace {

// Fields that change nothing here.
constexpr const char* kUnused[] = {"metadata",        "service_tier", "context_management", "inference_geo",
                                   "betas",           "speed",        "cache_control",      "diagnostics",
                                   "user_profile_id", "workspace_id"};

const std::string* string_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? &it->get_ref<const std::string&>() : nullptr;
}

Error expected(const std::string& where, std::string_view what, const Json& found, std::string hint = "") {
  return Error{where, fmt::format("expected {}, found {}", what, shown(found)), std::move(hint)};
}

// A text, or blocks of text, as parts.
Result<std::vector<ContentPart>> read_text(const Json& j, const std::string& where) {
  std::vector<ContentPart> parts;
  if (j.is_string()) {
    parts.push_back({ContentPart::Kind::kText, j.get<std::string>()});
    return parts;
  }
  if (!j.is_array()) return expected(where, "a string or an array of blocks", j);
  for (size_t i = 0; i < j.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", where, i);
    if (!j[i].is_object()) return expected(at, "a block", j[i]);
    const std::string* type = string_of(j[i], "type");
    if (!type || *type != "text")
      return Error{at + ".type", fmt::format("expected text, found {}", type ? cut(*type) : "nothing"),
                   "not supported"};
    const std::string* text = string_of(j[i], "text");
    if (!text) return Error{at + ".text", "expected a string", ""};
    parts.push_back({ContentPart::Kind::kText, *text});
  }
  return parts;
}

std::string joined(const std::vector<ContentPart>& parts) {
  std::string s;
  for (const ContentPart& p : parts) s += p.text;
  return s;
}

void append(Message& m, std::vector<ContentPart> parts) {
  if (!std::holds_alternative<std::vector<ContentPart>>(m.content)) m.content = std::vector<ContentPart>{};
  auto& all = std::get<std::vector<ContentPart>>(m.content);
  for (ContentPart& p : parts) all.push_back(std::move(p));
}

// One message of Anthropic's is several of ours: results of tools are messages of their own, before the text.
class MessageReader {
 public:
  explicit MessageReader(std::vector<Message>& out) : out_(out) {}

  Status read(const Json& j, const std::string& where) {
    if (!j.is_object()) return expected(where, "an object with role and content", j);
    const std::string* role = string_of(j, "role");
    if (!role || (*role != "user" && *role != "assistant"))
      return Error{where + ".role", fmt::format("expected user or assistant, found {}", role ? cut(*role) : "nothing"),
                   ""};
    const auto content = j.find("content");
    if (content == j.end() || !(content->is_string() || content->is_array()))
      return Error{where + ".content", "expected a string or an array of blocks", ""};
    Message m{.role = *role};
    if (content->is_string()) {
      append(m, {{ContentPart::Kind::kText, content->get<std::string>()}});
    } else {
      for (size_t i = 0; i < content->size(); ++i)
        if (Status s = block((*content)[i], fmt::format("{}.content[{}]", where, i), m); !s) return s;
    }
    const bool says =
        !std::holds_alternative<std::monostate>(m.content) || !m.tool_calls.empty() || !m.reasoning.empty();
    // Messages of one role in a row are one.
    if (says && !out_.empty() && out_.back().role == m.role && m.tool_calls.empty() && out_.back().tool_calls.empty() &&
        m.reasoning.empty()) {
      if (auto* parts = std::get_if<std::vector<ContentPart>>(&m.content)) append(out_.back(), std::move(*parts));
    } else if (says) {
      out_.push_back(std::move(m));
    }
    return Ok{};
  }

 private:
  Status block(const Json& b, const std::string& where, Message& m) {
    if (!b.is_object()) return expected(where, "a block", b);
    const std::string* type = string_of(b, "type");
    if (!type) return Error{where + ".type", "expected a string", ""};
    const bool model = m.role == "assistant";
    if (*type == "text") {
      auto parts = read_text(Json::array({b}), where);
      if (!parts) return parts.error();
      append(m, std::move(*parts));
      return Ok{};
    }
    if (model && *type == "thinking") {
      if (const std::string* thought = string_of(b, "thinking")) m.reasoning += *thought;
      return Ok{};
    }
    if (model && *type == "redacted_thinking") return Ok{};  // nothing that this model could read
    if (model && *type == "tool_use") return call(b, where, m);
    if (!model && *type == "tool_result") return result(b, where);
    return Error{
        where + ".type",
        fmt::format("expected {}, found {}", model ? "text, thinking or tool_use" : "text or tool_result", cut(*type)),
        "not supported"};
  }

  Status call(const Json& b, const std::string& where, Message& m) {
    ToolCall c;
    if (const std::string* id = string_of(b, "id")) c.id = *id;
    const std::string* name = string_of(b, "name");
    if (!name || name->empty()) return Error{where + ".name", "expected the name of a tool", ""};
    c.name = *name;
    if (const auto input = b.find("input"); input != b.end() && !input->is_null()) {
      if (!input->is_object()) return expected(where + ".input", "an object", *input);
      c.arguments = *input;
    }
    m.tool_calls.push_back(std::move(c));
    return Ok{};
  }

  Status result(const Json& b, const std::string& where) {
    const std::string* id = string_of(b, "tool_use_id");
    if (!id) return Error{where + ".tool_use_id", "expected a string", ""};
    Message m{.role = "tool", .tool_call_id = *id};
    std::string text;
    if (const auto content = b.find("content"); content != b.end() && !content->is_null()) {
      auto parts = read_text(*content, where + ".content");
      if (!parts) return parts.error();
      text = joined(*parts);
    }
    if (const auto failed = b.find("is_error"); failed != b.end() && *failed == true) text = "Error: " + text;
    m.content = std::move(text);
    out_.push_back(std::move(m));
    return Ok{};
  }

  std::vector<Message>& out_;
};

void read_system(Fields& f, ApiRequest& r) {
  const Json* v = f.get("system");
  if (!v) return;
  auto parts = read_text(*v, "system");
  if (!parts) return f.fail(parts.error());
  if (parts->empty()) return;
  Message m{.role = "system"};
  if (v->is_string())
    m.content = v->get<std::string>();
  else
    append(m, std::move(*parts));
  r.messages.push_back(std::move(m));
}

void read_messages(Fields& f, ApiRequest& r) {
  const Json* v = f.get("messages");
  if (!v || !v->is_array() || v->empty()) return f.fail("messages", "expected an array of at least one message", v);
  if (v->size() > kMaxMessages)
    return f.fail(
        Error{"messages", fmt::format("expected at most {} messages, found {}", kMaxMessages, v->size()), ""});
  MessageReader reader(r.messages);
  for (size_t i = 0; i < v->size(); ++i)
    if (Status s = reader.read((*v)[i], fmt::format("messages[{}]", i)); !s) return f.fail(s.error());
  if (r.messages.empty()) f.fail("messages", "expected some content", v);
}

void read_tools(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("tools")) {
    if (!v->is_array()) return f.fail("tools", "expected an array", v);
    if (v->size() > kMaxTools)
      return f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
    Json functions = Json::array();
    for (size_t i = 0; i < v->size(); ++i) {
      const Json& t = (*v)[i];
      const std::string at = fmt::format("tools[{}]", i);
      if (!t.is_object()) return f.fail(at, "expected an object", &t);
      if (const auto type = t.find("type"); type != t.end() && !type->is_null() && *type != "custom")
        return f.fail(at + ".type", "expected custom", &*type, "tools that Anthropic's servers run are not there");
      Json function = Json::object();
      for (const auto& [from, to] : {std::pair{"name", "name"},
                                     {"description", "description"},
                                     {"input_schema", "parameters"},
                                     {"strict", "strict"}})
        if (const auto it = t.find(from); it != t.end()) function[to] = *it;
      functions.push_back(std::move(function));
    }
    auto tools = tools_from_json(functions);
    if (!tools) return f.fail(tools.error());
    r.tools = std::move(*tools);
  }
  read_anthropic_choice(f, r);
}

// {"type": "json_schema", "schema": {...}}, under its newer name and its older one.
void read_output_format(Fields& f, ApiRequest& r) {
  auto read = [&](const std::string& where, const Json& v) {
    const std::string* type = v.is_object() ? string_of(v, "type") : nullptr;
    if (!type || *type != "json_schema" || !v.contains("schema"))
      return f.fail(Error{where, "expected the type json_schema and a schema, found " + shown(v), ""});
    constrain_to_schema(f, r, where + ".schema", v["schema"]);
  };
  if (const Json* v = f.get("output_config"); v && v->is_object())
    if (const auto format = v->find("format"); format != v->end() && !format->is_null())
      read("output_config.format", *format);
  if (const Json* v = f.get("output_format")) read("output_format", *v);
}

void read_thinking(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.thinking = d.thinking;
  r.thought_budget = d.thought_budget, r.max_loops = d.max_loops;
  const Json* v = f.get("thinking");
  if (!v) return;
  const std::string* type = v->is_object() ? string_of(*v, "type") : nullptr;
  if (!type || (*type != "enabled" && *type != "disabled" && *type != "adaptive"))
    return f.fail("thinking", "expected the type enabled, adaptive or disabled", v);
  r.thinking = *type != "disabled";
  if (*type != "enabled") return;
  Fields o(*v, /*strict=*/false, "thinking");
  read_thought_budget(o, r, {"budget_tokens"});
  f.check(o.done());
}

}  // namespace

Result<ApiRequest> parse_anthropic_request(const Json& body, const ApiDefaults& d) {
  ApiRequest r;
  r.kind = ApiKind::kMessages;
  if (!body.is_object())
    return Error{"", fmt::format("expected a JSON object as the body, found {}", body.type_name()), ""};
  Fields f(body, d.strict);
  std::string model;
  f.string("model", model);
  f.boolean("stream", r.stream);
  r.max_tokens = d.max_tokens;
  if (f.has("max_tokens")) f.integer("max_tokens", 1, kMaxTokens, r.max_tokens);
  read_sampling(f, r, d);
  read_stop(f, r, "stop_sequences");
  read_system(f, r);
  read_messages(f, r);
  read_tools(f, r);
  read_thinking(f, r, d);
  read_output_format(f, r);
  for (const char* key : {"container", "mcp_servers"})
    if (const Json* v = f.get(key)) f.fail(key, "expected nothing", v, "not supported");
  for (const char* key : kUnused) f.get(key);
  if (auto ok = f.done(); !ok) return ok.error();
  if (auto ok = settle_continuation(r, false); !ok) return ok.error();
  return r;
}

}  // namespace facet
