#include "app/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "app/commands.h"
#include "base/print.h"

namespace facet {

Result<std::string> read_stdin() {
  constexpr size_t kMost = size_t(256) << 20;
  std::string text;
  char buffer[65536];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, stdin)) {
    text.append(buffer, n);
    if (text.size() > kMost) return Error{"stdin", "expected at most 256 MiB, found more", "send less"};
  }
  if (std::ferror(stdin)) return Error{"stdin", fmt::format("cannot read: {}", std::strerror(errno)), ""};
  return text;
}

Status write_stdout(std::string_view text) {
  put_out(text);
  return finish_out();
}

int report(const Error& error) {
  // One line, whatever the message quotes.
  put_err("facet: " + on_one_line(error.message()) + "\n" + error.detail);
  return kExitFailure;
}

bool takes_escapes(int fd) {
  const char *term = std::getenv("TERM"), *no_color = std::getenv("NO_COLOR");
  return ::isatty(fd) == 1 && term && *term && std::strcmp(term, "dumb") != 0 && !(no_color && *no_color);
}

}  // namespace facet
