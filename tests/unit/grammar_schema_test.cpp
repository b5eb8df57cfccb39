#include <fmt/format.h>
#include <gtest/gtest.h>

#include "grammar/char_dfa.h"
#include "grammar/grammar.h"
#include "grammar/tool_calls.h"
#include "support/grammar_walk.h"
#include "tokenizer/json.h"

// What texts a schema, an expression or tools allow, and what is refused with which words.
namespace facet::test {
namespace {

bool whole(const GrammarPtr& g, std::string_view text) {
  GrammarState s(g);
  return s.advance_bytes(text) && s.may_end();
}

// Texts with the model's markers written out.
bool whole_call(const GrammarPtr& g, std::string_view text) {
  GrammarState s(g);
  while (!text.empty()) {
    bool special = false;
    for (int t = 0; t < grammar::kSpecialTokens && !special; ++t) {
      if (!text.starts_with(special_text(t))) continue;
      if (!s.advance_special(grammar::SpecialToken(t))) return false;
      text.remove_prefix(std::string_view(special_text(t)).size());
      special = true;
    }
    if (special) continue;
    if (!s.advance_bytes(text.substr(0, 1))) return false;
    text.remove_prefix(1);
  }
  return s.may_end();
}

struct Case {
  const char* schema;
  std::vector<const char*> yes, no;
};

TEST(GrammarSchema, Texts) {
  const Case cases[] = {
      {R"({"type":"string"})",
       {R"("a")", R"("\u00e9\ud83d\ude00\n")", "\"\xC3\xA9\""},
       {R"("\ud83d")", "\"\xC3\"", "\"\n\"", R"("\x")", "a", "\"\xED\xA0\x80\""}},
      {R"({"type":"string","minLength":1,"maxLength":2})",
       {R"("a")", "\"\xF0\x9F\x98\x80\xC3\xA9\"", R"("\ud83d\ude00a")"},
       {R"("")", R"("abc")"}},
      {R"({"type":"integer","minimum":-3,"maximum":12})",
       {"-3", "0", "9", "12"},
       {"-4", "13", "-0", "01", "1.0", "120"}},
      {R"({"type":"number","exclusiveMinimum":0,"maximum":1.5})",
       {"0.1", "1", "1.5", "1.50", "0.0000001"},
       {"0", "0.0", "1.51", "-1", "2"}},
      {R"({"type":"integer","multipleOf":7})", {"0", "7", "-14", "7000000007"}, {"8", "71"}},
      {R"({"type":"number"})", {"-1.5e+10", "0", "3"}, {"1e999", ".5", "1.", "+1"}},
      {R"({"properties":{"a":{"type":"integer"},"b":{"type":"null"}},"required":["b"],"additionalProperties":false})",
       {R"({"b":null})", "{\"a\": 1,\n  \"b\": null\n}"},
       {R"({"a":1})", R"({"b":null,"a":1})", R"({"b":null,})", R"({"b":  null})", R"({"b":null,"c":1})"}},
      {R"({"properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})",
       {"{}", R"({"a":1,"x":true})", R"({"x":true,"aa":false})"},
       {R"({"a":true})", R"({"x":1})", R"({"\u0061":true})"}},
      {R"({"type":"array","prefixItems":[{"const":1},{"const":"x"}],"items":false})",
       {"[]", "[1]", R"([1,"x"])"},
       {R"([1,"x",2])", R"(["x"])"}},
      {R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
       {"[1]", "[1, 2, 3]"},
       {"[]", "[1,2,3,4]", "[1,]"}},
      {R"({"enum":["a",1,{"k":[true]}],"type":["string","object"]})", {R"("a")", R"({"k":[true]})"}, {"1", "null"}},
      {R"({"enum":["abc","b"],"maxLength":2})", {R"("b")"}, {R"("abc")"}},
      {R"({"allOf":[{"minimum":3},{"maximum":5,"type":"integer"}]})", {"3", "5"}, {"2", "6", "3.5"}},
      {R"({"type":"string","pattern":"^a.c$"})", {R"("abc")", R"("a\"c")"}, {R"("abcd")", R"("a\nc")"}},
      {R"({"type":"string","pattern":"a[^c]*b|^x$"})", {R"("-a--b-a")", R"("x")"}, {R"("ba")", R"("-acb")", R"("xx")"}},
      {R"({"type":"string","pattern":"b+","maxLength":3})", {R"("abc")", R"("bb")"}, {R"("aaa")", R"("abbbb")"}},
      {R"({"type":"string","format":"date"})", {R"("2024-02-29")"}, {R"("2023-02-29")", R"("2024-13-01")"}},
      {R"({"type":"string","format":"ipv6"})", {R"("::1")", R"("2001:db8::1:2")"}, {R"("1::2::3")", R"(":1")"}},
      {R"({"type":"object","minProperties":1,"maxProperties":2,"additionalProperties":{"type":"null"}})",
       {R"({"a":null})", R"({"a":null,"b":null})"},
       {"{}", R"({"a":null,"b":null,"c":null})"}},
      {R"({"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false})",
       {R"({"x1":3})", "{}"},
       {R"({"y":3})", R"({"x":null})"}},
      {R"({"propertyNames":{"enum":["k"]},"type":"object"})", {R"({"k":[]})"}, {R"({"j":1})"}},
      {R"({"$ref":"#/definitions/t","definitions":{"t":{"type":"array","items":{"$ref":"#/definitions/t"}}}})",
       {"[]", "[[],[[]]]"},
       {"[1]"}},
  };
  for (const Case& c : cases) {
    const auto made = compile_json_schema(std::string_view(c.schema));
    ASSERT_TRUE(made) << c.schema << ": " << made.error().message();
    for (const char* t : c.yes) EXPECT_TRUE(whole(*made, t)) << c.schema << " should allow " << t;
    for (const char* t : c.no) EXPECT_FALSE(whole(*made, t)) << c.schema << " should not allow " << t;
  }
}

