#include <gtest/gtest.h>

#include <random>

#include "grammar/likely.h"
#include "grammar/tool_calls.h"
#include "grammar_reference.h"
#include "support/grammar_walk.h"
#include "tokenizer/json.h"

// Masks of random grammars over random small vocabularies against tests/unit/grammar_reference.h.
namespace facet::test {
namespace {

// Rules over a, b and a character of two bytes. No rule begins with itself or a rule before it, so that none is
// left-recursive; rules may follow a terminal in any order.
struct RandomGrammar {
  SlowGrammar slow;
  std::string gbnf;
};

RandomGrammar random_grammar(std::mt19937& rng) {
  RandomGrammar g;
  const int n = 1 + int(rng() % 5);
  g.slow.rules.resize(size_t(n));
  const auto name = [](int r) { return r == 0 ? std::string("root") : "r" + std::to_string(r); };
  for (int r = 0; r < n; ++r) {
    g.gbnf += name(r) + " ::= ";
    const int alternatives = 1 + int(rng() % 3);
    for (int a = 0; a < alternatives; ++a) {
      Production p;
      std::string text;
      bool consumed = false;
      const int length = int(rng() % 5);
      for (int s = 0; s < length; ++s) {
        const int kind = int(rng() % 8);
        if (kind == 0) {  // one character in two bytes, "é"
          p.push_back({-1, 0xC3, 0xC3});
          p.push_back({-1, 0xA9, 0xA9});
          text += "\"\xC3\xA9\" ";
          consumed = true;
        } else if (kind < 4 || (!consumed && r == n - 1)) {
          const char c = char('a' + rng() % 2);
          p.push_back({-1, uint8_t(c), uint8_t(c)});
          text += std::string("\"") + c + "\" ";
          consumed = true;
        } else if (kind == 4) {
          p.push_back({-1, 'a', 'b'});
          text += "[ab] ";
          consumed = true;
        } else {
          const int to = consumed ? int(rng() % size_t(n)) : r + 1 + int(rng() % size_t(n - r - 1));
          p.push_back({to, 0, 0});
          text += name(to) + " ";
        }
      }
      if (text.empty()) text = "\"\" ";
      g.slow.rules[size_t(r)].push_back(std::move(p));
      g.gbnf += (a ? "| " : "") + text;
    }
    g.gbnf += "\n";
  }
  return g;
}

SmallVocab random_vocab(std::mt19937& rng) {
  std::vector<std::string> more;
  for (int i = 0; i < 60; ++i) {
    std::string t;
    for (int k = 0, n = 1 + int(rng() % 5); k < n; ++k) {
      constexpr const char* kParts[] = {"a", "b", "\xC3\xA9", "\xC3", "\xA9", "ab", "c"};
      t += kParts[rng() % 7];
    }
    more.push_back(t);
  }
  return small_vocab(std::move(more));
}

// The masks along one random answer; the number of tokens that the reference disagrees on. `bug` spoils the mask as a
// careless implementation would.
using Bug = bool (*)(std::string_view text, bool bit);
int disagreements(const RandomGrammar& g, const SmallVocab& v, GrammarPtr ptr, std::mt19937& rng, Bug bug) {
  GrammarMasks masks(v.vocab);
  GrammarState state(std::move(ptr));
  const SlowMatcher slow(g.slow);
  std::string text;
  int wrong = 0;
  std::vector<uint32_t> mask(v.vocab->mask_words());
  for (int step = 0; step < 4; ++step) {
    masks.mask(state, mask);
    std::vector<int32_t> may;
    for (int32_t t = 0; t < v.vocab->size(); ++t) {
      bool bit = mask[size_t(t) / 32] >> (t % 32) & 1;
      if (bug && !v.vocab->is_eog(t)) bit = bug(v.vocab->text(t), bit);
      const SlowMatcher::Answer want = v.vocab->is_eog(t)         ? SlowMatcher::Answer{slow.ask(text).match, false}
                                       : v.vocab->text(t).empty() ? SlowMatcher::Answer{false, false}
                                                                  : slow.ask(text + std::string(v.vocab->text(t)));
      wrong += bit != want.prefix;
      if (!bug && bit != want.prefix)
        ADD_FAILURE() << "after '" << text << "' token " << t << " '" << v.vocab->text(t) << "': " << bit;
      GrammarState next = state;
      wrong += !bug && next.advance(*v.vocab, t) != want.prefix;
      if (want.prefix && !v.vocab->is_eog(t)) may.push_back(t);
    }
    if (may.empty()) break;
    const int32_t pick = may[rng() % may.size()];
    state.advance(*v.vocab, pick);
    text += v.vocab->text(pick);
  }
  return wrong;
}

int count_disagreements(int grammars, Bug bug, int* compiled = nullptr) {
  std::mt19937 rng(7);
  int wrong = 0;
  for (int i = 0; i < grammars; ++i) {
    const RandomGrammar g = random_grammar(rng);
    const SmallVocab v = random_vocab(rng);
    const Result<GrammarPtr> made = compile_gbnf(g.gbnf);
    EXPECT_EQ(bool(made), g.slow.productive().count(0) > 0) << g.gbnf << (made ? "" : made.error().message());
    if (!made) continue;
    if (compiled) ++*compiled;
    const int here = disagreements(g, v, *made, rng, bug);
    EXPECT_TRUE(bug || here == 0) << g.gbnf;
    wrong += here;
    if (wrong > 20) break;
  }
  return wrong;
}

TEST(GrammarMasks, EqualASlowReference) {
  int compiled = 0;
  EXPECT_EQ(count_disagreements(120, nullptr, &compiled), 0);
  EXPECT_GT(compiled, 60);
}

TEST(GrammarMasks, ReferenceCatchesTokensThatCrossTerminals) {
  EXPECT_GT(count_disagreements(40, [](std::string_view t, bool bit) { return bit && t.size() < 2; }), 20);
}

TEST(GrammarMasks, ReferenceCatchesHalfCharacters) {
  const Bug bug = [](std::string_view t, bool bit) { return bit || (!t.empty() && uint8_t(t.back()) == 0xC3); };
  EXPECT_GT(count_disagreements(40, bug), 20);
}

// Rules whose characters are plain to the masks, which then look at parts of the trie as a whole: without an end of a
// rule in them, with one behind each character, and with a bound on their number.
TEST(GrammarMasks, PlainTextEqualsStepByStep) {
  std::mt19937 rng(11);
  std::vector<std::string> more;
  for (int i = 0; i < 1500; ++i) {
    std::string t;
    for (int k = 0, n = 1 + int(rng() % 7); k < n; ++k) {
      constexpr const char* kParts[] = {"a",
                                        "b",
                                        "Z",
                                        "7",
                                        " ",
                                        "\"",
                                        "\\",
                                        "\n",
                                        "-",
                                        "<",
                                        "\xC3\xA9",
                                        "\xE2\x80\x9C",
                                        "\xE2\x80\xA8",
                                        "\xE3\x81\x82",
                                        "\xF0\x9F\xA4\x97",
                                        "\xC3",
                                        "\x80",
                                        "ab",
                                        "c"};
      t += kParts[rng() % (rng() % 8 ? 16 : 19)];
    }
    more.push_back(t);
  }
  const SmallVocab v = small_vocab(more);
  const std::vector<Result<GrammarPtr>> grammars = {
      compile_gbnf("root ::= \"\\\"\" text \"\\\"\"\ntext ::= [^\"]*\n"),
      compile_gbnf("root ::= text text\ntext ::= [^\"\\\\]*\n"),
      compile_gbnf("root ::= \"<\" text \">\" | text \"-\"\ntext ::= [a-z ]* | [^<>]*\n"),
      compile_gbnf("root ::= \"\\\"\" text \"\\\"\"\ntext ::= [^\"\\\\]{0,5}\n"),
      compile_gbnf("root ::= (text \"\\n\")+\ntext ::= [^\\n]{2,4}\n"),
      compile_gbnf("root ::= text [^a] text\ntext ::= [^\"\\n]{1,3}\n"),
      compile_regex(".*"),
      compile_regex(".{0,6}a"),
      compile_regex("([a-z0-9])*x{5}"),
      compile_json_schema(std::string_view(R"({"type":"string","maxLength":6})")),
      compile_json_schema(
          std::string_view(R"({"type":"array","items":{"type":"string","minLength":1,"maxLength":3}})"))};
  std::vector<uint32_t> mask(v.vocab->mask_words());
  size_t looked = 0, may_come = 0;
  for (size_t g = 0; g < grammars.size(); ++g) {
    ASSERT_TRUE(grammars[g]) << g << grammars[g].error().message();
    GrammarMasks masks(v.vocab);
    for (int run = 0; run < 12; ++run) {
      GrammarState state(*grammars[g]);
      for (int step = 0; step < 8; ++step) {
        masks.mask(state, mask);
        std::vector<int32_t> may;
        for (int32_t t = 0; t < v.vocab->size(); ++t) {
          const bool bit = mask[size_t(t) / 32] >> (t % 32) & 1;
          ASSERT_EQ(bit, GrammarState(state).advance(*v.vocab, t)) << g << " '" << v.vocab->text(t) << "' " << step;
          if (bit && !v.vocab->is_eog(t)) may.push_back(t);
        }
        looked += size_t(v.vocab->size()), may_come += may.size();
        if (may.empty()) break;
        ASSERT_TRUE(state.advance(*v.vocab, may[rng() % may.size()]));
      }
    }
  }
  EXPECT_GT(may_come, looked / 20);
  EXPECT_LT(may_come, looked - looked / 20);
}

TEST(GrammarMasks, AmbiguityDoesNotBlowUp) {
  const auto made = compile_gbnf("root ::= \"a\" root \"b\" | \"a\" root | \"a\" root root | \"a\"\n");
  ASSERT_TRUE(made) << made.error().message();
  GrammarState state(*made);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(state.advance_bytes("a")) << i;
  EXPECT_LT(state.words().size(), 20'000u);
}

TEST(GrammarMasks, RightRecursionNeedsNoStack) {
  const auto made = compile_gbnf("root ::= item root | item\nitem ::= [a-z]+ \"\\n\"\n");
  ASSERT_TRUE(made);
  GrammarState state(*made);
  ASSERT_TRUE(state.advance_bytes("abc\n"));
  const GrammarState early = state;
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(state.advance_bytes("abc\n"));
  EXPECT_TRUE(state == early);
}

TEST(GrammarMasks, ForcedTextAndTokens) {
  const std::vector<std::string> choices = {"positive", "possible"};
  const auto made = compile_choice(choices);
  ASSERT_TRUE(made);
  const SmallVocab v = small_vocab({"po", "tive"});
  GrammarMasks masks(v.vocab);
  GrammarState state(*made);
  EXPECT_EQ(state.forced_text(100), "pos");
  EXPECT_EQ(masks.forced_token(state), -1);  // "p" and "po"
  ASSERT_TRUE(state.advance_bytes("posi"));
  EXPECT_EQ(state.forced_text(100), "tive");
  ASSERT_TRUE(state.advance_bytes("tive"));
  EXPECT_TRUE(state.finished());
  EXPECT_EQ(masks.forced_token(state), v.eog);
  EXPECT_FALSE(GrammarState(state).advance_bytes("x"));
  EXPECT_TRUE(state.advance(*v.vocab, v.eog));
}

// Whitespace is written as it was before.
TEST(GrammarMasks, LikelyTextOfASchema) {
  const auto made = compile_json_schema(
      std::string_view(R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},"age":
      {"type":"integer"}},"required":["name","age"],"additionalProperties":false})"));
  ASSERT_TRUE(made);
  GrammarState state(*made);
  EXPECT_EQ(likely_text(state, "").bytes, R"({"name": ")");
  ASSERT_TRUE(state.advance_bytes(R"({"name":"Ann",)"));
  EXPECT_EQ(likely_text(state, R"({"name":"Ann",)").bytes, R"( "age":)");
  EXPECT_EQ(likely_text(state, "{\"name\":\"Ann\",\n  \"x\": 1,").bytes, "\n  \"age\": ");
  EXPECT_EQ(likely_text(state, "{\"name\":\"Ann\",").sure, 0u);
  ASSERT_TRUE(state.advance_bytes(" "));
  EXPECT_EQ(likely_text(state, R"({"name": "Ann", )").sure, 6u);
}

// All of it may come; up to `sure` nothing else may; nothing follows what is closed. False where that is not so.
bool holds(const GrammarState& state, const LikelyText& text) {
  GrammarState s = state;
  for (size_t i = 0; i <= text.bytes.size(); ++i) {
    for (int b = 0; b < 256; ++b) {
      const char c = char(b);
      const bool may = GrammarState(s).advance_bytes({&c, 1});
      if (may && i < text.sure && c != text.bytes[i]) return false;
      if (may && i == text.bytes.size() && text.closed) return false;
    }
    if (i < text.sure && s.may_end()) return false;
    if (i < text.bytes.size() && !s.advance_bytes({&text.bytes[i], 1})) return false;
  }
  return true;
}
TEST(GrammarMasks, LikelyTextMayComeAndSureTextMust) {
  constexpr const char* kSchemas[] = {
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":5},"kind":{"enum":["red one","red two"]},
          "more":{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3}},"required":["name","kind","more"],
          "additionalProperties":false})",
      R"({"type":"object","properties":{"a":{"const":{"b":[1,null]}},"\u00e9t\u00e9":{"type":"boolean"}}})"};
  const SmallVocab v = small_vocab({"{\"", "\":", "\",", "name", "red ", ", ", "\n  "});
  GrammarMasks masks(v.vocab);
  std::mt19937 rng(7);
  int texts = 0, guesses = 0, caught = 0;
  for (const char* schema : kSchemas)
    for (int run = 0; run < 40; ++run) {
      const auto made = compile_json_schema(std::string_view(schema));
      ASSERT_TRUE(made);
      GrammarState state(*made);
      std::string before;
      std::vector<uint32_t> mask(v.vocab->mask_words());
      for (int step = 0; step < 60 && !state.finished(); ++step) {
        LikelyText text = likely_text(state, before);
        EXPECT_TRUE(holds(state, text)) << before << "|" << text.bytes << "|" << text.sure;
        texts += !text.bytes.empty(), guesses += text.sure < text.bytes.size();
        text.sure = text.bytes.size();  // a planted bug: guesses count as sure
        caught += !holds(state, text);
        masks.mask(state, mask);
        std::vector<int32_t> may = allowed(mask);
        std::erase(may, v.eog);
        const int32_t pick = may[rng() % may.size()];
        before += v.vocab->text(pick);
        ASSERT_TRUE(state.advance(*v.vocab, pick));
      }
    }
  EXPECT_GT(texts, 500);
  EXPECT_GT(guesses, 100);
  EXPECT_EQ(caught, guesses);
}

