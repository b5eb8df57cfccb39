#include "base/base64.h"

#include <array>
#include <cstdint>

namespace facet {
namespace {

constexpr std::array<int8_t, 256> kValues = [] {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < kLetters.size(); ++i) values[uint8_t(kLetters[i])] = int8_t(i);
  return values;
}();

}  // namespace

std::optional<std::string> decode_base64(std::string_view text) {
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  int n_bits = 0, n_pad = 0;
  size_t n = 0;
  for (const char c : text) {
    if (c == '\r' || c == '\n') continue;
    ++n;
    if (c == '=') {
      ++n_pad;
      continue;
    }
    const int value = kValues[uint8_t(c)];
    if (value < 0 || n_pad > 0) return std::nullopt;
    bits = bits << 6 | uint32_t(value);
    n_bits += 6;
    if (n_bits < 8) continue;
    n_bits -= 8;
    out += char(bits >> n_bits & 0xFF);
  }
  // 2 or 4 bits are left before one or two signs of padding, and are zeros.
  if (n % 4 != 0 || n_pad > 2 || n_bits != 2 * n_pad || (bits & ((1U << n_bits) - 1)) != 0) return std::nullopt;
  return out;
}

}  // namespace facet
