#include "tokenizer/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "tokenizer/json.h"
#include "tokenizer/python_text.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

using python::lower, python::member, python::number_text, python::trim, python::truthy, python::upper;

// --- what others have written

// While a prompt is rendered, bytes that no UTF-8 has stand around text that is not the template's.
constexpr char kPlainOpen = '\xFE', kPlainClose = '\xFF', kMediaMark = '\xFD';  // before a part's placeholder
bool is_mark(char c) { return c == kPlainOpen || c == kPlainClose || c == kMediaMark; }

std::string plain(std::string_view s) {
  if (s.empty()) return "";
  // Not find_first_of: clang 19 makes a comparison of it that no character above 127 passes.
  const bool odd = std::any_of(s.begin(), s.end(), is_mark);
  return fmt::format("{}{}{}", kPlainOpen, odd ? utf8_sanitize(s) : std::string(s), kPlainClose);
}

std::string_view placeholder(ContentPart::Kind kind) {
  switch (kind) {
    case ContentPart::Kind::kImage:
      return "<|image|>";
    case ContentPart::Kind::kAudio:
      return "<|audio|>";
    case ContentPart::Kind::kVideo:
      return "<|video|>";
    case ContentPart::Kind::kText:
    case ContentPart::Kind::kFile:
      break;
  }
  return "";
}

// parts: in the order of their marks.
RenderedChat without_marks(std::string_view marked, const std::vector<const ContentPart*>& parts) {
  RenderedChat out;
  out.text.reserve(marked.size());
  for (const char c : marked) {
    if (c == kPlainOpen)
      out.plain.push_back({out.text.size(), 0});
    else if (c == kPlainClose)
      out.plain.back().end = out.text.size();
    else if (c == kMediaMark)
      out.media.push_back({{out.text.size(), out.text.size() + placeholder(parts[out.media.size()]->kind).size()},
                           *parts[out.media.size()]});
    else
      out.text += c;
  }
  return out;
}

// --- values (6.4 of the format: no escaping, quotes are the token <|"|>)

constexpr std::string_view kQuote = "<|\"|>";

std::string in_quotes(std::string_view s) { return fmt::format("{}{}{}", kQuote, plain(s), kQuote); }

using Fields = std::vector<std::pair<std::string_view, const Json*>>;

