#include "app/chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "app/console.h"
#include "app/line_input.h"
#include "app/progress.h"
#include "base/print.h"
#include "model/types.h"
#include "server/media_intake.h"
#include "tokenizer/tokenizer.h"

namespace facet {

Chat::Chat(Engine& engine, ChatOptions o)
    : engine_(engine),
      o_(std::move(o)),
      t_(*engine.tokenizer()),
      escapes_(takes_escapes(STDOUT_FILENO)),
      colour_(escapes_) {
  reset();
}

Result<std::vector<ContentPart>> Chat::encoded(const std::string& path, MediaKind kind) {
  auto some = encode_file(path, kind, engine_);
  if (!some) return some.error();
  std::vector<ContentPart> parts;
  for (EncodedPart& e : *some) {
    ContentPart& part = parts.emplace_back();
    part.kind = kind == MediaKind::kSound ? ContentPart::Kind::kAudio : ContentPart::Kind::kImage;
    part.before = std::move(e.before);
    part.bytes = std::make_shared<const std::string>(path);  // tells it apart; its tokens are in items_
    items_[part.bytes.get()] = std::move(e.items);
  }
  return parts;
}

Status Chat::attach(const std::string& path, MediaKind kind) {
  auto parts = encoded(path, kind);
  if (!parts) return parts.error();
  int n = 0;
  for (const ContentPart& part : *parts)
    for (const MediaItem& i : items_.at(part.bytes.get())) n += i.n;
  const std::string pictures = kind == MediaKind::kVideo ? fmt::format("{} pictures, ", parts->size()) : "";
  print_out("{}: {}{} tokens, for what you write next\n", on_one_line(path), pictures, n);
  std::move(parts->begin(), parts->end(), std::back_inserter(attached_));
  return Ok{};
}

void Chat::reset() {
  messages_.clear();
  files_ = false;
  if (!o_.system.empty()) add("system", o_.system);
}

bool Chat::undo() {
  const size_t before = messages_.size();
  while (!messages_.empty() && messages_.back().role == "assistant") messages_.pop_back();
  if (!messages_.empty() && messages_.back().role == "user") messages_.pop_back();
  return messages_.size() < before;
}

void Chat::add(const char* role, const std::string& content) {
  messages_.push_back({});
  messages_.back().role = role;
  messages_.back().content = content;
}

// The conversation with an answer begun, in which pictures and sounds are soft tokens.
Result<Request> Chat::request(bool& in_thought) const {
  auto prompt = render_chat_ranges(messages_, {},
                                   {.add_generation_prompt = true,
                                    .enable_thinking = o_.thinking,
                                    .variant = chat_variant(t_.vocab().chat_template, engine_.model().d_ple > 0)});
  if (!prompt) return prompt.error();
  in_thought = ends_in_thought(prompt->text);
  PromptIds ids = prompt_ids({.text = prompt->text, .plain = prompt->plain, .media = prompt->media},
                             /*parse_special=*/!files_, t_);
  std::vector<MediaItem> items;
  std::vector<size_t> at;
  for (size_t i = 0; i < ids.media.size(); ++i)
    for (const MediaItem& item : items_.at(ids.media[i])) items.push_back(item), at.push_back(ids.at[i]);
  Request r{.max_tokens = o_.n, .sampling = o_.sampling};
  if (auto ok = insert_media(media_tokens(t_), items, at, ids.ids, r.media); !ok) return ok.error();
  r.prompt = std::move(ids.ids);
  return r;
}

void Chat::show(const std::vector<ParseEvent>& events) {
  for (const ParseEvent& e : events) {
    if (e.kind == ParseEvent::Kind::kReasoning) {
      if (!std::exchange(in_thought_, true)) print_out("{}", escapes_ ? "\033[2m" : "(thinking) ");
      print_out("{}", e.text);
    } else if (e.kind == ParseEvent::Kind::kContent) {
      end_thought();
      put_out(colour_.push(e.text));
    }
  }
  flush_out();
}

void Chat::end_thought() {
  if (std::exchange(in_thought_, false)) print_out("{}\n", escapes_ ? "\033[0m" : "");
}

void Chat::answer(const std::string& text) {
  const std::string whole = std::exchange(read_, {}) + text;
  add("user", whole);
  if (!attached_.empty()) {
    std::vector<ContentPart> parts = std::exchange(attached_, {});
    parts.push_back({ContentPart::Kind::kText, whole});
    messages_.back().content = std::move(parts);
  }
  if (!generate()) undo();
}

// The line below an answer.
void Chat::told(const Usage& u, Stop why) {
  if (o_.voice.quiet) return;
  print_err("[{}]\n", o_.voice.verbose ? stats_ : usage_line(u, why));
  drafted_.rounds += u.rounds, drafted_.drafted += u.drafted, drafted_.accepted += u.accepted;
  if (const std::string warning = draft_warning(drafted_); !warning.empty() && !std::exchange(warned_, true))
    print_err("note: {}\n", warning);
}

bool Chat::generate() {
  const NoEcho quiet;  // what is typed meanwhile is the next line
  bool in_thought = false;
  auto request = this->request(in_thought);
  if (!request) return report(request.error()), false;
  ChatParser parser({.in_thought = in_thought, .tools = std::vector<std::string>{}});
  StreamDecoder decoder(t_);
  std::string error;
  Stop why = Stop::kError;
  Usage usage;
  if (int(request->prompt.size()) >= engine_.config().n_ctx)
    return report({"chat",
                   fmt::format("the conversation has {} tokens now and the context {}", request->prompt.size(),
                               engine_.config().n_ctx),
                   "/undo forgets the last exchange, /clear all of it; -c makes the context larger"}),
           false;
  auto progress = std::make_unique<Progress>("prompt", Progress::Unit::kTokens);
  auto id = engine_.submit(std::move(*request), {.tokens =
                                                     [&](RequestId, std::span<const int32_t> ids) {
                                                       progress.reset();
                                                       for (int32_t x : ids) show(parser.push(decoder.push(x)));
                                                     },
                                                 .done = [&](RequestId, Stop s, const Usage& u,
                                                             const std::string& e) { why = s, usage = u, error = e; },
                                                 .prefill =
                                                     [&](RequestId, int n, int total) {
                                                       if (progress) progress->update(uint64_t(n), uint64_t(total));
                                                     }});
  if (!id) return report(id.error()), false;
  Interrupts::clear();
  const CoreUse cores;
  while (engine_.tick())
    if (Interrupts::pending() || out_failed()) engine_.cancel(*id), Interrupts::clear();
  progress.reset();
  show(parser.push(decoder.finish()));
  show(parser.finish());
  end_thought();
  put_out(colour_.finish() + "\n");
  if (why == Stop::kError) return report({"chat", error, "/clear starts anew"}), false;
  flush_out();
  stats_ = long_usage_line(usage, why, o_.sampling) + cores_part(cores);
  told(usage, why);
  if (why == Stop::kContext) put_out("(the context is full: /undo forgets the last exchange, /clear all of it)\n");
  const ParsedMessage& m = parser.message();
  add("assistant", m.content);
  messages_.back().reasoning = m.reasoning;
  for (const ParsedCall& c : m.tool_calls)
    print_out("(the model calls {} {}; chat has no tools)\n", c.name, c.arguments);
  return true;
}

}  // namespace facet
