#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace facet {

// RFC 4648, section 4, with its padding and zeros in the unused bits; line breaks (\r, \n) may stand anywhere. None: it
// is not that.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace facet
