#include "grammar/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tokenizer/utf8.h"

namespace facet::grammar {
namespace {

constexpr size_t kMaxLength = 131'072;
constexpr int kMaxDepth = 100;
constexpr uint32_t kMaxCount = 10'000;

bool is_name(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

class Parser {
 public:
  Parser(Builder& b, std::vector<uint32_t> text) : b_(b), text_(std::move(text)) {}

  Result<RuleId> parse() {
    space(true);
    while (!done()) {
      rule_line();
      space(true);
    }
    if (!error_.empty()) return located(error_at_, error_);
    for (const auto& [name, rule] : rules_)
      if (!rule.defined) return located(rule.used_at, fmt::format("the rule {} is not defined", name));
    const auto root = rules_.find("root");
    if (root == rules_.end())
      return Error{"grammar", "expected a rule named root, found none", "name the first rule root"};
    return root->second.id;
  }

 private:
  struct Named {
    RuleId id;
    bool defined = false;
    size_t used_at = 0;
  };

  Error located(size_t at, const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < text_.size(); ++i)
      if (text_[i] == '\n')
        ++line, column = 1;
      else
        ++column;
    return Error{"grammar", fmt::format("line {}, column {}: {}", line, column, what), ""};
  }
  void fail(std::string what) {
    if (!error_.empty()) return;
    error_ = std::move(what);
    error_at_ = at_;
  }
  bool done() const { return at_ >= text_.size() || !error_.empty(); }
  uint32_t peek() const { return at_ < text_.size() ? text_[at_] : 0; }
  bool take(uint32_t c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void space(bool newlines) {
    while (!done()) {
      const uint32_t c = peek();
      if (c == '#') {
        while (!done() && peek() != '\n' && peek() != '\r') ++at_;
      } else if (c == ' ' || c == '\t' || (newlines && (c == '\n' || c == '\r'))) {
        ++at_;
      } else {
        break;
      }
    }
  }

  std::string name() {
    std::string out;
    while (!done() && is_name(peek())) out += char(text_[at_++]);
    if (out.empty()) fail("expected a name");
    return out;
  }
  Named& named(const std::string& n) {
    const auto it = rules_.find(n);
    if (it != rules_.end()) return it->second;
    return rules_.emplace(n, Named{b_.new_rule(n), false, at_ - n.size()}).first->second;
  }

  void rule_line() {
    const std::string n = name();
    if (!error_.empty()) return;
    space(false);
    if (!(take(':') && take(':') && take('='))) return fail("expected ::=");
    space(true);
    Named& rule = named(n);
    if (rule.defined) return fail(fmt::format("the rule {} is defined twice", n));
    rule.defined = true;
    const ExprId e = alternatives(0);
    b_.define(named(n).id, e);
    if (!done() && peek() != '\n' && peek() != '\r') fail("expected the end of the line");
  }

  ExprId alternatives(int depth) {
    if (depth > kMaxDepth) {
      fail(fmt::format("expected groups nested at most {} deep", kMaxDepth));
      return 0;
    }
    std::vector<ExprId> all;
    do {
      space(true);
      all.push_back(sequence(depth));
    } while (take('|'));
    return b_.alt(std::move(all));
  }

  ExprId sequence(int depth) {
    std::vector<ExprId> all;
    while (!done()) {
      const uint32_t c = peek();
      if (c != '"' && c != '[' && c != '(' && c != '.' && c != '<' && c != '!' && !is_name(c)) break;
      ExprId e = atom(depth);
      space(depth > 0);
      e = repetition(e, depth);
      all.push_back(e);
    }
    return b_.seq(std::move(all));
  }

  ExprId repetition(ExprId e, int depth) {
    int repeats = 0;
    while (!done()) {
      uint32_t min = 0, max = kUnbounded;
      if (take('*')) {
      } else if (take('+')) {
        min = 1;
      } else if (take('?')) {
        max = 1;
      } else if (take('{')) {
        counts(min, max);
      } else {
        break;
      }
      if (++repeats > 4) fail("expected at most 4 repetitions of one thing");
      e = b_.repeat(e, min, max);
      space(depth > 0);
    }
    return e;
  }

  bool number(uint32_t& n) {
    const size_t begin = at_;
    for (n = 0; !done() && peek() >= '0' && peek() <= '9'; ++at_) n = std::min(n * 10 + (peek() - '0'), kMaxCount + 1);
    return at_ > begin;
  }
  void counts(uint32_t& min, uint32_t& max) {
    space(false);
    const bool lower = number(min);
    if (!lower) min = 0;
    space(false);
    bool upper = lower;
    max = min;
    if (take(',')) {
      space(false);
      upper = number(max);
      if (!upper) max = kUnbounded;
      upper |= lower;
      space(false);
    }
    if (!upper || !take('}')) return fail("expected {m}, {m,} or {m,n}");
    if (min > kMaxCount || (max != kUnbounded && max > kMaxCount))
      return fail(fmt::format("expected counts up to {}", kMaxCount));
    if (max < min) fail("expected {m,n} with m <= n");
  }

  ExprId atom(int depth) {
    if (take('"')) return literal();
    if (take('[')) return char_class();
    if (take('.')) return b_.chars(CharSet::all());
    if (take('(')) {
      const ExprId e = alternatives(depth + 1);
      if (error_.empty() && !take(')')) fail("expected )");
      return e;
    }
    if (peek() == '<' || peek() == '!') {
      fail("tokens (<...>) are not supported in a grammar");
      return 0;
    }
    return b_.rule(named(name()).id);
  }

  ExprId literal() {
    std::string text;
    while (!done() && peek() != '"') {
      if (peek() == '\n') break;
      append_utf8(character(), text);
    }
    if (error_.empty() && !take('"')) fail("expected \"");
    return b_.bytes(text);
  }

  ExprId char_class() {
    const bool negated = take('^');
    std::vector<CharSet::Range> ranges;
    while (!done() && peek() != ']') {
      const uint32_t lo = character();
      uint32_t hi = lo;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        hi = character();
        if (hi < lo) fail("expected a range of two characters, the smaller first");
      }
      ranges.emplace_back(lo, hi);
    }
    if (error_.empty() && !take(']')) fail("expected ]");
    const CharSet set = CharSet::of(std::move(ranges));
    return b_.chars(negated ? set.complement() : set);
  }

  uint32_t hex(int digits) {
    uint32_t v = 0;
    for (int i = 0; i < digits; ++i, ++at_) {
      const uint32_t c = peek() | 32;
      const bool digit = peek() >= '0' && peek() <= '9';
      if (done() || (!digit && (c < 'a' || c > 'f'))) {
        fail(fmt::format("expected {} hexadecimal digits", digits));
        return 0;
      }
      v = v * 16 + (digit ? peek() - '0' : c - 'a' + 10);
    }
    if (v > 0x10FFFF || (v >= 0xD800 && v <= 0xDFFF)) {
      fail("expected a code point");
      return 0;
    }
    return v;
  }

  uint32_t character() {
    const uint32_t c = text_[at_++];
    if (c != '\\') return c;
    if (done()) {
      fail("expected something after \\");
      return 0;
    }
    const uint32_t e = text_[at_++];
    switch (e) {
      case 'n':
        return '\n';
      case 't':
        return '\t';
      case 'r':
        return '\r';
      case 'x':
        return hex(2);
      case 'u':
        return hex(4);
      case 'U':
        return hex(8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return e;
      default:
        at_ -= 1;
        fail("expected one of \\n \\t \\r \\x \\u \\U \\\\ \\\" \\[ \\] \\- \\^");
        return 0;
    }
  }

  Builder& b_;
  std::vector<uint32_t> text_;
  size_t at_ = 0, error_at_ = 0;
  std::string error_;
  std::map<std::string, Named> rules_;
};

}  // namespace

Result<RuleId> parse_gbnf(Builder& b, std::string_view text) {
  if (text.size() > kMaxLength)
    return Error{"grammar", fmt::format("expected at most {} bytes, found {}", kMaxLength, text.size()), "shorten it"};
  std::vector<uint32_t> chars;
  if (!decode_utf8(text, chars)) return Error{"grammar", "expected UTF-8", ""};
  return Parser(b, std::move(chars)).parse();
}

}  // namespace facet::grammar
