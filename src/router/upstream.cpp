#include "router/upstream.h"

#include <unistd.h>

#include <array>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <limits>

namespace facet {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kMaxHeader = 64 << 10, kPiece = 64 << 10;

// What concerns one connection, and what the router's own answer has.
bool hop_by_hop(http::field name) {
  return name == http::field::connection || name == http::field::transfer_encoding ||
         name == http::field::content_length || name == http::field::keep_alive || name == http::field::content_type ||
         name == http::field::cache_control;
}

class Exchange final : public Upstream {
 public:
  Exchange(asio::io_context& io, std::string request, UpstreamSink sink)
      : socket_(io), request_(std::move(request)), sink_(std::move(sink)), in_(kMaxHeader + kPiece) {
    parser_.header_limit(kMaxHeader);
    parser_.body_limit(std::numeric_limits<uint64_t>::max());
  }
  bool open(int fd) {
    error_code ec;
    socket_.assign(asio::local::stream_protocol(), fd, ec);
    return !ec;
  }
  void begin() {
    const auto self = shared_from_this();
    asio::async_write(socket_, asio::buffer(request_), [this, self](error_code, size_t) {
      request_.clear();  // what fails here, reading tells
    });
    http::async_read_header(socket_, in_, parser_, [this, self](error_code ec, size_t) {
      if (over_) return;
      if (ec) return end(false);
      UpstreamHead h{.status = int(parser_.get().result_int()),
                     .type = std::string(parser_.get()[http::field::content_type]),
                     .headers = {},
                     .stream = !parser_.content_length()};
      for (const auto& f : parser_.get())
        if (!hop_by_hop(f.name())) h.headers.emplace_back(f.name_string(), f.value());
      if (sink_.head) sink_.head(h);
      read();
    });
  }
  void cancel() override {
    over_ = true;
    error_code ignored;
    socket_.close(ignored);
    sink_ = {};
  }

 private:
  void read() {
    if (over_) return;
    if (parser_.is_done()) return end(true);
    parser_.get().body().data = piece_.data();
    parser_.get().body().size = piece_.size();
    http::async_read_some(socket_, in_, parser_, [this, self = shared_from_this()](error_code ec, size_t) {
      if (over_) return;
      const size_t n = piece_.size() - parser_.get().body().size;
      if (n > 0 && sink_.body) sink_.body({piece_.data(), n});
      if (over_) return;
      if (ec && ec != http::error::need_buffer) return end(parser_.is_done());
      read();
    });
  }
  void end(bool whole) {
    const auto done = std::move(sink_.done);
    cancel();
    if (done) done(whole);
  }

  asio::local::stream_protocol::socket socket_;
  std::string request_;
  UpstreamSink sink_;
  beast::flat_buffer in_;
  http::response_parser<http::buffer_body> parser_;
  std::array<char, kPiece> piece_;
  bool over_ = false;
};

}  // namespace

std::shared_ptr<Upstream> Upstream::start(asio::io_context& io, int fd, std::string request, UpstreamSink sink) {
  auto e = std::make_shared<Exchange>(io, std::move(request), std::move(sink));
  if (!e->open(fd)) ::close(fd);  // reading then fails, and is told
  e->begin();
  return e;
}

}  // namespace facet
