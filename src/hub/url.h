#pragma once
#include <string>
#include <string_view>

#include "base/result.h"

namespace facet {

// "https://hub.example:443": scheme, host and port of an address. An error for any scheme but http and https, and for
// an address with a user's name, blanks or control characters.
Result<std::string> origin_of(std::string_view url);

// Whether a server at `from` may send on to `to`: never from https to http, and to http and https alone.
Status check_redirect(const std::string& from, const std::string& to);

// The bytes of a path as a URL has them; '/' stays.
std::string url_path(std::string_view path);

// The address of rel="next" in a Link header; empty: there is none.
std::string next_link(std::string_view link);

}  // namespace facet
