#pragma once
#if !defined(__CUDACC__)
#include <fmt/format.h>
#endif

#include <sstream>
#include <string>

namespace facet {
// Prints "file:line: CHECK(cond) failed: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* cond, const std::string& message);

// What nvcc uses instead of fmt, which it cannot always read: the text with each {} or {:...} as the next value.
template <class... Args>
std::string check_message(const char* text, const Args&... args) {
  std::ostringstream s;
  // Up to the next place for a value, which is left out. False: there is none.
  auto to_place = [&] {
    for (; *text; ++text) {
      if (*text != '{' && *text != '}') {
        s << *text;
      } else if (text[1] == *text) {
        s << *text++;  // {{ or }}
      } else if (*text == '{') {
        while (*text && *text != '}') ++text;
        if (*text) ++text;
        return true;
      }
    }
    return false;
  };
  ((to_place() ? s << args : s << ' ' << args), ...);
  to_place();
  return s.str();
}
}  // namespace facet

// A programmer's error. On in release builds; never inside an inner loop.
#if defined(__CUDACC__)
#define FACET_CHECK_MESSAGE(...) ::facet::check_message(__VA_ARGS__)
#else
#define FACET_CHECK_MESSAGE(...) ::fmt::format(__VA_ARGS__)
#endif
#define CHECK(cond, ...)                                                                  \
  do {                                                                                    \
    if (!(cond)) [[unlikely]]                                                             \
      ::facet::check_failed(__FILE__, __LINE__, #cond, FACET_CHECK_MESSAGE(__VA_ARGS__)); \
  } while (0)
