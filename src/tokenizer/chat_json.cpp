#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tokenizer/chat.h"
#include "tokenizer/json.h"
#include "tokenizer/media_part.h"
#include "tokenizer/utf8.h"

// OpenAI-style JSON to messages and tools. Every error names the path of the value, as in
// messages[2].content.
namespace facet {
namespace {

constexpr size_t kMaxToolName = 256;

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

Error expected(const std::string& where, std::string_view what, const Json* found, std::string hint = "") {
  return Error{where, fmt::format("expected {}, found {}", what, found ? found->type_name() : "nothing"),
               std::move(hint)};
}

// An optional string; null counts as absent.
Status read_string(const Json& object, const char* key, const std::string& where, std::string& out) {
  const Json* v = member(object, key);
  if (!v || v->is_null()) return Ok{};
  if (!v->is_string()) return expected(fmt::format("{}.{}", where, key), "a string", v);
  out = v->get<std::string>();
  return Ok{};
}

Result<ContentPart> part_from_json(const Json& j, const std::string& where) {
  if (!j.is_object()) return expected(where, "an object with a type", &j);
  std::string type;
  if (Status s = read_string(j, "type", where, type); !s) return s.error();
  ContentPart part;
  if (type == "text") {
    const Json* text = member(j, "text");
    if (!text || !text->is_string()) return expected(where + ".text", "a string", text);
    part.text = text->get<std::string>();
  } else if (type == "refusal") {  // what a model has said
    if (Status s = read_string(j, "refusal", where, part.text); !s) return s.error();
  } else if (type == "file" || type == "input_file") {
    part.kind = ContentPart::Kind::kFile;
  } else if (type == "image" || type == "image_url") {
    part = media_from_json(ContentPart::Kind::kImage, j, where);
  } else if (type == "audio" || type == "input_audio") {
    part = media_from_json(ContentPart::Kind::kAudio, j, where);
  } else if (type == "video" || type == "video_url") {
    part = video_from_json(j, where);
  } else {
    return Error{
        where + ".type",
        fmt::format("expected text, refusal, image, image_url, audio, input_audio, video or file, found \"{}\"",
                    cut(type)),
        ""};
  }
  return part;
}

Result<Content> content_from_json(const Json* j, const std::string& where) {
  if (!j || j->is_null()) return Content{};
  if (j->is_string()) return Content{j->get<std::string>()};
  if (!j->is_array())
    return expected(where, "a string, an array of parts or null", j, "write structured results as JSON text");
  std::vector<ContentPart> parts;
  for (size_t i = 0; i < j->size(); ++i) {
    Result<ContentPart> part = part_from_json((*j)[i], fmt::format("{}[{}]", where, i));
    if (!part) return part.error();
    parts.push_back(std::move(*part));
  }
  return Content{std::move(parts)};
}

// {id, type, function: {name, arguments}}
Result<ToolCall> call_from_json(const Json& j, const std::string& where) {
  ToolCall call;
  if (Status s = read_string(j, "id", where, call.id); !s) return s.error();
  const Json* function = member(j, "function");
  if (!function || !function->is_object()) return expected(where + ".function", "an object", function);
  if (Status s = read_string(*function, "name", where + ".function", call.name); !s) return s.error();
  if (call.name.empty()) return expected(where + ".function.name", "a string", member(*function, "name"));
  const std::string at = where + ".function.arguments";
  const Json* arguments = member(*function, "arguments");
  if (!arguments || arguments->is_null()) return call;
  if (arguments->is_string()) {
    const auto& text = arguments->get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return call;
    Result<Json> parsed = parse_json(text, at);
    if (!parsed) return parsed.error();
    call.arguments = std::move(*parsed);
  } else {
    call.arguments = *arguments;
  }
  if (!call.arguments.is_object() && !call.arguments.is_null())
    return expected(at, "an object or the JSON text of one", &call.arguments);
  return call;
}

Result<ToolResponse> response_from_json(const Json& j, const std::string& where) {
  ToolResponse r;
  if (!j.is_object()) return expected(where, "an object with name and response", &j);
  if (Status s = read_string(j, "name", where, r.name); !s) return s.error();
  if (const Json* response = member(j, "response")) r.response = *response;
  return r;
}

// An optional array, each element read by `read`.
template <class T, class Read>
Status read_array(const Json& object, const char* key, const std::string& where, std::vector<T>& out, Read read) {
  const Json* list = member(object, key);
  if (!list || list->is_null()) return Ok{};
  const std::string at = fmt::format("{}.{}", where, key);
  if (!list->is_array()) return expected(at, "an array", list);
  for (size_t i = 0; i < list->size(); ++i) {
    Result<T> item = read((*list)[i], fmt::format("{}[{}]", at, i));
    if (!item) return item.error();
    out.push_back(std::move(*item));
  }
  return Ok{};
}

Result<Message> message_from_json(const Json& j, const std::string& where) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant", "tool"};
  if (!j.is_object()) return expected(where, "an object with role and content", &j);
  Message m;
  if (Status s = read_string(j, "role", where, m.role); !s) return s.error();
  // The role becomes part of the prompt, so it is not free text.
  if (std::find(kRoles.begin(), kRoles.end(), m.role) == kRoles.end())
    return Error{where + ".role",
                 fmt::format("expected system, developer, user, assistant or tool, found \"{}\"", cut(m.role)), ""};
  Result<Content> content = content_from_json(member(j, "content"), where + ".content");
  if (!content) return content.error();
  m.content = std::move(*content);
  if (std::holds_alternative<std::monostate>(m.content)) {
    std::string refusal;
    if (Status s = read_string(j, "refusal", where, refusal); !s) return s.error();
    if (!refusal.empty()) m.content = std::move(refusal);
  }
  if (Status s = read_string(j, "reasoning", where, m.reasoning); !s) return s.error();
  if (m.reasoning.empty())
    if (Status s = read_string(j, "reasoning_content", where, m.reasoning); !s) return s.error();
  if (Status s = read_string(j, "tool_call_id", where, m.tool_call_id); !s) return s.error();
  if (Status s = read_string(j, "name", where, m.name); !s) return s.error();
  if (Status s = read_array(j, "tool_calls", where, m.tool_calls, call_from_json); !s) return s.error();
  if (Status s = read_array(j, "tool_responses", where, m.tool_responses, response_from_json); !s) return s.error();
  return m;
}

}  // namespace

