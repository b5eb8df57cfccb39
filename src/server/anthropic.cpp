#include "server/anthropic.h"

#include <fmt/format.h>

#include <optional>

#include "server/api_fields.h"
#include "server/constraint.h"
#include "server/request_media.h"
#include "tokenizer/media_part.h"

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

// {type: image, source: {type: base64, media_type, data} or {type: url, url}}
ContentPart read_image(const Json& b, const std::string& where) {
  const auto source = b.find("source");
  if (source != b.end() && source->is_object()) {
    if (const std::string* data = string_of(*source, "data"))
      return media_from_base64(ContentPart::Kind::kImage, *data, where + ".data");
    if (const std::string* url = string_of(*source, "url"))
      return media_from_url(ContentPart::Kind::kImage, *url, where + ".url");
  }
  ContentPart part;
  part.kind = ContentPart::Kind::kImage;
  part.error = Error{where, "expected a source of type base64 with data", ""};
  return part;
}

// A block that says something, as a part. None: it is left out.
Result<std::optional<ContentPart>> read_part(const Json& b, const std::string& where, Dropped& left_out) {
  using Part = std::optional<ContentPart>;
  using Kind = ContentPart::Kind;
  if (!b.is_object()) return expected(where, "a block", b);
  const std::string* type = string_of(b, "type");
  if (!type) return Error{where + ".type", "expected a string", ""};
  if (*type == "text") {
    const std::string* text = string_of(b, "text");
    if (!text) return Error{where + ".text", "expected a string", ""};
    return Part(ContentPart{Kind::kText, *text});
  }
  if (*type == "image") return Part(read_image(b, where + ".source"));
  if (*type == "audio") return Part(ContentPart{Kind::kAudio, ""});
  if (*type == "document" || *type == "search_result") {
    const auto source = b.find(*type == "document" ? "source" : "content");
    std::string text;
    if (const std::string* title = string_of(b, "title")) text = *title + "\n";
    const bool plain = source != b.end() && source->is_object() && string_of(*source, "type") &&
                       *string_of(*source, "type") == "text" && string_of(*source, "data");
    if (plain) return Part(ContentPart{Kind::kText, text + *string_of(*source, "data")});
    const Json* blocks = nullptr;
    if (source != b.end() && source->is_array()) blocks = &*source;
    if (source != b.end() && source->is_object() && source->contains("content")) blocks = &(*source)["content"];
    if (blocks && blocks->is_string()) return Part(ContentPart{Kind::kText, text + blocks->get<std::string>()});
    if (!blocks || !blocks->is_array()) return Part(ContentPart{Kind::kFile, ""});
    for (const Json& inner : *blocks)
      if (const std::string* t = inner.is_object() ? string_of(inner, "text") : nullptr) text += *t;
    return Part(ContentPart{Kind::kText, std::move(text)});
  }
  // Of tools that Anthropic's servers run, and references to those that a search has found.
  const bool server = *type == "tool_reference" || *type == "server_tool_use" || *type == "mcp_tool_use" ||
                      *type == "container_upload" || *type == "compaction" || *type == "fallback" ||
                      (type->ends_with("_tool_result") && *type != "tool_result");
  if (!server) return Error{where + ".type", fmt::format("expected text, found {}", cut(*type)), "not supported"};
  left_out.add(&Dropped::items, *type);
  return Part{};
}

// A text, or blocks, as parts.
Result<std::vector<ContentPart>> read_parts(const Json& j, const std::string& where, Dropped& left_out) {
  std::vector<ContentPart> parts;
  if (j.is_string()) {
    parts.push_back({ContentPart::Kind::kText, j.get<std::string>()});
    return parts;
  }
  if (!j.is_array()) return expected(where, "a string or an array of blocks", j);
  for (size_t i = 0; i < j.size(); ++i) {
    auto part = read_part(j[i], fmt::format("{}[{}]", where, i), left_out);
    if (!part) return part.error();
    if (*part) parts.push_back(std::move(**part));
  }
  return parts;
}

void append(Message& m, std::vector<ContentPart> parts) {
  if (const auto* text = std::get_if<std::string>(&m.content))
    parts.insert(parts.begin(), {ContentPart::Kind::kText, *text}), m.content = std::monostate{};
  if (!std::holds_alternative<std::vector<ContentPart>>(m.content)) m.content = std::vector<ContentPart>{};
  auto& all = std::get<std::vector<ContentPart>>(m.content);
  for (ContentPart& p : parts) all.push_back(std::move(p));
}

// One message of Anthropic's is several of ours: results of tools are messages of their own, before the text.
class MessageReader {
 public:
  explicit MessageReader(ApiRequest& r) : out_(r.messages), left_out_(r.left_out) {}

