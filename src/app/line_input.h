#pragma once
#include <termios.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "app/chat_complete.h"
#include "app/chat_history.h"

namespace facet {

// Lines that a person types. On a terminal they can be edited, the arrows go through those before, Alt-Enter and a
// paste put line breaks into one (libedit). From a file or a pipe they are read as they come. Of any length. Ctrl-C
// drops the line and says how to leave. Tab offers what complete() knows of the line before the cursor.
struct LineSettings {
  ChatHistory history = {};
  std::function<Completions(std::string_view before)> complete = {};
};
class LineInput {
 public:
  explicit LineInput(LineSettings settings = {});
  ~LineInput();
  // The next line, without its end; nothing at the end of the input.
  std::optional<std::string> next(const std::string& prompt);
  bool echoes() const;  // somebody sees what is typed; else the reader of the output wants to be told

 private:
  class Editor;
  std::unique_ptr<Editor> editor_;  // null: lines as they come
  std::string held_;                // read, but beyond the line
};

// While it lives, a terminal shows nothing of what is typed; the next line begins with it.
class NoEcho {
 public:
  NoEcho();
  ~NoEcho();
  NoEcho(const NoEcho&) = delete;
  NoEcho& operator=(const NoEcho&) = delete;

 private:
  bool changed_ = false;
  termios before_{};
};

}  // namespace facet