TEST(GrammarSchema, WhitespaceEnds) {
  const auto made = compile_json_object();
  ASSERT_TRUE(made);
  EXPECT_TRUE(whole(*made, "{\n    \"a\": [1, 2],\n    \"b\": {}\n}"));
  EXPECT_FALSE(whole(*made, "{  \"a\":1}"));
  EXPECT_FALSE(whole(*made, "{\n\n\n}"));
  EXPECT_FALSE(whole(*made, "{}\n"));
  EXPECT_FALSE(whole(*made, "[]"));
}

TEST(GrammarSchema, ErrorsNameKeywordAndPath) {
  const std::pair<const char*, std::vector<const char*>> cases[] = {
      {R"({"properties":{"a":{"not":{}}}})", {"#/properties/a", "not: "}},
      {R"({"type":"strin"})", {"type: expected string"}},
      {R"({"type":"string","format":"emoji"})", {"format: expected", "emoji"}},
      {R"({"type":"string","pattern":"(?<=a)b"})", {"pattern", "column 3"}},
      {R"({"$ref":"http://x/y"})", {"$ref: expected a reference into this schema"}},
      {R"({"$ref":"#/$defs/none"})", {"leads nowhere"}},
      {R"({"$ref":"#"})", {"nested at most 64"}},
      {R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", {"begins with itself"}},
      {R"({"type":"number","multipleOf":0.1})", {"multipleOf"}},
      {R"({"type":"string","maxLength":100001})", {"maxLength: expected at most 100000"}},
      {R"({"type":"array","maxItems":100000})", {"maxItems: expected at most 4096"}},
      {R"({"allOf":[{"type":"string"},{"type":"integer"}]})", {"matches no text"}},
      {R"({"properties":3})", {"properties: expected an object"}},
      {R"([1])", {"expected a schema"}},
  };
  for (const auto& [schema, words] : cases) {
    const auto made = compile_json_schema(std::string_view(schema));
    ASSERT_FALSE(made) << schema;
    for (const char* w : words)
      EXPECT_NE(made.error().message().find(w), std::string::npos) << schema << ": " << made.error().message();
  }
  std::string deep;
  for (int i = 0; i < 90; ++i) deep += R"({"items":)";
  deep += "true" + std::string(90, '}');
  EXPECT_FALSE(compile_json_schema(std::string_view(deep)));
  // Few schemas that refer to each other are many: refused, not followed.
  std::string many = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 40; ++i)
    many += fmt::format(R"("a{}":{{"allOf":[{{"$ref":"#/$defs/a{}"}},{{"$ref":"#/$defs/a{}"}}]}},)", i, i + 1, i + 1);
  many += R"("a40":{"type":"string"}}})";
  EXPECT_FALSE(compile_json_schema(std::string_view(many)));
}

// A second of compiling at most, whatever is asked for.
TEST(GrammarSchema, StringsTogetherAreLimited) {
  const auto schema = [](int n) {
    Json s = {{"type", "object"}, {"properties", Json::object()}};
    for (int i = 0; i < n; ++i)
      s["properties"][fmt::format("p{}", i)] = {
          {"type", "string"}, {"pattern", fmt::format("^[a-z0-9 ]+{}$", i)}, {"maxLength", 300U}};
    return compile_json_schema(s);
  };
  EXPECT_TRUE(schema(20));
  const auto many = schema(1000);
  ASSERT_FALSE(many);
  EXPECT_NE(many.error().what.find("units of work"), std::string::npos) << many.error().message();
}

// What follows the first match of a search is free, so it takes one state, and not all of the search again.
TEST(GrammarRegex, ASearchEndsAtItsFirstMatch) {
  const auto states = [](const char* text) {
    const auto regex = grammar::parse_regex(text);
    EXPECT_TRUE(regex) << text;
    grammar::CompileBudget budget;
    const auto dfa = grammar::CharDfa::regex(*regex, grammar::RegexMatch::kSearch, budget);
    EXPECT_TRUE(dfa) << text;
    return dfa->states.size();
  };
  // One for each character read and one at the end; ^ and $ make the beginning a state of its own.
  EXPECT_EQ(states("abcabd"), 7u);
  EXPECT_EQ(states("abcabd$"), 8u);
  EXPECT_EQ(states("^abcabd"), 7u);
  EXPECT_EQ(states("(abc)?"), 1u) << "anything matches";
}

TEST(GrammarRegex, TextsAndErrors) {
  const auto made = compile_regex("^(?:[A-Z]{2}\\d{3}|n/a)$");
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_TRUE(whole(*made, "AB123"));
  EXPECT_TRUE(whole(*made, "n/a"));
  EXPECT_FALSE(whole(*made, "AB1234"));
  for (const char* bad : {"a(", "a)", "[b-a]", "*a", "(?<=x)y", "(?!a)*", "\\1", "a{3,2}", "x^y", "\\p{L}", "a**",
                          "(((a{1000}){1000}){1000})"}) {
    const auto r = compile_regex(bad);
    EXPECT_FALSE(r) << bad;
  }
  EXPECT_NE(compile_regex("ab(c").error().message().find("column 5"), std::string::npos);
}

TEST(GrammarGbnf, TextsAndErrors) {
  const auto made = compile_gbnf("# numbers\nroot ::= num (\",\" num)*\nnum ::= [1-9] [0-9]{0,2} |\n  \"\\x30\"\n");
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_TRUE(whole(*made, "12,0,999"));
  EXPECT_FALSE(whole(*made, "1000"));
  const std::pair<const char*, const char*> bad[] = {
      {"root ::= root \"a\" | \"b\"", "left recursion"},
      {"root ::= x y\nx ::= \"a\"?\ny ::= root | \"b\"", "begins with itself"},
      {"root ::= missing", "missing is not defined"},
      {"a ::= \"x\"", "named root"},
      {"root ::= \"x", "expected \""},
      {"root = \"x\"", "line 1, column 6"},
      {"root ::= \"a\" root", "matches no text"},
      {"root ::= \"a\"\n\n  b ::= [", "line 3"},
      {"root ::= <tok>", "not supported"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"root ::= ((\"a\"{10000}){10000})", "expected at most"}};
  for (const auto& [text, words] : bad) {
    const auto r = compile_gbnf(text);
    ASSERT_FALSE(r) << text;
    EXPECT_NE(r.error().message().find(words), std::string::npos) << text << ": " << r.error().message();
  }
}

std::vector<Json> tools() {
  const Json j = Json::parse(R"([
    {"name":"weather","strict":true,"parameters":{"type":"object","properties":{"unit":{"enum":["C","F"]},"City":{"type":"string"},"days":{"type":"integer","maximum":9,"minimum":1}},"required":["City"]}},
    {"name":"now"},
    {"name":"any","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}])");
  return {j.begin(), j.end()};
}

TEST(GrammarTools, RequiredNamedAndParallel) {
  const auto required = compile_tool_calls(tools());
  ASSERT_TRUE(required) << required.error().message();
  const std::string one = "<|tool_call>call:weather{City:<|\"|>Par\"is{}<|\"|>,days:3,unit:<|\"|>C<|\"|>}<tool_call|>";
  EXPECT_TRUE(whole_call(*required, one));
  EXPECT_TRUE(whole_call(*required, one + "<|tool_call>call:now{}<tool_call|>"));
  EXPECT_FALSE(whole_call(*required, ""));
  EXPECT_FALSE(whole_call(*required, "Hello" + one));
  EXPECT_FALSE(whole_call(*required, "<|tool_call>call:weather{unit:<|\"|>C<|\"|>}<tool_call|>"));
  EXPECT_FALSE(whole_call(*required, "<|tool_call>call:weather{City:<|\"|>a<|\"|>,days:10}<tool_call|>"));
  EXPECT_FALSE(whole_call(*required, "<|tool_call>call:weather{City: <|\"|>a<|\"|>}<tool_call|>"));
  // What spells the quote token would be read as one.
  GrammarState state(*required);
  ASSERT_TRUE(state.advance_special(grammar::SpecialToken::kToolCallOpen) &&
              state.advance_bytes("call:weather{City:") && state.advance_special(grammar::SpecialToken::kQuote));
  EXPECT_TRUE(state.advance_bytes("<|\"|"));
  EXPECT_FALSE(state.advance_bytes(">"));

  ToolGrammarOptions options;
  options.name = "now";
  options.parallel = false;
  const auto named = compile_tool_calls(tools(), options);
  ASSERT_TRUE(named);
  EXPECT_TRUE(whole_call(*named, "<|tool_call>call:now{}<tool_call|>"));
  EXPECT_FALSE(whole_call(*named, one));
  EXPECT_FALSE(whole_call(*named, "<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>"));
  options.name = "other";
  EXPECT_NE(compile_tool_calls(tools(), options).error().message().find("\"other\""), std::string::npos);
}

TEST(GrammarTools, AutoIsFreeUntilACall) {
  ToolGrammarOptions options;
  options.choice = ToolChoice::kAuto;
  options.strict_all = false;
  const auto made = compile_tool_calls(tools(), options);
  ASSERT_TRUE(made);
  EXPECT_TRUE(whole_call(*made, "Just text, {even} this: call:now"));
  EXPECT_TRUE(whole_call(*made, "I look.<|tool_call>call:now{}<tool_call|>"));
  EXPECT_TRUE(whole_call(*made, "<|tool_call>call:any{b:[1,{c:null}]}<tool_call|>"));  // not strict
  EXPECT_FALSE(whole_call(*made, "<|tool_call>call:weather{b:1}<tool_call|>"));        // strict
  EXPECT_FALSE(whole_call(*made, "<|tool_call>call:nothing{}<tool_call|>"));
}

TEST(GrammarThought, ConstraintBeginsAfterIt) {
  const std::vector<std::string> choices = {"yes", "no"};
  const auto optional = compile_choice(choices, {ThoughtMode::kOptional}),
             open = compile_choice(choices, {ThoughtMode::kOpen});
  ASSERT_TRUE(optional && open);
  EXPECT_TRUE(whole_call(*optional, "yes"));
  EXPECT_TRUE(whole_call(*optional, "<|channel>thought\nmaybe \xE4\xB8\xAD\n<channel|>no"));
  EXPECT_FALSE(whole_call(*optional, "<|channel>other<channel|>no"));
  EXPECT_FALSE(whole_call(*optional, "maybe"));
  EXPECT_TRUE(whole_call(*open, "maybe\n<channel|>no"));
  EXPECT_FALSE(whole_call(*open, "no"));
}

}  // namespace
}  // namespace facet::test
