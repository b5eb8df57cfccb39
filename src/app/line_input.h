#pragma once
#include <memory>
#include <optional>
#include <string>

namespace facet {

// Lines that a person types. On a terminal they can be edited, the arrows go through those before, Alt-Enter and a
// paste put line breaks into one (libedit). From a file or a pipe they are read as they come. Of any length. Ctrl-C
// drops the line and says how to leave.
class LineInput {
 public:
  LineInput();
  ~LineInput();
  // The next line, without its end; nothing at the end of the input.
  std::optional<std::string> next(const std::string& prompt);
  bool echoes() const;  // somebody sees what is typed; else the reader of the output wants to be told

 private:
  class Editor;
  std::unique_ptr<Editor> editor_;  // null: lines as they come
  std::string held_;                // read, but beyond the line
};

}  // namespace facet
