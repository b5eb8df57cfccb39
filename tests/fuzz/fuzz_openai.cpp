// Any text as the body of a request: a request or an error that names a field, never a crash. The same text as an
// answer, whole and byte by byte with stop strings taken from it: the client sees the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/openai.h"

namespace {

facet::ParsedMessage answer(facet::ApiKind kind, const std::vector<std::string>& stop, std::string_view text,
                            size_t piece) {
  facet::AnswerText a(kind, {}, stop);
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
  const facet::ApiKind kind = data[0] & 1 ? facet::ApiKind::kChat : facet::ApiKind::kCompletion;
  if (auto json = facet::parse_json(text, "body")) {
    facet::ApiDefaults defaults;
    defaults.n_vocab = 1000;
    auto r = facet::parse_api_request(kind, *json, defaults);
    if (r) {
      CHECK(r->max_tokens == -1 || r->max_tokens > 0, "max_tokens {}", r->max_tokens);
      for (const auto& [id, bias] : r->sampling.logit_bias) CHECK(id >= 0 && id < 1000, "logit_bias {}", id);
      for (int32_t id : r->prompt_ids) CHECK(id >= 0 && id < 1000, "prompt {}", id);
    }
    if (!r) facet::dump_json(facet::error_json(facet::api_error(r.error())));
  }
  std::vector<std::string> stop;
  if (const size_t at = data[1] % text.size(); data[2] > 0) stop.emplace_back(text.substr(at, 1 + data[2] % 16));
  CHECK(answer(kind, stop, text, text.size()) == answer(kind, stop, text, 1), "the answer depends on the cuts");
  return 0;
}
