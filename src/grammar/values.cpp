#include "grammar/values.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/counted_text.h"

namespace facet::grammar {
namespace {

constexpr uint32_t kMaxIndent = 20, kMaxDigits = 16;
// Texts of up to so many characters are a chain of them, longer ones are counted in blocks.
constexpr uint32_t kMaxRepeated = 256;
constexpr size_t kMaxCountedStates = 6'000, kMaxStatesInBlocks = 3;
constexpr std::string_view kQuoteText = "<|\"|>";

}  // namespace

bool plain_key(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    const bool word = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || uint8_t(c) >= 0x80;
    if (!word && std::string_view("_-.$@/").find(c) == std::string_view::npos) return false;
  }
  return true;
}

ExprId Values::shared(std::optional<RuleId>& rule, const char* name, ExprId (Values::*make)()) {
  if (!rule) {
    rule = b_.new_rule(name);
    b_.define(*rule, (this->*make)());
  }
  return b_.rule(*rule);
}

ExprId Values::string() { return shared(string_, "string", &Values::make_string); }
ExprId Values::number() { return shared(number_, "number", &Values::make_number); }
ExprId Values::integer() { return shared(integer_, "integer", &Values::make_integer); }
ExprId Values::any() { return shared(any_, "value", &Values::make_any); }
ExprId Values::any_object() { return shared(object_, "object", &Values::make_object); }
ExprId Values::any_array() { return shared(array_, "array", &Values::make_array); }

// --- whitespace

ExprId Values::make_space() {
  const ExprId blank = b_.alt({b_.byte(' ', ' '), b_.byte('\t', '\t')});
  return b_.alt({b_.empty(), b_.byte(' ', ' '), b_.seq({b_.byte('\n', '\n'), b_.repeat(blank, 0, kMaxIndent)})});
}

ExprId Values::space() {
  if (syntax_ == Syntax::kCall) return b_.empty();
  if (!space_) space_ = make_space();
  return *space_;
}

ExprId Values::open(char bracket) { return b_.seq({b_.byte(uint8_t(bracket), uint8_t(bracket)), space()}); }
ExprId Values::close(char bracket) { return b_.seq({space(), b_.byte(uint8_t(bracket), uint8_t(bracket))}); }
ExprId Values::comma() { return open(','); }

// --- strings

