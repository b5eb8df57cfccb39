#include "server/http_connection.h"

#include <fmt/format.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "server/http_head.h"

namespace facet {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

namespace {
constexpr size_t kReadSize = 64 << 10;      // of one read
constexpr size_t kMaxPipelined = 64 << 10;  // bytes of later requests that are taken while one is answered
constexpr size_t kMaxLinger = 64 << 20;     // bytes of a refused request that are read and dropped
constexpr int kLingerSeconds = 2;
constexpr size_t kTrusted = 64 << 10;  // bytes that a reader is believed to have taken when nothing is known of it yet
constexpr size_t kJoin = 16 << 10;     // bytes up to which pieces of an answer are written as one
}  // namespace

class Reply final : public HttpReply {
 public:
  Reply(std::weak_ptr<Connection> c, uint64_t serial) : connection_(std::move(c)), serial_(serial) {}
  ~Reply() override;
  void send(HttpResponse response) override;
  void begin(const std::string& type, const std::string& keep_alive) override;
  void header(const std::string& name, const std::string& value) override;
  void write(std::string_view text) override;
  void end() override;

 private:
  std::weak_ptr<Connection> connection_;
  uint64_t serial_;  // of its request on the connection
};

// --- Reply

Reply::~Reply() {
  auto c = connection_.lock();
  if (!c || c->reply_ != this) return;
  c->reply_ = nullptr;
  if (c->current(serial_)) c->close("abandoned");
}
void Reply::send(HttpResponse response) {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->send(std::move(response));
}
void Reply::header(const std::string& name, const std::string& value) {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->header(name, value);
}
void Reply::begin(const std::string& type, const std::string& keep_alive) {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->begin(type, keep_alive);
}
void Reply::write(std::string_view text) {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->write_stream(text);
}
void Reply::end() {
  if (auto c = connection_.lock(); c && c->current(serial_)) c->end();
}

// --- Connection

Connection::Connection(ClientSocket socket, HttpShared& shared)
    : socket_(std::move(socket)),
      timer_(socket_.get_executor()),
      ping_timer_(socket_.get_executor()),
      shared_(shared),
      in_(std::max<size_t>(shared.config.max_header, kMaxPipelined) + kReadSize) {
  shared_.connections.insert(this);
}
Connection::~Connection() {
  if (state_ != State::kClosed) shared_.forget(this);
}

void Connection::close(const char* why) {
  if (state_ == State::kClosed) return;
  const bool unanswered = state_ == State::kAnswering && !complete_;
  state_ = State::kClosed;
  error_code ignored;
  timer_.cancel(ignored);
  ping_timer_.cancel(ignored);
  socket_.close(ignored);
  shared_.answer_bytes -= std::exchange(waiting_, 0);  // the bytes go when the operation that has them is over
  body_room_.release();
  if (reply_ && unanswered && reply_->on_gone)
    asio::post(shared_.io, [f = std::move(reply_->on_gone), why] { f(why); });
  shared_.forget(this);
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
  if (state_ == State::kIdle) state_ = State::kReading, arm(std::chrono::seconds(shared_.config.request_s));
  if (state_ == State::kReading) parse();
  read();
}

void Connection::next_request() {
  parser_.emplace();
  parser_->eager(false);  // stop after the header: what follows is read only if the header says how
  head_ = {};
  body_room_ = Room::Part(shared_.bodies);
  extra_headers_.clear();
  head_bytes_ = 0;
  parser_->header_limit(shared_.config.max_header);
  parser_->body_limit(shared_.config.max_body);
  head_checked_ = complete_ = head_only_ = chunked_ = false;
  ++serial_;
  state_ = in_.size() > 0 ? State::kReading : State::kIdle;
  arm(std::chrono::seconds(state_ == State::kIdle ? shared_.config.idle_s : shared_.config.request_s));
  if (state_ == State::kReading) parse();
  read();
}

void Connection::parse() {
  while (in_.size() > 0 && !parser_->is_done()) {
    error_code ec;
    const size_t taken = parser_->put(in_.data(), ec);
    in_.consume(taken);
    // The parser's own limit counts each line's part apart: this one is of the whole, with the request line.
    if (!head_checked_) head_bytes_ += taken;
    // Where more is needed, all that is there belongs to it; else what follows may be a body.
    const size_t pending = ec == http::error::need_more && !parser_->is_header_done() ? in_.size() : 0;
    if (!head_checked_ && head_bytes_ + pending > shared_.config.max_header) ec = http::error::header_limit;
    if (ec == http::error::header_limit)
      return refuse(431, fmt::format("the header is larger than {} bytes", shared_.config.max_header));
    if (parser_->is_header_done() && !head_checked_) {
      head_checked_ = true;
      parser_->eager(true);  // from here on the body, and a trailer
      if (!check_head()) return;
    }
    if (!body_room_.resize(parser_->get().body().size())) return refuse_body();
    if (ec == http::error::need_more) {
      // A part that must be whole to be read (a line of chunk sizes) does not fit.
      if (in_.size() + kReadSize > in_.max_size()) refuse(400, "malformed request: a line is too long");
      return;
    }
    if (ec == http::error::body_limit)
      return refuse(413, fmt::format("the body is larger than {} bytes", shared_.config.max_body));
    if (ec) return refuse(400, "malformed request: " + ec.message());
  }
  if (parser_->is_done()) answer();
}

// False if the request ends here.
bool Connection::check_head() {
  const auto& m = parser_->get();
  head_only_ = m.method() == http::verb::head;
  head_.method = std::string(m.method_string());
  for (const auto& f : m) {
    std::string name(f.name_string());
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
    head_.headers.emplace_back(std::move(name), std::string(f.value()));
  }
  if (m.version() != 10 && m.version() != 11) return refuse(505, "expected HTTP/1.0 or HTTP/1.1"), false;
  if (auto p = read_head(int(m.version()), {m.target().data(), m.target().size()}, head_))
    return refuse(p->status, p->what), false;
  if (parser_->chunked() != is_chunked(head_))  // the two readers of the header agree, or nothing is read after it
    return refuse(400, "malformed request: Transfer-Encoding"), false;
  extra_headers_ = shared_.handler->answer_headers(head_);
  if (auto refused = shared_.handler->gate(head_)) {
    close_after_ = close_after_ || !parser_->is_done() || !m.keep_alive();  // the body is not wanted
    state_ = State::kAnswering;
    send(std::move(*refused));
    return false;
  }
  // Known now, so that nothing of it is stored in vain.
  if (const auto length = parser_->content_length();
      length && *length <= shared_.config.max_body && !shared_.bodies->has(*length))
    return refuse_body(), false;
  if (!parser_->is_done() && beast::iequals(m[http::field::expect], "100-continue"))
    enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  return true;
}

void Connection::answer() {
  auto m = parser_->release();
  HttpRequest r = std::move(head_);  // without the trailer, which nobody checked
  r.body = std::move(m.body());
  r.body_room = std::move(body_room_);
  chunked_ = m.version() == 11;
  close_after_ = close_after_ || !m.keep_alive() || !chunked_;
  state_ = State::kAnswering;
  disarm();
  auto reply = std::make_unique<Reply>(weak_from_this(), serial_);
  reply_ = reply.get();
  shared_.handler->request(std::move(r), std::move(reply));
}

void Connection::refuse_body() {
  ++shared_.refused_bodies;
  parser_->get().body() = {};
  body_room_.release();
  refuse(503, "the bodies of other requests take all of the memory there is for them (--body-memory)");
}

void Connection::refuse(int status, const std::string& what) {
  state_ = State::kAnswering;
  close_after_ = true;
  send(shared_.handler->refusal(status, what));
}

std::string Connection::head(int status, const std::string& type,
                             const std::vector<std::pair<std::string, std::string>>& headers) const {
  std::string s = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\n", status,
                              std::string(http::obsolete_reason(http::int_to_status(unsigned(status)))), type);
  for (const auto* list : {&headers, &extra_headers_})
    for (const auto& [name, value] : *list) s += fmt::format("{}: {}\r\n", name, value);
  if (close_after_) s += "Connection: close\r\n";
  return s;
}

