#include "server/chat_prompt.h"

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
    auto rendered = render_chat_ranges(r.messages, r.tools, options);
    if (!rendered) return rendered.error();
    const bool in_thought = ends_in_thought(rendered->text);
    return ChatPrompt{std::move(rendered->text), std::move(rendered->plain), in_thought, std::move(rendered->media)};
  }
  const std::vector<Message> before(r.messages.begin(), r.messages.end() - 1);
  auto rendered = render_chat_ranges(before, r.tools, options);
  if (!rendered) return rendered.error();
  const Message& last = r.messages.back();
  const std::string content = text_of(last.content);
  ChatPrompt p{std::move(rendered->text), std::move(rendered->plain), false, std::move(rendered->media)};
  const auto add_plain = [&p](std::string_view text) {
    p.plain.push_back({p.text.size(), p.text.size() + text.size()});
    p.text += text;
  };
  constexpr std::string_view kOpen = "<|channel>thought\n", kClosed = "<|channel>thought\n<channel|>";
  if (!last.reasoning.empty()) {
    if (p.text.ends_with(kClosed))
      p.text.resize(p.text.size() - kClosed.size());
    else if (p.text.ends_with(kOpen))
      p.text.resize(p.text.size() - kOpen.size());
    p.text += kOpen;
    add_plain(last.reasoning);
    p.in_thought = content.empty();  // the thought itself goes on
    if (p.in_thought) return p;
    p.text += "\n<channel|>";
  } else if (p.text.ends_with(kOpen)) {
    p.text += "<channel|>";  // the answer has begun: there is no thought before it
  }
  add_plain(content);
  return p;
}

}  // namespace facet
