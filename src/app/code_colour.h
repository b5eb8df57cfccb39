#pragma once
#include <string>
#include <string_view>

namespace facet {

// Colours the code blocks of an answer, from a line that begins with ``` to the next, while it is written.
class CodeColour {
 public:
  explicit CodeColour(bool on) : on_(on) {}
  std::string push(std::string_view text);
  std::string finish();  // what was held back; afterwards nothing is coloured

 private:
  bool on_, start_ = true, code_ = false, closing_ = false;
  std::string held_ = {};  // of a line that may become a fence
};

}  // namespace facet
