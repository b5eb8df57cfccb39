#pragma once
#include <string_view>

#include "base/result.h"
#include "grammar/builder.h"

namespace facet::grammar {

// llama.cpp's grammars: name ::= alternatives of "text", [class], ., (group), name, with *, +, ?, {m,n}; # comments.
// Returns the rule root. An error names line and column.
Result<RuleId> parse_gbnf(Builder& b, std::string_view text);

}  // namespace facet::grammar