void Connection::send(HttpResponse r) {
  // It would push out everybody else, and then itself.
  if (r.body.size() > shared_.config.answer_memory)
    r = shared_.handler->refusal(500, fmt::format("the answer has {} bytes: expected at most {} (--answer-memory)",
                                                  r.body.size(), shared_.config.answer_memory));
  std::string text = head(r.status, r.type, r.headers) + fmt::format("Content-Length: {}\r\n\r\n", r.body.size());
  if (head_only_) r.body.clear();
  if (r.body.size() <= kJoin) text += std::exchange(r.body, {});
  if (!r.body.empty()) enqueue(std::move(text)), text = std::move(r.body);  // a large one is not copied
  complete_ = true;
  enqueue(std::move(text));
}

void Connection::begin(const std::string& type, const std::string& keep_alive) {
  if (!chunked_) close_after_ = true;
  enqueue(head(200, type, {{"Cache-Control", "no-cache"}}) +
          (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
  ping_ = keep_alive;
  wait_ping();
}

// Proxies and clients give up on a stream that says nothing for long, as one does while its prompt is read.
void Connection::wait_ping() {
  if (ping_.empty()) return;
  const auto silence = std::chrono::seconds(shared_.config.ping_s);
  ping_timer_.expires_at(wrote_at_ + silence);
  ping_timer_.async_wait([self = shared_from_this(), serial = serial_, silence](error_code ec) {
    if (ec || !self->current(serial)) return;
    if (std::chrono::steady_clock::now() - self->wrote_at_ >= silence) self->write_stream(self->ping_);
    if (self->current(serial)) self->wait_ping();
  });
}

void Connection::write_stream(std::string_view text) {
  if (text.empty() || head_only_) return;
  if (waiting_ - sent_ + text.size() > shared_.config.max_backlog) return close("slow-reader");
  enqueue(chunked_ ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : std::string(text));
}

void Connection::end() {
  error_code ignored;
  ping_timer_.cancel(ignored);
  complete_ = true;
  enqueue(chunked_ && !head_only_ ? "0\r\n\r\n" : "");
}

void Connection::enqueue(std::string bytes) {
  if (state_ == State::kClosed) return;
  wrote_at_ = std::chrono::steady_clock::now();
  if (out_.empty()) behind_since_ = wrote_at_, taken_before_ = handed_ - std::min(handed_, unread());
  waiting_ += bytes.size(), shared_.answer_bytes += bytes.size();
  // The first one is perhaps being written.
  if (out_.size() > 1 && out_.back().size() + bytes.size() <= kJoin)
    out_.back() += bytes;
  else if (!bytes.empty())
    out_.push_back(std::move(bytes));
  shared_.bound_answers();
  flush();
}

double Connection::seconds_behind(std::chrono::steady_clock::time_point now) {
  const uint64_t taken = handed_ - std::min(handed_, unread());
  const double seconds = std::chrono::duration<double>(now - behind_since_).count();
  return double(waiting_) * seconds / double(kTrusted + taken - std::min(taken, taken_before_));
}

void HttpShared::bound_answers() {
  constexpr uint64_t kSmall = 64 << 10;
  while (answer_bytes > config.answer_memory) {
    Connection* slowest = nullptr;
    double most = -1;
    const auto now = std::chrono::steady_clock::now();
    for (Connection* c : connections) {
      if (c->waiting_bytes() <= kSmall) continue;
      if (const double s = c->seconds_behind(now); s > most) slowest = c, most = s;
    }
    if (!slowest) return;  // many connections with little each
    ++dropped_for_memory;
    slowest->close("slow-reader");
  }
}

void Connection::drop_first() {
  waiting_ -= out_.front().size(), shared_.answer_bytes -= out_.front().size();
  out_.pop_front();
  sent_ = 0;
}

void Connection::flush() {
  if (writing_ || state_ == State::kClosed) return;
  while (!out_.empty() && sent_ == out_.front().size()) drop_first();
  if (out_.empty()) return flushed();
  writing_ = true;
  if (state_ == State::kAnswering) watch_reader();
  socket_.async_write_some(asio::buffer(out_.front().data() + sent_, out_.front().size() - sent_),
                           [self = shared_from_this()](error_code ec, size_t n) {
                             self->writing_ = false;
                             if (self->state_ == State::kClosed) return;
                             if (ec) return self->close("disconnect");
                             self->sent_ += n;
                             self->handed_ += n;
                             self->flush();
                           });
}

// Everything queued has been handed to the kernel.
void Connection::flushed() {
  if (state_ != State::kAnswering || !complete_) return;
  disarm();
  if (reply_) reply_ = nullptr;
  if (!close_after_) return next_request();
  error_code ignored;
  socket_.shutdown(asio::socket_base::shutdown_send, ignored);
  state_ = State::kLinger;
  in_.consume(in_.size());
  arm(std::chrono::seconds(kLingerSeconds));
  read();
}

void Connection::arm(std::chrono::milliseconds time) {
  watching_ = false;
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec && self->timer_.expiry() <= std::chrono::steady_clock::now()) self->on_deadline();
  });
}

