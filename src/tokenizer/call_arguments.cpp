#include "tokenizer/call_arguments.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "tokenizer/json.h"
#include "tokenizer/utf8.h"

namespace facet {
namespace {

constexpr std::string_view kQuote = "<|\"|>", kSpace = " \t\r\n";
constexpr size_t kMaxDepth = 100, kMaxKey = 256;

bool is_space(char c) { return kSpace.find(c) != std::string_view::npos; }
bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }
std::string_view skip_space(std::string_view s) {
  s.remove_prefix(std::min(s.find_first_not_of(kSpace), s.size()));
  return s;
}
std::string_view without_end_space(std::string_view s) { return s.substr(0, s.find_last_not_of(kSpace) + 1); }

std::string json_string(std::string_view s) { return dump_json(Json(std::string(s))); }
// Of a string that was cut: the quote that ends it is missing.
std::string begun_string(std::string_view s) {
  for (size_t back = 1; back <= 3 && back <= s.size(); ++back) {  // a code point that was cut
    const auto lead = uint8_t(s[s.size() - back]);
    if ((lead & 0xC0) == 0x80) continue;
    if (lead >= 0x80 && size_t(utf8_pattern_length(lead)) > back) s.remove_suffix(back);
    break;
  }
  std::string json = json_string(s);
  json.pop_back();
  return json;
}

std::optional<uint32_t> hex4(std::string_view s) {
  if (s.size() < 4) return std::nullopt;
  uint32_t v = 0;
  for (const char c : s.substr(0, 4)) {
    const int d = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                  : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                         : -1;
    if (d < 0) return std::nullopt;
    v = v * 16 + uint32_t(d);
  }
  return v;
}

// An escape of a JSON string, from its backslash on: how long it is. 0: the text ends within it.
size_t read_escape(std::string_view s, std::string& out) {
  if (s.size() < 2) return 0;
  constexpr std::string_view kFrom = "\"\\/bfnrt'", kTo = "\"\\/\b\f\n\r\t'";
  if (const size_t at = kFrom.find(s[1]); at != std::string_view::npos) {
    out += kTo[at];
    return 2;
  }
  if (s[1] == 'u') {
    const std::string_view digits = s.substr(2);
    if (digits.size() < 4 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos) return 0;
    if (auto c = hex4(digits)) {
      size_t n = 6;
      if (*c >= 0xD800 && *c < 0xDC00) {
        const std::string_view second = s.substr(6);
        if (second.size() < 6 && std::string_view("\\u").starts_with(second.substr(0, 2))) return 0;
        if (const auto low = second.starts_with("\\u") ? hex4(second.substr(2)) : std::nullopt;
            low && *low >= 0xDC00 && *low < 0xE000) {
          c = 0x10000 + ((*c - 0xD800) << 10) + (*low - 0xDC00);
          n = 12;
        }
      }
      if (*c >= 0xD800 && *c < 0xE000) c = 0xFFFD;  // half of a pair
      append_utf8(*c, out);
      return n;
    }
  }
  out += '\\';  // of a path or a pattern: it was not escaped
  return 1;
}

// Whether a key and what follows it stand there: a comma before it ends a value, and is no part of it.
bool begins_key(std::string_view s) {
  s = skip_space(s);
  if (s.empty()) return true;  // a comma too many
  if (s[0] == '}' || s[0] == ')') return true;
  if (s.starts_with(kQuote) && s.substr(kQuote.size(), kMaxKey).find(kQuote) != std::string_view::npos) {
    s.remove_prefix(s.find(kQuote, kQuote.size()) + kQuote.size());  // a name may hold any other quotes
  } else if (s.starts_with(kQuote) || s[0] == '"' || s[0] == '\'') {
    s.remove_prefix(s.starts_with(kQuote) ? kQuote.size() : 1);
    const size_t end = s.substr(0, kMaxKey).find_first_of("\"'<");
    if (end == std::string_view::npos) return false;
    s.remove_prefix(end);
    s.remove_prefix(s.starts_with(kQuote) ? kQuote.size() : 1);
  } else {
    size_t n = 0;
    while (n < s.size() && n < kMaxKey &&
           (is_word(s[n]) || uint8_t(s[n]) >= 0x80 || std::string_view("-.$@/").find(s[n]) != std::string_view::npos))
      ++n;
    if (n == 0) return false;
    s.remove_prefix(n);
  }
  s = skip_space(s);
  return s.starts_with(':') || s.starts_with('=');
}

// A call's arguments, from their opening bracket on.
class ArgumentReader {
 public:
  ArgumentReader(std::string_view text, QuoteRules rules) : rest_(text), rules_(rules) {}

