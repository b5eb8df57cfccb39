// What is fetched for requests, and what never: hosts, addresses, redirects, sizes, time.
#include "hub/media_fetch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "hub/curl.h"

namespace facet {
namespace {

bool is_public_text(const std::string& text) {
  sockaddr_storage s{};
  auto* four = reinterpret_cast<sockaddr_in*>(&s);
  auto* six = reinterpret_cast<sockaddr_in6*>(&s);
  if (inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1)
    s.ss_family = AF_INET;
  else if (inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) == 1)
    s.ss_family = AF_INET6;
  else
    ADD_FAILURE() << text;
  return is_public(reinterpret_cast<const sockaddr&>(s));
}

TEST(MediaFetch, PrivateAddressesAreNone) {
  for (const char* a : {"0.0.0.0",
                        "10.0.0.1",
                        "100.64.0.1",
                        "100.127.255.255",
                        "127.0.0.1",
                        "127.255.255.255",
                        "169.254.169.254",
                        "172.16.0.1",
                        "172.31.255.255",
                        "192.0.0.1",
                        "192.0.2.1",
                        "192.168.1.1",
                        "198.18.0.1",
                        "198.51.100.1",
                        "203.0.113.9",
                        "224.0.0.1",
                        "255.255.255.255",
                        "::",
                        "::1",
                        "::ffff:127.0.0.1",
                        "::ffff:10.0.0.1",
                        "::127.0.0.1",
                        "64:ff9b::a00:1",
                        "64:ff9b::7f00:1",
                        "2002:7f00:1::",
                        "2002:c0a8:101::",
                        "2001:0:102:304::1",
                        "fe80::1",
                        "fc00::1",
                        "fd12::1",
                        "ff02::1",
                        "2001:db8::1",
                        "fec0::1",
                        "100::1",
                        "64:ff9b:1::1"})
    EXPECT_FALSE(is_public_text(a)) << a;
  for (const char* a : {"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.0", "126.0.0.1",
                        "172.15.0.1", "172.32.0.1", "192.167.0.1", "193.0.0.1", "223.255.255.255",
                        "2606:4700:4700::1111", "2a00::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"})
    EXPECT_TRUE(is_public_text(a)) << a;
}

TEST(MediaFetch, OnlyHostsOfTheList) {
  const MediaFetchConfig c{.hosts = {"example.com", "*.cdn.example.org", "[2606:4700::1]"}};
  for (const char* url :
       {"https://example.com/a.png", "http://EXAMPLE.com:8080/a", "https://example.com.", "https://example.com",
        "https://a.cdn.example.org/x?y#z", "https://a.b.cdn.example.org/", "http://[2606:4700::1]/a"})
    EXPECT_TRUE(bool(check_media_url(url, c))) << url;
  for (const char* url : {"https://example.com.evil.net/",
                          "https://evil.net/example.com",
                          "https://notexample.com/",
                          "https://cdn.example.org/",
                          "https://xcdn.example.org/",
                          "https://user@example.com/",
                          "https://example.com@evil.net/",
                          "ftp://example.com/",
                          "file:///etc/passwd",
                          "gopher://example.com",
                          "https://example.com\\@evil.net/",
                          "https://exa mple.com/",
                          "https:///a",
                          "",
                          "example.com/a",
                          "https://evil.net#example.com",
                          "https://evil.net?example.com",
                          "http://127.0.0.1/",
                          "http://2130706433/",
                          "http://0x7f.1/",
                          "http://[::1]/"})
    EXPECT_FALSE(bool(check_media_url(url, c))) << url;
}

// Answers connections in turn with what is written.
class OneByOne {
 public:
  explicit OneByOne(std::vector<std::string> answers) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET, a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    socklen_t n = sizeof a;
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&a), &n);
    port_ = ntohs(a.sin_port);
    thread_ = std::thread([this, answers = std::move(answers)] {
      for (const std::string& text : answers) {
        const int s = ::accept(listener_, nullptr, nullptr);
        if (s < 0) return;
        char head[4096];
        (void)!::read(s, head, sizeof head);
        ++asked_;
        (void)!::send(s, text.data(), text.size(), MSG_NOSIGNAL);
        ::close(s);
      }
    });
  }
  ~OneByOne() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string url(const char* host = "127.0.0.1") const { return fmt::format("http://{}:{}/a", host, port_); }
  int asked() const { return asked_; }

 private:
  int listener_ = -1, port_ = 0;
  std::atomic<int> asked_ = 0;
  std::thread thread_;
};

std::string ok(const std::string& body) {
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}", body.size(), body);
}
std::string moved(const std::string& to) {
  return fmt::format("HTTP/1.1 302 Found\r\nLocation: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", to);
}
bool anywhere(const sockaddr&) { return true; }
MediaFetchConfig config() {
  return {.hosts = {"127.0.0.1", "localhost"}, .max_bytes = 1000, .most_s = 2, .may_connect = anywhere};
}

class MediaFetchOver : public testing::Test {
 protected:
  void SetUp() override {
    if (!Curl::load()) GTEST_SKIP() << "libcurl is not installed";
  }
};

TEST_F(MediaFetchOver, AFileAndItsLimits) {
  const OneByOne server({ok("hello"), ok(std::string(1001, 'x')), "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"});
  auto got = fetch_media(server.url(), config());
  ASSERT_TRUE(bool(got)) << got.error().message();
  EXPECT_EQ(*got, "hello");
  got = fetch_media(server.url(), config());
  ASSERT_FALSE(got);
  EXPECT_NE(got.error().what.find("at most 1000 bytes"), std::string::npos) << got.error().message();
  got = fetch_media(server.url(), config());
  ASSERT_FALSE(got);
  EXPECT_NE(got.error().what.find("found 404"), std::string::npos) << got.error().message();
}

TEST_F(MediaFetchOver, RedirectsAreCheckedAsTheyCome) {
  {
    const OneByOne end({ok("there")}), begin({moved(end.url())});
    auto got = fetch_media(begin.url(), config());
    ASSERT_TRUE(bool(got)) << got.error().message();
    EXPECT_EQ(*got, "there");
  }
  for (const char* to : {"http://10.0.0.1/", "http://evil.example/", "file:///etc/passwd", "gopher://127.0.0.1/",
                         "http://user@127.0.0.1/", "http://[::1]/"}) {
    const OneByOne server({moved(to), ok("no")});
    EXPECT_FALSE(fetch_media(server.url(), config())) << to;
    EXPECT_EQ(server.asked(), 1) << to;
  }
  const OneByOne round({moved("/a"), moved("/a"), moved("/a"), moved("/a"), ok("never")});
  EXPECT_FALSE(fetch_media(round.url(), config()));
  EXPECT_EQ(round.asked(), 4);
}

// A listed name of this machine, and an address in other clothes: nobody is connected.
TEST_F(MediaFetchOver, AListedNameMayNotLeadInside) {
  const OneByOne server({ok("secret")});
  MediaFetchConfig c = config();
  c.hosts = {"*"}, c.may_connect = is_public;
  for (const char* host :
       {"localhost", "127.0.0.1", "127.1", "2130706433", "0x7f.1", "017700000001", "0", "[::ffff:127.0.0.1]"}) {
    auto got = fetch_media(server.url(host), c);
    ASSERT_FALSE(got) << host;
    EXPECT_EQ(got.error().what.find("secret"), std::string::npos);
  }
  EXPECT_EQ(server.asked(), 0);
}

}  // namespace
}  // namespace facet
