#include "server/text_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "server/api_fields.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr size_t kMaxIds = 1 << 20;

// A token's bytes: as text where they are text, else as numbers.
std::string piece_json(std::string_view piece) {
  if (utf8_sanitize(piece) == piece) return dump_json(Json(std::string(piece)));
  std::string bytes = "[";
  for (const char c : piece) bytes += fmt::format("{}{}", bytes.size() > 1 ? "," : "", uint8_t(c));
  return bytes + "]";
}

}  // namespace

Result<std::string> tokenize_json(const Json& body, const Tokenizer& t, bool strict) {
  Fields f(body, strict);
  std::string content;
  bool add_special = false, parse_special = true, with_pieces = false;
  const bool vllm = !f.has("content") && f.has("prompt");
  const char* key = vllm ? "prompt" : "content";
  if (!f.has(key)) f.fail(key, "expected a string", nullptr);
  f.string(key, content);
  if (vllm) add_special = true;
  f.boolean(vllm ? "add_special_tokens" : "add_special", add_special);
  f.boolean("parse_special", parse_special);
  f.boolean("with_pieces", with_pieces);
  if (content.size() > kMaxTokenizeBytes)
    f.fail(Error{key, fmt::format("expected at most {} bytes, found {}", kMaxTokenizeBytes, content.size()), ""});
  if (auto ok = f.done(); !ok) return ok.error();
  const std::vector<int32_t> ids = t.encode(content, add_special, parse_special);
  std::string out = vllm ? fmt::format("{{\"count\":{},\"tokens\":[", ids.size()) : "{\"tokens\":[";
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t id = ids[i];
    if (i > 0) out += ',';
    if (vllm || !with_pieces)
      fmt::format_to(std::back_inserter(out), "{}", id);
    else
      fmt::format_to(std::back_inserter(out), "{{\"id\":{},\"piece\":{}}}", id,
                     piece_json(t.is_special(id) ? std::string_view(t.text(id)) : t.piece(id)));
  }
  return out + "]}";
}

Result<std::string> detokenize_json(const Json& body, const Tokenizer& t, bool strict) {
  Fields f(body, strict);
  const Json* v = f.get("tokens");
  if (!v || !v->is_array() || v->size() > kMaxIds)
    f.fail("tokens", fmt::format("expected an array of at most {} token ids", kMaxIds), v);
  std::vector<int32_t> ids;
  size_t bytes = 0;
  if (!f.failed()) {
    for (size_t i = 0; i < v->size(); ++i) {
      const auto id = Fields::whole((*v)[i], 0, t.size() - 1);
      if (!id) {
        f.fail(fmt::format("tokens[{}]", i), fmt::format("expected a token id in [0, {})", t.size()), &(*v)[i]);
        break;
      }
      ids.push_back(int32_t(*id));
      bytes += std::max(t.text(ids.back()).size(), t.piece(ids.back()).size());
    }
    if (bytes > kMaxDetokenizedBytes)
      f.fail(
          Error{"tokens",
                fmt::format("expected ids of at most {} bytes of text, found {} or fewer", kMaxDetokenizedBytes, bytes),
                "send them in parts"});
  }
  if (auto ok = f.done(); !ok) return ok.error();
  const std::string text = dump_json(Json(t.decode(ids, /*show_special=*/true)));
  std::string out;
  out.reserve(2 * text.size() + 32);
  for (const char* name : {"{\"content\":", ",\"prompt\":"}) out += name, out += text;  // llama-server's and vLLM's
  return out + "}";
}

std::vector<int32_t> tokens_with(const Tokenizer& t, std::string_view text) {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < t.size() && !text.empty(); ++id)
    if (t.piece(id).find(text) != std::string_view::npos) ids.push_back(id);
  return ids;
}

}  // namespace facet
