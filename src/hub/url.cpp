#include "hub/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/print.h"

namespace facet {
namespace {

std::string shown(std::string_view url) { return on_one_line(url.substr(0, 200)); }

}  // namespace

Result<std::string> origin_of(std::string_view url) {
  const auto bad = [&](const char* what) {
    return Error{shown(url), fmt::format("expected an address of http or https, found {}", what), ""};
  };
  const size_t colon = url.find("://");
  std::string scheme(url.substr(0, std::min(colon, size_t(8))));
  for (char& c : scheme) c = char(std::tolower(static_cast<unsigned char>(c)));
  if (colon == url.npos || (scheme != "http" && scheme != "https")) return bad("another scheme");
  if (std::any_of(url.begin(), url.end(), [](unsigned char c) { return c <= ' ' || c == 127 || c == '\\'; }))
    return bad("blanks or control characters");
  std::string authority(url.substr(colon + 3));
  authority.resize(std::min(authority.find_first_of("/?#"), authority.size()));
  if (authority.find('@') != authority.npos) return bad("a user's name in it");
  for (char& c : authority) c = char(std::tolower(static_cast<unsigned char>(c)));
  const size_t bracket = authority.rfind(']'), port = authority.rfind(':');
  const bool has_port = port != authority.npos && (bracket == authority.npos || bracket < port);
  if (authority.empty() || port == 0) return bad("no host");
  if (!has_port || port + 1 == authority.size()) {
    if (has_port) authority.pop_back();
    authority += scheme == "https" ? ":443" : ":80";
  }
  return scheme + "://" + authority;
}

Status check_redirect(const std::string& from, const std::string& to) {
  auto origin = origin_of(to);
  if (!origin)
    return Error{from, fmt::format("sends on to {}, which is refused", shown(to)), "the server is not a hub to trust"};
  auto before = origin_of(from);
  if (!before) return before.error();
  if (before->starts_with("https:") && !origin->starts_with("https:"))
    return Error{from, fmt::format("sends on from https to {}, which is refused", shown(to)),
                 "the server is not a hub to trust"};
  return Ok{};
}

std::string url_path(std::string_view path) {
  std::string s;
  for (const char c : path) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) || std::string_view("-._~/").find(c) != std::string_view::npos)
      s += c;
    else
      s += fmt::format("%{:02X}", u);
  }
  return s;
}

std::string next_link(std::string_view link) {
  while (!link.empty()) {
    const size_t open = link.find('<'), close = link.find('>', open);
    if (open == link.npos || close == link.npos) return "";
    const size_t end = std::min(link.find('<', close), link.size());
    if (link.substr(close, end - close).find("rel=\"next\"") != link.npos)
      return std::string(link.substr(open + 1, close - open - 1));
    link.remove_prefix(end);
  }
  return "";
}

}  // namespace facet