// Any character between the quotes of JSON: itself, or one of its escapes.
ExprId Values::json_char() {
  if (json_char_) return *json_char_;
  const auto any_of = [&](std::string_view bytes) {
    std::vector<ExprId> all;
    for (const char c : bytes) all.push_back(b_.byte(uint8_t(c), uint8_t(c)));
    return b_.alt(std::move(all));
  };
  const ExprId hex = any_of("0123456789abcdefABCDEF");
  const ExprId d = any_of("dD"), rest = any_of("0123456789abcefABCEF");
  // \u and four digits but no surrogate, or two surrogates that make a pair.
  const ExprId basic = b_.alt({b_.seq({rest, hex, hex, hex}), b_.seq({d, b_.byte('0', '7'), hex, hex})});
  const ExprId pair = b_.seq({d, any_of("89abAB"), hex, hex, b_.bytes("\\u"), d, any_of("cdefCDEF"), hex, hex});
  const ExprId escape = b_.alt({any_of("\"\\/bfnrt"), b_.seq({b_.byte('u', 'u'), b_.alt({basic, pair})})});
  const CharSet raw = CharSet{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.complement();
  json_char_ = b_.alt({b_.chars(raw), b_.seq({b_.byte('\\', '\\'), escape})});
  return *json_char_;
}

ExprId Values::json_text(const CharSet& set) {
  const CharSet escaped{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<ExprId> all{b_.chars(set.without(escaped))};
  const CharSet special = set.intersect(escaped);
  for (const auto& [lo, hi] : special.ranges())
    for (uint32_t c = lo; c <= hi; ++c) {
      const std::string quoted = dump_json(Json(std::string(1, char(c))));
      all.push_back(b_.bytes(quoted.substr(1, quoted.size() - 2)));
    }
  return b_.alt(std::move(all));
}

ExprId Values::label(const CharSet& on) {
  b_.budget().spend(labels_.size() + on.ranges().size());
  for (const auto& [set, expr] : labels_)
    if (set == on) return expr;
  if (labels_.size() > 64) labels_.clear();
  labels_.emplace_back(on, syntax_ == Syntax::kJson ? json_text(on) : b_.chars(on));
  return labels_.back().second;
}

ExprId Values::dfa_graph(const CharDfa& dfa) {
  std::vector<Arc> arcs;
  std::vector<uint32_t> accept;
  for (uint32_t s = 0; s < dfa.states.size(); ++s) {
    if (dfa.states[s].accepts) accept.push_back(s);
    for (const CharDfa::Edge& e : dfa.states[s].edges) arcs.push_back({s, e.to, label(e.on)});
  }
  return b_.graph(uint32_t(dfa.states.size()), std::move(arcs), std::move(accept));
}

ExprId Values::quoted(ExprId text) {
  const ExprId quote = syntax_ == Syntax::kJson ? b_.byte('"', '"') : b_.token(SpecialToken::kQuote);
  return b_.seq({quote, text, quote});
}

ExprId Values::string(const CharDfa& dfa, uint32_t min, uint32_t max) {
  CompileBudget& budget = b_.budget();
  CharDfa text = dfa;
  if (syntax_ == Syntax::kCall) {
    // The text is what lies before the next quote token, also one that is spelled.
    const Result<CharDfa> unquoted = dfa.intersect(CharDfa::not_containing(kQuoteText), budget, CharDfa::Size::kMayCut);
    if (!unquoted) return b_.none();
    text = *unquoted;
  }
  if (min == 0 && max == kUnbounded) return quoted(dfa_graph(text));
  const uint64_t most = max == kUnbounded ? min : max, product = (most + 1) * text.states.size();
  if (product > kMaxCountedStates && text.states.size() <= kMaxStatesInBlocks) {
    const auto on = [&](const CharSet& set) { return label(set); };
    return quoted(counted_text(b_, text, min, max, on));
  }
  const uint32_t longest = max == kUnbounded ? max : std::min(max, uint32_t(CharDfa::kMaxStates - 2));
  const uint32_t shortest = std::min(min, uint32_t(CharDfa::kMaxStates - 2));
  if (shortest < min) return b_.none();
  const Result<CharDfa> both = text.intersect(CharDfa::length(shortest, longest), budget, CharDfa::Size::kMayCut);
  return both ? quoted(dfa_graph(*both)) : b_.none();
}

ExprId Values::string_of_length(uint32_t min, uint32_t max) {
  const uint32_t most = max == kUnbounded ? min : max;
  if (syntax_ == Syntax::kCall) {
    if (most <= kMaxRepeated) return string(CharDfa::any(), min, max);
    // Blocks remember what the text before them ended in: the less that is, the fewer there are.
    const CharDfa text = CharDfa::not_containing(std::string_view(kQuoteText).substr(0, 3));
    return quoted(counted_text(b_, text, min, max, [&](const CharSet& set) { return label(set); }));
  }
  if (most <= kMaxRepeated) return quoted(b_.repeat(json_char(), min, max));
  return quoted(counted_text(b_, CharDfa::any(), min, max, [&](const CharSet&) { return json_char(); }));
}

ExprId Values::make_string() { return string_of_length(0, kUnbounded); }

// --- numbers: bounded, so that they end and every double can hold them

ExprId Values::make_integer() {
  const ExprId digit = b_.byte('0', '9');
  return b_.seq({b_.optional(b_.byte('-', '-')),
                 b_.alt({b_.byte('0', '0'), b_.seq({b_.byte('1', '9'), b_.repeat(digit, 0, kMaxDigits - 1)})})});
}

ExprId Values::make_number() {
  const ExprId digit = b_.byte('0', '9');
  const ExprId fraction = b_.seq({b_.byte('.', '.'), b_.repeat(digit, 1, kMaxDigits)});
  const ExprId sign = b_.alt({b_.byte('+', '+'), b_.byte('-', '-')});
  const ExprId exponent =
      b_.seq({b_.alt({b_.byte('e', 'e'), b_.byte('E', 'E')}), b_.optional(sign), b_.repeat(digit, 1, 2)});
  return b_.seq({make_integer(), b_.optional(fraction), b_.optional(exponent)});
}

// --- composed values

ExprId Values::make_object() {
  const ExprId member = b_.seq({key(key_chars(syntax_)), any()});
  const ExprId more = b_.repeat(b_.seq({comma(), member}), 0, kUnbounded);
  return b_.seq({open('{'), b_.optional(b_.seq({member, more})), close('}')});
}

ExprId Values::make_array() {
  const ExprId more = b_.repeat(b_.seq({comma(), any()}), 0, kUnbounded);
  return b_.seq({open('['), b_.optional(b_.seq({any(), more})), close(']')});
}

ExprId Values::make_any() {
  return b_.alt({string(), number(), b_.bytes("true"), b_.bytes("false"), b_.bytes("null"), any_object(), any_array()});
}

ExprId Values::key(std::string_view name) {
  if (syntax_ == Syntax::kJson)
    return b_.seq({b_.bytes(dump_json(Json(std::string(name))) + ":"), b_.optional(b_.byte(' ', ' '))});
  if (plain_key(name)) return b_.bytes(std::string(name) + ":");
  return b_.seq({b_.token(SpecialToken::kQuote), b_.bytes(name), b_.token(SpecialToken::kQuote), b_.byte(':', ':')});
}

CharDfa Values::key_chars(Syntax syntax) {
  if (syntax == Syntax::kJson) return CharDfa::any();
  const CharSet chars{{'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  CharDfa out;
  out.states = {{{{chars, 1}}, false}, {{{chars, 1}}, true}};
  return out;
}

ExprId Values::key(const CharDfa& dfa) {
  if (syntax_ == Syntax::kCall) return b_.seq({dfa_graph(dfa), b_.byte(':', ':')});
  return b_.seq({string(dfa), b_.byte(':', ':'), b_.optional(b_.byte(' ', ' '))});
}

Result<ExprId> Values::literal(const Json& value, const std::string& where) {
  if (syntax_ == Syntax::kJson || value.is_number() || value.is_boolean() || value.is_null())
    return b_.bytes(dump_json(value));
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.find(kQuoteText) != std::string::npos)
      return Error{where, fmt::format("a text with {} cannot be an argument", kQuoteText), "leave it out"};
    return b_.seq({b_.token(SpecialToken::kQuote), b_.bytes(text), b_.token(SpecialToken::kQuote)});
  }
  std::vector<ExprId> all{b_.bytes(value.is_array() ? "[" : "{")};
  for (auto it = value.begin(); it != value.end(); ++it) {
    if (it != value.begin()) all.push_back(b_.bytes(","));
    if (value.is_object()) all.push_back(key(it.key()));
    Result<ExprId> item = literal(*it, where);
    if (!item) return item;
    all.push_back(*item);
  }
  all.push_back(b_.bytes(value.is_array() ? "]" : "}"));
  return b_.seq(std::move(all));
}

}  // namespace facet::grammar
