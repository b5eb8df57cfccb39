#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace facet {

// A command of the chat as /help has it.
struct ChatCommand {
  const char *name, *argument, *description;
};
std::span<const ChatCommand> chat_commands();
std::string chat_help();

// What may stand in place of the end of a line: from byte `begin` on, each of `words`.
struct Completions {
  size_t begin = 0;
  std::vector<std::string> words;  // sorted; a folder ends with /
};
// Of commands, and behind those that take one of files, of settings and of on and off.
Completions complete_chat(std::string_view before);

}  // namespace facet
