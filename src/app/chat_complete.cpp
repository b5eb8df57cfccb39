#include "app/chat_complete.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "app/chat_settings.h"

namespace facet {
namespace {

constexpr ChatCommand kCommands[] = {
    {"/help", "", "this list"},
    {"/think", "on|off", "let the model think before it answers"},
    {"/system", "TEXT", "start anew with this system message, or with none"},
    {"/image", "FILE", "a picture for what you write next; several, one by one"},
    {"/video", "FILE", "a video, likewise: up to 32 pictures, by ffmpeg"},
    {"/audio", "FILE", "a sound, likewise: WAV, FLAC or MP3"},
    {"/read", "FILE", "a text file for what you write next, at most 1 MiB"},
    {"/regen", "", "answer the last message again, with another seed"},
    {"/undo", "", "forget the last exchange"},
    {"/clear", "", "forget the conversation"},
    {"/save", "FILE", "write the conversation as JSON, with names of pictures"},
    {"/load", "FILE", "go on with a conversation that was saved"},
    {"/set", "NAME VALUE", "temp, top-p, top-k, min-p, seed, n-predict; alone: all"},
    {"/model", "", "which model this is"},
    {"/stats", "", "all there is to say about the last answer's speed"},
    {"/exit", "", "leave (so does Ctrl-D)"},
};

constexpr size_t kMostFiles = 2000;

// The files that begin so.
Completions files(std::string_view before, size_t begin) {
  const std::string path(before.substr(begin));
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const std::string start = path.substr(folder.size());
  Completions c{begin + folder.size(), {}};
  std::error_code e;
  std::filesystem::directory_iterator at(folder.empty() ? "." : folder, e), end;
  for (; !e && at != end && c.words.size() < kMostFiles; at.increment(e)) {
    std::string name = at->path().filename().string();
    if (!name.starts_with(start) || (name[0] == '.' && start.empty())) continue;
    std::error_code ignored;
    if (at->is_directory(ignored)) name += '/';
    c.words.push_back(std::move(name));
  }
  std::sort(c.words.begin(), c.words.end());
  return c;
}

template <class Names>
Completions among(std::string_view before, size_t begin, const Names& names) {
  Completions c{begin, {}};
  for (const std::string_view name : names)
    if (name.starts_with(before.substr(begin))) c.words.emplace_back(name);
  std::sort(c.words.begin(), c.words.end());
  return c;
}

}  // namespace

std::span<const ChatCommand> chat_commands() { return kCommands; }

std::string chat_help() {
  std::string text;
  for (const ChatCommand& c : kCommands)
    text += fmt::format("{:<18} {}\n", c.name + std::string(*c.argument ? " " : "") + c.argument, c.description);
  return text +
         "//...              a text that begins with /\n"
         "\"\"\"                begins and ends a text of several lines; in one, Alt-Enter\n"
         "Tab completes commands and file names. Ctrl-C stops an answer, not the program.\n";
}

Completions complete_chat(std::string_view before) {
  if (!before.starts_with('/')) return {before.size(), {}};
  const size_t space = before.find(' ');
  if (space == std::string_view::npos) {
    std::vector<std::string_view> names;
    for (const ChatCommand& c : kCommands) names.emplace_back(c.name);
    return among(before, 0, names);
  }
  const std::string_view name = before.substr(0, space);
  for (const ChatCommand& c : kCommands)
    if (name == c.name && std::string_view(c.argument) == "FILE") return files(before, space + 1);
  if (before.find(' ', space + 1) != std::string_view::npos) return {before.size(), {}};
  if (name == "/set") return among(before, space + 1, setting_names());
  if (name == "/think") return among(before, space + 1, std::vector<std::string_view>{"on", "off"});
  return {before.size(), {}};
}

}  // namespace facet
