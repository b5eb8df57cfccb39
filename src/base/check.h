#pragma once
#include <fmt/format.h>

#include <string>

namespace facet {
// Prints "file:line: CHECK(cond) failed: message" to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* cond, const std::string& message);
}  // namespace facet

// A programmer's error. On in release builds; never inside an inner loop.
#define CHECK(cond, ...)                                                                            \
  do {                                                                                              \
    if (!(cond)) [[unlikely]]                                                                       \
      ::facet::check_failed(__FILE__, __LINE__, #cond, ::fmt::format(__VA_ARGS__));                 \
  } while (0)
