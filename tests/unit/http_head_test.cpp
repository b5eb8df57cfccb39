// Where a request's body ends and whom it is for, from its header alone: one row for each decision.
#include "server/http_head.h"

#include <gtest/gtest.h>

namespace facet {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

std::string decide(int version, Headers headers, std::string_view target = "/a") {
  HttpRequest head;
  head.headers = std::move(headers);
  const auto p = read_head(version, target, head);
  if (p) return std::to_string(p->status);
  return is_chunked(head) ? "chunked" : head.header("content-length").empty() ? "none" : "length";
}

TEST(HttpHead, Framing) {
  const std::string te = "transfer-encoding", cl = "content-length";
  const struct {
    const char* want;
    Headers headers;
  } rows[] = {
      {"none", {}},
      {"length", {{cl, "0"}}},
      {"length", {{cl, "5"}}},
      {"length", {{cl, "005"}}},
      {"length", {{cl, "9223372036854775807"}}},
      {"400", {{cl, ""}}},
      {"400", {{cl, "-5"}}},
      {"400", {{cl, "+5"}}},
      {"400", {{cl, "5 5"}}},
      {"400", {{cl, "5,5"}}},
      {"400", {{cl, "5, 6"}}},
      {"400", {{cl, "0x5"}}},
      {"400", {{cl, "5.0"}}},
      {"400", {{cl, "five"}}},
      {"400", {{cl, "99999999999999999999"}}},
      {"400", {{cl, "5"}, {cl, "5"}}},
      {"400", {{cl, "5"}, {cl, "6"}}},
      {"chunked", {{te, "chunked"}}},
      {"chunked", {{te, "CHUNKED"}}},
      {"chunked", {{te, " chunked\t"}}},
      {"400", {{te, ""}}},
      {"400", {{te, "xchunked"}}},
      {"400", {{te, "chunkedx"}}},
      {"400", {{te, "identity"}}},
      {"400", {{te, "gzip"}}},
      {"400", {{te, "gzip, chunked"}}},
      {"400", {{te, "chunked, gzip"}}},
      {"400", {{te, "chunked, identity"}}},
      {"400", {{te, "chunked, chunked"}}},
      {"400", {{te, "chunked,"}}},
      {"400", {{te, ", chunked"}}},
      {"400", {{te, "chunked;q=1"}}},
      {"400", {{te, "\"chunked\""}}},
      {"400", {{te, "\vchunked"}}},
      {"400", {{te, "chunked"}, {te, "chunked"}}},
      {"400", {{te, "chunked"}, {te, "identity"}}},
      {"400", {{te, "identity"}, {te, "chunked"}}},
      {"400", {{te, "chunked"}, {cl, "5"}}},
      {"400", {{cl, "5"}, {te, "chunked"}}},
      {"400", {{te, "identity"}, {cl, "5"}}},
  };
  for (const auto& row : rows) {
    Headers headers = row.headers;
    headers.emplace_back("host", "h");
    std::string shown;
    for (const auto& [name, value] : row.headers) shown += name + ": " + value + "; ";
    EXPECT_EQ(decide(11, headers), row.want) << shown;
    // HTTP/1.0 has no codings; the rest is the same.
    EXPECT_EQ(decide(10, headers), std::string(row.want) == "chunked" ? "400" : row.want) << shown;
  }
}

TEST(HttpHead, Hosts) {
  const auto host = [](Headers h) { return decide(11, std::move(h)); };
  EXPECT_EQ(host({}), "400");
  EXPECT_EQ(decide(10, {}), "none");
  EXPECT_EQ(host({{"host", "a"}, {"host", "a"}}), "400");
  EXPECT_EQ(decide(10, {{"host", "a"}, {"host", "b"}}), "400");
  for (const char* good : {"a", "a.b-c_d", "a:80", "127.0.0.1:8080", "[::1]", "[::1]:80", "a:"})
    EXPECT_EQ(host({{"host", good}}), "none") << good;
  for (const char* bad :
       {"", " ", "a b", "a,b", "a/b", "u@a", "a:b", "a:80:90", "[::1", "[::1]x", "[g]", "::1", "a?b", "a#b", "a\\b"})
    EXPECT_EQ(host({{"host", bad}}), "400") << bad;
}

// What decides who may do what is there once, or it could be read in two ways.
TEST(HttpHead, HeadersThatDecide) {
  for (const char* name : {"origin", "authorization", "x-api-key", "content-type", "expect",
                           "access-control-request-method", "access-control-request-headers"}) {
    EXPECT_EQ(decide(11, {{"host", "h"}, {name, "a"}}), "none") << name;
    EXPECT_EQ(decide(11, {{"host", "h"}, {name, "a"}, {name, "b"}}), "400") << name;
    EXPECT_EQ(decide(11, {{name, "a"}, {"host", "h"}, {"x", "y"}, {name, "a"}}), "400") << name;
  }
  EXPECT_EQ(decide(11, {{"host", "h"}, {"accept", "a"}, {"accept", "b"}}), "none");  // a list
}

TEST(HttpHead, Targets) {
  const struct {
    const char *target, *path, *query, *host;  // path: null if refused
  } rows[] = {
      {"/", "/", "", "h"},
      {"/a/b", "/a/b", "", "h"},
      {"/a?b=c?d", "/a", "b=c?d", "h"},
      {"/?", "/", "", "h"},
      {"http://x/a", "/a", "", "x"},
      {"HTTP://x:80/a?b", "/a", "b", "x:80"},
      {"https://x", "/", "", "x"},
      {"http://[::1]:8080?q", "/", "q", "[::1]:8080"},
      {"http:///a", nullptr, "", ""},
      {"http://u@x/a", nullptr, "", ""},
      {"http://x y/a", nullptr, "", ""},
      {"ftp://x/a", nullptr, "", ""},
      {"a", nullptr, "", ""},
      {"*", nullptr, "", ""},
      {"x:80", nullptr, "", ""},
      {"", nullptr, "", ""},
  };
  for (const auto& row : rows) {
    HttpRequest head;
    head.headers = {{"host", "h"}};
    const auto p = read_head(11, row.target, head);
    ASSERT_EQ(!p, row.path != nullptr) << row.target;
    if (p) continue;
    EXPECT_EQ(head.path, row.path) << row.target;
    EXPECT_EQ(head.query, row.query) << row.target;
    EXPECT_EQ(head.header("host"), row.host) << row.target;
  }
  HttpRequest old;  // HTTP/1.0 without Host: the target's
  ASSERT_FALSE(read_head(10, "http://x/a", old));
  EXPECT_EQ(old.header("host"), "x");
}

}  // namespace
}  // namespace facet
