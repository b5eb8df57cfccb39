#pragma once
#include <algorithm>
#include <string_view>

#include "tokenizer/json.h"

namespace facet::grammar {

inline constexpr std::string_view kObjectKeywords[] = {"properties",        "required",      "additionalProperties",
                                                       "patternProperties", "propertyNames", "minProperties",
                                                       "maxProperties"};
inline constexpr std::string_view kArrayKeywords[] = {"items", "prefixItems", "additionalItems", "minItems",
                                                      "maxItems"};
inline constexpr std::string_view kStringKeywords[] = {"minLength", "maxLength", "pattern", "format"};
inline constexpr std::string_view kNumberKeywords[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                       "multipleOf"};

template <class List>
bool any_key(const Json& s, const List& keys) {
  return std::any_of(std::begin(keys), std::end(keys), [&](std::string_view k) { return s.contains(k); });
}

inline uint64_t count_of(const Json& s, const char* key, uint64_t otherwise) {
  const auto it = s.find(key);
  return it == s.end() ? otherwise : it->get<uint64_t>();
}

}  // namespace facet::grammar
