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
#include "server/responses.h"
#include "server/schema_size.h"
#include "server/text_api.h"
#include "tokenizer/json.h"
#include "tokenizer/tokenizer.h"

namespace facet {

RequestReader::RequestReader(Engine& engine, const ServiceConfig& config) : engine_(engine), c_(config) {
  const Tokenizer& t = *engine_.tokenizer();
  for (int32_t id = 0; id < t.size(); ++id)
    longest_piece_ = std::max(longest_piece_, std::max(t.text(id).size(), t.piece(id).size()));
}

namespace {

// Bytes of an answer that comes of a body alone. --answer-memory is for several.
constexpr size_t kMaxTextAnswer = 32 << 20;

}  // namespace

void RequestReader::read(Arrival& a) {
  keep_last_memory();
  Result<Json> json = Json();
  try {
    json = parse_json(std::exchange(a.body, {}), "");
    read_body(a, json);
  } catch (const std::bad_alloc&) {
    const MayNotFail scope;
    a.request = {}, a.ids = {}, a.recipe = {}, a.answer = {};
    a.error = no_memory();
  }
  a.body_room.release();
  // Of megabytes, perhaps, and not needed any more: they go here and not on the server's thread. One without words
  // stays, as they tell that this is a chat.
  const MayNotFail scope;
  json = Json();
  auto messages = std::exchange(a.request.messages, {});
  a.request.messages.resize(std::min<size_t>(1, messages.size()));
  if (a.answer && a.answer->size() > kMaxTextAnswer) {
    a.error = {.status = 400,
               .message = fmt::format("expected what has an answer of at most {} bytes, found one of {}",
                                      kMaxTextAnswer, a.answer->size())};
    a.answer.reset();
  }
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
  if (!a.error && !a.answer) a.recipe = grammar_recipe(a.request, a.in_thought);
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

// The prompt's ids, or an error; in_thought is where the answer begins.
Result<std::vector<int32_t>> RequestReader::prompt_ids(ApiRequest& r, bool& in_thought) const {
  std::vector<TextRange> plain;
  if (r.chat()) {
    auto rendered = chat_prompt(r, c_.variant);
    if (!rendered) return rendered.error();
    in_thought = rendered->in_thought;
    if (!c_.defaults.parse_special) plain = std::move(rendered->plain);
    r.prompt = {std::move(rendered->text)};
  }
  // Too long whatever its tokens are: not worth encoding.
  size_t least = 0;
  for (const PromptPart& p : r.prompt)
    least += p.index() == 0 ? std::get<0>(p).size() / longest_piece_ : std::get<1>(p).size();
  if (least > size_t(engine_.config().n_ctx)) return std::vector<int32_t>(least);
  return encode_prompt(r.prompt, *engine_.tokenizer(), plain);
}

void RequestReader::read_prompts(Arrival& a) const {
  read_prompt(a);
  for (std::vector<PromptPart>& p : std::exchange(a.request.more_prompts, {})) {
    if (a.error) return;
    a.request.prompt = std::move(p);
    read_prompt(a);
  }
}

void RequestReader::read_prompt(Arrival& a) const {
  const int n_ctx = engine_.config().n_ctx;
  auto ids = prompt_ids(a.request, a.in_thought);
  if (!ids) return void(a.error = api_error(ids.error()));
  // Claude Code looks for these words, and shortens the conversation.
  const std::string message =
      a.request.kind == ApiKind::kMessages
          ? fmt::format("prompt is too long: {} tokens > {} maximum", ids->size(), n_ctx - 1)
          : fmt::format("the prompt of {} tokens or more exceeds the available context size of {} tokens", ids->size(),
                        n_ctx);
  if (ids->size() >= size_t(n_ctx))
    a.error = {.status = 400,
               .message = message,
               .param = a.request.chat() ? "messages" : "prompt",
               .code = "context_length_exceeded",
               .n_prompt = ids->size(),
               .n_ctx = size_t(n_ctx)};
  else if (a.route->target == Target::kCountTokens)
    a.answer = dump_json(Json{{"input_tokens", ids->size()}});
  a.ids.push_back(std::move(*ids));
}

}  // namespace facet
