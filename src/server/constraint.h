#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "grammar/compile_limits.h"
#include "server/openai.h"

// What a request says about the form of its answer, and the grammar that it means (docs/structured-output.md).
namespace facet {

// response_format, json_schema, grammar, structured_outputs and guided_...: one of them at most.
void read_constraint(Fields& f, ApiRequest& r, bool strict);
// OpenAI's tool_choice; Anthropic's.
void read_tool_choice(Fields& f, ApiRequest& r);
void read_anthropic_choice(Fields& f, ApiRequest& r);
// A JSON schema that stands at `where`.
void constrain_to_schema(Fields& f, ApiRequest& r, const std::string& where, const Json& schema);

// How to make the grammar of a request: equal keys, equal grammars.
struct GrammarRecipe {
  std::string key;
  std::function<Result<GrammarPtr>(const CompileLimits&)> compile;  // once at a time
};

// The grammar that a request means; none: it asks for nothing. in_thought: the answer begins in one. The recipe looks
// at the request, which outlives it.
std::optional<GrammarRecipe> grammar_recipe(const ApiRequest& r, bool in_thought);

}  // namespace facet
