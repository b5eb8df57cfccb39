// Conversations: the functions facet_session_... of include/facet.h.
#include <fmt/format.h>

#include <utility>

#include "capi/handles.h"
#include "model/types.h"

namespace facet::capi {
namespace {

MediaTokens media_tokens(const Tokenizer& t) {
  return {.image_begin = t.find("<|image>"),
          .image = t.find("<|image|>"),
          .image_end = t.find("<image|>"),
          .audio_begin = t.find("<|audio>"),
          .audio = t.find("<|audio|>"),
          .audio_end = t.find("<audio|>")};
}

// Encodes one of a conversation's parts, unless all of them would not fit into the context. Its file is then given up.
Result<int> take_part(Host& host, Conversation& c, ContentPart& part) {
  const bool picture = part.kind == ContentPart::Kind::kImage;
  auto items = host.encode(picture, *part.bytes, part.where, part.budget);
  if (!items) return items.error();
  const auto tokens = [](const std::vector<MediaItem>& list) {
    int n = 0;
    for (const MediaItem& i : list) n += i.n;
    return n;
  };
  const int n = tokens(*items);
  int64_t all = n;
  for (const auto& other : c.items) all += tokens(other.second);
  if (const int context = host.engine().config().n_ctx; all >= context)
    return Error{
        part.where,
        fmt::format("expected pictures and sounds of fewer than {} tokens, the context, found {}", context, all),
        "begin another session, or open the model with a larger context"};
  part.bytes = std::make_shared<const std::string>("encoded");  // tells it apart
  c.items[part.bytes.get()] = std::move(*items);
  return n;
}

// Encoded parts of messages that were not taken, behind the first that could not be.
void forget_parts(Conversation& c, const std::vector<Message>& messages) {
  for (const Message& m : messages)
    if (const auto* parts = std::get_if<std::vector<ContentPart>>(&m.content))
      for (const ContentPart& part : *parts) c.items.erase(part.bytes.get());
}

// The parts of messages that are no text: encoded, or the error of the first that cannot be.
Status take_parts(Host& host, Conversation& c, std::vector<Message>& messages) {
  for (Message& m : messages) {
    auto* parts = std::get_if<std::vector<ContentPart>>(&m.content);
    if (!parts) continue;
    for (ContentPart& part : *parts) {
      if (part.kind == ContentPart::Kind::kText) continue;
      if (part.error) return *part.error;
      const bool known = part.kind == ContentPart::Kind::kImage || part.kind == ContentPart::Kind::kAudio;
      if (!known || !part.bytes || part.bytes->empty())
        return Error{part.where, "expected a text, a picture or a sound with its bytes, found another part",
                     "give an image_url with a data: URL, or input_audio"};
      if (auto n = take_part(host, c, part); !n) return n.error();
    }
  }
  return Ok{};
}

struct Prompt {
  std::vector<int32_t> ids = {};
  std::vector<MediaSpan> media = {};
  int soft = 0;  // tokens of pictures and sounds
  bool in_thought = false;
};
// The conversation with an answer begun, in which pictures and sounds are soft tokens.
Result<Prompt> prompt_of(const Engine& e, const Conversation& c) {
  const Tokenizer& t = *e.tokenizer();
  auto chat = render_chat_ranges(c.messages, c.tools,
                                 {.add_generation_prompt = true,
                                  .enable_thinking = c.thinking,
                                  .variant = chat_variant(t.vocab().chat_template, e.model().d_ple > 0)});
  if (!chat) return chat.error();
  Prompt p{.ids = t.encode(chat->text, true, true, chat->plain), .in_thought = ends_in_thought(chat->text)};
  // A placeholder stands for a part, of which a sound may be several items.
  std::vector<MediaItem> items;
  std::vector<size_t> at;
  const MediaTokens ids = media_tokens(t);
  std::vector<int32_t> text;
  size_t next = 0;
  for (const int32_t id : p.ids) {
    const bool place = !chat->media.empty() && id >= 0 && (id == ids.image || id == ids.audio);
    if (!place) {
      text.push_back(id);
      continue;
    }
    if (next == chat->media.size()) return Error{"facet_session", "more places of pictures than pictures", ""};
    for (const MediaItem& item : c.items.at(chat->media[next++].part.bytes.get()))
      items.push_back(item), at.push_back(text.size()), p.soft += item.n;
  }
  if (next != chat->media.size()) return Error{"facet_session", "fewer places of pictures than pictures", ""};
  if (auto ok = insert_media(ids, items, at, text, p.media); !ok) return ok.error();
  p.ids = std::move(text);
  return p;
}

std::vector<std::string> names_of(const std::vector<Json>& tools) {
  std::vector<std::string> names;
  for (const Json& t : tools) names.push_back(t.value("name", ""));
  return names;
}

}  // namespace
}  // namespace facet::capi

using namespace facet;        // NOLINT: the functions below are C's
using namespace facet::capi;  // NOLINT

