#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace facet {

// Objects keep the order of their keys: it decides between keys that differ only in case (see chat.cpp).
using Json = nlohmann::ordered_json;

// Text to a value. Nesting deeper than 100 is refused, so that whoever walks the value may recurse, and so are objects
// so large (6,000 members, or many of a thousand) that their keys would take long to look through.
Result<Json> parse_json(std::string_view text, const std::string& where);

// One line. Never throws: ill-formed UTF-8 becomes U+FFFD.
std::string dump_json(const Json& value);

}  // namespace facet
