#include <fmt/format.h>

#include <memory>

#include "app/commands.h"
#include "app/console.h"
#include "tokenizer/chat.h"
#include "tokenizer/chat_parse.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

struct RenderRequest {
  std::vector<Message> messages;
  std::vector<Json> tools;
  RenderOptions options;
};

Result<Variant> variant_from_json(const Json& j) {
  if (j == "large") return Variant::kLarge;
  if (j == "small") return Variant::kSmall;
  return Error{"variant", fmt::format("expected \"large\" or \"small\", found {}", dump_json(j)), ""};
}

Result<RenderRequest> request_from_json(const Json& j) {
  if (!j.is_object())
    return Error{"stdin", fmt::format("expected an object with messages, found {}", j.type_name()), ""};
  if (!j.contains("messages")) return Error{"stdin", "messages: expected an array, found nothing", ""};
  RenderRequest r;
  for (auto it = j.begin(); it != j.end(); ++it) {
    const std::string& key = it.key();
    bool* flag = key == "add_generation_prompt" ? &r.options.add_generation_prompt
                 : key == "enable_thinking"     ? &r.options.enable_thinking
                 : key == "preserve_thinking"   ? &r.options.preserve_thinking
                                                : nullptr;
    if (flag) {
      if (!it->is_boolean()) return Error{key, fmt::format("expected true or false, found {}", dump_json(*it)), ""};
      *flag = it->get<bool>();
    } else if (key == "messages") {
      Result<std::vector<Message>> messages = messages_from_json(*it);
      if (!messages) return messages.error();
      r.messages = std::move(*messages);
    } else if (key == "tools") {
      Result<std::vector<Json>> tools = tools_from_json(*it);
      if (!tools) return tools.error();
      r.tools = std::move(*tools);
    } else if (key == "variant") {
      Result<Variant> variant = variant_from_json(*it);
      if (!variant) return variant.error();
      r.options.variant = *variant;
    } else {
      return Error{key, "unknown key",
                   "known: messages tools add_generation_prompt enable_thinking preserve_thinking variant"};
    }
  }
  return r;
}

Result<int> render() {
  Result<std::string> text = read_stdin();
  if (!text) return text.error();
  Result<Json> j = parse_json(*text, "stdin");
  if (!j) return j.error();
  Result<RenderRequest> request = request_from_json(*j);
  if (!request) return request.error();
  Result<std::string> prompt = render_chat(request->messages, request->tools, request->options);
  if (!prompt) return prompt.error();
  if (Status s = write_stdout(*prompt); !s) return s.error();
  return int(kExitOk);
}

Json message_json(const ParsedMessage& m) {
  Json j = {{"role", "assistant"}};
  // OpenAI's form of a message that only calls.
  j["content"] = m.content.empty() && !m.tool_calls.empty() ? Json(nullptr) : Json(m.content);
  if (!m.reasoning.empty()) j["reasoning_content"] = m.reasoning;
  for (const ParsedCall& c : m.tool_calls)
    j["tool_calls"].push_back(
        {{"id", c.id}, {"type", "function"}, {"function", {{"name", c.name}, {"arguments", c.arguments}}}});
  return j;
}

Result<int> parse(ParseOptions options) {
  Result<std::string> text = read_stdin();
  if (!text) return text.error();
  std::string_view rest = *text;
  // A generation ends here; an engine drops the token, a text that was pasted may still spell it.
  for (const std::string_view end : {"<turn|>\n", "<turn|>", "<eos>"}) {
    if (!rest.ends_with(end)) continue;
    rest.remove_suffix(end.size());
    break;
  }
  if (Status s = write_stdout(dump_json(message_json(parse_chat(rest, options))) + "\n"); !s) return s.error();
  return int(kExitOk);
}

}  // namespace

void add_render(CLI::App& app, int& rc) {
  const auto finish = [&rc](Result<int> result) { rc = result ? *result : report(result.error()); };
  CLI::App* render_cmd = app.add_subcommand(
      "render", "{messages, tools, add_generation_prompt, enable_thinking, variant} on stdin to prompt text");
  render_cmd->callback([finish] { finish(render()); });

  // Shared because a CLI11 callback has to be copyable and outlives this function.
  const auto options = std::make_shared<ParseOptions>();
  CLI::App* parse_cmd = app.add_subcommand("parse", "model text on stdin to an OpenAI message");
  parse_cmd->add_flag("--in-thought", options->in_thought, "the prompt ended inside a thought");
  parse_cmd->callback([options, finish] { finish(parse(*options)); });
}

}  // namespace facet
