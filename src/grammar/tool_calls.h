#pragma once
#include <optional>
#include <span>
#include <string>

#include "grammar/grammar.h"
#include "tokenizer/json.h"

namespace facet {

enum class ToolChoice {
  kAuto,      // text, then calls or none
  kRequired,  // calls and nothing else
  kLazy,      // anything, then calls or none: what comes before them costs no mask (GrammarState::asleep)
};
struct ToolGrammarOptions : GrammarOptions {
  ToolChoice choice = ToolChoice::kRequired;
  std::string name = {};              // kRequired: only this function
  bool parallel = true;               // several calls; otherwise at most one
  bool strict_all = true;             // also arguments of functions without "strict": true follow their schemas
  std::optional<Json> or_value = {};  // kAuto: a value of this schema instead of text, or calls alone
};
// tools: functions as tools_from_json gives them: name, parameters, strict. In the syntax of the model's own calls.
Result<GrammarPtr> compile_tool_calls(std::span<const Json> tools, const ToolGrammarOptions& options = {});

}  // namespace facet