void Connection::disarm() {
  watching_ = false;
  error_code ignored;
  timer_.cancel(ignored);
}

// Bytes that the kernel has not passed on, because the client's has no room for them.
uint64_t Connection::unread() {
  int n = 0;
  return ::ioctl(socket_.native_handle(), SIOCOUTQ, &n) == 0 && n > 0 ? uint64_t(n) : 0;
}

// While an answer is on its way, a reader has to take something within write_s. What the kernel holds counts: a slow
// stream takes minutes to fill its buffer.
void Connection::watch_reader() {
  if (watching_) return;
  taken_ = handed_ - std::min(handed_, unread());
  taken_at_ = std::chrono::steady_clock::now();
  arm(std::chrono::milliseconds(std::min(1000, shared_.config.write_s * 250)));
  watching_ = true;
}

void Connection::on_deadline() {
  if (state_ == State::kReading)
    return refuse(408, fmt::format("the request took longer than {} s to arrive", shared_.config.request_s));
  if (state_ != State::kAnswering) return close("idle");
  watching_ = false;
  const uint64_t left = unread(), taken = handed_ - std::min(handed_, left);
  if (left == 0 && !writing_) return;  // the next write watches again
  const auto since = taken_at_;
  const bool progress = taken > taken_;
  watch_reader();
  if (progress) return;
  taken_at_ = since;
  if (std::chrono::steady_clock::now() - since >= std::chrono::seconds(shared_.config.write_s)) close("slow-reader");
}

}  // namespace facet
