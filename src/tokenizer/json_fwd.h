#pragma once
#include <nlohmann/json_fwd.hpp>

// Json by name, for headers that only pass it on: whoever includes the whole of it (json.h) compiles its parser.
namespace facet {

// Objects keep the order of their keys: it decides between keys that differ only in case (see chat.cpp).
using Json = nlohmann::ordered_json;

}  // namespace facet
