// Any text as a JSON Schema, of an answer and of a tool's arguments: a grammar without dead ends or an error.
#include <cstddef>
#include <string_view>

#include "grammar_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) == 0) {
    check_grammar(facet::compile_json_schema(text), data[0]);
    return 0;
  }
  const facet::Result<facet::Json> schema = facet::parse_json(text, "input");
  if (!schema) return 0;
  const facet::Json tool{{"name", "f"}, {"parameters", *schema}};
  facet::ToolGrammarOptions options;
  options.choice = data[0] & 2 ? facet::ToolChoice::kAuto : facet::ToolChoice::kRequired;
  options.thought = facet::ThoughtMode((data[0] >> 2) % 3);
  check_grammar(facet::compile_tool_calls({&tool, 1}, options), data[0]);
  return 0;
}
