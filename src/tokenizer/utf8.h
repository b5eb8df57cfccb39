#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace facet {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the sequence that a lead byte announces by its bit pattern; 0 for a continuation byte and F8..FF.
inline int utf8_pattern_length(uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC0) return 0;
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF8 ? 4 : 0;
}

// What the bytes at the start of a text are, by the Unicode standard (no overlong forms, no surrogates,
// nothing above U+10FFFF).
struct Utf8Head {
  enum Kind { kValid, kInvalid, kIncomplete } kind;
  int length;  // bytes: of the sequence, of what one U+FFFD replaces, or of what there is so far
};
Utf8Head utf8_head(std::string_view s);  // s is not empty

// c is a code point, at most U+10FFFF.
void append_utf8(uint32_t c, std::string& out);

// Every maximal ill-formed part becomes one U+FFFD.
std::string utf8_sanitize(std::string_view s);

// At most so many bytes of a text that comes from outside, for a message; what is left out is "...".
std::string cut(std::string_view s, size_t max = 200);

}  // namespace facet
