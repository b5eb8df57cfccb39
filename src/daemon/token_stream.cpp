#include "daemon/token_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

namespace facet {

Result<TokenStream> TokenStream::open(int fd) {
  TokenStream s;
  if (fd < 0) return s;
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
    return Error{"--stream-fd", fmt::format("expected a descriptor that is open for writing, found {}", fd),
                 "the program that starts the daemon opens it and lets it be inherited"};
  std::signal(SIGPIPE, SIG_IGN);
  s.fd_ = fd;
  return s;
}

void TokenStream::write(std::span<const int32_t> ids) {
  if (fd_ < 0 || lost_) return;
  const auto bytes = std::as_bytes(ids);
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t n = ::write(fd_, bytes.data() + at, bytes.size() - at);
    if (n > 0) {
      at += size_t(n);
    } else if (n < 0 && errno == EAGAIN) {
      pollfd p{.fd = fd_, .events = POLLOUT, .revents = 0};
      ::poll(&p, 1, -1);
    } else if (n < 0 && errno != EINTR) {
      lost_ = true;
      return;
    }
  }
}

}  // namespace facet