  Status read(const Json& j, const std::string& where) {
    if (!j.is_object()) return expected(where, "an object with role and content", j);
    const std::string* role = string_of(j, "role");
    if (!role || (*role != "user" && *role != "assistant" && *role != "system"))
      return Error{where + ".role",
                   fmt::format("expected user, assistant or system, found {}", role ? cut(*role) : "nothing"), ""};
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
    if (model && *type == "thinking") {
      if (const std::string* thought = string_of(b, "thinking")) m.reasoning += *thought;
      return Ok{};
    }
    if (model && *type == "redacted_thinking") return Ok{};  // nothing that this model could read
    if (model && *type == "tool_use") return call(b, where, m);
    if (m.role == "user" && *type == "tool_result") return result(b, where);
    auto part = read_part(b, where, left_out_);
    if (!part && part.error().where == where + ".type")
      return Error{where + ".type",
                   fmt::format("expected {}, found {}", model ? "text, thinking or tool_use" : "text or tool_result",
                               cut(*type)),
                   "not supported"};
    if (!part) return part.error();
    if (*part) append(m, {std::move(**part)});
    return Ok{};
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
    std::vector<ContentPart> all;
    if (const auto failed = b.find("is_error"); failed != b.end() && *failed == true)
      all.push_back({ContentPart::Kind::kText, "Error: "});
    if (const auto content = b.find("content"); content != b.end() && !content->is_null()) {
      auto parts = read_parts(*content, where + ".content", left_out_);
      if (!parts) return parts.error();
      std::move(parts->begin(), parts->end(), std::back_inserter(all));
    }
    m.content = content_of(std::move(all));
    out_.push_back(std::move(m));
    return Ok{};
  }

  std::vector<Message>& out_;
  Dropped& left_out_;
};

// Claude Code puts lines about the request into the system prompt, new ones each time: nothing for the model, and the
// prompt's beginning would never be found in the cache again.
std::string without_headers(std::string_view text) {
  constexpr std::string_view kHeader = "x-anthropic-";
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find('\n'), n = end == std::string_view::npos ? text.size() : end + 1;
    if (!text.starts_with(kHeader)) out += text.substr(0, n);
    text.remove_prefix(n);
  }
  return out;
}

void read_system(Fields& f, ApiRequest& r) {
  const Json* v = f.get("system");
  if (!v) return;
  auto parts = read_parts(*v, "system", r.left_out);
  if (!parts) return f.fail(parts.error());
  for (ContentPart& p : *parts) p.text = without_headers(p.text);
  std::erase_if(*parts, [](const ContentPart& p) { return p.kind == ContentPart::Kind::kText && p.text.empty(); });
  if (parts->empty()) return;
  Message m{.role = "system"};
  if (v->is_string())
    m.content = std::move(parts->front().text);
  else
    append(m, std::move(*parts));
  r.messages.push_back(std::move(m));
}

void read_messages(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  const Json* v = f.get("messages");
  if (!v || !v->is_array() || v->empty()) return f.fail("messages", "expected an array of at least one message", v);
  if (v->size() > kMaxMessages)
    return f.fail(
        Error{"messages", fmt::format("expected at most {} messages, found {}", kMaxMessages, v->size()), ""});
  MessageReader reader(r);
  for (size_t i = 0; i < v->size(); ++i)
    if (Status s = reader.read((*v)[i], fmt::format("messages[{}]", i)); !s) return f.fail(s.error());
  if (r.messages.empty()) return f.fail("messages", "expected some content", v);
  leave_media_out(f, r, d, media_place(*v, "messages"));
}

void read_tools(Fields& f, ApiRequest& r) {
  if (const Json* v = f.get("tools")) {
    if (!v->is_array()) return f.fail("tools", "expected an array", v);
    if (v->size() > kMaxTools)
      return f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
    for (size_t i = 0; i < v->size(); ++i) {
      const Json& t = (*v)[i];
      const std::string at = fmt::format("tools[{}]", i);
      if (!t.is_object()) return f.fail(at, "expected an object", &t);
      const auto type = t.find("type");
      const bool other = type != t.end() && type->is_string() && *type != "custom";
      // Anthropic's servers run it, or it refers to one that they find.
      if (other && is_type_name(type->get_ref<const std::string&>())) {
        r.left_out.add(&Dropped::tools, type->get_ref<const std::string&>());
        continue;
      }
      if (type != t.end() && *type != "custom" && !type->is_null())
        return f.fail(at + ".type", "expected custom", &*type);
      Json function = Json::object();
      for (const auto& [from, to] : {std::pair{"name", "name"},
                                     {"description", "description"},
                                     {"input_schema", "parameters"},
                                     {"strict", "strict"}})
        if (const auto it = t.find(from); it != t.end()) function[to] = *it;
      auto tool = tool_from_json(function, at);
      if (!tool) return f.fail(tool.error());
      r.tools.push_back(std::move(*tool));
    }
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
  read_messages(f, r, d);
  read_tools(f, r);
  read_thinking(f, r, d);
  read_output_format(f, r);
  for (const char* key : {"container", "mcp_servers"})
    if (const Json* v = f.get(key); v && !v->empty()) f.fail(key, "expected nothing", v, "not supported");
  for (const char* key : kUnused) f.get(key);
  if (auto ok = f.done(); !ok) return ok.error();
  if (auto ok = settle_continuation(r, false); !ok) return ok.error();
  return r;
}

}  // namespace facet
