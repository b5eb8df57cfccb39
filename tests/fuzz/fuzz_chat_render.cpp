// Any JSON as messages or tools: a prompt or an error, never a crash.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "tokenizer/chat.h"
#include "tokenizer/json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const facet::Result<facet::Json> j = facet::parse_json({reinterpret_cast<const char*>(data) + 1, size - 1}, "input");
  if (!j) return 0;
  const facet::RenderOptions options{.add_generation_prompt = (data[0] & 1) != 0,
                                     .enable_thinking = (data[0] & 2) != 0,
                                     .preserve_thinking = (data[0] & 4) != 0,
                                     .variant = data[0] & 8 ? facet::Variant::kSmall : facet::Variant::kLarge};
  const bool both = j->is_object();
  const facet::Json empty = facet::Json::array();
  const facet::Json& messages = both ? (j->contains("messages") ? (*j)["messages"] : empty) : *j;
  const facet::Json& tools = both ? (j->contains("tools") ? (*j)["tools"] : empty) : empty;
  const auto m = facet::messages_from_json(messages);
  const auto t = facet::tools_from_json(tools);
  if (!m || !t) return 0;
  const auto prompt = facet::render_chat(*m, *t, options);
  CHECK(!prompt || prompt->starts_with("<bos>"), "a prompt without <bos>");
  return 0;
}
