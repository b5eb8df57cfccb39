#include "hub/media_fetch.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "hub/curl.h"
#include "hub/url.h"

namespace facet {
namespace {

// CURLOPT_OPENSOCKETFUNCTION's argument, and what it answers where there is none.
struct CurlAddress {
  int family, socktype, protocol;
  unsigned length;
  sockaddr address;  // of `length` bytes
};
constexpr int kNoSocket = -1;

// Network and length of its prefix.
struct Net4 {
  uint32_t address;
  int bits;
};
constexpr Net4 kNotPublic4[] = {
    {0x00000000, 8},   // "this" network
    {0x0A000000, 8},   // private
    {0x64400000, 10},  // shared (RFC 6598)
    {0x7F000000, 8},   // loopback
    {0xA9FE0000, 16},  // link-local, with the clouds' metadata
    {0xAC100000, 12},  // private
    {0xC0000000, 24},  // protocol assignments
    {0xC0000200, 24},  // documentation
    {0xC0586300, 24},  // 6to4 relays
    {0xC0A80000, 16},  // private
    {0xC6120000, 15},  // benchmarks
    {0xC6336400, 24},  // documentation
    {0xCB007100, 24},  // documentation
    {0xE0000000, 3},   // multicast and reserved
};
bool is_public4(uint32_t a) {
  return std::none_of(std::begin(kNotPublic4), std::end(kNotPublic4),
                      [a](const Net4& n) { return (a ^ n.address) >> (32 - n.bits) == 0; });
}

bool is_public6(const uint8_t* a) {
  const auto be32 = [](const uint8_t* p) {
    return uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | uint32_t(p[3]);
  };
  const auto begins = [a](std::initializer_list<uint8_t> bytes) { return std::equal(bytes.begin(), bytes.end(), a); };
  // IPv4 in IPv6: mapped, compatible, NAT64, 6to4. Teredo has one, too, and is never needed.
  if (begins({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF})) return is_public4(be32(a + 12));
  if (begins({0x00, 0x64, 0xFF, 0x9B, 0, 0, 0, 0, 0, 0, 0, 0})) return is_public4(be32(a + 12));
  if (begins({0x20, 0x02})) return is_public4(be32(a + 2));
  if (begins({0x20, 0x01, 0x00, 0x00}) || begins({0x20, 0x01, 0x0D, 0xB8})) return false;  // Teredo, documentation
  if (begins({0x20, 0x01}) && (a[2] & 0xFE) == 0) return false;                            // 2001::/23, protocols
  return (a[0] & 0xE0) == 0x20;  // global unicast, and no more
}

// What the callbacks write to.
struct Transfer {
  const MediaFetchConfig* config;
  std::string bytes = {};
  bool too_large = false;
  bool is_refused = false;  // an address
};

size_t on_body(char* data, size_t size, size_t n, void* to) {
  auto* t = static_cast<Transfer*>(to);
  if (t->bytes.size() + size * n > t->config->max_bytes) {
    t->too_large = true;
    return 0;
  }
  t->bytes.append(data, size * n);
  return size * n;
}

int on_socket(void* to, int /*purpose*/, CurlAddress* a) {
  if (!static_cast<Transfer*>(to)->config->may_connect(a->address)) {
    static_cast<Transfer*>(to)->is_refused = true;
    return kNoSocket;
  }
  return ::socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& c : out) c = char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// One GET. onward: where its answer sends on.
Result<std::string> get(const Curl& c, void* handle, const std::string& url, const MediaFetchConfig& config,
                        std::string& onward) {
  Transfer t{.config = &config};
  char problem[Curl::kErrorSize] = "";
  int code = 0;
  const auto set = [&](int option, auto value) {
    if (code == 0) code = c.easy_setopt(handle, option, value);
  };
  c.easy_reset(handle);
  set(Curl::kUrl, url.c_str());
  set(Curl::kProtocols, Curl::kHttpAndHttps);
  set(Curl::kUserAgent, "facet/" FACET_VERSION);
  set(Curl::kErrorBuffer, problem);
  set(Curl::kNoSignal, 1L);
  set(Curl::kNoProxy, "*");
  set(Curl::kTimeoutMs, 1000L * config.most_s);
  set(Curl::kForbidReuse, 1L);
  if (!config.ca_file.empty()) set(Curl::kCaInfo, config.ca_file.c_str());
  set(Curl::kOpenSocketFunction, &on_socket);
  set(Curl::kOpenSocketData, &t);
  set(Curl::kWriteFunction, &on_body);
  set(Curl::kWriteData, &t);
  if (code == 0) code = c.easy_perform(handle);
  const std::string shown = url.substr(0, url.find('?'));
  if (t.is_refused)
    return Error{shown, "expected a host at a public address, found one of a private network", "send the file's bytes"};
  if (t.too_large)
    return Error{shown, fmt::format("expected a file of at most {} bytes, found more", config.max_bytes), ""};
  if (code != 0) return Error{shown, problem[0] ? problem : c.easy_strerror(code), "send the file's bytes"};
  long status = 0;
  const char* to = nullptr;
  if (c.easy_getinfo(handle, Curl::kResponseCode, &status) != 0) status = 0;
  if (status >= 300 && status < 400 && c.easy_getinfo(handle, Curl::kRedirectUrl, &to) == 0 && to) onward = to;
  if (onward.empty() && status != 200)
    return Error{shown, fmt::format("expected status 200, found {}", status), "send the file's bytes"};
  return std::move(t.bytes);
}

}  // namespace

bool is_public(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, &address, sizeof in);
    return is_public4(ntohl(in.sin_addr.s_addr));
  }
  if (address.sa_family != AF_INET6) return false;
  sockaddr_in6 in;
  std::memcpy(&in, &address, sizeof in);
  return is_public6(in.sin6_addr.s6_addr);
}

Status check_media_url(std::string_view url, const MediaFetchConfig& c) {
  const std::string shown(url.substr(0, std::min<size_t>(url.find('?'), 200)));
  auto origin = origin_of(url);
  if (!origin) return Error{shown, origin.error().what, "only http and https are fetched"};
  // scheme://host:port; the host of IPv6 is in brackets.
  std::string host = origin->substr(origin->find("://") + 3);
  host = lower(host.substr(0, host.rfind(':')));
  while (host.ends_with('.')) host.pop_back();
  const bool listed = std::any_of(c.hosts.begin(), c.hosts.end(), [&](const std::string& h) {
    const std::string want = lower(h);
    return want == "*" || want == host || (want.starts_with("*.") && host.ends_with(want.substr(1)));
  });
  if (!listed)
    return Error{shown, fmt::format("expected a host of --allow-media-urls, found {}", host), "send the file's bytes"};
  return Ok{};
}

Result<std::string> fetch_media(const std::string& url, const MediaFetchConfig& config) {
  auto curl = Curl::load();
  if (!curl) return curl.error();
  const Curl& c = **curl;
  void* handle = c.easy_init();
  if (!handle) return Error{"libcurl", "cannot be used", ""};
  std::string at = url;
  Result<std::string> got = Error{url, fmt::format("is sent on more than {} times", config.most_redirects), ""};
  for (int n = 0; n <= config.most_redirects; ++n) {
    std::string onward;
    if (auto ok = check_media_url(at, config); !ok) {
      got = ok.error();
      break;
    }
    auto one = get(c, handle, at, config, onward);
    if (!one || onward.empty()) {
      got = std::move(one);
      break;
    }
    if (auto ok = check_redirect(at, onward); !ok) {
      got = ok.error();
      break;
    }
    at = onward;
  }
  c.easy_cleanup(handle);
  return got;
}

}  // namespace facet
