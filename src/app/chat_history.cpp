#include "app/chat_history.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/files.h"
#include "base/print.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

constexpr size_t kMostLines = 1000, kMostBytes = size_t(1) << 20, kLongestLine = size_t(1) << 16;

bool terminal_shows_typing() {
  termios t{};
  return ::tcgetattr(STDIN_FILENO, &t) == 0 && (t.c_lflag & ECHO) != 0;
}

std::vector<std::string> parse(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (auto j = parse_json(std::string_view(text).substr(at, end - at), ""); j && j->is_string())
      lines.push_back(j->get<std::string>());
    at = end + 1;
  }
  if (lines.size() > kMostLines) lines.erase(lines.begin(), lines.end() - long(kMostLines));
  return lines;
}

}  // namespace

ChatHistory::ChatHistory(std::string path) {
  if (terminal_shows_typing()) path_ = std::move(path);
}

std::vector<std::string> ChatHistory::lines() {
  if (path_.empty() || ::access(path_.c_str(), F_OK) != 0) return {};
  const auto text = read_file(path_, 16 * kMostBytes);
  if (!text) {
    print_err("note: {}\n", on_one_line(text.error().message()));
    return {};
  }
  std::vector<std::string> lines = parse(*text);
  if (!lines.empty()) last_ = lines.back();
  if (text->size() <= kMostBytes) return lines;
  size_t from = lines.size();  // the newest that half of the space holds
  for (size_t bytes = 0; from > 0 && (bytes += lines[from - 1].size()) < kMostBytes / 2;) --from;
  lines.erase(lines.begin(), lines.begin() + long(from));
  if (auto file = OutputFile::create_private(path_)) {
    for (const std::string& line : lines)
      if (!file->write(dump_json(line) + "\n")) return lines;
    [[maybe_unused]] const Status done = file->finish();
  }
  return lines;
}

void ChatHistory::add(const std::string& line) {
  if (path_.empty() || failed_ || line.empty() || line[0] == ' ' || line.size() > kLongestLine || line == last_) return;
  last_ = line;
  const size_t slash = path_.rfind('/');
  if (slash != std::string::npos && slash > 0)
    if (auto made = make_folders(path_.substr(0, slash), ""); !made) {
      failed_ = true;
      return print_err("note: {}\n", on_one_line(made.error().message()));
    }
  const std::string text = dump_json(line) + "\n";
  const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  struct stat s {};
  const bool ok = fd >= 0 && ::fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && ::fchmod(fd, 0600) == 0 &&
                  ::write(fd, text.data(), text.size()) == ssize_t(text.size());
  if (!ok) {
    failed_ = true;
    print_err("note: {}: cannot keep the history: {} (--no-history keeps none)\n", on_one_line(path_),
              std::strerror(errno));
  }
  if (fd >= 0) ::close(fd);
}

}  // namespace facet
