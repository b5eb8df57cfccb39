// Any text as a grammar in GBNF.
#include <cstddef>
#include <string_view>

#include "grammar_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  check_grammar(facet::compile_gbnf({reinterpret_cast<const char*>(data) + 1, size - 1}), data[0]);
  return 0;
}