// Of a lazy grammar everything may come until a call begins, and its calls from there on.
TEST(GrammarMasks, ALazyGrammarSleepsUntilACallBegins) {
  const SmallVocab v = small_vocab({"call:f{}", "call:g{}"});
  GrammarMasks masks(v.vocab);
  ToolGrammarOptions options;
  options.choice = ToolChoice::kLazy;
  const auto made = compile_tool_calls(std::vector<Json>{Json{{"name", "f"}}}, options);
  ASSERT_TRUE(bool(made)) << made.error().message();
  const int32_t open = v.specials[size_t(grammar::SpecialToken::kToolCallOpen)],
                close = v.specials[size_t(grammar::SpecialToken::kToolCallClose)], f = 256, g = 257;
  GrammarState s(*made);
  EXPECT_TRUE(s.asleep() && s.may_end() && !s.finished());
  EXPECT_TRUE(s.advance(*v.vocab, g) && s.advance(*v.vocab, close) && s.asleep());
  EXPECT_EQ(s.accepts(*v.vocab, std::vector<int32_t>{g, 'x', open, f, close, open}), 6u);
  EXPECT_EQ(s.accepts(*v.vocab, std::vector<int32_t>{g, open, g}), 2u);
  EXPECT_TRUE(s.asleep());  // asking moves nothing
  std::vector<uint32_t> mask(v.vocab->mask_words());
  masks.mask(s, mask);
  EXPECT_TRUE(mask[g / 32] >> (g % 32) & 1);
  const GrammarState before = s;
  ASSERT_TRUE(s.advance(*v.vocab, open));
  EXPECT_FALSE(s.asleep() || s.may_end() || s == before);
  masks.mask(s, mask);
  EXPECT_TRUE(mask[f / 32] >> (f % 32) & 1);
  EXPECT_FALSE(mask[g / 32] >> (g % 32) & 1);
  EXPECT_FALSE(s.advance(*v.vocab, g));
  EXPECT_TRUE(s.advance(*v.vocab, f) && s.advance(*v.vocab, close) && s.may_end());
  EXPECT_FALSE(s.advance(*v.vocab, 'x'));  // after a call come calls
  options.parallel = false;
  GrammarState one(*compile_tool_calls(std::vector<Json>{Json{{"name", "f"}}}, options));
  for (const int32_t id : {open, f, close}) ASSERT_TRUE(one.advance(*v.vocab, id));
  EXPECT_TRUE(one.finished());
}

