// Any text as a grammar in GBNF, and grammars made of the bytes: rules that call each other in every way, which a text
// rarely is.
#include <cstddef>
#include <string>
#include <string_view>

#include "grammar_check.h"

namespace {

// A byte is an item or what follows one; rules are divided by 0, alternatives by 1.
std::string made_of(const uint8_t* data, size_t size) {
  static const char* const kTerminals[] = {"[a-z]", "\"a\"", "[ab]", ".", "[^a]", "\"(\"", "\")\"", "\"aaaa\"", "\"\""};
  static const char* const kRepeats[] = {"?", "*", "+", "{2}", "{0,5}", "{3,}", "{1,40}"};
  int rules = 1;
  for (size_t i = 0; i < size; ++i) rules += data[i] == 0;
  std::string text = "root ::= r0\nr0 ::= ";
  int rule = 0;
  bool item = false;
  for (size_t i = 0; i < size && text.size() < 4000; ++i) {
    const uint8_t b = data[i];
    if (b == 0) {
      text += item ? "\n" : "\"\"\n";
      text += "r" + std::to_string(++rule) + " ::= ";
      item = false;
    } else if (b == 1) {
      text += item ? " | " : "\"\" | ";
      item = false;
    } else if (b < 16 && item) {
      text.pop_back();
      text += std::string(kRepeats[b % 7]) + " ";
    } else if (b < 100) {
      text += std::string(kTerminals[b % 9]) + " ";
      item = true;
    } else {
      text += "r" + std::to_string(b % rules) + " ";
      item = true;
    }
  }
  return text + (item ? "\n" : "\"\"\n");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] & 0x80)
    check_grammar(facet::compile_gbnf(made_of(data + 1, size - 1), fuzz_options()), data[0]);
  else
    check_grammar(facet::compile_gbnf(text, fuzz_options()), data[0]);
  return 0;
}
