// What connections may hold together: bodies that arrive, and answers that nobody reads.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "server/http.h"

namespace facet {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// GET /N is answered with N bytes; a POST is kept with its body until kept is cleared.
struct Handler : HttpHandler {
  std::vector<std::pair<HttpRequest, std::unique_ptr<HttpReply>>> kept;
  std::optional<HttpResponse> gate(const HttpRequest&) override { return std::nullopt; }
  void request(HttpRequest r, std::unique_ptr<HttpReply> reply) override {
    if (r.method == "GET") return reply->send({.body = std::string(std::stoul(r.path.substr(1)), 'x')});
    kept.emplace_back(std::move(r), std::move(reply));
  }
  HttpResponse refusal(int status, const std::string& what) override { return {.status = status, .body = what}; }
};

class HttpMemoryTest : public ::testing::Test {
 protected:
  void start(HttpConfig c) {
    c.port = 0, c.drain_s = 0;
    auto made = HttpServer::listen(c);
    ASSERT_TRUE(bool(made)) << made.error().message();
    server_ = std::move(*made);
    thread_ = std::thread([this] { EXPECT_TRUE(bool(server_->run(handler_))); });
  }
  void TearDown() override {
    for (const int s : sockets_) ::close(s);
    server_->post([this] { handler_.kept.clear(); });
    server_->drain();
    thread_.join();
  }
  int connect(const std::string& text, int rcvbuf = 0) {
    const int s = ::socket(AF_INET, SOCK_STREAM, 0);
    if (rcvbuf) ::setsockopt(s, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf);
    const timeval most{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(uint16_t(server_->port())),
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    EXPECT_EQ(::send(s, text.data(), text.size(), MSG_NOSIGNAL), ssize_t(text.size()));
    sockets_.push_back(s);
    return s;
  }
  int ask(size_t n, int rcvbuf = 0) {
    return connect("GET /" + std::to_string(n) + " HTTP/1.1\r\nHost: h\r\n\r\n", rcvbuf);
  }
  // A body of `length` bytes of which `sent` are.
  int post(size_t length, size_t sent) {
    return connect("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n" +
                   std::string(sent, 'b'));
  }
  // All that comes until the answer of n bytes of body is there, or the connection ends.
  static std::string read(int s, size_t n) {
    std::string got;
    std::vector<char> buffer(1 << 16);
    for (;;) {
      const size_t body = got.find("\r\n\r\n");
      if (body != std::string::npos && got.size() >= body + 4 + n) return got;
      const ssize_t m = ::recv(s, buffer.data(), buffer.size(), 0);
      if (m <= 0) return got;
      got.append(buffer.data(), size_t(m));
    }
  }
  HttpUse use() {
    std::promise<HttpUse> p;
    server_->post([&] { p.set_value(server_->use()); });
    return p.get_future().get();
  }
  template <class F>
  bool soon(F&& f) {
    for (const auto begin = Clock::now(); since(begin) < 20; std::this_thread::sleep_for(std::chrono::milliseconds(5)))
      if (f()) return true;
    return false;
  }

  Handler handler_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
  std::vector<int> sockets_;
};

TEST(Room, IsSharedAndGivenBack) {
  auto room = std::make_shared<Room>(100, 10);
  Room::Part a(room), b(room);
  EXPECT_TRUE(a.resize(70));  // 60 of the hundred
  EXPECT_TRUE(room->has(50));
  EXPECT_FALSE(room->has(51));
  EXPECT_FALSE(b.resize(60));
  EXPECT_EQ(room->used(), 60u);
  EXPECT_TRUE(b.resize(50));
  EXPECT_TRUE(Room::Part(room).resize(10)) << "what is small always fits";
  Room::Part moved = std::move(a);
  a = Room::Part(room);
  EXPECT_EQ(room->used(), 100u);
  moved.resize(20);
  EXPECT_EQ(room->used(), 50u);
  moved.release(), b.release();
  EXPECT_EQ(room->used(), 0u);
}

constexpr size_t kAnswer = 2 << 20;

// Forty who read nothing hold no more than there is, and whoever reads gets all of the answer.
TEST_F(HttpMemoryTest, TheSlowestReaderGoes) {
  constexpr uint64_t kMost = 8 << 20;
  start({.answer_memory = kMost});
  for (int i = 0; i < 40; ++i) {
    ask(kAnswer, 4096);
    EXPECT_LE(use().answer_bytes, kMost + kAnswer);
  }
  ASSERT_TRUE(soon([&] { return use().dropped_for_memory >= 36; })) << use().dropped_for_memory;
  EXPECT_LE(use().answer_bytes, kMost);
  for (int i = 0; i < 8; ++i) {
    const std::string got = read(ask(kAnswer), kAnswer);
    EXPECT_TRUE(got.ends_with(std::string(1000, 'x'))) << got.size();
  }
  for (const int s : std::exchange(sockets_, {})) ::close(s);
  EXPECT_TRUE(soon([&] { return use().answer_bytes == 0 && use().connections == 0; }));
}

// One that takes a little now and then is as slow as one that takes nothing.
TEST_F(HttpMemoryTest, ATrickleIsNoReader) {
  start({.answer_memory = 8 << 20});
  std::vector<int> slow;
  for (int i = 0; i < 3; ++i) slow.push_back(ask(kAnswer, 4096));
  ASSERT_TRUE(soon([&] { return use().answer_bytes >= 3 * kAnswer; }));
  std::atomic<bool> done = false;
  std::thread trickle([&] {
    char buffer[100];
    while (!done) {
      for (const int s : slow) ::recv(s, buffer, sizeof buffer, MSG_DONTWAIT);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(read(ask(3 * kAnswer), 3 * kAnswer).substr(0, 12), "HTTP/1.1 200");
  done = true;
  trickle.join();
  EXPECT_GE(use().dropped_for_memory, 1u);
}

TEST_F(HttpMemoryTest, AnAnswerThatNeverFitsIsAnError) {
  start({.answer_memory = 1 << 20});
  EXPECT_EQ(read(ask((1 << 20) + 1), 10).substr(0, 12), "HTTP/1.1 500");
  EXPECT_EQ(read(ask(1 << 19), 1 << 19).substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(use().dropped_for_memory, 0u);
}

TEST_F(HttpMemoryTest, BodiesHaveABound) {
  constexpr size_t kBody = 1 << 20;
  start({.max_body = kBody, .body_memory = 4 * kBody});
  std::vector<int> open;
  for (int i = 0; i < 12; ++i) open.push_back(post(kBody, kBody * 9 / 10));
  ASSERT_TRUE(soon([&] { return use().refused_bodies >= 7; }));
  EXPECT_LE(use().body_bytes, 4 * kBody);
  // Told at once, before a byte of it; what is small goes on.
  const int late = post(kBody, 0);
  EXPECT_EQ(read(late, 1).substr(0, 12), "HTTP/1.1 503");
  post(1000, 1000);
  EXPECT_TRUE(soon([&] { return handler_.kept.size() == 1; }));
  for (const int s : std::exchange(sockets_, {})) ::close(s);
  EXPECT_TRUE(soon([&] { return use().body_bytes == 0; }));
  // A body counts until whoever has it lets it go.
  post(kBody, kBody);
  EXPECT_TRUE(soon([&] { return handler_.kept.size() == 2 && use().body_bytes > kBody / 2; }));
  server_->post([this] { handler_.kept.clear(); });
  EXPECT_TRUE(soon([&] { return use().body_bytes == 0; }));
  const int chunked =
      connect("POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n80000\r\n" + std::string(0x80000, 'c'));
  EXPECT_TRUE(soon([&] { return use().body_bytes >= 0x80000 - (64 << 10); }));
  ::shutdown(chunked, SHUT_RDWR);
  EXPECT_TRUE(soon([&] { return use().body_bytes == 0; }));
}

}  // namespace
}  // namespace facet
