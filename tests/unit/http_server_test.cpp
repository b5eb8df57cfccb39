// The HTTP server with a terse handler: readers that stall, and silence.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "server/http.h"

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Begins a stream, for the test.
struct Handler : HttpHandler {
  std::unique_ptr<HttpReply> reply;
  std::atomic<const char*> gone = nullptr;
  std::atomic<bool> begun = false;
  std::optional<HttpResponse> gate(const HttpRequest&) override { return std::nullopt; }
  void request(HttpRequest, std::unique_ptr<HttpReply> r) override {
    reply = std::move(r);
    reply->on_gone = [this](const char* why) {
      reply = nullptr;
      gone = why;
    };
    reply->begin("text/event-stream", ": ping\n\n");
    begun = true;
  }
  HttpResponse refusal(int status, const std::string& what) override { return {.status = status, .body = what}; }
};

class HttpServerTest : public ::testing::Test {
 protected:
  void start(HttpConfig c) {
    c.port = 0, c.drain_s = 0;
    auto made = HttpServer::listen(c);
    ASSERT_TRUE(bool(made)) << made.error().message();
    server_ = std::move(*made);
    thread_ = std::thread([this] { EXPECT_TRUE(bool(server_->run(handler_))); });
  }
  void TearDown() override {
    if (!server_) return;
    server_->drain();
    thread_.join();
  }
  int connect(int rcvbuf) {
    const int s = ::socket(AF_INET, SOCK_STREAM, 0);
    if (rcvbuf) ::setsockopt(s, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(uint16_t(server_->port())),
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    const std::string ask = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    EXPECT_EQ(::send(s, ask.data(), ask.size(), 0), ssize_t(ask.size()));
    const auto begin = Clock::now();
    while (!handler_.begun && since(begin) < 30) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return s;
  }
  void write(const std::string& text) {
    server_->post([this, text] {
      if (handler_.reply) handler_.reply->write(text);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  Handler handler_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// A slow stream fills the kernel's buffer in minutes; who reads nothing is dropped long before.
TEST_F(HttpServerTest, AReaderThatStallsIsDroppedInTime) {
  start({.write_s = 1});
  const int s = connect(1024);
  const auto begin = Clock::now();
  size_t written = 0;
  for (const std::string text(200, 'x'); !handler_.gone && since(begin) < 20; written += text.size()) write(text);
  ASSERT_NE(handler_.gone.load(), nullptr);
  EXPECT_STREQ(handler_.gone.load(), "slow-reader");
  EXPECT_LT(written, size_t(150) << 10);  // of the 256 KiB that the kernel would have taken
  ::close(s);
}

TEST_F(HttpServerTest, AReaderThatReadsIsNot) {
  start({.write_s = 1});
  const int s = connect(1024);
  std::atomic<bool> done = false;
  std::thread reader([&] {
    char buffer[256];
    while (!done && ::recv(s, buffer, sizeof buffer, 0) > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  const std::string text(200, 'x');
  for (const auto begin = Clock::now(); since(begin) < 2.5;) write(text);
  EXPECT_EQ(handler_.gone.load(), nullptr);
  done = true;
  ::shutdown(s, SHUT_RDWR);
  reader.join();
  ::close(s);
}

TEST_F(HttpServerTest, ASilentStreamIsKeptAlive) {
  start({.ping_s = 1});
  const int s = connect(0);
  std::string got;
  char buffer[4096];
  while (got.find(": ping\n\n") == std::string::npos) {
    const ssize_t n = ::recv(s, buffer, sizeof buffer, 0);
    ASSERT_GT(n, 0);
    got.append(buffer, size_t(n));
  }
  EXPECT_EQ(handler_.gone.load(), nullptr);
  ::close(s);
}

}  // namespace
}  // namespace facet