// Jinja's dictsort: by key, ignoring case, stable. Case is ASCII's here; other letters sort by code point.
Fields sorted_fields(const Json& object) {
  std::vector<std::pair<std::string, std::pair<std::string_view, const Json*>>> keyed;
  for (auto it = object.begin(); it != object.end(); ++it) keyed.push_back({lower(it.key()), {it.key(), &*it}});
  std::stable_sort(keyed.begin(), keyed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Fields fields;
  for (const auto& k : keyed) fields.push_back(k.second);
  return fields;
}

enum class Keys { kPlain, kQuoted };  // kPlain in calls and responses, kQuoted in declarations

std::string format_value(const Json& v, Keys keys) {
  if (v.is_null()) return "null";
  if (v.is_string()) return in_quotes(v.get_ref<const std::string&>());
  if (v.is_boolean()) return v.get<bool>() ? "true" : "false";
  if (v.is_number()) return number_text(v);
  std::string out;
  if (v.is_object()) {
    for (const auto& [key, value] : sorted_fields(v)) {
      if (!out.empty()) out += ',';
      out += keys == Keys::kQuoted ? in_quotes(key) : plain(key);
      out += ':' + format_value(*value, keys);
    }
    return fmt::format("{{{}}}", out);
  }
  for (const Json& item : v) {
    if (!out.empty()) out += ',';
    out += format_value(item, keys);
  }
  return fmt::format("[{}]", out);
}

std::string format_fields(const Json& object) {
  std::string braced = format_value(object, Keys::kPlain);
  return braced.substr(1, braced.size() - 2);
}

// --- tool declarations (6.3)

std::string quoted_list(const Json& list) {
  std::string out;
  if (list.is_array())
    for (const Json& item : list) out += fmt::format("{}{}", out.empty() ? "" : ",", in_quotes(python::str(item)));
  return fmt::format("[{}]", out);
}

std::string format_properties(const Json& properties, bool schema_itself);

std::string format_items(const Json& items) {
  std::string out;
  for (const auto& [key, value] : sorted_fields(items)) {
    if (value->is_null()) continue;
    if (!out.empty()) out += ',';
    out += plain(key) + ':';
    if (key == "properties") {
      out += fmt::format("{{{}}}", value->is_object() ? format_properties(*value, false) : "");
    } else if (key == "required") {
      out += quoted_list(*value);
    } else if (key == "type" && value->is_array()) {
      Json types = Json::array();
      for (const Json& t : *value) types.push_back(upper(python::str(t)));
      out += format_value(types, Keys::kQuoted);
    } else {
      out += format_value(key == "type" ? Json(upper(python::str(*value))) : *value, Keys::kQuoted);
    }
  }
  return fmt::format("{{{}}}", out);
}

// One property's schema; type comes last and is always there.
std::string format_schema(const Json& schema) {
  const Json* type = member(schema, "type");
  const std::string type_name = type ? upper(python::str(*type)) : "";
  std::string out;
  if (const Json* d = member(schema, "description"); truthy(d))
    out += "description:" + in_quotes(python::str(*d)) + ',';
  if (type_name == "STRING") {
    if (const Json* values = member(schema, "enum"); truthy(values))
      out += "enum:" + format_value(*values, Keys::kQuoted) + ',';
  } else if (type_name == "ARRAY") {
    if (const Json* items = member(schema, "items"); truthy(items) && items->is_object())
      out += "items:" + format_items(*items) + ',';
  }
  if (truthy(member(schema, "nullable"))) out += "nullable:true,";
  if (type_name == "OBJECT") {
    const Json* properties = member(schema, "properties");
    const bool own = properties && properties->is_object();
    out += "properties:{" + (own ? format_properties(*properties, false) : format_properties(schema, true)) + "},";
    if (const Json* required = member(schema, "required"); truthy(required))
      out += "required:" + quoted_list(*required) + ',';
  }
  return fmt::format("{{{}type:{}}}", out, in_quotes(type_name));
}

// schema_itself: an object without properties lists its other members as if they were properties.
std::string format_properties(const Json& properties, bool schema_itself) {
  constexpr std::array<std::string_view, 5> kStandard = {"description", "type", "properties", "required", "nullable"};
  std::string out;
  for (const auto& [key, schema] : sorted_fields(properties)) {
    if (schema_itself && std::find(kStandard.begin(), kStandard.end(), key) != kStandard.end()) continue;
    if (!out.empty()) out += ',';
    out += fmt::format("{}:{}", plain(key), format_schema(*schema));
  }
  return out;
}

// The template closes parameters and response only after a type; so does this.
std::string format_declaration(const Json& function) {
  const Json* description = member(function, "description");
  std::string out = fmt::format("declaration:{}{{description:{}", plain(python::str(function["name"])),
                                in_quotes(description ? python::str(*description) : ""));
  if (const Json* parameters = member(function, "parameters"); truthy(parameters)) {
    out += ",parameters:{";
    if (const Json* properties = member(*parameters, "properties"); truthy(properties))
      out += "properties:{" + format_properties(*properties, false) + "},";
    if (const Json* required = member(*parameters, "required"); truthy(required))
      out += "required:" + quoted_list(*required) + ',';
    if (const Json* type = member(*parameters, "type"); truthy(type))
      out += "type:" + in_quotes(upper(python::str(*type))) + '}';
  }
  if (const Json* response = member(function, "response")) {
    out += ",response:{";
    if (const Json* d = member(*response, "description"); truthy(d))
      out += "description:" + in_quotes(python::str(*d)) + ',';
    const Json* type = member(*response, "type");
    if (type && upper(python::str(*type)) == "OBJECT") out += "type:" + in_quotes("OBJECT") + '}';
  }
  return out + '}';
}

// --- messages (6.2)

constexpr std::string_view kChannelOpen = "<|channel>", kChannelClose = "<channel|>";

// Text without the thoughts written into it.
std::string strip_thinking(std::string_view text) {
  std::string out;
  while (true) {
    const size_t close = text.find(kChannelClose);
    const std::string_view part = text.substr(0, close);
    out += part.substr(0, part.find(kChannelOpen));
    if (close == std::string_view::npos) return std::string(trim(out));
    text.remove_prefix(close + kChannelClose.size());
  }
}

using MediaParts = std::vector<const ContentPart*>;

// A part's placeholder with its mark; nothing of a kind that has none.
std::string marked_placeholder(const ContentPart& p, MediaParts& media) {
  const std::string_view text = placeholder(p.kind);
  if (text.empty()) return "";
  media.push_back(&p);
  return fmt::format("{}{}{}", p.before, kMediaMark, text);
}

std::string render_content(const Message& m, MediaParts& media) {
  const bool model = m.role == "assistant";
  const auto clean = [&](const std::string& s) { return plain(model ? strip_thinking(s) : std::string(trim(s))); };
  if (const auto* text = std::get_if<std::string>(&m.content)) return clean(*text);
  std::string out;
  if (const auto* parts = std::get_if<std::vector<ContentPart>>(&m.content))
    for (const ContentPart& p : *parts)
      out += p.kind == ContentPart::Kind::kText ? clean(p.text) : marked_placeholder(p, media);
  return out;
}

// The first system turn does not join its parts like other turns: each is followed by a space.
std::string render_system_content(const Message& m) {
  if (const auto* text = std::get_if<std::string>(&m.content)) return plain(trim(*text));
  std::string out;
  if (const auto* parts = std::get_if<std::vector<ContentPart>>(&m.content))
    for (const ContentPart& p : *parts) (out += plain(trim(p.text))) += ' ';
  return out;
}

std::string response_block(std::string_view name, const Json& response) {
  const std::string body =
      response.is_object() ? format_fields(response) : "value:" + format_value(response, Keys::kPlain);
  return fmt::format("<|tool_response>response:{}{{{}}}<tool_response|>", plain(name), body);
}

// A message of role tool, the index-th that answers calls of `asker`. Without an id it is of the tool it names, or,
// where it names none, of the call at its place.
std::string render_tool_message(const Message& asker, const Message& tool, size_t index, MediaParts& media) {
  std::string name = tool.name.empty() ? "unknown" : tool.name;
  if (!tool.tool_call_id.empty()) {
    for (const ToolCall& call : asker.tool_calls)
      if (call.id == tool.tool_call_id) name = call.name;
  } else if (tool.name.empty() && index < asker.tool_calls.size()) {
    name = asker.tool_calls[index].name;
  }
  if (const auto* text = std::get_if<std::string>(&tool.content)) return response_block(name, *text);
  const auto* parts = std::get_if<std::vector<ContentPart>>(&tool.content);
  if (!parts) return response_block(name, nullptr);
  std::string text, marked;
  for (const ContentPart& p : *parts) {
    text += p.text;
    marked += marked_placeholder(p, media);
  }
  return response_block(name, text) + marked;
}

std::string message_where(size_t index) { return fmt::format("messages[{}]", index); }

class Renderer {
 public:
  Renderer(const std::vector<Message>& messages, const RenderOptions& options)
      : messages_(messages), options_(options) {}

  const MediaParts& media() const { return media_; }

  Result<std::string> run(const std::vector<Json>& tools) {
    out_ = "<bos>";
    const size_t first = system_turn(tools);
    for (size_t i = first; i < messages_.size(); ++i)
      if (messages_[i].role == "user") last_user_ = ptrdiff_t(i);
    for (size_t i = first; i < messages_.size(); ++i) {
      if (messages_[i].role == "tool") continue;  // rendered with the calls it answers
      if (Status s = turn(i); !s) return s.error();
      previous_role_ = messages_[i].role;
    }
    if (options_.add_generation_prompt) generation_prompt();
    return std::move(out_);
  }

 private:
  // What the last turn ended with, as far as the generation prompt cares.
  enum class Last { kText, kCall, kResponse };

  // Returns the index of the first message that is not part of it.
  size_t system_turn(const std::vector<Json>& tools) {
    const bool system = !messages_.empty() && (messages_[0].role == "system" || messages_[0].role == "developer");
    if (!options_.enable_thinking && tools.empty() && !system) return 0;
    out_ += "<|turn>system\n";
    if (options_.enable_thinking) out_ += "<|think|>\n";
    if (system) out_ += render_system_content(messages_[0]);
    for (const Json& tool : tools) out_ += "<|tool>" + format_declaration(tool) + "<tool|>";
    out_ += "<turn|>\n";
    return system ? 1 : 0;
  }

  Status turn(size_t index) {
    const Message& m = messages_[index];
    const bool model = m.role == "assistant";
    last_ = Last::kText;
    if (!model || previous_role_ != "assistant") out_ += fmt::format("<|turn>{}\n", model ? "model" : m.role);

    const bool current = ptrdiff_t(index) > last_user_;
    if (!m.reasoning.empty() && (current || (options_.preserve_thinking && !m.tool_calls.empty())))
      out_ += fmt::format("<|channel>thought\n{}\n<channel|>", plain(m.reasoning));

    if (Status s = calls(index); !s) return s;
    const bool responded = responses(index);
    const std::string content = render_content(m, media_);
    out_ += content;

    size_t next = index + 1;
    while (next < messages_.size() && messages_[next].role == "tool") ++next;
    const bool more = next < messages_.size();
    if (last_ == Last::kCall) {
      out_ += "<|tool_response>";  // here the runtime inserts the result
    } else if (model && more && messages_[next].role == "assistant") {
      // the model's turn goes on in the next message
    } else if (!responded || more || !trim(content).empty()) {
      out_ += "<turn|>\n";
    }
    return Ok{};
  }

  Status calls(size_t index) {
    const std::vector<ToolCall>& tool_calls = messages_[index].tool_calls;
    for (size_t c = 0; c < tool_calls.size(); ++c) {
      const ToolCall& call = tool_calls[c];
      if (!call.arguments.is_object() && !call.arguments.is_null())
        return Error{fmt::format("{}.tool_calls[{}]", message_where(index), c),
                     fmt::format("arguments: expected an object, found a {}", call.arguments.type_name()),
                     "pass the arguments as an object, or as the JSON text of one"};
      out_ += fmt::format("<|tool_call>call:{}{{{}}}<tool_call|>", plain(call.name),
                          call.arguments.is_null() ? "" : format_fields(call.arguments));
      last_ = Last::kCall;
    }
    return Ok{};
  }

  // Returns whether there are any.
  bool responses(size_t index) {
    const Message& m = messages_[index];
    std::string out;
    if (!m.tool_responses.empty()) {
      for (const ToolResponse& r : m.tool_responses)
        out += response_block(r.name.empty() ? "unknown" : r.name, r.response);
    } else if (!m.tool_calls.empty()) {
      for (size_t i = index + 1; i < messages_.size() && messages_[i].role == "tool"; ++i)
        out += render_tool_message(m, messages_[i], i - index - 1, media_);
    }
    if (out.empty()) return false;
    out_ += out;
    last_ = Last::kResponse;
    return true;
  }

  void generation_prompt() {
    // A response followed by content is a closed turn. The template adds nothing there, and the model would
    // write outside of any turn; like llama.cpp this opens one.
    const bool closed = out_.ends_with("<turn|>\n");
    if (last_ == Last::kText || closed) {
      out_ += "<|turn>model\n";
      if (options_.variant == Variant::kLarge && !options_.enable_thinking) out_ += "<|channel>thought\n<channel|>";
    } else if (last_ == Last::kResponse && options_.enable_thinking) {
      out_ += "<|channel>thought\n";
    }
  }

  const std::vector<Message>& messages_;
  const RenderOptions& options_;
  std::string out_, previous_role_;
  MediaParts media_;  // as their marks stand in out_
  ptrdiff_t last_user_ = -1;
  Last last_ = Last::kText;
};

}  // namespace

Variant chat_variant(std::string_view chat_template, bool has_per_layer_embeddings) {
  const Variant by_architecture = has_per_layer_embeddings ? Variant::kSmall : Variant::kLarge;
  if (chat_template.find("<|turn>") == std::string_view::npos) return by_architecture;  // not a Gemma 4 template
  // In the source the newline of the empty thought is an escape inside a Jinja string.
  return chat_template.find("<|channel>thought\\n<channel|>") != std::string_view::npos ? Variant::kLarge
                                                                                        : Variant::kSmall;
}

Result<std::string> render_chat(const std::vector<Message>& messages, const std::vector<Json>& tools,
                                const RenderOptions& options) {
  auto rendered = render_chat_ranges(messages, tools, options);
  if (!rendered) return rendered.error();
  return std::move(rendered->text);
}

Result<RenderedChat> render_chat_ranges(const std::vector<Message>& messages, const std::vector<Json>& tools,
                                        const RenderOptions& options) {
  Renderer renderer(messages, options);
  auto marked = renderer.run(tools);
  if (!marked) return marked.error();
  return without_marks(*marked, renderer.media());
}

}  // namespace facet
