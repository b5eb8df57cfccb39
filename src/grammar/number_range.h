#pragma once
#include <optional>
#include <string>

#include "grammar/builder.h"
#include "tokenizer/json.h"

namespace facet::grammar {

struct Bound {
  Json value;  // a number
  bool exclusive = false;
};

// Decimal numbers without an exponent, with up to 16 digits before (as many as a bound has, up to 40) and `fraction`
// after the point, between two bounds and a multiple of `multiple` (1 to 1000; above 1 without fraction). The text of
// an error says what a bound lacks.
struct NumberRange {
  std::optional<Bound> min, max;
  uint32_t fraction = 0;
  uint32_t multiple = 1;
};
std::string number_range(Builder& b, const NumberRange& range, ExprId& out);  // "" or what is wrong

}  // namespace facet::grammar
