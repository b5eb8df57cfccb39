#pragma once
#include <string>
#include <vector>

namespace facet {

// What was typed in earlier chats: a JSON string a line, in a file that only its owner reads. Several chats may add to
// it at once. A line that begins with a space is not kept, as shells have it, nor the same line twice in a row, nor is anything from a terminal that did
// not show what was typed when the chat began.
class ChatHistory {
 public:
  ChatHistory() = default;  // keeps nothing
  explicit ChatHistory(std::string path);
  std::vector<std::string> lines();  // the newest thousand, oldest first; shortens a file that has grown long
  void add(const std::string& line);

 private:
  std::string path_, last_;
  bool failed_ = false;  // and was told
};

}  // namespace facet
