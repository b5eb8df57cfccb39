#include "app/console.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "app/commands.h"

namespace facet {

Result<std::string> read_stdin() {
  std::string text;
  char buffer[65536];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, stdin)) text.append(buffer, n);
  if (std::ferror(stdin)) return Error{"stdin", fmt::format("cannot read: {}", std::strerror(errno)), ""};
  return text;
}

Status write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return Error{"stdout", fmt::format("cannot write: {}", std::strerror(errno)), ""};
  return Ok{};
}

int report(const Error& error) {
  // One line, whatever the message quotes.
  std::string line = error.message();
  for (char& c : line)
    if (c == '\n' || c == '\r') c = ' ';
  std::fprintf(stderr, "facet: %s\n", line.c_str());
  return kExitFailure;
}

}  // namespace facet
