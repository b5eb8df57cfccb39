#pragma once
#include <mutex>

#include "base/result.h"
#include "tokenizer/json_fwd.h"

// What a model's process and its router tell each other, over a socket pair of type SOCK_SEQPACKET: the router sends
// connected clients (base/pass_socket.h), the process one JSON object a packet, with "state" as
//   loading  {"done", "total"}                                  bytes of weights
//   ready    {"n_ctx", "n_vocab", "n_seq", "bytes", "plan"}     bytes: of its plan of memory; plan: in words
//   failed   {"error", "no_room"}                               no_room: it would fit if there were more memory
namespace facet {

inline constexpr size_t kMaxLinkMessage = 32 << 10;  // bytes

// The process's end. Any thread; every method does nothing without a router.
class RouterLink {
 public:
  explicit RouterLink(int fd) : fd_(fd) {}
  bool there() const { return fd_ >= 0; }
  void loading(uint64_t done, uint64_t total);  // told at most every 50 ms
  struct Ready {
    int n_ctx = 0, n_vocab = 0, n_seq = 0;
    int64_t bytes = 0;
    std::string plan = {};
  };
  void ready(const Ready& r);
  void failed(const Error& error, bool no_room);

 private:
  void tell(const Json& message, bool may_be_lost);
  int fd_;
  std::mutex mutex_ = {};
  int64_t told_ms_ = -1;
};

// A packet of the process; an error if it is none that is listed above.
Result<Json> parse_link_message(std::string_view packet);

}  // namespace facet
