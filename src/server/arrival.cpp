#include "server/arrival.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/last_memory.h"
#include "server/anthropic.h"
#include "server/chat_prompt.h"
#include "server/info.h"
#include "server/ollama.h"
#include "server/request_media.h"
#include "server/responses.h"
#include "server/schema_size.h"
#include "server/text_api.h"
#include "tokenizer/json.h"
#include "tokenizer/tokenizer.h"

namespace facet {

namespace {

// Bytes of an answer that comes of a body alone. --answer-memory is for several.
constexpr size_t kMaxTextAnswer = 32 << 20;
// Soft tokens on their way, in bytes, whatever is kept.
constexpr uint64_t kLeastRowRoom = uint64_t(64) << 20;

}  // namespace

RequestReader::RequestReader(Engine& engine, const ServiceConfig& config)
    : engine_(engine),
      c_(config),
      cache_(int64_t(config.media_cache)),
      row_room_(std::make_shared<Room>(std::max(config.media_cache, kLeastRowRoom), 0)) {
  const Tokenizer& t = *engine_.tokenizer();
  for (int32_t id = 0; id < t.size(); ++id)
    longest_piece_ = std::max(longest_piece_, std::max(t.text(id).size(), t.piece(id).size()));
}

template <class F>
bool RequestReader::guarded(Arrival& a, F&& f) {
  keep_last_memory();
  try {
    f();
  } catch (const std::bad_alloc&) {
    const MayNotFail scope;
    a.request = {}, a.prompts = {}, a.media = {}, a.ids = {}, a.spans = {}, a.recipe = {}, a.answer = {};
    a.error = no_memory();
  }
  using Stage = MediaOfRequest::Stage;
  if (!a.left && !a.error && !a.answer && a.media.stage != Stage::kNone && a.media.stage != Stage::kDone) return true;
  a.body_room.release();
  // Of megabytes, perhaps, and not needed any more: they go here and not on the server's thread. One without words
  // stays, as they tell that this is a chat.
  const MayNotFail scope;
  a.media = {}, a.prompts = {};
  auto messages = std::exchange(a.request.messages, {});
  a.request.messages.resize(std::min<size_t>(1, messages.size()));
  if (a.answer && a.answer->size() > kMaxTextAnswer) {
    a.error = {.status = 400,
               .message = fmt::format("expected what has an answer of at most {} bytes, found one of {}",
                                      kMaxTextAnswer, a.answer->size())};
    a.answer.reset();
  }
  return false;
}

bool RequestReader::read(Arrival& a) {
  Result<Json> json = Json();
  return guarded(a, [&] {
    json = parse_json(std::exchange(a.body, {}), "");
    read_body(a, json);
    json = Json();
  });
}

bool RequestReader::go_on(Arrival& a, bool out_of_memory) {
  return guarded(a, [&] {
    if (out_of_memory) throw std::bad_alloc();
    if (!a.left) read_prompts(a);
  });
}

TurnPool::Job RequestReader::media_job(Arrival& a) {
  MediaEncoder& encoder = *engine_.media();
  TurnPool::Job job{.client = a.key, .left = &a.left, .steps = a.media.steps(encoder, cache_, c_.defaults.fetch_media)};
  if (a.media.stage != MediaOfRequest::Stage::kEncode) return job;
  a.row_room = std::make_shared<Room::Part>(row_room_);
  const uint64_t bytes = uint64_t(a.media.row_bytes(a.prompts, encoder.width()));
  job.may_begin = [room = a.row_room, bytes] { return room->resize(bytes); };
  return job;
}

void RequestReader::read_body(Arrival& a, const Result<Json>& json) {
  if (!json) return void(a.error = api_error(json.error()));
  if (a.route->target == Target::kTokenize || a.route->target == Target::kDetokenize) return read_text(a, *json);
  auto request = parse(*a.route, *json);
  if (!request) return void(a.error = api_error(request.error()));
  if (auto ok = check_schema_sizes(*request); !ok) return void(a.error = api_error(ok.error()));
  a.request = std::move(*request);
  if (a.route->target == Target::kTemplate) {
    auto text = chat_prompt(a.request, c_.variant);
    if (!text) return void(a.error = api_error(text.error()));
    return void(a.answer = dump_json(Json{{"prompt", std::move(text->text)}}));
  }
  if (!a.request.chat() && a.request.prompt.empty())  // Ollama's way to load a model
    return void(a.answer = dump_json(ollama_loaded({.kind = a.request.kind, .model = c_.model, .created = unix_now()},
                                                   a.request.unload)));
  read_prompts(a);
}

Result<ApiRequest> RequestReader::parse(const Route& route, const Json& json) const {
  switch (route.kind) {
    case ApiKind::kMessages:
      return parse_anthropic_request(json, c_.defaults);
    case ApiKind::kResponses:
      return parse_responses_request(json, c_.defaults);
    case ApiKind::kOllamaChat:
    case ApiKind::kOllamaGenerate:
      return parse_ollama_request(route.kind, json, c_.defaults);
    default:
      return parse_api_request(route.kind, json, c_.defaults);
  }
}

void RequestReader::read_text(Arrival& a, const Json& json) const {
  const bool encode = a.route->target == Target::kTokenize;
  const Tokenizer& t = *engine_.tokenizer();
  auto answer = encode ? tokenize_json(json, t, c_.defaults.strict) : detokenize_json(json, t, c_.defaults.strict);
  if (answer)
    a.answer = std::move(*answer);
  else
    a.error = api_error(answer.error());
}

// What could not be opened or encoded, or must not be here: an error of the request, or a line in its place.
void RequestReader::settle(Arrival& a) const {
  a.media.mark_errors(a.request);
  if (auto ok = settle_media(a.request); !ok) a.error = api_error(ok.error());
}

// Request to `prompts`.
void RequestReader::tokenize(Arrival& a) const {
  ApiRequest& r = a.request;
  const Tokenizer& t = *engine_.tokenizer();
  // Too long whatever its tokens are: not worth encoding.
  const auto least = [&](const std::vector<PromptPart>& prompt) {
    size_t n = 0;
    for (const PromptPart& p : prompt) {
      if (const auto* text = std::get_if<std::string>(&p)) n += text->size() / longest_piece_;
      if (const auto* ids = std::get_if<std::vector<int32_t>>(&p)) n += ids->size();
    }
    return n > size_t(engine_.config().n_ctx) ? n : 0;
  };
  a.prompts.clear();
  if (r.chat()) {
    auto rendered = chat_prompt(r, c_.variant);
    if (!rendered) return void(a.error = api_error(rendered.error()));
    a.in_thought = rendered->in_thought;
    const size_t n = least({rendered->text});
    a.prompts.push_back(n > 0 ? PromptIds{.ids = std::vector<int32_t>(n)}
                              : prompt_ids(*rendered, c_.defaults.parse_special, t));
    return;
  }
  const auto add = [&](const std::vector<PromptPart>& prompt) {
    const size_t n = least(prompt);
    a.prompts.push_back(n > 0 ? PromptIds{.ids = std::vector<int32_t>(n)} : prompt_ids(prompt, t));
  };
  add(r.prompt);
  for (const std::vector<PromptPart>& p : r.more_prompts) add(p);
}

// Whether the context and the room for soft tokens take the request. Else pictures of earlier turns go, if there are
// any, or it is an error.
bool RequestReader::fits(Arrival& a, int64_t n_tokens, int64_t n_bytes) const {
  const int n_ctx = engine_.config().n_ctx, width = engine_.media() ? engine_.media()->width() : 0;
  const int64_t more_tokens = n_tokens - (n_ctx - 1);
  const int64_t more_bytes = n_bytes - int64_t(std::max(c_.media_cache, kLeastRowRoom));
  if (more_tokens <= 0 && more_bytes <= 0) return true;
  if (a.media.leave_out(a.request, more_tokens, more_bytes, width)) return false;
  if (more_tokens <= 0)
    a.error = {.status = 400,
               .message = fmt::format("the pictures and sounds of a request take {} bytes as soft tokens, expected at "
                                      "most {}: send fewer or smaller ones, or start the server with --media-cache",
                                      n_bytes, n_bytes - more_bytes),
               .param = "messages"};
  else
    // Claude Code looks for these words, and shortens the conversation.
    a.error = {.status = 400,
               .message = a.request.kind == ApiKind::kMessages
                              ? fmt::format("prompt is too long: {} tokens > {} maximum", n_tokens, n_ctx - 1)
                              : fmt::format("the prompt of {} tokens or more exceeds the available context size of {} "
                                            "tokens",
                                            n_tokens, n_ctx),
               .param = a.request.chat() ? "messages" : "prompt",
               .code = "context_length_exceeded",
               .n_prompt = size_t(n_tokens),
               .n_ctx = size_t(n_ctx)};
  return false;
}

// From a request to what its media stage waits for, or to its ids.
void RequestReader::read_prompts(Arrival& a) {
  using Stage = MediaOfRequest::Stage;
  MediaEncoder* encoder = engine_.media();
  const bool encoded = a.media.stage == Stage::kEncode;
  if (encoder && !encoded) {
    a.media.collect(a.request, *encoder, cache_);
    a.media.advance();
    if (a.media.stage != Stage::kNone) return;
  }
  const int n_before = a.request.left_out.media;
  settle(a);
  if (!a.error && (!encoded || a.request.left_out.media != n_before)) tokenize(a);
  for (;;) {
    if (a.error) return;
    int64_t longest = 0;
    for (const PromptIds& p : a.prompts) longest = std::max<int64_t>(longest, a.media.tokens(p));
    if (fits(a, longest, encoder ? a.media.row_bytes(a.prompts, encoder->width()) : 0)) break;
    if (a.error) return;
    settle(a);
    if (!a.error) tokenize(a);
  }
  if (a.route->target == Target::kCountTokens)
    return void(a.answer = dump_json(Json{{"input_tokens", a.media.tokens(a.prompts[0])}}));
  const bool needs =
      std::any_of(a.prompts.begin(), a.prompts.end(), [](const PromptIds& p) { return !p.media.empty(); });
  if (needs && !encoded) {
    a.media.keep(a.prompts);
    a.media.stage = Stage::kEncode;
    return;
  }
  a.media.stage = Stage::kDone;
  insert_media(a);
  if (!a.error) a.recipe = grammar_recipe(a.request, a.in_thought);
}

// Prompts to ids.
void RequestReader::insert_media(Arrival& a) const {
  const MediaTokens tokens = media_tokens(*engine_.tokenizer());
  for (PromptIds& p : a.prompts) {
    a.media_use.push_back(a.media.use(p));
    if (auto ok = a.media.insert(tokens, a.row_room, p, a.spans.emplace_back()); !ok)
      return void(a.error = api_error(ok.error()));
    a.ids.push_back(std::move(p.ids));
  }
  const auto waited = std::chrono::steady_clock::now() - a.since;
  for (MediaUse& u : a.media_use)
    if (u.n > 0) u.wait_s = std::chrono::duration<double>(waited).count();
  a.row_room = nullptr;
}

}  // namespace facet