  CallText read() {
    open(rest_[0]);
    while (!levels_.empty()) {
      space();
      if (rest_.empty()) return ends();
      const auto step = levels_.back().kind == '[' ? item() : pair();
      if (step) return *step;
    }
    // Closers too many close nothing.
    while (!(rest_ = skip_space(rest_)).empty() && std::string_view("})];").find(rest_[0]) != std::string_view::npos)
      rest_.remove_prefix(1);
    return rest_.empty() ? CallText::kWhole : CallText::kMalformed;
  }
  std::string take_json() { return std::move(out_); }
  std::string take_beginning() { return std::move(beginning_); }

 private:
  enum class Next { kFirst, kItem, kComma };
  struct Level {
    char kind;  // '{', '[' or '('
    Next next = Next::kFirst;
    bool filled = false;
  };
  using Step = std::optional<CallText>;  // nothing: go on

  void space() { rest_ = skip_space(rest_); }
  bool take(std::string_view s) {
    if (!rest_.starts_with(s)) return false;
    rest_.remove_prefix(s.size());
    return true;
  }
  void open(char kind) {
    rest_.remove_prefix(1);
    if (kind == '(' && skip_space(rest_).starts_with('{')) {  // NAME({...})
      space();
      rest_.remove_prefix(1);
      kind = '{';
    }
    levels_.push_back({kind});
    out_ += kind == '[' ? '[' : '{';
  }
  void close() {
    out_ += levels_.back().kind == '[' ? ']' : '}';
    levels_.pop_back();
    rest_.remove_prefix(1);
    if (!levels_.empty()) levels_.back().next = Next::kComma;
  }
  // The text ends between values.
  CallText ends() {
    beginning_ = out_;
    return close_all(), CallText::kEnds;
  }
  void close_all() {
    while (!levels_.empty()) {
      out_ += levels_.back().kind == '[' ? ']' : '}';
      levels_.pop_back();
    }
  }
  CallText unfinished() {
    beginning_ = out_;
    return CallText::kUnfinished;
  }
  CallText in_string() {
    beginning_ = out_;
    return close_all(), CallText::kInString;
  }
  void add(std::string_view json) {
    out_ += json;
    levels_.back().next = Next::kComma;
  }
  void separate() {
    if (std::exchange(levels_.back().filled, true)) out_ += ',';
  }

  // What comes next in an array; in an object. A comma, a closer, or an item.
  Step item() {
    if (rest_[0] == ']') return close(), Step();
    if (levels_.back().next == Next::kComma) return comma();
    return value("");
  }
  Step pair() {
    if (rest_[0] == '}' || (rest_[0] == ')' && levels_.back().kind == '(')) return close(), Step();
    if (levels_.back().next == Next::kComma) return comma();
    std::string key;
    if (const Step s = read_key(key)) return s;
    space();
    if (!take(":") && !take("=")) return rest_.empty() ? unfinished() : CallText::kMalformed;
    space();
    if (rest_.empty()) return unfinished();
    return value(json_string(key) + ':');
  }
  Step comma() {
    if (!take(",") && (levels_.back().kind == '[' || !begins_key(rest_))) return CallText::kMalformed;
    levels_.back().next = Next::kItem;
    return Step();
  }

