#include "app/line_input.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "app/console.h"
#include "app/options.h"
#include "base/print.h"
#if FACET_LINE_EDITING
#include <histedit.h>
#include <langinfo.h>

#include <clocale>
#include <cstring>
#include <string_view>
#endif

namespace facet {
namespace {

constexpr const char* kHowToLeave = "\n(type /exit or press Ctrl-D to leave)\n";

}  // namespace

#if FACET_LINE_EDITING

// libedit reads through get(), so that Ctrl-C is seen here as everywhere else.
class LineInput::Editor {
 public:
  // Null without a terminal on both sides.
  static std::unique_ptr<Editor> open(LineSettings settings) {
    if (::isatty(STDIN_FILENO) != 1) return nullptr;
    FILE* out = ::isatty(STDOUT_FILENO) == 1 ? stdout : ::isatty(STDERR_FILENO) == 1 ? stderr : nullptr;
    if (!out) return nullptr;
    auto e = std::make_unique<Editor>();
    e->settings_ = std::move(settings);
    return e->start(out) ? std::move(e) : nullptr;
  }
  ~Editor() {
    if (history_) ::history_end(history_);
    if (edit_) ::el_end(edit_);
    if (nowhere_) std::fclose(nowhere_);
  }

  std::optional<std::string> next(const std::string& prompt) {
    prompt_ = escapes_ ? "\001\033[1;32m\001" + prompt : prompt;  // and what is typed
    while (true) {
      interrupted_ = false;
      int n = 0;
      if (escapes_) std::fputs("\033[?2004h", out_), std::fflush(out_);  // a paste comes between marks
      const char* text = ::el_gets(edit_, &n);
      if (escapes_) std::fputs("\033[?2004l\033[0m", out_), std::fflush(out_);
      if (interrupted_) {
        std::fputs(kHowToLeave, out_);
        continue;
      }
      if (!text || n <= 0) return std::nullopt;
      std::string line(text, size_t(n));
      HistEvent event;
      if (line.find_first_not_of(" \n") != std::string::npos) ::history(history_, &event, H_ENTER, line.c_str());
      if (line.ends_with('\n')) line.pop_back();
      if (line.find_first_not_of(" \n") != std::string::npos) settings_.history.add(line);
      return line;
    }
  }

 private:
  bool start(FILE* out) {
    out_ = out;
    escapes_ = takes_escapes(::fileno(out));
    // Text is UTF-8 here, whatever the environment says.
    std::setlocale(LC_CTYPE, "");
    if (std::string_view(::nl_langinfo(CODESET)) != "UTF-8") std::setlocale(LC_CTYPE, "C.UTF-8");
    nowhere_ = std::fopen("/dev/null", "w");  // for libedit's remarks about terminals it does not know
    edit_ = ::el_init("facet", stdin, out, nowhere_ ? nowhere_ : stderr);
    history_ = ::history_init();
    if (!edit_ || !history_) return false;
    HistEvent event;
    ::history(history_, &event, H_SETSIZE, 1000);
    ::history(history_, &event, H_SETUNIQUE, 1);
    for (const std::string& line : settings_.history.lines())
      ::history(history_, &event, H_ENTER, (line + "\n").c_str());
    ::el_set(edit_, EL_CLIENTDATA, this);
    if (!escapes_) ::el_set(edit_, EL_TERMINAL, "dumb");
    ::el_set(edit_, EL_EDITOR, "emacs");
    ::el_set(edit_, EL_HIST, ::history, history_);
    ::el_set(edit_, EL_PROMPT_ESC, &Editor::prompt, '\001');
    ::el_set(edit_, EL_GETCFN, &Editor::get);
    ::el_set(edit_, EL_ADDFN, "facet-line-break", "A line break in the text", &Editor::line_break);
    ::el_set(edit_, EL_ADDFN, "facet-paste", "Text that is pasted", &Editor::paste);
    ::el_set(edit_, EL_ADDFN, "facet-complete", "The rest of a name", &Editor::complete);
    for (const auto& [keys, command] : {std::pair{"\\e\\n", "facet-line-break"},
                                        {"\\e\\r", "facet-line-break"},
                                        {"\\e[200~", "facet-paste"},
                                        {"\\e[3~", "ed-delete-next-char"},
                                        {"\\e[H", "ed-move-to-beg"},
                                        {"\\e[1~", "ed-move-to-beg"},
                                        {"\\e[F", "ed-move-to-end"},
                                        {"\\e[4~", "ed-move-to-end"},
                                        {"\\e[1;5C", "em-next-word"},
                                        {"\\e[1;5D", "ed-prev-word"},
                                        {"^I", "facet-complete"},
                                        {"^R", "em-inc-search-prev"}})
      ::el_set(edit_, EL_BIND, keys, command, nullptr);
    return true;
  }

  static Editor& of(EditLine* e) {
    void* self = nullptr;
    ::el_get(e, EL_CLIENTDATA, &self);
    return *static_cast<Editor*>(self);
  }
  static char* prompt(EditLine* e) { return of(e).prompt_.data(); }

  // One byte; -1 at the end of the input and on Ctrl-C.
  int byte() {
    if (at_ == have_) {
      if (!Interrupts::wait_for_input(STDIN_FILENO)) {
        interrupted_ = true;
        return -1;
      }
      ssize_t n = 0;
      while ((n = ::read(STDIN_FILENO, buffer_, sizeof buffer_)) < 0 && errno == EINTR) {
      }
      if (n <= 0) return -1;
      at_ = 0, have_ = size_t(n);
    }
    return static_cast<unsigned char>(buffer_[at_++]);
  }

