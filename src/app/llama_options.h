#pragma once
#include <string>
#include <string_view>

namespace facet {

// What becomes here of an option as llama-server, llama-cli and other engines spell it, where a command has none of
// that name.
struct LlamaOption {
  enum class Kind {
    kAs,       // `here` is its name here; an option of the command
    kNothing,  // it changes nothing: `here` says why, or how the same is done
    kError,    // it is not there: `here` says what to use
  };
  enum class Value {
    kNone,
    kOne,
    kSwitch,  // on, off or auto; perhaps none
    kTwo,
  };
  std::string_view names;  // with spaces between them
  Kind kind = Kind::kNothing;
  Value value = Value::kNone;
  std::string_view here;
  std::string_view neutral = {};  // of kError: values that change nothing, with spaces between them
};

// Null: none of theirs.
const LlamaOption* find_llama_option(std::string_view name);

}  // namespace facet
