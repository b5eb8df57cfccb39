#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "grammar/automaton.h"
#include "grammar/char_dfa.h"
#include "grammar/grammar.h"
#include "tokenizer/json.h"

// Expressions with anchors and lookahead against a matcher that goes back, and texts whose length is counted.
namespace facet::test {
namespace {

using grammar::CharDfa;
using grammar::CompileBudget;
using grammar::Regex;
using grammar::RegexMatch;

bool whole(const GrammarPtr& g, std::string_view text) {
  GrammarState s(g);
  return s.advance_bytes(text) && s.may_end();
}

size_t steps = 0;  // of the matcher, which going back may take for ever
constexpr size_t kMaxSteps = 2'000;

// Whether r matches from a place so that what follows it holds. Slow, and nothing like an automaton.
bool match(const Regex& r, std::string_view text, size_t at, const std::function<bool(size_t)>& then, bool looks) {
  if (++steps > kMaxSteps) return false;
  switch (r.kind) {
    case Regex::Kind::kEmpty:
      return then(at);
    case Regex::Kind::kSet:
      return at < text.size() && r.set.contains(uint8_t(text[at])) && then(at + 1);
    case Regex::Kind::kSeq: {
      const std::function<bool(size_t, size_t)> from = [&](size_t i, size_t place) {
        if (i == r.items.size()) return then(place);
        return match(
            r.items[i], text, place, [&](size_t next) { return from(i + 1, next); }, looks);
      };
      return from(0, at);
    }
    case Regex::Kind::kAlt:
      return std::any_of(r.items.begin(), r.items.end(),
                         [&](const Regex& i) { return match(i, text, at, then, looks); });
    case Regex::Kind::kRepeat: {
      const std::function<bool(uint32_t, size_t)> go = [&](uint32_t n, size_t place) {
        if (n >= r.min && then(place)) return true;
        if (n >= r.max || n > text.size() + r.min) return false;
        return match(
            r.items[0], text, place, [&](size_t next) { return go(n + 1, next); }, looks);
      };
      return go(0, at);
    }
    case Regex::Kind::kBegin:
      return at == 0 && then(at);
    case Regex::Kind::kEnd:
      return at == text.size() && then(at);
    case Regex::Kind::kAhead:
    case Regex::Kind::kNotAhead: {
      const bool found = match(
          r.items[0], text, at, [](size_t) { return true; }, looks);
      return (!looks || found == (r.kind == Regex::Kind::kAhead)) && then(at);
    }
  }
  return false;
}

bool matches(const Regex& r, std::string_view text, RegexMatch how, bool looks = true) {
  const size_t last = how == RegexMatch::kSearch ? text.size() : 0;
  for (size_t at = 0; at <= last; ++at)
    if (match(
            r, text, at, [&](size_t end) { return how == RegexMatch::kSearch || end == text.size(); }, looks))
      return true;
  return false;
}

std::string random_regex(std::mt19937& rng, int depth) {
  const auto pick = [&](uint32_t n) { return rng() % n; };
  if (depth == 0) return std::vector<std::string>{"a", "b", "c", ".", "[ab]", "[^a]", ""}[pick(7)];
  std::string out;
  switch (pick(9)) {
    case 0:
      return random_regex(rng, depth - 1) + "|" + random_regex(rng, depth - 1);
    case 1:
    case 2:
      return "(" + random_regex(rng, depth - 1) + ")" +
             std::vector<std::string>{"*", "+", "?", "{2}", "{1,2}"}[pick(5)];
    case 3:
      return "(?=" + random_regex(rng, depth - 1) + ")" + random_regex(rng, depth - 1);
    case 4:
      return "(?!" + random_regex(rng, depth - 1) + ")" + random_regex(rng, depth - 1);
    case 5:
      return "^" + random_regex(rng, depth - 1);
    case 6:
      return random_regex(rng, depth - 1) + "$";
    default:
      return "(?:" + random_regex(rng, depth - 1) + ")" + random_regex(rng, depth - 1);
  }
}

// How many of random expressions differ from the matcher on some text of up to five characters.
size_t differing(bool looks) {
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i)
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  std::mt19937 rng(11);
  size_t differ = 0, made = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_regex(rng, 1 + int(rng() % 4));
    const auto regex = grammar::parse_regex(text);
    if (!regex) continue;
    const RegexMatch how = rng() % 2 ? RegexMatch::kSearch : RegexMatch::kWhole;
    CompileBudget budget;
    const auto dfa = CharDfa::regex(*regex, how, budget);
    if (!dfa) continue;
    ++made;
    for (size_t k = i % 7; k < texts.size(); k += 7) {
      steps = 0;
      const bool expected = matches(*regex, texts[k], how, looks);
      if (steps > kMaxSteps || dfa->accepts(texts[k], budget) == expected) continue;
      ++differ;
      if (looks)
        ADD_FAILURE() << "\"" << text << "\" on \"" << texts[k] << "\", search " << (how == RegexMatch::kSearch);
      break;
    }
  }
  EXPECT_GT(made, 2000u);
  return differ;
}

