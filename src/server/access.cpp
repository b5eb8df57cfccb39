#include "server/access.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"

namespace facet {
namespace {

constexpr size_t kMaxKeyFile = 1 << 20, kMaxKeys = 1024, kMaxKey = 512, kMaxName = 64, kMaxAsked = 1024;

bool visible(std::string_view s) {
  return std::all_of(s.begin(), s.end(), [](char c) { return c > ' ' && c <= '~'; });
}

bool is_local(std::string_view name) {
  const auto loopback = is_loopback(std::string(name));
  return loopback && *loopback;
}

std::string_view given_key(const HttpRequest& head) {
  std::string_view given = head.header("authorization");
  // RFC 9110, 11.4: the scheme in letters of any case, and spaces.
  constexpr std::string_view kScheme = "bearer";
  const bool bearer = given.size() > kScheme.size() && given[kScheme.size()] == ' ' &&
                      std::equal(kScheme.begin(), kScheme.end(), given.begin(), [](char expected, char found) {
                        return expected == (found >= 'A' && found <= 'Z' ? char(found - 'A' + 'a') : found);
                      });
  if (!bearer) return head.header("x-api-key");
  given.remove_prefix(kScheme.size());
  given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  return given;
}

}  // namespace

bool same_key(std::string_view given, std::string_view expected) {
  unsigned difference = given.size() != expected.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference |= unsigned(uint8_t(given[i]) ^ uint8_t(expected.empty() ? 1 : expected[i % expected.size()]));
  return difference == 0 && !expected.empty();
}

Result<std::vector<ApiKey>> parse_api_keys(std::string_view text, const std::string& where) {
  std::vector<ApiKey> keys;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view s = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    while (!s.empty() && blank(s.back())) s.remove_suffix(1);
    while (!s.empty() && blank(s.front())) s.remove_prefix(1);
    if (s.empty() || s[0] == '#') continue;
    const size_t cut_at = std::min(s.find_first_of(" \t"), s.size());
    std::string_view key = s.substr(0, cut_at), name = s.substr(cut_at);
    while (!name.empty() && blank(name.front())) name.remove_prefix(1);
    // The line itself is not quoted: it holds a key.
    if (key.size() > kMaxKey || !visible(key) || name.size() > kMaxName || !visible(name))
      return Error{
          where,
          fmt::format(
              "line {}: expected a key of at most {} visible characters and perhaps a name of {} without spaces", line,
              kMaxKey, kMaxName),
          ""};
    if (keys.size() == kMaxKeys) return Error{where, fmt::format("expected at most {} keys", kMaxKeys), ""};
    keys.push_back({std::string(key), name.empty() ? fmt::format("key{}", keys.size() + 1) : std::string(name)});
  }
  if (keys.empty())
    return Error{where, "expected an API key in the first line, found none",
                 "write one, and keep the file readable for you alone"};
  return keys;
}

Result<std::vector<ApiKey>> all_api_keys(const std::string& key, const std::string& file) {
  std::vector<ApiKey> keys;
  if (!key.empty()) keys.push_back({key, "key"});
  if (file.empty()) return keys;
  auto more = read_api_keys(file);
  if (!more) return more.error();
  keys.insert(keys.end(), more->begin(), more->end());
  return keys;
}

Status check_reach(const std::string& host, bool keys, const std::vector<std::string>& origins) {
  auto loopback = is_loopback(host);
  if (!loopback) return Error{"--host", loopback.error().what, loopback.error().hint};
  if (!*loopback && !keys)
    return Error{"--host", fmt::format("{} can be reached from other machines, and there is no --api-key", host),
                 "give --api-key or --api-key-file, or serve 127.0.0.1"};
  if (!keys && std::count(origins.begin(), origins.end(), "*") > 0)
    return Error{"--cors-origin",
                 "* lets every page in a browser on this machine use the server, and there is no --api-key",
                 "give --api-key or --api-key-file, or name the origins"};
  return Ok{};
}

Result<std::vector<ApiKey>> read_api_keys(const std::string& path) {
  auto text = read_file(path, kMaxKeyFile);
  if (!text) return text.error();
  return parse_api_keys(*text, path);
}

