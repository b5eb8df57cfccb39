#pragma once
#include "server/asio.h"  // before other headers of Boost

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

struct UpstreamHead {
  int status = 0;
  std::string type = {};
  std::vector<std::pair<std::string, std::string>> headers = {};  // end to end, without Content-Type
  bool stream = false;                                            // its length is not known beforehand
};

// Told on the io_context's thread; nothing after done, and nothing after cancel.
struct UpstreamSink {
  std::function<void(const UpstreamHead&)> head = {};
  std::function<void(std::string_view)> body = {};
  std::function<void(bool whole)> done = {};  // whole: the answer came to its end
};

// One request to a model's process and its answer, on a connection of their own.
class Upstream : public std::enable_shared_from_this<Upstream> {
 public:
  // fd: connected; it becomes the exchange's.
  static std::shared_ptr<Upstream> start(boost::asio::io_context& io, int fd, std::string request, UpstreamSink sink);
  virtual ~Upstream() = default;
  virtual void cancel() = 0;  // the process sees a client that disconnects
};

}  // namespace facet
