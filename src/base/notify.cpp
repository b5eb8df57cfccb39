#include "base/notify.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

namespace facet {

bool notify_service_manager(std::string_view state) {
  const char* name = std::getenv("NOTIFY_SOCKET");
  if (!name || !*name) return true;
  const std::string_view path(name);
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  if ((path[0] != '/' && path[0] != '@') || path.size() >= sizeof to.sun_path) return false;
  std::copy(path.begin(), path.end(), to.sun_path);
  if (path[0] == '@') to.sun_path[0] = 0;
  // A name of the abstract namespace has no end but the address's.
  const auto size = socklen_t(offsetof(sockaddr_un, sun_path) + path.size() + (path[0] == '/' ? 1 : 0));
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const ssize_t sent =
      ::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to), size);
  ::close(fd);
  return sent == ssize_t(state.size());
}

}  // namespace facet
