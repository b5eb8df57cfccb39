// Keys, methods and origins.
#include "server/access.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "server/routes.h"

namespace facet {
namespace {

HttpRequest ask(std::string method, std::string path, std::vector<std::pair<std::string, std::string>> headers = {}) {
  HttpRequest r;
  r.method = std::move(method), r.path = std::move(path), r.headers = std::move(headers);
  return r;
}
int status(const Access& a, const HttpRequest& r) {
  const auto e = a.refusal(r);
  return e ? e->status : 200;
}

TEST(ApiKeys, Files) {
  const auto keys = parse_api_keys("# people\nalpha anna\r\n\n  beta\ngamma\tcarl \n", "f");
  ASSERT_TRUE(bool(keys)) << keys.error().message();
  ASSERT_EQ(keys->size(), 3u);
  EXPECT_EQ((*keys)[0].key, "alpha");
  EXPECT_EQ((*keys)[0].name, "anna");
  EXPECT_EQ((*keys)[1].name, "key2");
  EXPECT_EQ((*keys)[2].name, "carl");
  for (const std::string& bad : {std::string(), std::string("\n#x\n"), std::string("key a b"), std::string("k\x01y"),
                                 std::string(513, 'k'), "k " + std::string(65, 'n'), std::string("k\0x", 3)})
    EXPECT_FALSE(bool(parse_api_keys(bad, "f"))) << bad;
  const auto secret = parse_api_keys("secret one two", "f");
  EXPECT_EQ(secret.error().message().find("secret"), std::string::npos);
  std::string many;
  for (int i = 0; i < 1025; ++i) many += "k" + std::to_string(i) + "\n";
  EXPECT_FALSE(bool(parse_api_keys(many, "f")));
  EXPECT_FALSE(bool(read_api_keys("/no/such/file")));
  EXPECT_FALSE(bool(read_api_keys("/dev/zero")));
  EXPECT_FALSE(bool(read_api_keys("/tmp")));
  const std::string path = ::testing::TempDir() + "facet_api_keys";
  for (const size_t comment : {size_t(1 << 20) - 4, size_t(1 << 20)}) {
    std::ofstream(path) << "k\n#" << std::string(comment, 'x');
    EXPECT_EQ(bool(read_api_keys(path)), comment < size_t(1 << 20)) << comment;
  }
  std::remove(path.c_str());
}

TEST(Access, Keys) {
  Access a;
  a.keys = {{"alpha", "anna"}, {"beta", "bert"}};
  EXPECT_EQ(status(a, ask("GET", "/health")), 200);
  EXPECT_EQ(status(a, ask("HEAD", "/health")), 200);
  EXPECT_EQ(status(a, ask("GET", "/v1/models")), 401);
  EXPECT_EQ(status(a, ask("GET", "/nothing")), 401);
  EXPECT_EQ(status(a, ask("GET", "/v1/models", {{"authorization", "Bearer beta"}})), 200);
  EXPECT_EQ(status(a, ask("POST", "/v1/messages", {{"x-api-key", "alpha"}})), 200);
  EXPECT_EQ(a.key_name(ask("GET", "/", {{"x-api-key", "beta"}})), "bert");
  // RFC 9110, 11.4: the scheme in any case, one space or more.
  for (const char* good : {"bearer beta", "BEARER beta", "bEaReR   beta"})
    EXPECT_EQ(a.key_name(ask("GET", "/", {{"authorization", good}})), "bert") << good;
  for (const char* bad : {"beta", "Bearerbeta", "Bearer", "Bearer ", "Basic beta", "Bearer\tbeta", "Bearer beta x"})
    EXPECT_EQ(a.key_name(ask("GET", "/", {{"authorization", bad}})), "") << bad;
  EXPECT_EQ(a.key_name(ask("GET", "/", {{"x-api-key", "betA"}})), "");
}

TEST(Access, Page) {
  Access a;
  EXPECT_EQ(status(a, ask("GET", "/")), 200);
  EXPECT_EQ(status(a, ask("GET", "/", {{"host", "evil.example"}})), 403);
  EXPECT_EQ(status(a, ask("POST", "/")), 405);
  EXPECT_EQ(find_route("/anything"), nullptr);
  a.keys = {{"alpha", "anna"}};
  EXPECT_EQ(status(a, ask("HEAD", "/")), 200);  // it asks for the key itself
  EXPECT_EQ(status(a, ask("POST", "/")), 401);
  a.page = false;
  EXPECT_EQ(status(a, ask("GET", "/")), 401);
  EXPECT_EQ(status(a, ask("GET", "/", {{"x-api-key", "alpha"}})), 404);
}

TEST(Access, Methods) {
  const Access a;
  EXPECT_EQ(status(a, ask("HEAD", "/v1/models")), 200);
  EXPECT_EQ(status(a, ask("HEAD", "/v1/completions")), 405);
  EXPECT_EQ(status(a, ask("OPTIONS", "/v1/completions")), 405);
  EXPECT_EQ(status(a, ask("GET", "/v1/models/a/b")), 200);
  EXPECT_EQ(status(a, ask("GET", "/v1/chat/completions/")), 404);
  EXPECT_EQ(allowed(*find_route("/props")), "GET, HEAD");
  EXPECT_EQ(find_route("/v1/models/"), nullptr);
}

TEST(Access, Origins) {
  Access a;
  const std::string page = "https://chat.example";
  EXPECT_EQ(status(a, ask("GET", "/props", {{"origin", page}})), 403);
  EXPECT_TRUE(a.cors_headers(ask("GET", "/props", {{"origin", page}})).empty());
  a.origins = {page};
  EXPECT_EQ(status(a, ask("GET", "/props", {{"origin", page}})), 200);
  EXPECT_EQ(status(a, ask("GET", "/props", {{"origin", "https://chat.example.evil"}})), 403);
  EXPECT_EQ(status(a, ask("GET", "/props", {{"origin", page}, {"host", "chat.example"}})), 403);  // a name of theirs
  auto value = [&](const HttpRequest& r, std::string_view name) {
    for (const auto& [n, v] : a.cors_headers(r))
      if (n == name) return v;
    return std::string();
  };
  EXPECT_EQ(value(ask("GET", "/props", {{"origin", page}}), "Access-Control-Allow-Origin"), page);
  EXPECT_EQ(value(ask("GET", "/props", {{"origin", "https://other"}}), "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(value(ask("GET", "/props"), "Vary"), "Origin");

  a.keys = {{"k", "n"}};
  HttpRequest before =
      ask("OPTIONS", "/v1/messages", {{"origin", page}, {"access-control-request-headers", "authorization"}});
  EXPECT_EQ(status(a, before), 200);  // browsers send no key with it
  EXPECT_TRUE(a.preflight(before));
  EXPECT_EQ(value(before, "Access-Control-Allow-Methods"), "GET, POST, DELETE, OPTIONS");
  EXPECT_EQ(value(before, "Access-Control-Allow-Headers"), "authorization");
  EXPECT_EQ(status(a, ask("OPTIONS", "/nothing", {{"origin", page}})), 401);
  const HttpRequest stranger = ask("OPTIONS", "/v1/messages", {{"origin", "https://other"}});
  EXPECT_EQ(status(a, stranger), 200);  // an answer that allows nothing
  EXPECT_EQ(value(stranger, "Access-Control-Allow-Origin"), "");
  EXPECT_EQ(status(a, ask("GET", "/props", {{"origin", page}})), 401);

  const char* credentials = "Access-Control-Allow-Credentials";
  EXPECT_EQ(value(ask("GET", "/props", {{"origin", page}}), credentials), "true");
  a.origins = {"*"};  // whoever asks may read, with a key of theirs; no browser adds what it keeps for this server
  for (const auto& r : {ask("GET", "/props", {{"origin", page}}), ask("OPTIONS", "/props", {{"origin", page}})}) {
    EXPECT_EQ(value(r, "Access-Control-Allow-Origin"), page);
    EXPECT_EQ(value(r, credentials), "");
  }
  a.origins = {"*", page};
  EXPECT_EQ(value(ask("GET", "/props", {{"origin", page}}), credentials), "true");
  EXPECT_EQ(value(ask("GET", "/props", {{"origin", "https://other"}}), credentials), "");

  a.origins = {"localhost"};
  for (const char* origin : {"http://localhost", "http://localhost:8080", "http://127.0.0.1:3000", "http://[::1]:3000"})
    EXPECT_EQ(value(ask("GET", "/props", {{"origin", origin}}), "Access-Control-Allow-Origin"), origin);
  for (const char* origin : {"http://evil.com", "http://notlocalhost", "http://localhost.evil.com"})
    EXPECT_EQ(value(ask("GET", "/props", {{"origin", origin}}), "Access-Control-Allow-Origin"), "") << origin;
}

}  // namespace
}  // namespace facet
