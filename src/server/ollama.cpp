#include "server/ollama.h"

#include <fmt/format.h>

#include "server/api_fields.h"
#include "server/constraint.h"
#include "server/writer.h"

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

void no_pictures(Fields& f, const Json& object, const std::string& where) {
  if (const auto it = object.find("images"); it != object.end() && !it->is_null() && !it->empty())
    f.fail(Error{where + "images", "expected none", "not supported"});
}

// As OpenAI's messages, but for the thought's name, arguments as objects, and results that name their tool.
void read_messages(Fields& f, ApiRequest& r) {
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
  // Pictures stand beside the content.
  for (size_t i = 0; i < r.messages.size(); ++i) {
    const auto it = (*v)[i].find("images");
    if (it == (*v)[i].end() || !it->is_array() || it->empty()) continue;
    Message& m = r.messages[i];
    std::vector<ContentPart> parts;
    if (auto* text = std::get_if<std::string>(&m.content))
      parts.push_back({ContentPart::Kind::kText, std::move(*text)});
    if (auto* some = std::get_if<std::vector<ContentPart>>(&m.content)) parts = std::move(*some);
    parts.insert(parts.end(), it->size(), {ContentPart::Kind::kImage, ""});
    m.content = std::move(parts);
  }
  leave_media_out(f, r, fmt::format("messages[{}].images", v->size() - 1));
}

void read_prompt(Fields& f, ApiRequest& r) {
  std::string prompt, system;
  bool raw = false;
  f.string("prompt", prompt);
  f.string("system", system);
  f.boolean("raw", raw);
  no_pictures(f, f.object(), "");
  f.only("suffix", "\"\"", "");
  f.only("template", "\"\"", "");
  f.only("context", "[]", Json::array());
  if (prompt.empty()) return;
  if (raw) return void(r.prompt.emplace_back(std::move(prompt)));
  if (!system.empty()) r.messages.push_back({.role = "system", .content = std::move(system)});
  r.messages.push_back({.role = "user", .content = std::move(prompt)});
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
    read_messages(f, r);
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
    read_prompt(f, r);
  }
  if (auto ok = f.done(); !ok) return ok.error();
  if (r.chat())
    if (auto ok = settle_continuation(r, false); !ok) return ok.error();
  return r;
}

}  // namespace facet
