#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tokenizer/json_fwd.h"

namespace facet {

// Text to a value. Nesting deeper than 100 is refused, so that whoever walks the value may recurse, and so are objects
// so large (6,000 members, or 700 with keys of 1,500 bytes) that their keys would take long to compare, and more values
// than 256 MB hold (8 million numbers).
Result<Json> parse_json(std::string_view text, const std::string& where);

// One line. Never throws: ill-formed UTF-8 becomes U+FFFD.
std::string dump_json(const Json& value);

}  // namespace facet
