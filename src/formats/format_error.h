#pragma once
#include <fmt/format.h>

#include <string>

#include "base/result.h"

namespace facet {

// The one shape of message that the parsers print: what it is about, what must hold, what the file says.
inline Error format_error(std::string where, std::string_view key, std::string_view expected, std::string_view found,
                          std::string hint) {
  return {std::move(where), fmt::format("{}; expected {}, found {}", key, expected, found), std::move(hint)};
}

// A string of the file as a message may show it: control bytes replaced, shortened.
inline std::string printable(std::string_view s, size_t max = 64) {
  std::string out;
  for (char c : s.substr(0, max)) out += (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) ? '?' : c;
  return s.size() > max ? out + "..." : out;
}

}  // namespace facet
