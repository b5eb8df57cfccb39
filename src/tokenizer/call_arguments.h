#pragma once
#include <string>
#include <string_view>

// The arguments of a call, as the model's format has them and as quantised models write them, to JSON (call_parse.h
// tells what is taken).
namespace facet {

enum class CallText {
  kWhole,       // a call
  kEnds,        // a call, but for closing brackets
  kInString,    // the text ends within a string in quotes, or
  kUnfinished,  // elsewhere within the arguments
  kMalformed,
};
struct CallArguments {
  CallText kind = CallText::kMalformed;
  std::string json{};       // but for kUnfinished and kMalformed: the text of an object, closed where it was not
  std::string beginning{};  // but for kMalformed: of its text, what is sure: parts of strings, and whole values
};
enum class QuoteRules {
  kAsWritten,
  kMend,  // where a quote token is never closed, a JSON quote in front of a comma or a closer may close it
};
// text: from the opening bracket, { or (, on.
CallArguments read_call_arguments(std::string_view text, QuoteRules rules = QuoteRules::kAsWritten);

}  // namespace facet
