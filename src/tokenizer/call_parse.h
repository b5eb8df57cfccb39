#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/call_arguments.h"

// The text of one call, as the model's format has it and as quantised models write it, to a name and JSON.
//
//   call:NAME{key:<|"|>text<|"|>,n:3,list:[true,null],o:{k:1}}
//
// Taken as well: JSON quotes and single quotes around strings, keys and names; words without quotes; a space after
// `call:`, a `call:` that is missing or there twice, `:NAME{`; `NAME(key=value)`; commas before a closer; closers too
// many; {"name": NAME, "arguments": {...}}.
namespace facet {

// Names that were declared; null: they are not known.
using ToolNames = const std::vector<std::string>*;

enum class CallHead {
  kNo,    // what stands there begins no call, whatever follows
  kMore,  // it may become one
  kYes,   // a name, and where its arguments begin, or the end of a call without any
};
// After <|tool_call>.
CallHead call_head(std::string_view text);
// Where <|tool_call> may be missing: `call:NAME{`, of a declared name where they are known (then `:NAME{` too).
CallHead bare_call_head(std::string_view text, ToolNames names);

struct CallReading {
  CallText kind = CallText::kMalformed;
  std::string name{};
  std::string arguments{};  // CallArguments::json
  std::string beginning{};  // likewise
};
// text: between the markers.
CallReading read_call(std::string_view text, ToolNames names, QuoteRules rules);

}  // namespace facet
