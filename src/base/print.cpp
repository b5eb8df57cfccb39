#include "base/print.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

namespace facet {
namespace {

std::atomic<int> g_out_errno{0};  // of the first failure

void note_failure() {
  int none = 0;
  g_out_errno.compare_exchange_strong(none, errno ? errno : EIO);
}

}  // namespace

void put_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) note_failure();
}
void flush_out() {
  if (std::fflush(stdout) != 0) note_failure();
}
void put_err(std::string_view text) {
  [[maybe_unused]] const size_t n = std::fwrite(text.data(), 1, text.size(), stderr);
}

bool out_failed() { return g_out_errno != 0; }

Status finish_out() {
  flush_out();
  if (g_out_errno == 0 && std::ferror(stdout)) g_out_errno = EIO;  // seen by someone else
  if (g_out_errno == 0) return Ok{};
  return Error{"stdout", fmt::format("cannot write: {}", std::strerror(g_out_errno)), "the output is incomplete"};
}

std::string on_one_line(std::string_view text) {
  std::string s(text);
  for (char& c : s)
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = c == '\n' || c == '\r' || c == '\t' ? ' ' : '?';
  return s;
}

void open_closed_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // Input that ends, output that fails, messages that are lost. The lowest free number is this one.
    ::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace facet