Result<std::vector<Message>> messages_from_json(const Json& messages) {
  if (!messages.is_array()) return expected("messages", "an array", &messages);
  std::vector<Message> out;
  for (size_t i = 0; i < messages.size(); ++i) {
    Result<Message> m = message_from_json(messages[i], fmt::format("messages[{}]", i));
    if (!m) return m.error();
    out.push_back(std::move(*m));
  }
  return out;
}

Result<Json> tool_from_json(const Json& tool, const std::string& where) {
  const Json* wrapped = member(tool, "function");
  const Json& function = wrapped ? *wrapped : tool;
  if (!function.is_object()) return expected(where, "a function object", &function);
  const Json* name = member(function, "name");
  if (!name || !name->is_string()) return expected(where + ".name", "a string", name);
  // What ends a name in a call's text.
  const auto& text = name->get_ref<const std::string&>();
  constexpr std::string_view kNever = "<>{}()[]\"'`,;";
  const bool plain = std::none_of(text.begin(), text.end(), [&](char c) {
    return uint8_t(c) <= ' ' || c == '\x7F' || kNever.find(c) != std::string_view::npos;
  });
  if (text.empty() || text.size() > kMaxToolName || !plain || text.ends_with(':') || text.starts_with(':'))
    return Error{
        where + ".name",
        fmt::format("expected 1 to {} bytes without spaces, quotes, brackets, commas and semicolons, found \"{}\"",
                    kMaxToolName, cut(text, 60)),
        "no call could name it"};
  const Json* parameters = member(function, "parameters");
  if (parameters && !parameters->is_null() && !parameters->is_object())
    return expected(where + ".parameters", "an object", parameters);
  const Json* properties = parameters ? member(*parameters, "properties") : nullptr;
  if (properties && !properties->is_null() && !properties->is_object())
    return expected(where + ".parameters.properties", "an object", properties);
  return function;
}

Result<std::vector<Json>> tools_from_json(const Json& tools) {
  std::vector<Json> out;
  if (tools.is_null()) return out;
  if (!tools.is_array()) return expected("tools", "an array", &tools);
  for (size_t i = 0; i < tools.size(); ++i) {
    Result<Json> tool = tool_from_json(tools[i], fmt::format("tools[{}]", i));
    if (!tool) return tool.error();
    out.push_back(std::move(*tool));
  }
  return out;
}

}  // namespace facet
