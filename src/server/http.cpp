#include "server/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <unordered_set>

namespace facet {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kReadSize = 64 << 10;      // of one read
constexpr size_t kMaxPipelined = 64 << 10;  // bytes of later requests that are taken while one is answered
constexpr size_t kMaxLinger = 64 << 20;     // bytes of a refused request that are read and dropped
constexpr int kLingerSeconds = 2;

class Server;
class Connection;

class Reply final : public HttpReply {
 public:
  Reply(std::weak_ptr<Connection> c, uint64_t serial) : connection_(std::move(c)), serial_(serial) {}
  ~Reply() override;
  void send(HttpResponse response) override;
  void begin(const std::string& type) override;
  void write(std::string_view text) override;
  void end() override;

 private:
  std::weak_ptr<Connection> connection_;
  uint64_t serial_;  // of its request on the connection
};

// One client. shared_ptr: each pending operation of Asio keeps its connection alive.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, Server& server);
  ~Connection();

  void start() {
    next_request();
    read();
  }
  void start_refused(int status, const std::string& what) {
    state_ = State::kAnswering;
    refuse(status, what);
    read();
  }
  // The server is about to end: an idle connection closes now, any other after its answer.
  void drain() {
    if (state_ == State::kIdle) return close("shutdown");
    close_after_ = true;
  }
  void close(const char* why);

  // What a Reply does, while it belongs to the current request.
  bool current(uint64_t serial) const { return state_ == State::kAnswering && serial == serial_ && !complete_; }
  void send(const HttpResponse& r);
  void begin(const std::string& type);
  void write_stream(std::string_view text);
  void end();

 private:
  enum class State {
    kIdle,       // no byte of a request yet
    kReading,    // some of one
    kAnswering,  // from its last byte until the last byte of the answer is sent
    kLinger,     // answered and shut down for sending: what the client still sends is dropped, so that it can
                 // read the answer
    kClosed,
  };
  using Parser = http::request_parser<http::string_body>;

  void read();
  void on_read(error_code ec, size_t n);
  void next_request();
  void parse();
  bool check_head();
  void answer();
  void refuse(int status, const std::string& what);
  std::string head(int status, const std::string& type,
                   const std::vector<std::pair<std::string, std::string>>& headers) const;
  void enqueue(std::string_view bytes);
  void flush();
  void flushed();
  void arm(int seconds);
  void on_deadline();

  tcp::socket socket_;
  asio::steady_timer timer_;
  Server& server_;
  State state_ = State::kIdle;
  beast::flat_buffer in_;
  std::optional<Parser> parser_;
  bool head_checked_ = false, reading_ = false, writing_ = false;
  std::string out_, sending_;  // queued, and being written from sent_ on
  size_t sent_ = 0, lingered_ = 0;
  uint64_t serial_ = 0;
  Reply* reply_ = nullptr;  // of the current request; clears itself
  bool complete_ = false;   // the answer is in the queue as a whole
  bool close_after_ = false, head_only_ = false, chunked_ = false;
  friend class Reply;
};

class Server final : public HttpServer {
 public:
  explicit Server(const HttpConfig& c) : config(c), acceptor_(io), retry_(io), drain_timer_(io), signals_(io) {}
  ~Server() override {
    for (Connection* c : std::vector(connections.begin(), connections.end())) c->close("shutdown");
  }

  Status open() {
    error_code ec;
    const auto address = asio::ip::make_address(config.host == "localhost" ? "127.0.0.1" : config.host, ec);
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
    signals_.add(SIGINT, ec);
    if (!ec) signals_.add(SIGTERM, ec);
    if (ec) return Error{"signals", ec.message(), ""};
    return Ok{};
  }

  int port() const override { return local_.port(); }
  std::string url() const override {
    const std::string a = local_.address().to_string();
    return local_.address().is_v6() ? fmt::format("http://[{}]:{}", a, port()) : fmt::format("http://{}:{}", a, port());
  }

  Status run(HttpHandler& h) override {
    handler = &h;
    accept();
    wait_signal();
    try {
      io.run();
    } catch (const std::exception& e) {  // Asio, or memory that ran out
      return Error{"http", e.what(), ""};
    }
    return Ok{};
  }

  void drain() override {
    post([this] { start_drain(); });
  }
  void post(std::function<void()> work) override { asio::post(io, std::move(work)); }

  void forget(Connection* c) {
    connections.erase(c);
    if (draining && connections.empty()) io.stop();
  }

  asio::io_context io{1};
  HttpConfig config;
  HttpHandler* handler = nullptr;
  std::unordered_set<Connection*> connections;
  bool draining = false;

