#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// The name that was probably meant: one that a few changed, missing, added or swapped letters lead to; "": none.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);
// " (did you mean 'chat'?)", or nothing.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& names);

}  // namespace facet
