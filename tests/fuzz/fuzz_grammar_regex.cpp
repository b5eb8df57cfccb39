// Any text as a regular expression, of a whole answer and as the pattern of a schema.
#include <cstddef>
#include <string_view>

#include "grammar_check.h"
#include "tokenizer/json.h"
#include "tokenizer/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) == 0)
    check_grammar(facet::compile_regex(text, fuzz_options()), data[0]);
  else
    check_grammar(facet::compile_json_schema(facet::Json{{"type", "string"}, {"pattern", facet::utf8_sanitize(text)}},
                                             fuzz_options()),
                  data[0]);
  return 0;
}
