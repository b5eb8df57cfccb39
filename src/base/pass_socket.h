#pragma once

// Connected sockets that one process gives to another through a pair of type SOCK_SEQPACKET. Messages without a socket
// share it: a packet is one message.
namespace facet {

// Never waits. The receiver has a descriptor of its own; `fd` is still the caller's. False: the other end is gone, or
// does not take any.
bool send_socket(int through, int fd);

struct ReceivedSocket {
  enum class State { kNone, kOne, kEnded } state = State::kNone;  // nothing is there; fd; the other end is gone
  int fd = -1;
};
// Never waits. Packets without a socket are dropped.
ReceivedSocket receive_socket(int through);

}  // namespace facet
