#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/room.h"

// HTTP/1.1 with streamed answers. Knows nothing about models.
//
// One thread, the one that calls run(), does all the work: every method of HttpHandler and HttpReply is called there.
// Other threads reach it with post().
namespace facet {

struct HttpRequest {
  std::string method, path, query, body;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
  Room::Part body_room = {};                                 // of HttpConfig::body_memory; goes with the body
  std::string_view header(std::string_view name) const;      // of a lower-case name; empty if there is none
};

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// The answer to one request: send(), or begin(), any number of write()s and end(). Harmless once the client is gone.
class HttpReply {
 public:
  virtual ~HttpReply() = default;  // a reply that was not completed closes its connection
  virtual void send(HttpResponse response) = 0;
  // keep_alive is written whenever nothing else was for HttpConfig::ping_s.
  virtual void begin(const std::string& type, const std::string& keep_alive = "") = 0;
  virtual void write(std::string_view text) = 0;
  virtual void end() = 0;
  // One more header, before send() or begin().
  virtual void header(const std::string& /*name*/, const std::string& /*value*/) {}
  // Called at most once, never from inside another method of the reply: the client disconnected, reads too slowly, or
  // the server closes. Not called after the answer is complete.
  std::function<void(const char* why)> on_gone;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // After the header and before the body: an answer ends the request, so that a refused body is never stored.
  virtual std::optional<HttpResponse> gate(const HttpRequest& head) = 0;
  virtual void request(HttpRequest request, std::unique_ptr<HttpReply> reply) = 0;
  // The answer to a request that HTTP itself refuses: malformed, too large, too slow, too many.
  virtual HttpResponse refusal(int status, const std::string& what) = 0;
  // Headers that every answer to a request gets.
  virtual std::vector<std::pair<std::string, std::string>> answer_headers(const HttpRequest&) { return {}; }
  virtual void hangup() {}  // SIGHUP
};

struct HttpConfig {
  std::string host = "127.0.0.1";
  int port = 8080;                 // 0: a free one
  uint32_t max_header = 32 << 10;  // bytes
  uint64_t max_body = 32 << 20;    // bytes
  int max_connections = 128;
  uint64_t max_backlog = 1 << 20;  // bytes of a stream that its reader may be behind
  // Bytes of all connections together: bodies that are not read yet, and answers that wait for their readers.
  uint64_t body_memory = 64 << 20;
  uint64_t answer_memory = 64 << 20;
  int idle_s = 60;            // a connection without a request
  int request_s = 30;         // from a request's first byte to its last
  int write_s = 30;           // a reader that takes nothing of what waits for it
  int ping_s = 15;            // silence of a stream before a keep-alive
  int drain_s = 30;           // from the signal to the end of the last answer
  bool catch_hangup = false;  // SIGHUP calls HttpHandler::hangup(); else it ends the process
  // A socket of type SOCK_SEQPACKET through which a router sends connected sockets (SCM_RIGHTS, a byte each): they are
  // the clients, and nothing listens. When it ends, so does the server.
  int clients_fd = -1;
};

// What the connections of a server hold and what it cost, for /metrics.
struct HttpUse {
  size_t connections = 0;
  uint64_t body_bytes = 0, answer_bytes = 0;            // now
  uint64_t refused_bodies = 0, dropped_for_memory = 0;  // so far
};

class HttpServer {
 public:
  static Result<std::unique_ptr<HttpServer>> listen(const HttpConfig& config);
  virtual ~HttpServer() = default;
  virtual int port() const = 0;
  virtual HttpUse use() const = 0;  // on run()'s thread
  virtual std::string url() const = 0;
  // Serves until SIGTERM or SIGINT (or drain()), then finishes what is running, for at most drain_s; a second signal
  // ends it at once.
  virtual Status run(HttpHandler& handler) = 0;
  virtual void drain() = 0;                           // any thread
  virtual void post(std::function<void()> work) = 0;  // any thread
};

// Whether an address can be reached from this machine only. An error if it is no address.
Result<bool> is_loopback(const std::string& host);

// The name or address of a Host header or of an Origin, without scheme and port.
std::string_view host_name(std::string_view host_or_origin);

}  // namespace facet
