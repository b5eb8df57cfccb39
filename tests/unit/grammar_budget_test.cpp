#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <functional>

#include "grammar/grammar.h"
#include "grammar/tool_calls.h"
#include "support/grammar_walk.h"
#include "support/sanitized.h"
#include "tokenizer/json.h"

// What compiling may cost, and the schemas that people have.
namespace facet::test {
namespace {

bool whole(const GrammarPtr& g, std::string_view text) {
  GrammarState s(g);
  return s.advance_bytes(text) && s.may_end();
}

double cpu_seconds() {
  rusage r;
  getrusage(RUSAGE_SELF, &r);
  return double(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * double(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

Json named(size_t n, const std::function<Json(size_t)>& value) {
  Json out = Json::object();
  for (size_t i = 0; i < n; ++i) out[fmt::format("p{}", i)] = value(i);
  return out;
}
Json listed(size_t n, const std::function<Json(size_t)>& value) {
  Json out = Json::array();
  for (size_t i = 0; i < n; ++i) out.push_back(value(i));
  return out;
}

// Long: a list of cases.
// Each of these took from seconds to minutes, or gigabytes, when work was looked at after it was done.
std::vector<std::pair<const char*, Json>> costly() {
  const auto text = [](const char* prefix) {
    return [prefix](size_t i) { return Json(fmt::format("{}{}", prefix, i)); };
  };
  const Json names = named(3000, [](size_t) { return Json::object(); });
  return {
      {"multipleOf",
       {{"properties", named(40,
                             [](size_t i) {
                               return Json{{"type", "integer"}, {"multipleOf", 997 - i}};
                             })}}},
      {"const, anyOf",
       {{"const", std::string(100'000, 'a')}, {"anyOf", listed(40'000, [](size_t) { return Json::object(); })}}},
      {"enum, enum",
       {{"enum", listed(12'000, text("a"))},
        {"allOf", listed(1,
                         [&](size_t) {
                           return Json{{"enum", listed(12'000, text("b"))}};
                         })}}},
      {"enum, anyOf",
       {{"enum", listed(12'000, text("a"))},
        {"anyOf", listed(10'000,
                         [](size_t i) {
                           return Json{{"const", i}};
                         })}}},
      {"required", {{"properties", names}, {"required", listed(4000, text("p"))}}},
      {"required, required",
       {{"allOf", listed(2,
                         [&](size_t i) {
                           return Json{{"required", listed(12'000, text(i ? "a" : "b"))}};
                         })}}},
      {"allOf of properties",
       {{"allOf", listed(7000,
                         [](size_t i) {
                           return Json{{"properties", {{fmt::format("p{}", i), true}}}};
                         })}}},
      {"allOf of patterns",
       {{"type", "string"},
        {"allOf", listed(2000,
                         [](size_t i) {
                           return Json{{"pattern", fmt::format("a{}", i)}};
                         })}}},
      {"patternProperties",
       {{"properties", names},
        {"patternProperties",
         [&] {
           Json out = Json::object();
           for (int i = 0; i < 2000; ++i) out[fmt::format("x{}q*", i)] = true;
           return out;
         }()}}},
      {"$ref",
       {{"$defs", named(5000,
                        [](size_t) {
                          return Json{{"type", "integer"}};
                        })},
        {"anyOf", listed(4000,
                         [](size_t i) {
                           return Json{{"$ref", fmt::format("#/$defs/p{}", 4999 - i % 100)}};
                         })}}},
      {"properties, anyOf",
       {{"properties", names},
        {"anyOf", listed(3000,
                         [](size_t i) {
                           return Json{{"required", {fmt::format("p{}", i)}}};
                         })}}},
      {"numbers",
       {{"properties", named(2000,
                             [](size_t i) {
                               return Json{{"minimum", double(i) + .123456789}, {"maximum", 1e15 + double(i)}};
                             })}}},
      {"maxItems",
       {{"properties", named(2000,
                             [](size_t i) {
                               return Json{{"items", {{"const", i}}}, {"maxItems", 4000u}};
                             })}}},
      {"lengths",
       {{"properties", named(2000,
                             [](size_t i) {
                               return Json{{"minLength", i}, {"maxLength", 100'000u}};
                             })}}},
      {"pattern, length",
       {{"properties", named(1000,
                             [](size_t i) {
                               return Json{{"pattern", fmt::format("^[a-z]*x{}[a-z0-9]*$", i)}, {"maxLength", 4000u}};
                             })}}},
      {"pattern", {{"type", "string"}, {"pattern", "(a|b)*a(a|b){20}(?=(a|b)*b(a|b){18}$)"}}},
      {"lookahead", {{"type", "string"}, {"pattern", "^((?=.*a.{9}$)(?!.{15}b).)*$"}}},
      {"minProperties",
       {{"properties", named(60,
                             [](size_t i) {
                               return Json{{"properties", named(200, [](size_t) { return Json(true); })},
                                           {"minProperties", 100 + i},
                                           {"additionalProperties", false}};
                             })}}},
      {"unique items",
       {{"properties", named(900,
                             [](size_t i) {
                               return Json{{"uniqueItems", true},
                                           {"items", {{"enum", listed(8, [i](size_t k) { return Json(i * 8 + k); })}}}};
                             })}}},
      {"long names",
       {{"properties",
         {{std::string(100'000, 'k'),
           {{"properties", named(3000,
                                 [](size_t i) {
                                   return Json{{"properties", {{"b", {{"const", i}}}}}};
                                 })}}}}}}},
  };
}

// Sanitizers make each unit of work several times as slow, so there are fewer of them.
GrammarOptions budget() {
  GrammarOptions o;
  if (kSanitized) o.limits.work /= 8;
  return o;
}

// What is too much is told within the time that a compilation may take: half a second of a free core, and this one is
// not free.
TEST(GrammarBudget, CostlySchemasEndInTime) {
  for (const auto& [name, schema] : costly()) {
    const double from = cpu_seconds();
    const auto made = compile_json_schema(schema, budget());
    EXPECT_LT(cpu_seconds() - from, 2.) << name;
    if (!made) {
      EXPECT_FALSE(made.error().hint.empty() && made.error().what.empty()) << name;
    }
  }
}

TEST(GrammarBudget, CostlyExpressionsAndGrammarsEndInTime) {
  std::string alternatives, classes, rules = "root ::= r0\n";
  for (int i = 0; i < 4000; ++i) alternatives += fmt::format("{}x{}", i ? "|" : "", i % 1000);
  for (int i = 0; i < 30'000; ++i) classes += i % 2 ? "\\u" + fmt::format("{:04x}", 0xD000 - i * 2 % 0xC000) : "";
  for (int i = 0; i < 3000; ++i) rules += fmt::format("r{} ::= (r{} | \"\")? (r{})* \"a\"?\n", i, i + 1, i + 1);
  rules += "r3000 ::= \"b\"\n";
  const std::string texts[] = {"((((((a{0,9}){0,9}){0,9}){0,9}){0,9}){0,9})", "(" + alternatives + "){0,100}",
                               "(a?){0,5000}(a?){0,5000}", "(.*a){300}", "((a|b)*a(a|b){12}){4}"};
  for (const std::string& text : texts) {
    const double from = cpu_seconds();
    (void)compile_regex(text, budget());
    EXPECT_LT(cpu_seconds() - from, 2.) << text.substr(0, 60);
  }
  for (const std::string& text : {"root ::= [" + classes.substr(0, 120'000) + "]\n", rules}) {
    const double from = cpu_seconds();
    (void)compile_gbnf(text, budget());
    EXPECT_LT(cpu_seconds() - from, 2.) << text.substr(0, 60);
  }
}

// The same work on every machine: what is enough is enough each time, and one unit less is never.
TEST(GrammarBudget, WorkIsCountedAlike) {
  const Json schema{{"properties", named(20, [](size_t i) {
                       return Json{{"type", "string"}, {"maxLength", 30 + i}};
                     })}};
  const auto compiles = [&](uint64_t work) {
    GrammarOptions options;
    options.limits.work = work;
    return bool(compile_json_schema(schema, options));
  };
  uint64_t lo = 0, hi = CompileLimits::kDefaultWork;
  ASSERT_TRUE(compiles(hi));
  while (hi - lo > 1) (compiles(lo + (hi - lo) / 2) ? hi : lo) = lo + (hi - lo) / 2;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(compiles(hi));
    EXPECT_FALSE(compiles(hi - 1));
  }
  GrammarOptions few;
  few.limits.work = hi / 2;
  const auto refused = compile_json_schema(schema, few);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find(fmt::format("at most {} units of work", hi / 2)), std::string::npos)
      << refused.error().message();
}

TEST(GrammarBudget, NobodyWaitsAnyMore) {
  const Json schema = costly()[0].second;
  std::atomic<bool> cancelled{true};
  GrammarOptions gone, late;
  gone.limits.cancelled = &cancelled;
  late.limits.deadline = std::chrono::steady_clock::now();
  for (const GrammarOptions& options : {gone, late}) {
    const double from = cpu_seconds();
    const auto made = compile_json_schema(schema, options);
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().what.find("ended before"), std::string::npos) << made.error().message();
    EXPECT_LT(cpu_seconds() - from, .1);
  }
  cancelled = false;
  EXPECT_TRUE(compile_json_schema(Json{{"type", "string"}}, gone));
}

// --- schemas people have

struct Case {
  const char* schema;
  std::vector<const char*> yes, no;
};

TEST(GrammarSchema, SchemasPeopleHave) {
  const Case cases[] = {
      // pydantic's HttpUrl, Decimal and sets.
      {R"({"type":"string","format":"uri","minLength":1,"maxLength":2083})",
       {R"("https://example.org/a?b=c%20d#e")"},
       {R"("example.org")", R"("")"}},
      {R"({"anyOf":[{"type":"number"},{"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}]})",
       {"1.5", R"("1.5")", R"("-12")"},
       {R"("-")", R"("1.5.2")", R"("")"}},
      {R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true})",
       {"[]", R"(["c","a"])", R"(["a","b","c"])"},
       {R"(["a","a"])", R"(["a","b","a"])", R"(["a","b","c","a"])"}},
      {R"({"type":"array","items":{"enum":[0,1,2,3,4,5,6,7,8,9]},"uniqueItems":true,"minItems":2})",
       {"[1,9]", "[0,1,2,3,4,5,6,7,8,9]"},
       {"[]", "[3]", "[3,3]", "[3,4,3]"}},
      {R"({"type":"array","items":{"type":"boolean"},"uniqueItems":true,"maxItems":1})",
       {"[]", "[true]"},
       {"[true,false]"}},
      {R"({"type":"array","items":{"type":"string"},"uniqueItems":true})", {R"(["a","b"])"}, {"[1]"}},
      // Bounds of 64 bits.
      {R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})",
       {"-9223372036854775808", "9223372036854775807", "0", "-1"},
       {"9223372036854775808", "-9223372036854775809", "10000000000000000000"}},
      {R"({"type":"integer","minimum":0,"maximum":18446744073709551615})",
       {"18446744073709551615", "18446744073709551614", "7"},
       {"18446744073709551616", "-1", "99999999999999999999"}},
      {R"({"type":"integer","exclusiveMinimum":12345678901234567})",
       {"12345678901234568", "99999999999999999"},
       {"12345678901234567", "5", "-5"}},
      {R"({"type":"number","exclusiveMinimum":5e-324,"maximum":1.7976931348623157e308})",
       {"0.0000000000000001", "7"},
       {"0", "-1"}},
      {R"({"type":"number","minimum":-0.12345678901234567,"maximum":1e300})",
       {"-0.1234567890123456", "0"},
       {"-0.1234567890123457"}},
      {R"({"type":"integer","multipleOf":8,"minimum":100,"maximum":2000})",
       {"104", "2000", "1096"},
       {"96", "100", "2008", "1001"}},
      // Formats of zod and pydantic.
      {R"({"type":"string","format":"ulid"})",
       {R"("01ARZ3NDEKTSV4RRFFQ69G5FAV")"},
       {R"("01ARZ3NDEKTSV4RRFFQ69G5FAU")"}},
      {R"({"type":"string","format":"cidrv4"})", {R"("10.0.0.0/8")"}, {R"("10.0.0.0/33")", R"("10.0.0.0")"}},
      {R"({"type":"string","format":"base64"})", {R"("")", R"("YQ==")", R"("YWJj")"}, {R"("YQ=")"}},
      {R"({"type":"string","format":"jwt"})", {R"("eyJh.eyJi.c")"}, {R"("a.b.c")"}},
      {R"({"type":"string","format":"uuid4"})",
       {R"("123e4567-e89b-42d3-a456-426614174000")"},
       {R"("123e4567-e89b-12d3-a456-426614174000")"}},
      {R"({"type":"string","format":"ipvanyaddress"})", {R"("::1")", R"("10.0.0.1")"}, {R"("10.0.0")"}},
      // Literals beside other keywords are checked as values.
      {R"({"enum":["a","bb","ccc",1,2.5,true],"minLength":2,"maximum":2})",
       {R"("bb")", R"("ccc")", "1", "true"},
       {R"("a")", "2.5"}},
      {R"({"enum":[{"a":1},{"a":2,"b":1},[1]],"type":"object","properties":{"a":{"minimum":2}},"minProperties":1})",
       {R"({"a":2,"b":1})"},
       {R"({"a":1})", "[1]"}},
      {R"({"const":"x","anyOf":[{"type":"integer"},{"pattern":"^x$"}]})", {R"("x")"}, {"1"}},
      {R"({"enum":["a","b"],"oneOf":[{"const":"b"}],"anyOf":[{"type":"string"}]})", {R"("b")"}, {R"("a")"}},
      {R"({"type":"object","properties":{"a":{"type":"integer"}},"oneOf":[{"required":["a"]}],"anyOf":[{"minProperties":1}]})",
       {R"({"a":1})"},
       {"{}"}},
  };
  for (const Case& c : cases) {
    const auto made = compile_json_schema(std::string_view(c.schema));
    ASSERT_TRUE(made) << c.schema << ": " << made.error().message();
    for (const char* t : c.yes) EXPECT_TRUE(whole(*made, t)) << c.schema << " " << t;
    for (const char* t : c.no) EXPECT_FALSE(whole(*made, t)) << c.schema << " " << t;
  }
}

// A function that does not ask for its schema to be held loses what is not supported, and nothing else; one that does
// is told what that is.
TEST(GrammarTools, WhatIsNotSupportedIsLeftOut) {
  const char* const properties[] = {
      R"({"not":{"type":"null"},"type":"integer"})",
      R"({"type":"integer","multipleOf":0.3})",
      R"({"type":"integer","if":{"minimum":3},"then":{"maximum":5}})",
      R"({"$ref":"https://example.org/schema","type":"integer"})",
      R"({"type":"integer","minimum":1e300})",
      R"({"allOf":[{"type":"integer","multipleOf":1.5},{"multipleOf":2.5}]})",
  };
  for (const char* text : properties) {
    Json tool{{"name", "f"},
              {"parameters",
               {{"type", "object"},
                {"properties", {{"n", Json::parse(text)}, {"b", {{"type", "boolean"}}}}},
                {"required", {"b", "n"}}}}};
    const auto made = compile_tool_calls({&tool, 1}, {});
    ASSERT_TRUE(made) << text << ": " << made.error().message();
    const auto taken = [&](std::string_view arguments) {
      GrammarState s(*made);
      return s.advance_special(grammar::SpecialToken::kToolCallOpen) && s.advance_bytes("call:f{") &&
             s.advance_bytes(arguments) && s.advance_bytes("}");
    };
    EXPECT_TRUE(taken("b:true,n:7")) << text;
    EXPECT_FALSE(taken("b:1,n:7")) << text << ": the other property";
    EXPECT_FALSE(taken("b:true,n:null")) << text << ": the other keywords";
    tool["strict"] = true;
    const auto strict = compile_tool_calls({&tool, 1}, {});
    ASSERT_FALSE(strict) << text;
    EXPECT_NE(strict.error().message().find("n"), std::string::npos) << strict.error().message();
  }
  const char* const strings[] = {
      R"({"type":"string","pattern":"(?<=a)b"})",
      R"({"type":"string","pattern":"^\\p{L}+$"})",
      R"({"type":"string","format":"emoji"})",
      R"({"type":"string","minLength":100001})",
      R"({"type":"string","maxLength":1000000})",
      R"({"type":"string","contains":1})",
      R"({"type":"string","pattern":"^[ab]*a[ab]{20}$"})",
  };
  for (const char* text : strings) {
    Json tool{{"name", "f"},
              {"parameters", {{"type", "object"}, {"properties", {{"s", Json::parse(text)}}}, {"required", {"s"}}}}};
    const auto made = compile_tool_calls({&tool, 1}, {});
    ASSERT_TRUE(made) << text << ": " << made.error().message();
    GrammarState s(*made);
    EXPECT_TRUE(s.advance_special(grammar::SpecialToken::kToolCallOpen) && s.advance_bytes("call:f{s:") &&
                s.advance_special(grammar::SpecialToken::kQuote) && s.advance_bytes("any text"))
        << text;
    tool["strict"] = true;
    EXPECT_FALSE(compile_tool_calls({&tool, 1}, {})) << text;
  }
}

// Long texts of calls end with the quote token; none is spelled in them.
TEST(GrammarTools, LongArgumentsAreCounted) {
  const Json tool{{"name", "f"},
                  {"strict", true},
                  {"parameters",
                   {{"type", "object"},
                    {"properties", {{"s", {{"type", "string"}, {"minLength", 2u}, {"maxLength", 20'000u}}}}},
                    {"required", {"s"}}}}};
  const auto made = compile_tool_calls({&tool, 1}, {});
  ASSERT_TRUE(made) << made.error().message();
  GrammarState s(*made);
  ASSERT_TRUE(s.advance_special(grammar::SpecialToken::kToolCallOpen) && s.advance_bytes("call:f{s:") &&
              s.advance_special(grammar::SpecialToken::kQuote));
  for (size_t n = 0; n <= 20'000; ++n) {
    GrammarState end = s;
    EXPECT_EQ(end.advance_special(grammar::SpecialToken::kQuote), n >= 2) << n;
    ASSERT_EQ(s.advance_bytes(n % 3 ? "<" : "|"), n < 20'000) << n;
    if (n == 500) {
      GrammarState spelled = s;
      EXPECT_FALSE(spelled.advance_bytes("<|\"|>"));
    }
  }
}

}  // namespace
}  // namespace facet::test