TEST(GrammarRegex, AnchorsAndLookaheadEqualAMatcherThatGoesBack) { EXPECT_EQ(differing(true), 0u); }
TEST(GrammarRegex, TheMatcherSeesLookaheadThatIsLeftOut) { EXPECT_GT(differing(false), 100u); }

TEST(GrammarRegex, LookaheadPeopleHave) {
  struct Case {
    const char* regex;
    std::vector<const char*> yes, no;
  };
  const Case cases[] = {
      // zod's e-mail.
      {"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$",
       {"a@b.co", "first.last+x@sub.example.org"},
       {".a@b.co", "a..b@c.de", "a@b", "a.@b.co"}},
      // pydantic's Decimal.
      {"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$", {"1", "-0.5", "+.5", "12."}, {"", "-", ".", "+.", "1.2.3"}},
      // zod's host name and duration.
      {"^(?=.{1,12}\\.?$)[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\\.[a-z0-9]+)*\\.?$",
       {"a", "example.org", "example.org."},
       {"", "much-too-long.example.org", "-a"}},
      {"^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$",
       {"P3W", "P1Y2D", "PT5M", "P1DT2H3.5S"},
       {"P", "PT", "P1DT", "P1W2D"}},
      {"^(?=.*[A-Z])(?=.*\\d)[A-Za-z\\d]{4,}$", {"Abc1", "1ABC"}, {"abcd", "ABCD", "A1b"}},
  };
  for (const Case& c : cases) {
    const auto expr = compile_regex(c.regex);
    ASSERT_TRUE(expr) << c.regex << ": " << expr.error().message();
    const auto schema = compile_json_schema(Json{{"type", "string"}, {"pattern", c.regex}});
    ASSERT_TRUE(schema) << c.regex << ": " << schema.error().message();
    for (const char* t : c.yes)
      EXPECT_TRUE(whole(*expr, t) && whole(*schema, dump_json(Json(t)))) << c.regex << ": " << t;
    for (const char* t : c.no)
      EXPECT_FALSE(whole(*expr, t) || whole(*schema, dump_json(Json(t)))) << c.regex << ": " << t;
  }
}

// Texts of many lengths are taken where min <= length <= max and nowhere else.
size_t wrong_lengths(const Json& schema, uint32_t min, uint32_t max) {
  const auto made = compile_json_schema(schema);
  EXPECT_TRUE(made) << dump_json(schema) << ": " << (made ? "" : made.error().message());
  if (!made) return 1;
  size_t wrong = 0;
  GrammarState state(*made);
  EXPECT_TRUE(state.advance_bytes("\""));
  for (uint32_t n = 0; n <= max + 3; ++n) {
    GrammarState end = state;
    const bool taken = end.advance_bytes("\"") && end.may_end();
    wrong += taken != (n >= min && n <= max);
    // Characters of one to four bytes, and one that is escaped.
    const char* const chars[] = {"a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\\n"};
    const bool more = state.advance_bytes(schema.contains("pattern") ? "z" : chars[n % 5]);
    wrong += more != (n < max);
    if (!more) break;
  }
  return wrong;
}

TEST(GrammarSchema, LengthsAreCountedExactly) {
  for (const auto& [min, max] : std::vector<std::pair<uint32_t, uint32_t>>{{0, 255},
                                                                           {0, 256},
                                                                           {0, 257},
                                                                           {0, 319},
                                                                           {0, 320},
                                                                           {0, 383},
                                                                           {1, 1000},
                                                                           {257, 257},
                                                                           {300, 1000},
                                                                           {640, 700},
                                                                           {1000, 4001},
                                                                           {4000, 4000},
                                                                           {0, 10'000},
                                                                           {12'345, 12'346}}) {
    EXPECT_EQ(wrong_lengths({{"type", "string"}, {"minLength", min}, {"maxLength", max}}, min, max), 0u)
        << min << " " << max;
    EXPECT_EQ(
        wrong_lengths({{"type", "string"}, {"pattern", "^[a-z]*$"}, {"minLength", min}, {"maxLength", max}}, min, max),
        0u)
        << "pattern " << min << " " << max;
  }
  EXPECT_EQ(wrong_lengths({{"type", "string"}, {"maxLength", 100'000u}}, 0, 100'000), 0u);
  // Planted: a count that is one off.
  EXPECT_GT(wrong_lengths({{"type", "string"}, {"maxLength", 1001u}}, 0, 1000), 0u);
  EXPECT_GT(wrong_lengths({{"type", "string"}, {"minLength", 999u}, {"maxLength", 2000u}}, 1000, 2000), 0u);
}

TEST(GrammarSchema, LongLengthsCostLittle) {
  const auto made = compile_json_schema(Json{{"type", "string"}, {"minLength", 50'000u}, {"maxLength", 100'000u}});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_LT((*made)->automaton().nodes.size(), 20'000u);
  const auto least = compile_json_schema(Json{{"type", "string"}, {"minLength", 1000u}});
  ASSERT_TRUE(least) << least.error().message();
  EXPECT_FALSE(whole(*least, "\"" + std::string(999, 'a') + "\""));
  EXPECT_TRUE(whole(*least, "\"" + std::string(1000, 'a') + "\""));
  EXPECT_TRUE(whole(*least, "\"" + std::string(3000, 'a') + "\""));
}

}  // namespace
}  // namespace facet::test