 private:
  void accept() {
    acceptor_.async_accept([this](error_code ec, tcp::socket socket) {
      if (draining) return;
      if (ec) {  // out of file descriptors, or the client has gone already
        retry_.expires_after(std::chrono::milliseconds(100));
        retry_.async_wait([this](error_code e) {
          if (!e) accept();
        });
        return;
      }
      const size_t n = connections.size(), max = size_t(config.max_connections);
      if (n < max + 32) {  // some more are told why they are refused
        error_code ignored;
        socket.set_option(tcp::no_delay(true), ignored);
        // What the kernel holds for a slow reader counts, too.
        socket.set_option(
            asio::socket_base::send_buffer_size(int(std::clamp<uint64_t>(config.max_backlog, 4096, 1 << 18))), ignored);
        auto c = std::make_shared<Connection>(std::move(socket), *this);
        if (n < max)
          c->start();
        else
          c->start_refused(503, "too many connections");
      }
      accept();
    });
  }

  void wait_signal() {
    signals_.async_wait([this](error_code ec, int) {
      if (ec) return;
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
};

// --- Reply

Reply::~Reply() {
  auto c = connection_.lock();
  if (!c || c->reply_ != this) return;
  c->reply_ = nullptr;
  if (c->current(serial_)) c->close("abandoned");
}
void Reply::send(HttpResponse response) {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->send(response);
}
void Reply::begin(const std::string& type) {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->begin(type);
}
void Reply::write(std::string_view text) {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->write_stream(text);
}
void Reply::end() {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->end();
}

// --- Connection

Connection::Connection(tcp::socket socket, Server& server)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      server_(server),
      in_(std::max<size_t>(server.config.max_header, kMaxPipelined) + kReadSize) {
  server_.connections.insert(this);
}
Connection::~Connection() {
  if (state_ != State::kClosed) server_.forget(this);
}

void Connection::close(const char* why) {
  if (state_ == State::kClosed) return;
  const bool unanswered = state_ == State::kAnswering && !complete_;
  state_ = State::kClosed;
  error_code ignored;
  timer_.cancel(ignored);
  socket_.close(ignored);
  if (reply_ && unanswered && reply_->on_gone)
    asio::post(server_.io, [f = std::move(reply_->on_gone), why] { f(why); });
  server_.forget(this);
}

void Connection::read() {
  if (reading_ || state_ == State::kClosed) return;
  if (state_ == State::kAnswering && in_.size() >= kMaxPipelined) return;  // resumed by next_request()
  reading_ = true;
  socket_.async_read_some(in_.prepare(std::min(kReadSize, in_.max_size() - in_.size())),
                          [self = shared_from_this()](error_code ec, size_t n) { self->on_read(ec, n); });
}

void Connection::on_read(error_code ec, size_t n) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (ec) {
    // A client may shut down its side once it has sent the request; one that is still waiting for an answer to be
    // computed counts as gone, because it cannot be told from one that closed.
    if (ec == asio::error::eof && state_ == State::kAnswering && complete_)
      close_after_ = true;
    else
      close("disconnect");
    return;
  }
  if (state_ == State::kLinger) {
    lingered_ += n;
    if (lingered_ > kMaxLinger) return close("linger");
    return read();
  }
  in_.commit(n);
  if (state_ == State::kIdle) state_ = State::kReading, arm(server_.config.request_s);
  if (state_ == State::kReading) parse();
  read();
}

void Connection::next_request() {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(server_.config.max_header);
  parser_->body_limit(server_.config.max_body);
  head_checked_ = complete_ = head_only_ = chunked_ = false;
  ++serial_;
  state_ = in_.size() > 0 ? State::kReading : State::kIdle;
  arm(state_ == State::kIdle ? server_.config.idle_s : server_.config.request_s);
  if (state_ == State::kReading) parse();
  read();
}

void Connection::parse() {
  while (in_.size() > 0 && !parser_->is_done()) {
    error_code ec;
    in_.consume(parser_->put(in_.data(), ec));
    if (parser_->is_header_done() && !head_checked_) {
      head_checked_ = true;
      if (!check_head()) return;
    }
    if (ec == http::error::need_more) {
      // A part that must be whole to be read (a line of chunk sizes) does not fit.
      if (in_.size() + kReadSize > in_.max_size()) refuse(400, "malformed request: a line is too long");
      return;
    }
    if (ec == http::error::header_limit)
      return refuse(431, fmt::format("the header is larger than {} bytes", server_.config.max_header));
    if (ec == http::error::body_limit)
      return refuse(413, fmt::format("the body is larger than {} bytes", server_.config.max_body));
    if (ec) return refuse(400, "malformed request: " + ec.message());
  }
  if (parser_->is_done()) answer();
}

HttpRequest request_head(const http::request<http::string_body>& m) {
  HttpRequest r;
  r.method = std::string(m.method_string());
  r.path = std::string(m.target());
  if (const size_t q = r.path.find('?'); q != std::string::npos) {
    r.query = r.path.substr(q + 1);
    r.path.resize(q);
  }
  for (const auto& f : m) {
    std::string name(f.name_string());
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    r.headers.emplace_back(std::move(name), std::string(f.value()));
  }
  return r;
}

// False if the request ends here.
bool Connection::check_head() {
  const auto& m = parser_->get();
  const HttpRequest head = request_head(m);
  if (m.version() != 10 && m.version() != 11) return refuse(505, "expected HTTP/1.0 or HTTP/1.1"), false;
  if (!head.path.starts_with('/')) return refuse(400, "malformed request: the target is no path"), false;
  if (auto refused = server_.handler->gate(head)) {
    head_only_ = m.method() == http::verb::head;
    close_after_ = close_after_ || !parser_->is_done() || !m.keep_alive();  // the body is not wanted
    state_ = State::kAnswering;
    send(*refused);
    return false;
  }
  if (!parser_->is_done() && beast::iequals(m[http::field::expect], "100-continue"))
    enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void Connection::answer() {
  auto m = parser_->release();
  HttpRequest r = request_head(m);
  r.body = std::move(m.body());
  head_only_ = m.method() == http::verb::head;
  chunked_ = m.version() == 11;
  close_after_ = close_after_ || !m.keep_alive() || !chunked_;
  state_ = State::kAnswering;
  error_code ignored;
  timer_.cancel(ignored);
  auto reply = std::make_unique<Reply>(weak_from_this(), serial_);
  reply_ = reply.get();
  server_.handler->request(std::move(r), std::move(reply));
}

void Connection::refuse(int status, const std::string& what) {
  state_ = State::kAnswering;
  close_after_ = true;
  send(server_.handler->refusal(status, what));
}

std::string Connection::head(int status, const std::string& type,
                             const std::vector<std::pair<std::string, std::string>>& headers) const {
  std::string s = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", status,
                              std::string(http::obsolete_reason(http::int_to_status(unsigned(status)))), type);
  for (const auto& [name, value] : headers) s += fmt::format("{}: {}\r\n", name, value);
  if (close_after_) s += "Connection: close\r\n";
  return s;
}

void Connection::send(const HttpResponse& r) {
  std::string text = head(r.status, r.type, r.headers) + fmt::format("Content-Length: {}\r\n\r\n", r.body.size());
  if (!head_only_) text += r.body;
  complete_ = true;
  enqueue(text);
}

void Connection::begin(const std::string& type) {
  if (!chunked_) close_after_ = true;
  enqueue(head(200, type, {{"Cache-Control", "no-cache"}}) +
          (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
}

void Connection::write_stream(std::string_view text) {
  if (text.empty() || head_only_) return;
  if (out_.size() + sending_.size() - sent_ + text.size() > server_.config.max_backlog) return close("slow-reader");
  enqueue(chunked_ ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : std::string(text));
}

void Connection::end() {
  complete_ = true;
  enqueue(chunked_ && !head_only_ ? "0\r\n\r\n" : "");
}

void Connection::enqueue(std::string_view bytes) {
  out_ += bytes;
  flush();
}

void Connection::flush() {
  if (writing_ || state_ == State::kClosed) return;
  if (sent_ == sending_.size()) {
    sending_.clear();
    sent_ = 0;
    std::swap(out_, sending_);
  }
  if (sending_.empty()) return flushed();
  writing_ = true;
  if (state_ == State::kAnswering) arm(server_.config.write_s);
  socket_.async_write_some(asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
                           [self = shared_from_this()](error_code ec, size_t n) {
                             self->writing_ = false;
                             if (self->state_ == State::kClosed) return;
                             if (ec) return self->close("disconnect");
                             self->sent_ += n;
                             self->flush();
                           });
}

// Everything queued has been handed to the kernel.
void Connection::flushed() {
  if (state_ != State::kAnswering) return;
  error_code ignored;
  timer_.cancel(ignored);
  if (!complete_) return;
  if (reply_) reply_ = nullptr;
  if (!close_after_) return next_request();
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  state_ = State::kLinger;
  in_.consume(in_.size());
  arm(kLingerSeconds);
  read();
}

void Connection::arm(int seconds) {
  timer_.expires_after(std::chrono::seconds(seconds));
  timer_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec && self->timer_.expiry() <= std::chrono::steady_clock::now()) self->on_deadline();
  });
}

void Connection::on_deadline() {
  if (state_ == State::kReading)
    return refuse(408, fmt::format("the request took longer than {} s to arrive", server_.config.request_s));
  // In kAnswering the timer runs only while a write is pending.
  if (state_ != State::kAnswering || writing_) close(state_ == State::kAnswering ? "slow-reader" : "idle");
}

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