  Step read_key(std::string& key) {
    if (rest_.starts_with(kQuote) || rest_[0] == '"' || rest_[0] == '\'') {
      const bool token = rest_.starts_with(kQuote);
      if (!(token ? token_string(key) : quoted_string(key, /*is_key=*/true))) return in_string();
      return Step();
    }
    const size_t end = rest_.find_first_of(":}");
    const size_t equals = rest_.find('=');
    size_t n = std::min(end, rest_.size());
    if (equals < n &&
        std::all_of(rest_.begin(), rest_.begin() + ptrdiff_t(equals), [](char c) { return is_word(c) || is_space(c); }))
      n = equals;
    else if (end == std::string_view::npos)
      return unfinished();
    key = without_end_space(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return key.empty() ? Step(CallText::kMalformed) : Step();
  }

  // before: its key.
  Step value(const std::string& before) {
    const char c = rest_[0];
    if (c == '{' || c == '[') {
      if (levels_.size() > kMaxDepth) return CallText::kMalformed;
      separate();
      out_ += before;
      open(c);
      return Step();
    }
    const bool token = rest_.starts_with(kQuote);
    if (token || c == '"' || (c == '\'' && is_single_quoted())) {
      separate();
      out_ += before;
      std::string s;
      if (token ? token_string(s) : quoted_string(s, /*is_key=*/false)) return add(json_string(s)), Step();
      out_ += begun_string(s);
      beginning_ = out_;
      out_ += '"';
      return close_all(), CallText::kInString;
    }
    return bare_value(before);
  }

  // Between quote tokens everything stands for itself. Where the second is missing, a JSON quote may be in its place.
  bool token_string(std::string& out) {
    rest_.remove_prefix(kQuote.size());
    size_t end = rest_.find(kQuote), after = kQuote.size();
    if (end == std::string_view::npos && rules_ == QuoteRules::kMend) {
      for (end = rest_.find('"'); end != std::string_view::npos && !ends_string(rest_.substr(end + 1), false);)
        end = rest_.find('"', end + 1);
      after = 1;
    }
    out = rest_.substr(0, end);
    if (end == std::string_view::npos) {  // a quote token that was cut is no part of the string
      for (size_t n = std::min(kQuote.size() - 1, out.size()); n > 0; --n)
        if (out.ends_with(kQuote.substr(0, n))) {
          out.resize(out.size() - n);
          break;
        }
      rest_ = {};
      return false;
    }
    rest_.remove_prefix(end + after);
    return true;
  }

  // What stands behind a quote that ends a string. Models forget to escape those within.
  bool ends_string(std::string_view after, bool is_key) const {
    after = skip_space(after);
    if (after.empty()) return true;
    if (is_key) return after[0] == ':' || after[0] == '=';
    if (after[0] != ',') return std::string_view("})]").find(after[0]) != std::string_view::npos;
    return levels_.back().kind == '[' || begins_key(after.substr(1));
  }

  // In JSON quotes or single ones. The quote token ends it, too.
  bool quoted_string(std::string& out, bool is_key) {
    const char quote = rest_[0];
    rest_.remove_prefix(1);
    while (!rest_.empty()) {
      const size_t n = std::min(rest_.find_first_of(quote == '"' ? "\"\\<" : "'\\<"), rest_.size());
      out += rest_.substr(0, n);
      rest_.remove_prefix(n);
      if (rest_.empty()) return false;
      if (take(kQuote)) return true;
      if (rest_[0] == '\\') {
        const size_t escape = read_escape(rest_, out);
        if (escape == 0) return rest_ = {}, false;
        rest_.remove_prefix(escape);
      } else if (rest_[0] == quote && ends_string(rest_.substr(1), is_key)) {
        rest_.remove_prefix(1);
        return true;
      } else {
        out += rest_[0];
        rest_.remove_prefix(1);
      }
    }
    return false;
  }
  bool is_single_quoted() {  // and no word with an apostrophe
    if (looks_ == 0) return false;
    for (size_t at = rest_.find('\'', 1); at != std::string_view::npos; at = rest_.find('\'', at + 1))
      if (ends_string(rest_.substr(at + 1), false)) return true;
    --looks_;  // each goes to the end of the text
    return false;
  }

  // A number, a word of JSON, or a text without quotes: up to what ends the value.
  Step bare_value(const std::string& before) {
    const char kind = levels_.back().kind;
    const std::string_view stops = kind == '[' ? std::string_view("[]{},") : kind == '{' ? "{}," : "{}(),";
    int depth = 0;
    size_t n = rest_.find_first_of(stops);
    for (; n != std::string_view::npos; n = rest_.find_first_of(stops, n + 1)) {
      const char c = rest_[n];
      if (c == ',') {
        if (depth == 0 && (kind == '[' || begins_key(rest_.substr(n + 1)))) break;
      } else if (c == '{' || c == '[' || c == '(') {
        ++depth;
      } else if (depth-- == 0) {
        break;
      }
    }
    const bool cut = n == std::string_view::npos;
    const std::string_view text = without_end_space(rest_.substr(0, n));
    if (text.empty() && kind == '[') return CallText::kMalformed;
    if (cut) beginning_ = out_;
    separate();
    out_ += before;
    add(bare_json(text));
    rest_.remove_prefix(cut ? rest_.size() : n);
    if (!cut) return Step();
    return close_all(), CallText::kEnds;
  }
  // A number is copied as it stands. One that no double holds (1e999) is text: whoever reads the JSON would refuse it.
  static std::string bare_json(std::string_view text) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kWords = {{{"true", "true"},
                                                                                      {"false", "false"},
                                                                                      {"null", "null"},
                                                                                      {"True", "true"},
                                                                                      {"False", "false"},
                                                                                      {"None", "null"}}};
    for (const auto& [word, json] : kWords)
      if (text == word) return std::string(json);
    if (text.find_first_not_of("0123456789+-.eE") == std::string_view::npos && Json::accept(text)) {
      std::string number(text);
      std::replace(number.begin(), number.end(), 'E', 'e');
      return number;
    }
    std::string s(text);
    for (size_t at = s.find(kQuote); at != std::string::npos; at = s.find(kQuote, at + 1))
      s.replace(at, kQuote.size(), "\"");
    return json_string(s);
  }

  std::string_view rest_;
  QuoteRules rules_;
  std::string out_, beginning_;
  std::vector<Level> levels_;
  int looks_ = 64;
};

}  // namespace

CallArguments read_call_arguments(std::string_view text, QuoteRules rules) {
  ArgumentReader reader(text, rules);
  CallArguments a{.kind = reader.read()};
  if (a.kind == CallText::kMalformed) return a;
  a.json = reader.take_json();
  a.beginning = a.kind == CallText::kWhole ? a.json : reader.take_beginning();
  return a;
}

}  // namespace facet
