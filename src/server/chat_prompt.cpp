#include "server/chat_prompt.h"

#include <fmt/format.h>

namespace facet {
namespace {

std::string text_of(const Content& content) {
  if (const auto* text = std::get_if<std::string>(&content)) return *text;
  std::string out;
  if (const auto* parts = std::get_if<std::vector<ContentPart>>(&content))
    for (const ContentPart& p : *parts) out += p.text;
  return out;
}

}  // namespace

Result<ChatPrompt> chat_prompt(const ApiRequest& r, Variant variant) {
  const RenderOptions options{.add_generation_prompt = r.add_generation_prompt || r.continue_last,
                              .enable_thinking = r.thinking,
                              .preserve_thinking = r.preserve_thinking,
                              .variant = variant};
  if (!r.continue_last || r.messages.empty()) {
    auto text = render_chat(r.messages, r.tools, options);
    if (!text) return text.error();
    const bool in_thought = ends_in_thought(*text);
    return ChatPrompt{std::move(*text), in_thought};
  }
  std::vector<Message> before(r.messages.begin(), r.messages.end() - 1);
  auto text = render_chat(before, r.tools, options);
  if (!text) return text.error();
  const Message& last = r.messages.back();
  const std::string content = text_of(last.content);
  ChatPrompt p{std::move(*text), false};
  constexpr std::string_view kOpen = "<|channel>thought\n", kClosed = "<|channel>thought\n<channel|>";
  if (!last.reasoning.empty()) {
    if (p.text.ends_with(kClosed))
      p.text.resize(p.text.size() - kClosed.size());
    else if (p.text.ends_with(kOpen))
      p.text.resize(p.text.size() - kOpen.size());
    p.text += fmt::format("{}{}", kOpen, last.reasoning);
    if (content.empty()) return ChatPrompt{std::move(p.text), true};  // the thought itself goes on
    p.text += "\n<channel|>";
  } else if (p.text.ends_with(kOpen)) {
    p.text += "<channel|>";  // the answer has begun: there is no thought before it
  }
  p.text += content;
  return p;
}

}  // namespace facet