  // One character of UTF-8; what is none becomes U+FFFD.
  static int get(EditLine* e, wchar_t* to) {
    Editor& self = of(e);
    const int first = self.byte();
    if (first < 0) return 0;
    const int more = first < 0x80             ? 0
                     : (first & 0xE0) == 0xC0 ? 1
                     : (first & 0xF0) == 0xE0 ? 2
                     : (first & 0xF8) == 0xF0 ? 3
                                              : -1;
    *to = wchar_t(more < 0 ? 0xFFFD : more == 0 ? first : first & (0x3F >> more));
    for (int i = 0; i < more; ++i) {
      const int b = self.byte();
      if (b < 0) return 0;
      if ((b & 0xC0) != 0x80) {
        --self.at_;  // it begins another character
        *to = 0xFFFD;
        break;
      }
      *to = wchar_t((*to << 6) | (b & 0x3F));
    }
    if (*to > 0x10FFFF || (*to >= 0xD800 && *to < 0xE000)) *to = 0xFFFD;
    return 1;
  }

  static unsigned char line_break(EditLine* e, int) { return ::el_insertstr(e, "\n") == 0 ? CC_REFRESH : CC_ERROR; }
  // All of it is one message, however many lines it has.
  static unsigned char paste(EditLine* e, int) {
    constexpr std::string_view kEnd = "\033[201~";
    Editor& self = of(e);
    std::string text;
    while (!text.ends_with(kEnd)) {
      const int b = self.byte();
      if (b < 0) return CC_EOF;
      text += char(b);
    }
    text.resize(text.size() - kEnd.size());
    for (char& c : text)
      if (c == '\r') c = '\n';
    std::erase_if(text, [](char c) { return c != '\n' && c != '\t' && static_cast<unsigned char>(c) < ' '; });
    return text.empty() || ::el_insertstr(e, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  // As much of a name as is certain; of several, a list.
  static unsigned char complete(EditLine* e, int) {
    Editor& self = of(e);
    if (!self.settings_.complete) return CC_ERROR;
    const LineInfo* line = ::el_line(e);
    const std::string before(line->buffer, size_t(line->cursor - line->buffer));
    const Completions c = self.settings_.complete(before);
    if (c.words.empty()) return CC_ERROR;
    std::string common = c.words[0];
    for (const std::string& w : c.words) {
      size_t n = 0;
      while (n < std::min(w.size(), common.size()) && w[n] == common[n]) ++n;
      while (n > 0 && n < common.size() && (common[n] & 0xC0) == 0x80) --n;  // whole characters
      common.resize(n);
    }
    const size_t have = before.size() - std::min(c.begin, before.size());
    std::string rest = common.size() > have ? common.substr(have) : "";
    if (c.words.size() == 1 && before.find(' ') == std::string::npos) rest += ' ';
    if (!rest.empty()) return ::el_insertstr(e, rest.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
    if (c.words.size() == 1) return CC_NORM;
    constexpr size_t kShown = 60;
    std::string list = "\n";
    for (size_t i = 0; i < std::min(c.words.size(), kShown); ++i) list += on_one_line(c.words[i]) + "  ";
    if (c.words.size() > kShown) list += "...";
    std::fputs((list + "\n").c_str(), self.out_);
    std::fflush(self.out_);
    return CC_REDISPLAY;
  }

  LineSettings settings_ = {};
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  FILE *out_ = nullptr, *nowhere_ = nullptr;
  std::string prompt_;
  bool escapes_ = false, interrupted_ = false;
  char buffer_[4096];
  size_t at_ = 0, have_ = 0;
};

#else

class LineInput::Editor {
 public:
  static std::unique_ptr<Editor> open(const LineSettings&) { return nullptr; }
  std::optional<std::string> next(const std::string&) { return std::nullopt; }
};

#endif

LineInput::LineInput(LineSettings settings) : editor_(Editor::open(std::move(settings))) {}
LineInput::~LineInput() = default;

NoEcho::NoEcho() {
  if (::isatty(STDIN_FILENO) != 1 || ::tcgetattr(STDIN_FILENO, &before_) != 0) return;
  termios quiet = before_;
  quiet.c_lflag &= ~tcflag_t(ECHO | ECHONL);
  changed_ = ::tcsetattr(STDIN_FILENO, TCSANOW, &quiet) == 0;
}
NoEcho::~NoEcho() {
  if (changed_) ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

bool LineInput::echoes() const { return ::isatty(STDIN_FILENO) == 1; }

std::optional<std::string> LineInput::next(const std::string& prompt) {
  flush_out();
  if (editor_) return editor_->next(prompt);
  while (true) {
    put_out(prompt);
    flush_out();
    if (out_failed()) return std::nullopt;  // nobody reads
    bool interrupted = false;
    while (held_.find('\n') == std::string::npos) {
      if (!Interrupts::wait_for_input(STDIN_FILENO)) {
        interrupted = true;
        break;
      }
      char buffer[4096];
      const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        if (held_.empty()) return std::nullopt;
        return std::exchange(held_, {});
      }
      held_.append(buffer, size_t(n));
    }
    if (interrupted) {
      held_.clear();
      put_out(kHowToLeave);
      continue;
    }
    const size_t end = held_.find('\n');
    std::string line = held_.substr(0, end);
    held_.erase(0, end + 1);
    return line;
  }
}

}  // namespace facet