extern "C" {

facet_status facet_session_create(facet_model* model, const char* system, int32_t think, facet_session** session,
                                  facet_error* error) {
  return guarded(error, "facet_session_create", [&] {
    if (!model || !session) return bad_argument(error, "facet_session_create", "expected a model and a place");
    *session = nullptr;
    if (!model->host->engine().tokenizer()) return fail(error, FACET_FAILED, kNoVocabulary);
    auto s = std::make_unique<facet_session>();
    s->host = model->host, s->conversation = std::make_shared<Conversation>(think != 0);
    if (system) {
      Message m;
      m.role = "system", m.content = std::string(system);
      s->conversation->messages.push_back(std::move(m));
    }
    *session = s.release();
    return facet_status(FACET_OK);
  });
}

facet_status facet_session_add(facet_session* session, const char* role, const char* text, facet_error* error) {
  return guarded(error, "facet_session_add", [&] {
    if (!session || !role || !text)
      return bad_argument(error, "facet_session_add", "expected a session, a role and a text");
    Message m;
    m.role = role, m.content = std::string(text);
    if (m.role != "user" && m.role != "assistant")
      return bad_argument(error, "facet_session_add",
                          fmt::format("role: expected user or assistant, found '{}'", m.role));
    Conversation& c = *session->conversation;
    std::lock_guard lock(c.mutex);
    if (c.answering) return busy(error, "facet_session_add");
    if (!c.attached.empty()) {
      if (m.role != "user")
        return bad_argument(error, "facet_session_add", "expected a user's message after an attachment");
      std::vector<ContentPart> parts = std::exchange(c.attached, {});
      parts.push_back({ContentPart::Kind::kText, text});
      m.content = std::move(parts);
    }
    c.messages.push_back(std::move(m));
    return facet_status(FACET_OK);
  });
}

facet_status facet_session_attach(facet_session* session, int32_t kind, const void* bytes, size_t n_bytes,
                                  int32_t* n_tokens, facet_error* error) {
  return guarded(error, "facet_session_attach", [&] {
    if (!session || (kind != FACET_IMAGE && kind != FACET_AUDIO) || !bytes || n_bytes == 0)
      return bad_argument(error, "facet_session_attach", "expected a session, FACET_IMAGE or FACET_AUDIO, and bytes");
    Conversation& c = *session->conversation;
    std::lock_guard lock(c.mutex);
    if (c.answering) return busy(error, "facet_session_attach");
    ContentPart part;
    part.kind = kind == FACET_IMAGE ? ContentPart::Kind::kImage : ContentPart::Kind::kAudio;
    part.bytes = std::make_shared<const std::string>(static_cast<const char*>(bytes), n_bytes);
    part.where = kind == FACET_IMAGE ? "picture" : "sound";
    auto n = take_part(*session->host, c, part);
    if (!n) return fail(error, FACET_FAILED, n.error());
    c.attached.push_back(std::move(part));
    if (n_tokens) *n_tokens = *n;
    return facet_status(FACET_OK);
  });
}

facet_status facet_session_add_json(facet_session* session, const char* messages, facet_error* error) {
  return guarded(error, "facet_session_add_json", [&] {
    if (!session || !messages) return bad_argument(error, "facet_session_add_json", "expected a session and messages");
    Conversation& c = *session->conversation;
    std::lock_guard lock(c.mutex);
    if (c.answering) return busy(error, "facet_session_add_json");
    auto json = parse_json(messages, "messages");
    if (!json) return fail(error, FACET_BAD_ARGUMENT, json.error());
    auto list = messages_from_json(*json);
    if (!list) return fail(error, FACET_BAD_ARGUMENT, list.error());
    if (auto ok = take_parts(*session->host, c, *list); !ok) {
      forget_parts(c, *list);
      return fail(error, FACET_FAILED, ok.error());
    }
    for (Message& m : *list) c.messages.push_back(std::move(m));
    return facet_status(FACET_OK);
  });
}

facet_status facet_session_set_tools(facet_session* session, const char* tools, facet_error* error) {
  return guarded(error, "facet_session_set_tools", [&] {
    if (!session) return bad_argument(error, "facet_session_set_tools", "expected a session");
    Conversation& c = *session->conversation;
    std::lock_guard lock(c.mutex);
    if (c.answering) return busy(error, "facet_session_set_tools");
    auto json = tools ? parse_json(tools, "tools") : Result<Json>(Json());
    if (!json) return fail(error, FACET_BAD_ARGUMENT, json.error());
    auto list = tools_from_json(*json);
    if (!list) return fail(error, FACET_BAD_ARGUMENT, list.error());
    c.tools = std::move(*list);
    return facet_status(FACET_OK);
  });
}

facet_status facet_session_submit(facet_session* session, const facet_request_params* params, facet_request** request,
                                  facet_error* error) {
  return guarded(error, "facet_session_submit", [&] {
    if (!session || !request) return bad_argument(error, "facet_session_submit", "expected a session and a place");
    *request = nullptr;
    Engine& e = session->host->engine();
    Conversation& c = *session->conversation;
    std::unique_lock lock(c.mutex);
    if (c.answering) return busy(error, "facet_session_submit");
    auto prompt = prompt_of(e, c);
    if (!prompt) return fail(error, FACET_FAILED, prompt.error());
    const ThoughtMode thought = prompt->in_thought ? ThoughtMode::kOpen
                                : c.thinking       ? ThoughtMode::kOptional
                                                   : ThoughtMode::kNone;
    const int n_prompt = int(prompt->ids.size());
    auto asked = request_of(e, std::move(prompt->ids), params, {.thought = thought, .tools = c.tools});
    if (!asked) return fail(error, FACET_BAD_ARGUMENT, asked.error());
    Request& r = asked->request;
    r.media = std::move(prompt->media), r.in_thought = prompt->in_thought;
    auto answer = std::make_shared<Answer>(e, session->conversation,
                                           Answer::Options{.in_thought = r.in_thought,
                                                           .tools = names_of(c.tools),
                                                           .stop = std::move(asked->stop),
                                                           .logprobs = r.logprobs,
                                                           .prompt = n_prompt,
                                                           .media = prompt->soft});
    c.answering = true;
    lock.unlock();
    const facet_status s = submit(session->host, std::move(r), answer, request, error);
    lock.lock();
    if (s != FACET_OK) c.answering = false;
    return s;
  });
}

void facet_session_free(facet_session* session) { delete session; }

}  // extern "C"
