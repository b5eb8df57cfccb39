#pragma once
#include <string_view>

namespace facet::grammar {

// A regular expression for texts of a "format" of JSON Schema; "" if the format says nothing that can be checked
// here, null if it is not supported. Where a format is looser than an expression can be, the expression is stricter.
const char* format_regex(std::string_view name);
std::string_view supported_formats();

}  // namespace facet::grammar
