#include "tokenizer/utf8.h"

namespace facet {

Utf8Head utf8_head(std::string_view s) {
  const auto byte = [&](size_t i) { return uint8_t(s[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Head::kValid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Head::kInvalid, 1};
  const int n = utf8_pattern_length(lead);
  // The second byte has a narrower range after E0, ED, F0 and F4: that is what rules out overlong forms,
  // surrogates and code points above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < n; ++i) {
    if (size_t(i) == s.size()) return {Utf8Head::kIncomplete, i};
    const bool ok = i == 1 ? byte(1) >= low && byte(1) <= high : (byte(size_t(i)) & 0xC0) == 0x80;
    if (!ok) return {Utf8Head::kInvalid, i};
  }
  return {Utf8Head::kValid, n};
}

void append_utf8(uint32_t c, std::string& out) {
  if (c < 0x80) {
    out += char(c);
  } else if (c < 0x800) {
    out += char(0xC0 | c >> 6);
    out += char(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += char(0xE0 | c >> 12);
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  } else {
    out += char(0xF0 | c >> 18);
    out += char(0x80 | (c >> 12 & 0x3F));
    out += char(0x80 | (c >> 6 & 0x3F));
    out += char(0x80 | (c & 0x3F));
  }
}

std::string utf8_sanitize(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  while (!s.empty()) {
    const Utf8Head h = utf8_head(s);
    out += h.kind == Utf8Head::kValid ? s.substr(0, size_t(h.length)) : kReplacement;
    s.remove_prefix(size_t(h.length));
  }
  return out;
}

std::string cut(std::string_view s, size_t max) {
  if (s.size() <= max) return std::string(s);
  size_t n = max - 3;
  while (n > 0 && (uint8_t(s[n]) & 0xC0) == 0x80) --n;
  return std::string(s.substr(0, n)) + "...";
}

}  // namespace facet