bool Access::names(std::string_view origin) const {
  return !origin.empty() && origin != "*" && std::any_of(origins.begin(), origins.end(), [&](const std::string& o) {
    return o == origin || (o == "localhost" && is_local(host_name(origin)));
  });
}

bool Access::shares(std::string_view origin) const {
  return names(origin) || (!origin.empty() && std::count(origins.begin(), origins.end(), "*") > 0);
}

const Route* Access::route(std::string_view path) const {
  const Route* r = find_route(path);
  const bool is_page = r && (r->target == Target::kPage || r->target == Target::kDocs);
  return is_page && !page ? nullptr : r;
}

std::string_view Access::key_name(const HttpRequest& head) const {
  const std::string_view given = given_key(head);
  std::string_view name;
  for (const ApiKey& k : keys)  // all of them: the time says nothing about which
    if (same_key(given, k.key)) name = k.name;
  return name;
}

bool Access::preflight(const HttpRequest& head) const {
  return head.method == "OPTIONS" && !head.header("origin").empty() && route(head.path);
}

std::vector<std::pair<std::string, std::string>> Access::cors_headers(const HttpRequest& head) const {
  if (origins.empty()) return {};
  std::vector<std::pair<std::string, std::string>> out = {{"Vary", "Origin"}};
  const std::string_view origin = head.header("origin");
  if (!shares(origin) || !visible(origin)) return out;
  out.emplace_back("Access-Control-Allow-Origin", origin);
  // Cookies and the like only for pages that were named: "*" is no list of anybody's.
  if (names(origin)) out.emplace_back("Access-Control-Allow-Credentials", "true");
  if (head.method != "OPTIONS") return out;
  out.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  // By name: "*" does not stand for Authorization.
  std::string_view asked = head.header("access-control-request-headers");
  const bool plain =
      asked.size() <= kMaxAsked && std::all_of(asked.begin(), asked.end(), [](char c) { return c >= ' ' && c <= '~'; });
  out.emplace_back("Access-Control-Allow-Headers", asked.empty() || !plain ? "*" : asked);
  out.emplace_back("Access-Control-Max-Age", "600");
  return out;
}

std::optional<ApiError> Access::refusal(const HttpRequest& head) const {
  // Pages of other sites reach this machine's ports through the user's browser: by their origin, or by a name of
  // theirs that resolves to this machine. A key keeps them out; without one, names do.
  if (keys.empty()) {
    for (const std::string_view key : {"host", "origin"}) {
      const std::string_view value = head.header(key);
      if (value.empty() || is_local(host_name(value))) continue;
      if (key == "origin" && (shares(value) || preflight(head))) continue;
      return ApiError{.status = 403,
                      .message = fmt::format("{}: expected a name of this machine (start the server with --api-key or "
                                             "--cors-origin to allow others)",
                                             key)};
    }
  }
  if (preflight(head)) return std::nullopt;
  const Route* to = route(head.path);
  const auto is = [to](Target t) { return to && to->target == t; };
  // They tell nothing of the model.
  const bool open = is(Target::kHealth) || is(Target::kPage) || is(Target::kDocs) || is(Target::kOpenApi);
  if (open && allows(*to, head.method)) return std::nullopt;
  if (!keys.empty() && key_name(head).empty())
    return ApiError{.status = 401,
                    .message = "expected the API key in the header: Authorization: Bearer KEY, or X-Api-Key: KEY",
                    .code = "invalid_api_key"};
  if (!to) return ApiError{.status = 404, .message = "no such path (docs/server.md lists them)"};
  if (!allows(*to, head.method)) return ApiError{.status = 405, .message = fmt::format("expected {}", allowed(*to))};
  return std::nullopt;
}

std::optional<HttpResponse> Access::gate(const HttpRequest& head) const {
  const auto e = refusal(head);
  if (!e) {
    if (preflight(head)) return HttpResponse{.status = 200, .type = "text/plain"};
    return std::nullopt;
  }
  HttpResponse r = error_response(dialect_of_path(head.path), *e);
  if (e->status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (e->status == 405) r.headers.emplace_back("Allow", allowed(*route(head.path)));
  return r;
}

}  // namespace facet
