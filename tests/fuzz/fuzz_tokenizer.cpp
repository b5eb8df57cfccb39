// Any bytes through encode and decode: nothing crashes, valid text comes back, and streaming equals decoding
// at once.
#include <cstddef>
#include <cstdint>
#include <string>

#include "../support/tokenizer_vocab.h"
#include "base/check.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace {

const facet::Tokenizer& tokenizer() {
  static const facet::Tokenizer t = [] {
    facet::Result<facet::Tokenizer> made = facet::Tokenizer::create(facet::test::made_vocab(
        {"a", "b", "▁", "\n", "\t", "\n\n", "▁▁", "▁▁▁▁", "aa", "ab", "ba", "aaaa", "▁a", "the", "▁the", "é", "日本"}));
    CHECK(made, "{}", made.error().message());
    return std::move(*made);
  }();
  return t;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const facet::Tokenizer& t = tokenizer();
  const bool add_bos = data[0] & 1, parse_special = data[0] & 2, show_special = data[0] & 4;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);

  const std::vector<int32_t> ids = t.encode(text, add_bos, parse_special);
  CHECK(ids.size() <= 3 * text.size() + 1, "{} tokens of {} bytes", ids.size(), text.size());
  CHECK(!add_bos || (!ids.empty() && ids[0] == t.bos()), "no <bos>");
  const std::string whole = t.decode(ids, show_special);
  CHECK(facet::utf8_sanitize(whole) == whole, "decoded text is not UTF-8");

  facet::StreamDecoder stream(t, show_special);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string piece = stream.push(id);
    CHECK(facet::utf8_sanitize(piece) == piece, "a piece ends inside a sequence");
    joined += piece;
  }
  joined += stream.finish();
  CHECK(joined == whole, "streamed text differs");

  // U+2581 itself is how the vocabulary writes a space, so it comes back as one.
  if (facet::utf8_sanitize(text) == text && text.find("\xE2\x96\x81") == std::string::npos)
    CHECK(t.decode(t.encode(text, false, parse_special), true) == text, "text does not come back");
  return 0;
}
