#pragma once
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/builder.h"
#include "grammar/compile_budget.h"

namespace facet::grammar {

// A regular expression over code points.
struct Regex {
  enum class Kind {
    kEmpty,
    kSet,
    kSeq,
    kAlt,
    kRepeat,
    kBegin,     // ^
    kEnd,       // $
    kAhead,     // (?=items[0])
    kNotAhead,  // (?!items[0])
  } kind = Kind::kEmpty;
  CharSet set = {};
  std::vector<Regex> items = {};
  uint32_t min = 0, max = 0;  // kRepeat
};

enum class RegexMatch {
  kWhole,   // the text matches; ^ and $ at the ends say nothing new
  kSearch,  // a part of it does, as JSON Schema's pattern means it
};

// The syntax that ECMAScript, Python and RE2 share, and lookahead; without what is not regular or needs what was read
// before: look-behind, back references, \b. \d, \w, \s are ASCII's; what they exclude (\D, \W, \S, and classes with ^
// that hold one of the six) is ASCII too, because the dialects differ on the rest. An error names the column.
Result<Regex> parse_regex(std::string_view text);

// Of a whole answer. Errors: an expression with lookahead, or with ^ and $ in its middle, that has too many states.
Result<ExprId> regex_expr(Builder& b, const Regex& r);

}  // namespace facet::grammar
