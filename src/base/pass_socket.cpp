#include "base/pass_socket.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace facet {
namespace {

// Room for one descriptor, aligned as the kernel wants it.
union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
};

}  // namespace

bool send_socket(int through, int fd) {
  char byte = 'c';
  iovec data{&byte, 1};
  Control control = {};
  msghdr m = {};
  m.msg_iov = &data, m.msg_iovlen = 1;
  m.msg_control = control.bytes, m.msg_controllen = sizeof control.bytes;
  cmsghdr* c = CMSG_FIRSTHDR(&m);
  c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
  for (;;) {
    if (::sendmsg(through, &m, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) return true;
    if (errno != EINTR) return false;
  }
}

ReceivedSocket receive_socket(int through) {
  for (;;) {
    char byte = 0;
    iovec data{&byte, 1};
    Control control = {};
    msghdr m = {};
    m.msg_iov = &data, m.msg_iovlen = 1;
    m.msg_control = control.bytes, m.msg_controllen = sizeof control.bytes;
    const ssize_t n = ::recvmsg(through, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == 0) return {ReceivedSocket::State::kEnded, -1};
    if (n < 0) {
      if (errno == EINTR) continue;
      const bool nothing = errno == EAGAIN || errno == EWOULDBLOCK;
      return {nothing ? ReceivedSocket::State::kNone : ReceivedSocket::State::kEnded, -1};
    }
    const cmsghdr* c = CMSG_FIRSTHDR(&m);
    if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len != CMSG_LEN(sizeof(int)))
      continue;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return {ReceivedSocket::State::kOne, fd};
  }
}

}  // namespace facet
