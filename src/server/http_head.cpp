#include "server/http_head.h"

#include <fmt/format.h>

#include <algorithm>

namespace facet {
namespace {

constexpr size_t kMaxDigits = 19;  // of a Content-Length: below 2^64
constexpr const char* kOnce[] = {
    "Host",
    "Origin",
    "Authorization",
    "X-Api-Key",
    "Content-Type",
    "Expect",
    "Access-Control-Request-Method",
    "Access-Control-Request-Headers",
};

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

std::vector<std::string_view> all(const HttpRequest& head, std::string_view name) {
  std::vector<std::string_view> out;
  const std::string key = lower(name);
  for (const auto& [n, value] : head.headers)
    if (n == key) out.push_back(value);
  return out;
}

HeadProblem problem(std::string what) { return {400, "malformed request: " + std::move(what)}; }

// 6.3: "chunked", once and alone, or one Content-Length, or no body.
std::optional<HeadProblem> check_framing(int version, const HttpRequest& head) {
  const auto coding = all(head, "transfer-encoding"), length = all(head, "content-length");
  if (!coding.empty()) {
    if (version < 11) return problem("Transfer-Encoding: expected HTTP/1.1");
    if (!length.empty()) return problem("expected Transfer-Encoding or Content-Length, found both");
    if (coding.size() > 1) return problem("Transfer-Encoding: expected one, found several");
    if (!is_chunked(head)) return problem("Transfer-Encoding: expected chunked");
    return std::nullopt;
  }
  if (length.size() > 1) return problem("Content-Length: expected one, found several");
  if (length.empty()) return std::nullopt;
  const std::string_view n = trim(length[0]);
  if (n.empty() || n.size() > kMaxDigits || n.find_first_not_of("0123456789") != std::string_view::npos)
    return problem(fmt::format("Content-Length: expected a number of at most {} digits", kMaxDigits));
  return std::nullopt;
}

// A name or an address, and perhaps a port: nothing that ends a host in one reader's eyes and not in another's.
bool valid_authority(std::string_view s) {
  if (s.empty()) return false;
  if (s[0] == '[') {
    const size_t end = s.find(']');
    if (end == std::string_view::npos || s.substr(1, end - 1).find_first_not_of("0123456789abcdefABCDEF:.") < end - 1)
      return false;
    s.remove_prefix(end + 1);
  } else {
    s.remove_prefix(std::min(s.find(':'), s.size()));
  }
  return s.empty() || (s[0] == ':' && s.substr(1).find_first_not_of("0123456789") == std::string_view::npos);
}

bool plain_name(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-._~:[]%").find(char(c)) != std::string_view::npos;
  });
}

}  // namespace

bool is_chunked(const HttpRequest& head) {
  const auto coding = all(head, "transfer-encoding");
  return coding.size() == 1 && lower(trim(coding[0])) == "chunked";
}

std::optional<HeadProblem> read_head(int version, std::string_view target, HttpRequest& head) {
  if (auto p = check_framing(version, head)) return p;
  // Each of these decides something, and a proxy may have looked at another one than we would.
  for (const char* name : kOnce)
    if (all(head, name).size() > 1) return problem(fmt::format("{}: expected one, found several", name));
  const auto hosts = all(head, "host");
  if (hosts.empty() && version >= 11) return problem("Host: expected one, found none");
  if (!hosts.empty() && (!valid_authority(hosts[0]) || !plain_name(hosts[0])))
    return problem("Host: expected a name or an address");

  const std::string scheme = lower(target.substr(0, 8));
  if (const size_t n = scheme == "https://" ? 8 : scheme.starts_with("http://") ? 7 : 0) {
    target.remove_prefix(n);
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    const std::string authority(target.substr(0, end));
    if (!valid_authority(authority) || !plain_name(authority)) return problem("the target names no host");
    target.remove_prefix(end);
    const auto at =
        std::find_if(head.headers.begin(), head.headers.end(), [](const auto& h) { return h.first == "host"; });
    if (at != head.headers.end())
      at->second = authority;
    else
      head.headers.emplace_back("host", authority);
    if (!target.starts_with('/')) head.path = "/";
  }
  if (head.path.empty() && !target.starts_with('/')) return problem("the target is no path");
  const size_t q = std::min(target.find('?'), target.size());
  head.path += target.substr(0, q);
  if (q < target.size()) head.query = target.substr(q + 1);
  return std::nullopt;
}

}  // namespace facet
