#include "server/http.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

#include "base/pass_socket.h"
#include "base/reserve.h"
#include "server/http_connection.h"

namespace facet {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

class Server final : public HttpServer, public HttpShared {
 public:
  explicit Server(const HttpConfig& c)
      : HttpShared(c), acceptor_(io), retry_(io), drain_timer_(io), signals_(io), clients_(io) {}
  ~Server() override {
    for (Connection* c : std::vector(connections.begin(), connections.end())) c->close("shutdown");
  }

  Status open() {
    error_code ec;
    const auto address = asio::ip::make_address(config.host == "localhost" ? "127.0.0.1" : config.host, ec);
    if (config.clients_fd >= 0) {
      clients_.assign(::fcntl(config.clients_fd, F_DUPFD_CLOEXEC, 0), ec);
      if (ec) return Error{"--router-fd", "expected the socket of a router: " + ec.message(), ""};
      return watch_signals();
    }
    if (ec)
      return Error{"--host", fmt::format("expected an IP address, found \"{}\"", config.host),
                   "127.0.0.1 serves this machine, 0.0.0.0 the network"};
    const tcp::endpoint at(address, uint16_t(config.port));
    acceptor_.open(at.protocol(), ec);
    if (!ec) acceptor_.set_option(asio::socket_base::reuse_address(true), ec);
    if (!ec) acceptor_.bind(at, ec);
    if (!ec) acceptor_.listen(asio::socket_base::max_listen_connections, ec);
    if (!ec) local_ = acceptor_.local_endpoint(ec);
    if (ec)
      return Error{fmt::format("{}:{}", config.host, config.port), "cannot listen: " + ec.message(),
                   "choose another --port, or 0 for a free one"};
    return watch_signals();
  }

  Status watch_signals() {
    error_code ec;
    signals_.add(SIGINT, ec);
    if (!ec) signals_.add(SIGTERM, ec);
    if (!ec && config.catch_hangup) signals_.add(SIGHUP, ec);
    if (ec) return Error{"signals", ec.message(), ""};
    return Ok{};
  }

  int port() const override { return local_.port(); }
  HttpUse use() const override {
    return {connections.size(), bodies->used(), answer_bytes, refused_bodies, dropped_for_memory};
  }
  std::string url() const override {
    const std::string a = local_.address().to_string();
    return local_.address().is_v6() ? fmt::format("http://[{}]:{}", a, port()) : fmt::format("http://{}:{}", a, port());
  }

  Status run(HttpHandler& h) override {
    handler = &h;
    take_clients();
    wait_signal();
    int failures = 0;  // since first_failure, of handlers
    std::chrono::steady_clock::time_point first_failure{};
    for (;;) {
      try {
        io.run();
        return Ok{};
      } catch (const std::bad_alloc&) {  // what it ran out for is over; a connection closes with its last handler
        const auto now = std::chrono::steady_clock::now();
        if (now - first_failure > std::chrono::seconds(1)) first_failure = now, failures = 0;
        if (++failures > 100 || !take_clients_again())
          return Error{"http", "memory has run out, and none came back: " + memory_left(), "allow the program more"};
      } catch (const std::exception& e) {
        Error error = error_of(e);
        error.where = "http";
        return error;
      }
    }
  }

  void drain() override {
    post([this] { start_drain(); });
  }
  void post(std::function<void()> work) override { asio::post(io, std::move(work)); }

 private:
  void take_clients() {
    waits_for_clients_ = false;
    if (config.clients_fd >= 0)
      take_sent();
    else
      accept();
    waits_for_clients_ = true;
  }
  // After memory ran out, perhaps for that.
  bool take_clients_again() {
    for (int tries = 0; !waits_for_clients_ && !draining; ++tries) {
      try {
        take_clients();
      } catch (const std::bad_alloc&) {
        if (tries == 1000) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return true;
  }

  void accept() {
    acceptor_.async_accept([this](error_code ec, tcp::socket socket) {
      waits_for_clients_ = false;
      if (draining) return;
      if (ec) {  // out of file descriptors, or the client has gone already
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this](error_code e) {
          if (!e) take_clients();
        });
        waits_for_clients_ = true;
        return;
      }
      const size_t n = connections.size(), max = size_t(config.max_connections);
      if (n < max + 32) {  // some more are told why they are refused
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        serve(ClientSocket(std::move(socket)), n < max);
      }
      take_clients();
    });
  }

  void serve(ClientSocket socket, bool has_room) {
    error_code ignored;
    // What the kernel holds for a slow reader counts, too.
    socket.set_option(asio::socket_base::send_buffer_size(int(std::clamp<uint64_t>(config.max_backlog, 4096, 1 << 18))),
                      ignored);
    auto c = std::make_shared<Connection>(std::move(socket), *this);
    if (has_room)
      c->start();
    else
      c->start_refused(503, "too many connections");
  }

  // Clients that a router sends.
  void take_sent() {
    clients_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code ec) {
      waits_for_clients_ = false;
      if (ec) return;
      for (;;) {
        const ReceivedSocket r = receive_socket(clients_.native_handle());
        if (r.state == ReceivedSocket::State::kEnded) return io.stop();  // nobody is left to answer to
        if (r.state == ReceivedSocket::State::kNone) break;
        ClientSocket socket(io);
        socket.assign(asio::generic::stream_protocol(AF_UNIX, 0), r.fd, ec);
        if (ec || draining)
          ::close(r.fd);
        else
          serve(std::move(socket), connections.size() < size_t(config.max_connections));
      }
      take_clients();
    });
  }

  void wait_signal() {
    signals_.async_wait([this](error_code ec, int signal) {
      if (ec) return;
      if (signal == SIGHUP) {
        handler->hangup();
        return wait_signal();
      }
      if (draining) return io.stop();
      start_drain();
      wait_signal();
    });
  }

  void start_drain() {
    if (draining) return;
    draining = true;
    error_code ignored;
    acceptor_.close(ignored);
    for (Connection* c : std::vector(connections.begin(), connections.end())) c->drain();
    if (connections.empty()) return io.stop();
    drain_timer_.expires_after(std::chrono::seconds(config.drain_s));
    drain_timer_.async_wait([this](error_code ec) {
      if (!ec) io.stop();
    });
  }

  tcp::acceptor acceptor_;
  tcp::endpoint local_;
  asio::steady_timer retry_, drain_timer_;
  asio::signal_set signals_;
  asio::posix::stream_descriptor clients_;
  bool waits_for_clients_ = false;  // something will run when one comes
};

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [n, value] : headers)
    if (n == name) return value;
  return {};
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpConfig& config) {
  auto s = std::make_unique<Server>(config);
  if (auto ok = s->open(); !ok) return ok.error();
  return std::unique_ptr<HttpServer>(std::move(s));
}

Result<bool> is_loopback(const std::string& host) {
  if (host == "localhost") return true;
  error_code ec;
  const auto address = asio::ip::make_address(host, ec);
  if (ec)
    return Error{"host", fmt::format("expected an IP address, found \"{}\"", host),
                 "127.0.0.1 serves this machine, 0.0.0.0 the network"};
  return address.is_loopback();
}

std::string_view host_name(std::string_view s) {
  if (const size_t at = s.find("://"); at != std::string_view::npos) s.remove_prefix(at + 3);
  s = s.substr(0, s.find('/'));
  if (s.starts_with('[')) return s.substr(1, std::min(s.find(']'), s.size()) - 1);
  return s.substr(0, s.find(':'));
}

}  // namespace facet
