// Any text as the body of a request: a request or an error that names a field, never a crash. The same text as an
// answer, whole and byte by byte with stop strings taken from it: the client sees the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/anthropic.h"
#include "server/chat_prompt.h"
#include "server/ollama.h"
#include "server/openai.h"
#include "server/writer.h"
#include "tokenizer/json.h"

namespace {

facet::ParsedMessage answer(bool chat, const std::vector<std::string>& stop, std::string_view text, size_t piece) {
  facet::AnswerText a(chat, {}, stop);
  facet::ParsedMessage m;
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size())))
    for (const facet::ParseEvent& e : a.push(text.substr(0, piece))) facet::add_event(m, e);
  for (const facet::ParseEvent& e : a.finish()) facet::add_event(m, e);
  return m;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 3, size - 3);
  using facet::ApiKind;
  constexpr ApiKind kKinds[] = {ApiKind::kCompletion, ApiKind::kChat,       ApiKind::kNative,
                                ApiKind::kMessages,   ApiKind::kOllamaChat, ApiKind::kOllamaGenerate};
  const ApiKind kind = kKinds[data[0] % std::size(kKinds)];
  const bool chat = data[0] & 1;
  if (auto json = facet::parse_json(text, "body")) {
    facet::ApiDefaults defaults;
    defaults.n_vocab = 1000;
    auto r = kind == ApiKind::kMessages                           ? facet::parse_anthropic_request(*json, defaults)
             : facet::dialect_of(kind) == facet::Dialect::kOllama ? facet::parse_ollama_request(kind, *json, defaults)
                                                                  : facet::parse_api_request(kind, *json, defaults);
    if (r) {
      CHECK(r->max_tokens == -1 || r->max_tokens > 0, "max_tokens {}", r->max_tokens);
      for (const auto& [id, bias] : r->sampling.logit_bias) CHECK(id >= 0 && id < 1000, "logit_bias {}", id);
      for (const facet::PromptPart& p : r->prompt)
        if (p.index() == 1)
          for (int32_t id : std::get<1>(p)) CHECK(id >= 0 && id < 1000, "prompt {}", id);
      if (r->chat()) (void)bool(facet::chat_prompt(*r, facet::Variant::kLarge));
    }
    if (!r)
      CHECK(facet::dump_json(facet::error_json(facet::dialect_of(kind), facet::api_error(r.error()))).size() < 8000,
            "a long error");
  }
  std::vector<std::string> stop;
  if (const size_t at = data[1] % text.size(); data[2] > 0) stop.emplace_back(text.substr(at, 1 + data[2] % 16));
  CHECK(answer(chat, stop, text, text.size()) == answer(chat, stop, text, 1), "the answer depends on the cuts");
  return 0;
}
