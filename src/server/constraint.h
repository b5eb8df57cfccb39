#pragma once
#include <list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

// Grammars by what they were made of, the newest first. One thread.
class GrammarCache {
 public:
  // Null: the request asks for nothing. in_thought: the answer begins in one.
  Result<GrammarPtr> of(const ApiRequest& r, bool in_thought);

 private:
  static constexpr size_t kMost = 64, kMostBytes = size_t(64) << 20;
  std::list<std::pair<std::string, GrammarPtr>> known_;
};

}  // namespace facet
