// Input: what a client sends, in pieces whose lengths the first byte seeds. A server on a loopback port answers or
// refuses and closes; what comes back is a sequence of HTTP answers, and no body larger than allowed reaches the
// handler.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "base/check.h"
#include "server/http_head.h"

namespace {

constexpr uint64_t kMaxBody = 4096;

struct Handler : facet::HttpHandler {
  std::optional<facet::HttpResponse> gate(const facet::HttpRequest& head) override {
    if (head.path == "/refused") return facet::HttpResponse{.status = 401, .body = "no"};
    return std::nullopt;
  }
  void request(facet::HttpRequest r, std::unique_ptr<facet::HttpReply> reply) override {
    CHECK(r.body.size() <= kMaxBody && r.path.starts_with('/'), "a request that should have been refused");
    // A body is there because its header said so, in one way.
    size_t lengths = 0, codings = 0, hosts = 0;
    for (const auto& [name, value] : r.headers)
      lengths += name == "content-length", codings += name == "transfer-encoding", hosts += name == "host";
    CHECK(hosts <= 1 && lengths + codings <= 1 && codings == size_t(facet::is_chunked(r)), "ambiguous framing");
    CHECK(r.body.empty() || lengths + codings == 1, "a body out of nothing");
    if (r.path != "/stream") return reply->send({.body = r.body});
    reply->begin("text/event-stream");
    reply->write(r.body);
    reply->write("x");
    reply->end();
  }
  facet::HttpResponse refusal(int status, const std::string& what) override { return {.status = status, .body = what}; }
};

int server_port() {
  static Handler handler;
  static const int port = [] {
    facet::HttpConfig c;
    c.port = 0, c.max_header = 2048, c.max_body = kMaxBody;
    auto made = facet::HttpServer::listen(c);
    CHECK(made, "{}", made.error().message());
    auto* server = made->release();  // for as long as the program runs
    std::thread([server] { CHECK(server->run(handler), "the server ended"); }).detach();
    return server->port();
  }();
  return port;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  sockaddr_in to{};
  to.sin_family = AF_INET, to.sin_port = htons(uint16_t(server_port())), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int s = ::socket(AF_INET, SOCK_STREAM, 0);
  const linger reset{1, 0};  // no port is left waiting
  ::setsockopt(s, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
  const timeval limit{5, 0};
  ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  static uint32_t connections = 0;  // a pair of ports is taken for a while after its connection: change addresses
  sockaddr_in from{};
  from.sin_family = AF_INET, from.sin_addr.s_addr = htonl(0x7F000002 + ++connections % 200);
  CHECK(::bind(s, reinterpret_cast<const sockaddr*>(&from), sizeof from) == 0, "bind: {}", std::strerror(errno));
  if (::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    CHECK(errno == EINTR, "connect: {}", std::strerror(errno));  // by the fuzzer's clock
    ::close(s);
    return 0;
  }
  uint32_t cuts = data[0];
  for (size_t at = 1; at < size;) {
    cuts = cuts * 1664525u + 1013904223u;
    const size_t n = std::min(size - at, data[0] ? 1 + (cuts >> 16) % (4 * data[0]) : size);
    if (::send(s, data + at, n, MSG_NOSIGNAL) <= 0) break;
    at += n;
  }
  ::shutdown(s, SHUT_WR);
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(s, buffer, sizeof buffer, 0)) != 0;) {
    if (n < 0) {
      CHECK(errno != EAGAIN, "the server neither answers nor closes");
      break;
    }
    answer.append(buffer, size_t(n));
  }
  ::close(s);
  CHECK(answer.empty() || answer.starts_with("HTTP/1.1 "), "no HTTP: {}", answer.substr(0, 40));
  return 0;
}