TEST(GrammarMasks, CacheIsBoundedAndEqual) {
  const auto made = compile_json_object();
  ASSERT_TRUE(made);
  const SmallVocab v = small_vocab({"{\"", "\":", "\",\"", "abc", "true", "null", "}}", "]}"});
  GrammarMasks small(v.vocab, 20'000), large(v.vocab);
  std::mt19937 rng(3);
  std::vector<uint32_t> a(v.vocab->mask_words()), b(a);
  for (int run = 0; run < 20; ++run) {
    GrammarState state(*made);
    for (int i = 0; i < 60; ++i) {
      small.mask(state, a);
      large.mask(state, b);
      ASSERT_EQ(a, b);
      const auto may = allowed(a);
      ASSERT_FALSE(may.empty());
      const int32_t t = may[rng() % may.size()];
      if (v.vocab->is_eog(t)) break;
      ASSERT_TRUE(state.advance(*v.vocab, t));
    }
    ASSERT_LE(small.stats().bytes, 20'000u + 4096u);
  }
  EXPECT_GT(large.stats().state_hits, 0u);
}

TEST(GrammarMasks, DepthIsBoundedWithoutDeadEnds) {
  const auto made = compile_json_object();
  ASSERT_TRUE(made);
  const SmallVocab v = small_vocab({"[[[[[[[[", "[[", "]]]]"});
  GrammarMasks masks(v.vocab);
  GrammarState state(*made);
  ASSERT_TRUE(state.advance_bytes("{\"a\":"));
  std::vector<uint32_t> mask(v.vocab->mask_words());
  int depth = 0;
  while (true) {
    masks.mask(state, mask);
    for (int32_t t = 0; t < v.vocab->size(); ++t)
      ASSERT_EQ(bool(mask[size_t(t) / 32] >> (t % 32) & 1), GrammarState(state).advance(*v.vocab, t))
          << depth << ' ' << t;
    if (!state.advance_bytes("[")) break;
    ++depth;
  }
  EXPECT_GT(depth, 60);
  EXPECT_LT(depth, 100);
  for (; depth > 0; --depth) ASSERT_TRUE(state.advance_bytes("]"));
  ASSERT_TRUE(state.advance_bytes("}"));
  EXPECT_TRUE(state.finished());
}

}  // namespace
}  // namespace facet::test
