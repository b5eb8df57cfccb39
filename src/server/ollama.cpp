#include "server/ollama.h"

#include <fmt/format.h>

#include "server/api_fields.h"
#include "server/constraint.h"
#include "server/request_media.h"
#include "server/writer.h"
#include "tokenizer/media_part.h"

namespace facet {
namespace {

void read_options(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.sampling = d.sampling;
  r.seed_given = d.seed_given;
  r.max_tokens = d.max_tokens;
  const Json* v = f.get("options");
  if (!v) return;
  Fields o(*v, d.strict, "options");
  read_sampling(o, r, d);
  read_stop(o, r, "stop");
  if (const Json* n = o.get("num_predict")) {
    // -1: no limit; -2: until the context is full; 0 is no limit to Ollama either.
    const auto value = Fields::whole(*n, -2, kMaxTokens);
    if (!value)
      o.fail("num_predict", fmt::format("expected an integer in [-2, {}]", kMaxTokens), n);
    else
      r.max_tokens = *value <= 0 ? -1 : int(*value);
  }
  // How the model is loaded is the server's business.
  for (const char* key : {"num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread", "num_keep", "numa"})
    o.get(key);
  for (const auto& [key, off] : {std::pair{"typical_p", 1.0}, {"tfs_z", 1.0}, {"mirostat", 0.0}})
    if (const Json* n = o.get(key); n && *n != off) o.fail(key, fmt::format("expected {}", off), n, "not supported");
  f.check(o.done());
}

void read_think(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  r.thinking = d.thinking;
  r.thought_budget = d.thought_budget, r.max_loops = d.max_loops;
  const Json* v = f.get("think");
  if (!v) return;
  if (v->is_boolean())
    r.thinking = v->get<bool>();
  else
    read_effort(f, r, "think", v);
}

// Pictures of a message or a prompt stand beside its text, and before it in the prompt.
std::vector<ContentPart> images_of(const Json& object, const std::string& where) {
  std::vector<ContentPart> parts;
  const auto it = object.find("images");
  if (it == object.end() || it->is_null()) return parts;
  if (!it->is_array()) return {media_from_base64(ContentPart::Kind::kImage, "", where + "images")};
  for (size_t k = 0; k < it->size(); ++k) {
    const Json& image = (*it)[k];
    const std::string_view data = image.is_string() ? std::string_view(image.get_ref<const std::string&>()) : "";
    parts.push_back(media_from_url(ContentPart::Kind::kImage, data, fmt::format("{}images[{}]", where, k)));
  }
  return parts;
}

// As OpenAI's messages, but for the thought's name, arguments as objects, and results that name their tool.
void read_messages(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  const Json* v = f.get("messages");
  if (!v || (v->is_array() && v->empty())) return;
  if (!v->is_array()) return f.fail("messages", "expected an array", v);
  if (v->size() > kMaxMessages)
    return f.fail(
        Error{"messages", fmt::format("expected at most {} messages, found {}", kMaxMessages, v->size()), ""});
  Json copy = *v;
  for (Json& m : copy) {
    if (!m.is_object()) continue;
    if (const auto it = m.find("thinking"); it != m.end()) m["reasoning"] = Json(*it);
    if (const auto it = m.find("tool_name"); it != m.end()) m["name"] = Json(*it);
  }
  auto messages = messages_from_json(copy);
  if (!messages) return f.fail(messages.error());
  r.messages = std::move(*messages);
  for (size_t i = 0; i < r.messages.size(); ++i) {
    std::vector<ContentPart> parts = images_of((*v)[i], fmt::format("messages[{}].", i));
    if (parts.empty()) continue;
    Message& m = r.messages[i];
    if (auto* text = std::get_if<std::string>(&m.content))
      parts.push_back({ContentPart::Kind::kText, std::move(*text)});
    if (auto* some = std::get_if<std::vector<ContentPart>>(&m.content))
      parts.insert(parts.end(), some->begin(), some->end());
    m.content = std::move(parts);
  }
  leave_media_out(f, r, d, fmt::format("messages[{}].images", v->size() - 1));
}

void read_prompt(Fields& f, ApiRequest& r, const ApiDefaults& d) {
  std::string prompt, system;
  bool raw = false;
  f.string("prompt", prompt);
  f.string("system", system);
  f.boolean("raw", raw);
  f.get("images");
  std::vector<ContentPart> parts = images_of(f.object(), "");
  f.only("suffix", "\"\"", "");
  f.only("template", "\"\"", "");
  f.only("context", "[]", Json::array());
  if (prompt.empty() && parts.empty()) return;
  if (!prompt.empty()) parts.push_back({ContentPart::Kind::kText, std::move(prompt)});
  if (!raw && !system.empty()) r.messages.push_back({.role = "system", .content = std::move(system)});
  r.messages.push_back({.role = "user", .content = content_of(std::move(parts))});
  leave_media_out(f, r, d, "images");
  if (!raw || f.failed()) return;
  // The text as it is, behind its pictures.
  const Message m = std::exchange(r.messages, {})[0];
  if (const auto* text = std::get_if<std::string>(&m.content)) return void(r.prompt.emplace_back(*text));
  for (const ContentPart& p : std::get<std::vector<ContentPart>>(m.content))
    p.bytes ? r.prompt.emplace_back(p) : r.prompt.emplace_back(p.text);
}

}  // namespace

Result<ApiRequest> parse_ollama_request(ApiKind kind, const Json& body, const ApiDefaults& d) {
  ApiRequest r;
  r.kind = kind;
  r.stream = true;
  if (!body.is_object())
    return Error{"", fmt::format("expected a JSON object as the body, found {}", body.type_name()), ""};
  Fields f(body, d.strict);
  std::string model;
  f.string("model", model);
  f.boolean("stream", r.stream);
  read_options(f, r, d);
  read_think(f, r, d);
  if (const Json* v = f.get("format"); v && *v != "")
    constrain_to_schema(f, r, "format", *v == "json" ? Json{{"type", "object"}} : *v);
  // 0, or "0", "0s": the model may go. It stays, but a request of nothing else is answered as Ollama answers it.
  if (const Json* v = f.get("keep_alive"))
    r.unload = (v->is_number() && v->get<double>() == 0) ||
               (v->is_string() && !v->get_ref<const std::string&>().empty() &&
                v->get_ref<const std::string&>().find_first_not_of("0hms") == std::string::npos);
  if (kind == ApiKind::kOllamaChat) {
    read_messages(f, r, d);
    if (const Json* v = f.get("tools")) {
      if (v->is_array() && v->size() > kMaxTools)
        f.fail(Error{"tools", fmt::format("expected at most {} tools, found {}", kMaxTools, v->size()), ""});
      auto tools = tools_from_json(*v);
      if (!tools)
        f.fail(tools.error());
      else
        r.tools = std::move(*tools);
    }
  } else {
    read_prompt(f, r, d);
  }
  if (auto ok = f.done(); !ok) return ok.error();
  if (r.chat())
    if (auto ok = settle_continuation(r, false); !ok) return ok.error();
  return r;
}

}  // namespace facet
