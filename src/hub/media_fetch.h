#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

struct sockaddr;

namespace facet {

// An address that everybody may reach: not this machine, not a private, link-local, shared, multicast, reserved or
// documentation network, also behind IPv4 in IPv6.
bool is_public(const sockaddr& address);

// Pictures and sounds that requests name by URL. Requests are anybody's, and this machine may reach what its clients may
// not: so only hosts of a list are asked, at addresses that are public, which is checked of the address that is
// connected to (whatever a name resolves to, then or earlier), on every redirect again. No proxy, no credentials.
struct MediaFetchConfig {
  std::vector<std::string> hosts = {};  // "example.com"; "*.example.com": all below it; "*": any
  uint64_t max_bytes = 20'000'000;
  int most_s = 10;  // for all of it
  int most_redirects = 3;
  std::string ca_file = {};  // certificates to trust; empty: the system's
  bool (*may_connect)(const sockaddr& address) = is_public;
};

// Whether `url` may be asked for: http or https, a host of the list, no user in it.
Status check_media_url(std::string_view url, const MediaFetchConfig& c);
// Any thread.
Result<std::string> fetch_media(const std::string& url, const MediaFetchConfig& c);

}  // namespace facet
