#pragma once
#include <string_view>
#include <vector>

#include "base/result.h"
#include "grammar/builder.h"

namespace facet::grammar {

// A regular expression over code points.
struct Regex {
  enum class Kind { kEmpty, kSet, kSeq, kAlt, kRepeat, kBegin, kEnd } kind = Kind::kEmpty;
  CharSet set = {};
  std::vector<Regex> items = {};
  uint32_t min = 0, max = 0;  // kRepeat
};

enum class RegexMatch {
  kWhole,   // the text matches; ^ and $ at the ends say nothing new
  kSearch,  // a part of it does, as JSON Schema's pattern means it
};

// The syntax that ECMAScript, Python and RE2 share, without what is not regular: look-around, back references, \b.
// \d, \w, \s are ASCII's; what they exclude (\D, \W, \S, and classes with ^ that hold one of the six) is ASCII too,
// because the dialects differ on the rest. Anchors may stand at the ends of top-level alternatives. An error names the
// column.
Result<Regex> parse_regex(std::string_view text, RegexMatch match);

ExprId regex_expr(Builder& b, const Regex& r);

}  // namespace facet::grammar
