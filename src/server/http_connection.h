#pragma once
#include "server/asio.h"  // before other headers of Boost

#include <algorithm>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/http.h"

// One client of the HTTP server; http.cpp and what needs the server's io_context include this.
namespace facet {

class Connection;
class Reply;

// A client's socket: TCP, or one of a pair that a router made.
using ClientSocket = boost::asio::generic::stream_protocol::socket;

// What the connections of one server have in common.
struct HttpShared {
  explicit HttpShared(const HttpConfig& c)
      : config(c), bodies(std::make_shared<Room>(std::max(c.body_memory, c.max_body), kSmallBody)) {}
  static constexpr uint64_t kSmallBody = 64 << 10;  // bytes of each body that find room whatever others hold
  // Closes connections, the slowest readers first, until their answers have room.
  void bound_answers();
  void forget(Connection* c) {
    connections.erase(c);
    if (draining && connections.empty()) io.stop();
  }
  boost::asio::io_context io{1};
  HttpConfig config;
  HttpHandler* handler = nullptr;
  std::unordered_set<Connection*> connections;
  std::shared_ptr<Room> bodies;
  uint64_t answer_bytes = 0;  // that wait for their readers, of all connections
  uint64_t refused_bodies = 0, dropped_for_memory = 0;
  bool draining = false;
};

// Where a server's work runs: for who has sockets and timers of its own on the same thread.
inline boost::asio::io_context& io_of(HttpServer& server) { return dynamic_cast<HttpShared&>(server).io; }

// One client. shared_ptr: each pending operation of Asio keeps its connection alive.
class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ClientSocket socket, HttpShared& shared);
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
  void send(HttpResponse r);
  void begin(const std::string& type, const std::string& keep_alive);
  void header(const std::string& name, const std::string& value) { extra_headers_.emplace_back(name, value); }
  void write_stream(std::string_view text);
  void end();

  uint64_t waiting_bytes() const { return waiting_; }
  // Seconds until what waits is read, by how fast its reader has been since something waits.
  double seconds_behind(std::chrono::steady_clock::time_point now);

 private:
  enum class State {
    kIdle,       // no byte of a request yet
    kReading,    // some of one
    kAnswering,  // from its last byte until the last byte of the answer is sent
    kLinger,     // answered and shut down for sending: what the client still sends is dropped, so that it can
                 // read the answer
    kClosed,
  };
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void read();
  void on_read(boost::system::error_code ec, size_t n);
  void next_request();
  void parse();
  bool check_head();
  void answer();
  void refuse(int status, const std::string& what);
  void refuse_body();
  std::string head(int status, const std::string& type,
                   const std::vector<std::pair<std::string, std::string>>& headers) const;
  void enqueue(std::string bytes);
  void drop_first();
  void flush();
  void flushed();
  void arm(std::chrono::milliseconds time);
  void disarm();
  void on_deadline();
  void watch_reader();
  void wait_ping();
  uint64_t unread();

  ClientSocket socket_;
  boost::asio::steady_timer timer_, ping_timer_;
  std::string ping_;  // of the current stream
  std::chrono::steady_clock::time_point wrote_at_;
  HttpShared& shared_;
  State state_ = State::kIdle;
  boost::beast::flat_buffer in_;
  std::optional<Parser> parser_;
  size_t head_bytes_ = 0;  // of the request line and the fields, as far as they are read
  bool head_checked_ = false, reading_ = false, writing_ = false;
  std::deque<std::string> out_;  // what waits for the reader; of the first one sent_ bytes are with the kernel
  uint64_t waiting_ = 0;         // bytes of out_, which a large piece holds until its last byte is gone
  size_t sent_ = 0, lingered_ = 0;
  uint64_t handed_ = 0, taken_ = 0;  // bytes given to the kernel; of them, taken by the client's when last seen
  std::chrono::steady_clock::time_point taken_at_;
  std::chrono::steady_clock::time_point behind_since_;  // when something last began to wait
  uint64_t taken_before_ = 0;                           // then
  bool watching_ = false;
  HttpRequest head_;      // of the current request
  Room::Part body_room_;  // of its body, while it arrives
  std::vector<std::pair<std::string, std::string>> extra_headers_;
  uint64_t serial_ = 0;
  Reply* reply_ = nullptr;  // of the current request; clears itself
  bool complete_ = false;   // the answer is in the queue as a whole
  bool close_after_ = false, head_only_ = false, chunked_ = false;
  friend class Reply;
};

}  // namespace facet
