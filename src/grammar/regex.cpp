#include "grammar/regex.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/char_dfa.h"

namespace facet::grammar {
namespace {

constexpr size_t kMaxLength = 16384;
constexpr int kMaxDepth = 100;
constexpr uint32_t kMaxCount = 10'000;

CharSet digits() { return {{'0', '9'}}; }
CharSet word() { return {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}; }
CharSet space() { return {{'\t', '\r'}, {' ', ' '}}; }
CharSet ascii() { return {{0, 0x7F}}; }

class Parser {
 public:
  explicit Parser(std::vector<uint32_t> text) : text_(std::move(text)) {}

  Result<Regex> parse() {
    Regex r = alternatives(0);
    if (error_.empty() && at_ < text_.size()) fail("an unmatched )");
    if (!error_.empty())
      return Error{"regex", fmt::format("column {}: {}", error_at_ + 1, error_),
                   "use a regular expression without look-behind and back references"};
    return r;
  }

 private:
  bool done() const { return at_ >= text_.size() || !error_.empty(); }
  uint32_t peek() const { return at_ < text_.size() ? text_[at_] : 0; }
  bool take(uint32_t c) {
    if (done() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void fail(std::string what) {
    if (!error_.empty()) return;
    error_ = std::move(what);
    error_at_ = at_;
  }

  Regex alternatives(int depth) {
    if (depth > kMaxDepth) {
      fail(fmt::format("expected groups nested at most {} deep", kMaxDepth));
      return {};
    }
    Regex alt{.kind = Regex::Kind::kAlt};
    do alt.items.push_back(sequence(depth));
    while (take('|'));
    return alt.items.size() == 1 ? std::move(alt.items[0]) : alt;
  }

  Regex sequence(int depth) {
    Regex seq{.kind = Regex::Kind::kSeq};
    while (!done() && peek() != '|' && peek() != ')') seq.items.push_back(repetition(depth));
    return seq;
  }

  Regex repetition(int depth) {
    Regex r = atom(depth);
    int repeats = 0;
    while (!done()) {
      uint32_t min = 0, max = kUnbounded;
      if (take('*')) {
      } else if (take('+')) {
        min = 1;
      } else if (take('?')) {
        max = 1;
      } else if (peek() == '{' && counts(min, max)) {
      } else {
        break;
      }
      if (!error_.empty()) break;
      const bool zero_width = r.kind == Regex::Kind::kBegin || r.kind == Regex::Kind::kEnd ||
                              r.kind == Regex::Kind::kAhead || r.kind == Regex::Kind::kNotAhead;
      if (zero_width || ++repeats > 1) {
        fail("nothing to repeat");
        break;
      }
      take('?');  // lazy: the same texts
      if (peek() == '+' && !done()) fail("possessive repetition is not supported");
      Regex outer{.kind = Regex::Kind::kRepeat, .min = min, .max = max};
      outer.items.push_back(std::move(r));
      r = std::move(outer);
    }
    return r;
  }

  bool number(uint32_t& n) {
    const size_t begin = at_;
    for (n = 0; !done() && peek() >= '0' && peek() <= '9'; ++at_) n = std::min(n * 10 + (peek() - '0'), kMaxCount + 1);
    return at_ > begin;
  }

  // {m}, {m,}, {m,n}; a brace that begins none of these is a character.
  bool counts(uint32_t& min, uint32_t& max) {
    const size_t begin = at_++;
    const bool lower = number(min);
    if (!lower) min = 0;
    bool ok = true;
    if (take(',')) {
      const bool upper = number(max);
      if (!upper) max = kUnbounded;
      ok = lower || upper;
    } else {
      ok = lower;
      max = min;
    }
    if (!ok || !take('}')) {
      at_ = begin;
      return false;
    }
    if (min > kMaxCount || (max != kUnbounded && max > kMaxCount))
      fail(fmt::format("expected counts up to {}", kMaxCount));
    if (max < min) fail("expected {m,n} with m <= n");
    return true;
  }

  static Regex one(CharSet set) { return {.kind = Regex::Kind::kSet, .set = std::move(set)}; }

  Regex atom(int depth) {
    const uint32_t c = text_[at_];
    switch (c) {
      case '(':
        ++at_;
        return group(depth);
      case '[':
        ++at_;
        return one(char_class());
      case '.':
        ++at_;
        return one(CharSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement());
      case '^':
        ++at_;
        return {.kind = Regex::Kind::kBegin};
      case '$':
        ++at_;
        return {.kind = Regex::Kind::kEnd};
      case '*':
      case '+':
      case '?':
        fail("nothing to repeat");
        ++at_;
        return {};
      case '\\': {
        ++at_;
        bool shorthand = false;
        return one(escape(false, shorthand));
      }
      default:
        ++at_;
        return one(CharSet::one(c));
    }
  }

  Regex group(int depth) {
    Regex::Kind look = Regex::Kind::kEmpty;
    if (take('?')) {
      if (take(':')) {
      } else if (take('=')) {
        look = Regex::Kind::kAhead;
      } else if (take('!')) {
        look = Regex::Kind::kNotAhead;
      } else if (take('P') ? take('<')
                           : peek() == '<' && at_ + 1 < text_.size() && text_[at_ + 1] != '=' &&
                                 text_[at_ + 1] != '!' && take('<')) {
        while (!done() && peek() != '>') ++at_;
        if (!take('>')) fail("expected > after the name of a group");
      } else {
        fail("(? with anything but :, =, ! or <name> is not supported");
      }
    }
    Regex r = alternatives(depth + 1);
    if (error_.empty() && !take(')')) fail("expected )");
    if (look == Regex::Kind::kEmpty) return r;
    Regex outer{.kind = look};
    outer.items.push_back(std::move(r));
    return outer;
  }

  uint32_t hex(int digits_wanted) {
    uint32_t v = 0;
    for (int i = 0; i < digits_wanted; ++i, ++at_) {
      const uint32_t c = peek();
      const int d = c >= '0' && c <= '9'   ? int(c - '0')
                    : c >= 'a' && c <= 'f' ? int(c - 'a' + 10)
                    : c >= 'A' && c <= 'F' ? int(c - 'A' + 10)
                                           : -1;
      if (done() || d < 0) {
        fail("expected a hexadecimal digit");
        return 0;
      }
      v = v * 16 + uint32_t(d);
    }
    return v;
  }

  uint32_t unicode_escape() {
    if (take('{')) {
      uint32_t v = 0;
      while (!done() && peek() != '}' && v <= 0x10FFFF) v = v * 16 + hex(1);
      if (!take('}') || v > 0x10FFFF) fail("expected \\u{...} with a code point");
      return v;
    }
    uint32_t v = hex(4);
    if (v >= 0xD800 && v < 0xDC00 && take('\\') && take('u')) v = 0x10000 + ((v - 0xD800) << 10) + (hex(4) - 0xDC00);
    if (error_.empty() && ((v >= 0xD800 && v <= 0xDFFF) || v > 0x10FFFF))
      fail("expected a code point, found a surrogate");
    return v;
  }

  // After a backslash.
  CharSet escape(bool in_class, bool& shorthand) {
    if (done()) {
      fail("expected something after \\");
      return {};
    }
    const uint32_t c = text_[at_++];
    shorthand = c == 'd' || c == 'D' || c == 'w' || c == 'W' || c == 's' || c == 'S';
    switch (c) {
      case 'd':
        return digits();
      case 'w':
        return word();
      case 's':
        return space();
      case 'D':
        return ascii().without(digits());
      case 'W':
        return ascii().without(word());
      case 'S':
        return ascii().without(space());
      case 'n':
        return CharSet::one('\n');
      case 't':
        return CharSet::one('\t');
      case 'r':
        return CharSet::one('\r');
      case 'f':
        return CharSet::one('\f');
      case 'v':
        return CharSet::one('\v');
      case 'x':
        return CharSet::one(hex(2));
      case 'u':
        return CharSet::one(unicode_escape());
      case '0':
        if (!done() && peek() >= '0' && peek() <= '9') fail("octal escapes are not supported");
        return CharSet::one(0);
      case 'b':
        if (in_class) return CharSet::one('\b');
        break;
      default:
        break;
    }
    if (c < 0x80 && (word().contains(c) && c != '_')) {
      --at_;
      fail(fmt::format("\\{} is not supported", char(c)));
    }
    return CharSet::one(c);
  }

  CharSet char_class() {
    const bool negated = take('^');
    std::vector<CharSet::Range> ranges;
    bool any_shorthand = false;
    for (bool first = true; !done() && (peek() != ']' || first); first = false) {
      if (first && peek() == ']') {
        fail("an empty class is not supported");
        break;
      }
      bool shorthand = false;
      CharSet from = item(shorthand);
      any_shorthand |= shorthand;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']' && !done()) {
        ++at_;
        bool other = false;
        const CharSet to = item(other);
        if (!error_.empty()) break;
        if (shorthand || other || from.empty() || to.empty() || from.ranges()[0].first > to.ranges()[0].first) {
          fail("expected a range of two characters, the smaller first");
          break;
        }
        ranges.emplace_back(from.ranges()[0].first, to.ranges()[0].first);
      } else {
        ranges.insert(ranges.end(), from.ranges().begin(), from.ranges().end());
      }
    }
    if (error_.empty() && !take(']')) fail("expected ]");
    CharSet set = CharSet::of(std::move(ranges));
    if (!negated) return set;
    return any_shorthand ? ascii().without(set) : set.complement();
  }

  CharSet item(bool& shorthand) {
    if (peek() == '[' && at_ + 1 < text_.size() && text_[at_ + 1] == ':') fail("[:name:] is not supported");
    if (take('\\')) return escape(true, shorthand);
    if (done()) {
      fail("expected ]");
      return {};
    }
    return CharSet::one(text_[at_++]);
  }

  std::vector<uint32_t> text_;
  size_t at_ = 0, error_at_ = 0;
  std::string error_;
};

// Holds ^, $ or lookahead.
bool looks(const Regex& r) {
  return r.kind == Regex::Kind::kBegin || r.kind == Regex::Kind::kEnd || r.kind == Regex::Kind::kAhead ||
         r.kind == Regex::Kind::kNotAhead || std::any_of(r.items.begin(), r.items.end(), looks);
}

// Takes ^ and $ from the ends, where they say nothing about a whole text. False if any are left, or lookahead.
bool take_anchors(Regex& r) {
  if (r.kind == Regex::Kind::kAlt) return std::all_of(r.items.begin(), r.items.end(), take_anchors);
  if (r.kind == Regex::Kind::kBegin || r.kind == Regex::Kind::kEnd) r = {};
  if (r.kind != Regex::Kind::kSeq) return !looks(r);
  auto& items = r.items;
  while (!items.empty() && items.back().kind == Regex::Kind::kEnd) items.pop_back();
  const auto first =
      std::find_if(items.begin(), items.end(), [](const Regex& i) { return i.kind != Regex::Kind::kBegin; });
  items.erase(items.begin(), first);
  // A group that is all there is may hold the anchors.
  if (items.size() == 1 && (items[0].kind == Regex::Kind::kAlt || items[0].kind == Regex::Kind::kSeq))
    return take_anchors(items[0]);
  return !looks(r);
}

ExprId plain_expr(Builder& b, const Regex& r) {
  std::vector<ExprId> items;
  switch (r.kind) {
    case Regex::Kind::kSet:
      return b.chars(r.set);
    case Regex::Kind::kSeq:
    case Regex::Kind::kAlt:
      for (const Regex& item : r.items) items.push_back(plain_expr(b, item));
      return r.kind == Regex::Kind::kSeq ? b.seq(std::move(items)) : b.alt(std::move(items));
    case Regex::Kind::kRepeat:
      return b.repeat(plain_expr(b, r.items[0]), r.min, r.max);
    default:
      return b.empty();
  }
}

}  // namespace

Result<Regex> parse_regex(std::string_view text) {
  if (text.size() > kMaxLength)
    return Error{"regex", fmt::format("expected at most {} bytes, found {}", kMaxLength, text.size()), "shorten it"};
  std::vector<uint32_t> chars;
  if (!decode_utf8(text, chars)) return Error{"regex", "expected UTF-8", ""};
  return Parser(std::move(chars)).parse();
}

Result<ExprId> regex_expr(Builder& b, const Regex& r) {
  Regex plain = r;
  if (take_anchors(plain)) return plain_expr(b, plain);
  const Result<CharDfa> dfa = CharDfa::regex(r, RegexMatch::kWhole, b.budget());
  if (!dfa) return dfa.error();
  std::vector<Arc> arcs;
  std::vector<uint32_t> accept;
  for (uint32_t s = 0; s < dfa->states.size(); ++s) {
    if (dfa->states[s].accepts) accept.push_back(s);
    for (const CharDfa::Edge& e : dfa->states[s].edges) arcs.push_back({s, e.to, b.chars(e.on)});
  }
  return b.graph(uint32_t(dfa->states.size()), std::move(arcs), std::move(accept));
}

}  // namespace facet::grammar
