#include "tokenizer/chat_parse.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>

#include "tokenizer/json.h"

namespace facet {
namespace {

using Kind = ParseEvent::Kind;

std::vector<ParseEvent> coalesce(const std::vector<ParseEvent>& events) {
  std::vector<ParseEvent> out;
  for (const ParseEvent& e : events) {
    if (!out.empty() && e.kind != Kind::kToolCall && out.back().kind == e.kind)
      out.back().text += e.text;
    else
      out.push_back(e);
  }
  return out;
}

struct Outcome {
  std::vector<ParseEvent> events;
  ParsedMessage message;
  bool operator==(const Outcome&) const = default;
};

// The text in the pieces that end at `cuts`, ascending.
Outcome outcome_of(std::string_view text, const std::vector<size_t>& cuts, ParseOptions options = {}) {
  ChatParser parser(options);
  std::vector<ParseEvent> events;
  const auto add = [&](const std::vector<ParseEvent>& more) {
    for (const ParseEvent& e : more) {
      EXPECT_TRUE(e.kind == Kind::kToolCall || !e.text.empty());
      events.push_back(e);
    }
  };
  size_t at = 0;
  for (const size_t cut : cuts) {
    add(parser.push(text.substr(at, cut - at)));
    at = cut;
  }
  add(parser.push(text.substr(at)));
  add(parser.finish());
  return {coalesce(events), parser.message()};
}

struct Case {
  std::string text, reasoning, content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool in_thought = false;
  std::optional<std::vector<std::string>> tools = {};
  std::string partial = {};  // arguments of the last call, which is partial
  ParseOptions options() const { return {.in_thought = in_thought, .tools = tools}; }
};

std::string call(std::string_view body) { return fmt::format("<|tool_call>{}<tool_call|>", body); }

const std::vector<Case> kCases = {
    {"Hello, world!", "", "Hello, world!", {}},
    {"", "", "", {}},
    {"<|channel>thought\nI'm\nthinking<channel|>Hello", "I'm\nthinking", "Hello", {}},
    {"<|channel>thought\nI'm\nthinking\n<channel|>Hello", "I'm\nthinking", "Hello", {}},
    {"<|channel>thought\n\n R \n\n<channel|>\nHello", "R \n", "\nHello", {}},
    {"<|channel>thought<channel|>Hello", "", "Hello", {}},
    {"<|channel><|channel>thought\n<channel|>Hello", "", "Hello", {}},
    {"<|channel>thought\n<channel|>Hello<|channel>thought\n<channel|><channel|>", "", "Hello", {}},
    {"<|channel>thought\na<channel|>b<|channel>thought\nc<channel|>d", "ac", "bd", {}},
    {"<|channel>thought\nunfinished", "unfinished", "", {}},
    {"<|channel>thought\nunfinished\n<chann", "unfinished\n<chann", "", {}},
    {"<|channel>thought\nsee <|channel>that<channel|>x", "see that", "x", {}},
    // Channels of other names are thoughts, but for those that hold answers.
    {"<|channel>other\nx<channel|>y", "x", "y", {}},
    {"<|channel>analysis<channel|>y", "", "y", {}},
    {"<|channel>final\nx<channel|>y", "", "xy", {}},
    {"<|channel>Not a name\nx<channel|>y", "", "Not a name\nxy", {}},
    {"<|channel>oth", "", "oth", {}},
    // A call in an open thought is one; the thought goes on.
    {"<|channel>thought\nI write <|tool_call>call:f{}<tool_call|> now<channel|>x", "I write  now", "x", {{"f", "{}"}}},
    {"I look.<|tool_call>call:f{a:1}<tool_call|><|tool_response>", "I look.", "", {{"f", R"({"a":1})"}}, true},
    {"The marker is <|tool_call> there.\n<channel|>x", "The marker is <|tool_call> there.", "x", {}, true},
    {"Or <|tool_call>call: it.\n<channel|>x", "Or <|tool_call>call: it.", "x", {}, true},
    {"<|channel>thou", "", "thou", {}},
    {"so it is\n<channel|>It is 20.", "so it is", "It is 20.", {}, true},
    {"\nR\n<channel|>C", "R", "C", {}, true},
    {"<|channel>thought\nR\n<channel|>C", "R", "C", {}, true},
    {"a < b <| c <|chan > d <|tool_calls>", "", "a < b <| c <|chan > d <|tool_calls>", {}},
    {"quote <|\"|> in text <tool_call|>", "", "quote <|\"|> in text <tool_call|>", {}},

    {call("call:get_time{city:<|\"|>London<|\"|>}"), "", "", {{"get_time", R"({"city":"London"})"}}},
    {"Hi" + call("call:a{}") + call("call:b{x:-7}"), "", "Hi", {{"a", "{}"}, {"b", R"({"x":-7})"}}},
    {call("call:f{config:{theme:<|\"|>dark<|\"|>,count:3}}"),
     "",
     "",
     {{"f", R"({"config":{"theme":"dark","count":3}})"}}},
    {call("call:f{todos:[]}"), "", "", {{"f", R"({"todos":[]})"}}},
    {call("call:f{v:null}"), "", "", {{"f", R"({"v":null})"}}},
    {call("call:f{on:true,off:false}"), "", "", {{"f", R"({"on":true,"off":false})"}}},
    {call("call:f{x:1.5e10}"), "", "", {{"f", R"({"x":1.5e10})"}}},
    {call("call:f{x:-0.5,y:1E-3,z:1e+20}"), "", "", {{"f", R"({"x":-0.5,"y":1e-3,"z":1e+20})"}}},
    {call("call:f{l:[1,<|\"|>a<|\"|>,[ ],{k:[{}]}]}"), "", "", {{"f", R"({"l":[1,"a",[],{"k":[{}]}]})"}}},
    {call(" call:ns.f-1{ a : 1 , b:[ 1 , 2 ] } "), "", "", {{"ns.f-1", R"({"a":1,"b":[1,2]})"}}},
    {call("call:f{<|\"|>a:b<|\"|>:1}"), "", "", {{"f", R"({"a:b":1})"}}},
    // Anything at all between quotes, escaped in the JSON.
    {call("call:f{s:<|\"|>}{\"\\\n<tool_call|><|tool_call>é\x01<|\"|>}"),
     "",
     "",
     {{"f", "{\"s\":\"}{\\\"\\\\\\n<tool_call|><|tool_call>é\\u0001\"}"}}},
    {"<|channel>thought\nR\n<channel|>Let me look." + call("call:f{}") + "<|tool_response>",
     "R",
     "Let me look.",
     {{"f", "{}"}}},
    {"<|tool_response> before any call", "", "<|tool_response> before any call", {}},
    {call("call:f{}") + "\nafter", "", "\nafter", {{"f", "{}"}}},
    {"<|tool_call>call:f{a:1}", "", "", {{"f", R"({"a":1})"}}},  // only the marker is missing

    // As quantised models write calls.
    {call(R"(call:f{s:"ls -la"})"), "", "", {{"f", R"({"s":"ls -la"})"}}},
    {call(R"(call:f{"s": "a", 't':'b',u:<|"|>c<|"|>})"), "", "", {{"f", R"({"s":"a","t":"b","u":"c"})"}}},
    {call(R"(call:f{l:["a","b"],o:{"mode": "fast"}})"), "", "", {{"f", R"({"l":["a","b"],"o":{"mode":"fast"}})"}}},
    {call(R"(call:f{s:"a\"b\\c\n\u00e9\ud83d\ude00\d"})"), "", "", {{"f", R"({"s":"a\"b\\c\né😀\\d"})"}}},
    {call("call:f{s:\"two\nlines\"}"), "", "", {{"f", R"({"s":"two\nlines"})"}}},
    {call(R"(call:f{s:"echo "hi", there", t:1})"), "", "", {{"f", R"({"s":"echo \"hi\", there","t":1})"}}},
    {call(R"(call:f{s:<|"|>it's "so", {a:1}<|"|>})"), "", "", {{"f", R"({"s":"it's \"so\", {a:1}"})"}}},
    {call(R"(call:f{s:"a<|"|>,t:1})") + "x<|\"|>", "", "x<|\"|>", {{"f", R"({"s":"a","t":1})"}}},
    {call("call:f{city:London}"), "", "", {{"f", R"({"city":"London"})"}}},
    {call("call:f{s:ls -la, then more,t:it's}"), "", "", {{"f", R"({"s":"ls -la, then more","t":"it's"})"}}},
    {call("call:f{s:awk '{print $1}' x,on:True,n:None}"),
     "",
     "",
     {{"f", R"({"s":"awk '{print $1}' x","on":true,"n":null})"}}},
    {call("call:f{l:[a b,c]}"), "", "", {{"f", R"({"l":["a b","c"]})"}}},
    {call("call:f{a:01,b:1.,c:-,d:1e999,e:nul}"),
     "",
     "",
     {{"f", R"({"a":"01","b":"1.","c":"-","d":"1e999","e":"nul"})"}}},
    {call("call:f\n {\n  a: 1,\n  b: [1, 2,],\n}\n"), "", "", {{"f", R"({"a":1,"b":[1,2]})"}}},
    {call("call: f{a:1}"), "", "", {{"f", R"({"a":1})"}}},
    {call(":f{a:1}"), "", "", {{"f", R"({"a":1})"}}},
    {call("f{}"), "", "", {{"f", "{}"}}},
    {call("call:call:f{}"), "", "", {{"f", "{}"}}},
    {call("call:f:{a:1}"), "", "", {{"f", R"({"a":1})"}}},
    {call("call:\"f\"{a:1}"), "", "", {{"f", R"({"a":1})"}}},
    {call("call:f"), "", "", {{"f", "{}"}}},
    {call(R"(call:f(a="x", b=2))"), "", "", {{"f", R"({"a":"x","b":2})"}}},
    {call(R"(f({"a": 1}))"), "", "", {{"f", R"({"a":1})"}}},
    {call("call:f()"), "", "", {{"f", "{}"}}},
    {call(R"({"name": "f", "arguments": {"a": 1}})"), "", "", {{"f", R"({"a":1})"}}},
    {call("call:api:f{}"), "", "", {{"api:f", "{}"}}},
    {call("call:api:f{}"), "", "", {{"f", "{}"}}, false, {{"f"}}},
    {call("call:functions.f{}"), "", "", {{"f", "{}"}}, false, {{"f"}}},
    {call("call:f{a:1}}"), "", "", {{"f", R"({"a":1})"}}},
    {call("call:f{}") + "<tool_call|>\n<tool_call|>x <tool_call|>", "", "\nx <tool_call|>", {{"f", "{}"}}},
    {call("call:f{a:1"), "", "", {{"f", R"({"a":1})"}}},
    {call("call:f{a:[1,{b:<|\"|>x<|\"|>"), "", "", {{"f", R"({"a":[1,{"b":"x"}]})"}}},
    {"<|tool_call>call:a{}<|tool_call>call:b{}<tool_call|>", "", "", {{"a", "{}"}, {"b", "{}"}}},
    {"x" + call("call:f{") + "y" + call("call:g{}"), "", "xy", {{"f", "{}"}, {"g", "{}"}}},
    {call(R"(call:f{s:"a <tool_call|> b"})") + "x", "", "x", {{"f", R"({"s":"a <tool_call|> b"})"}}},
    // The quote that is missing.
    {call("call:f{s:<|\"|>ls\"}") + call("call:g{t:<|\"|>x<|\"|>}"),
     "",
     "",
     {{"f", R"({"s":"ls"})"}, {"g", R"({"t":"x"})"}}},
    {call("call:f{s:\"ls") + "after", "", "after", {{"f", R"({"s":"ls"})"}}},
    {"<|tool_call>call:f{}<tool_ca", "", "", {{"f", "{}"}}},

    // Without <|tool_call>.
    {"<|channel>thought\nI look.\n<channel|>call:f{s:<|\"|>x<|\"|>}<tool_call|>",
     "I look.",
     "",
     {{"f", R"({"s":"x"})"}}},
    {"I look.\ncall:f{a:1}<tool_call|>", "", "I look.\n", {{"f", R"({"a":1})"}}},
    {"call:f{}<tool_call|>call:g{}<tool_call|>", "", "", {{"f", "{}"}, {"g", "{}"}}},
    {"call:f{a:1}", "", "", {{"f", R"({"a":1})"}}, false, {{"f"}}},
    {":f{a:1}<tool_call|>", "", "", {{"f", R"({"a":1})"}}, false, {{"f"}}},
    {"call:f{a:1}", "", "call:f{a:1}", {}},
    {"call:g{a:1}<tool_call|>", "", "call:g{a:1}<tool_call|>", {}, false, {{"f"}}},
    {"call:f{a:1}<tool_call|>", "", "call:f{a:1}<tool_call|>", {}, false, {std::vector<std::string>{}}},
    {"call:f{a:1} calls f.", "", "call:f{a:1} calls f.", {}, false, {{"f"}}},
    {"Write\ncall:f{a:1}\nto call.\ncall:f{a:2}<tool_call|>",
     "",
     "Write\ncall:f{a:1}\nto call.\n",
     {{"f", R"({"a":2})"}}},
    {"Write call:f{a:1}<tool_call|> there.", "", "Write call:f{a:1}<tool_call|> there.", {}},
    {"call me {now}\ncalled\ncall: it {\n", "", "call me {now}\ncalled\ncall: it {\n", {}, false, {{"f"}}},

    // Malformed calls stay visible.
    {call("call:{}"), "", call("call:{}"), {}},
    {call(""), "", call(""), {}},
    {call("call:f{a}"), "", call("call:f{a}"), {}},
    {call("call:f{ :1}"), "", call("call:f{ :1}"), {}},
    {call("call:f{l:[,]}"), "", call("call:f{l:[,]}"), {}},
    {call("I call it{}"), "", call("I call it{}"), {}},

    // What is there of a call that does not end.
    {"<|tool_call>call:f{s:<|\"|>cut off", "", "", {{"f", ""}}, false, {}, R"({"s":"cut off)"},
    {"<|tool_call>call:f{a:1,s:\"cut\\", "", "", {{"f", ""}}, false, {}, R"({"a":1,"s":"cut)"},
    {"<|tool_call>call:f{a:1,b:[true,{c", "", "", {{"f", ""}}, false, {}, R"({"a":1,"b":[true,{)"},
    {"x<|tool_call>call:f", "", "x", {}},
    {"x<|tool_call>", "", "x", {}},
};

TEST(ChatParse, Cases) {
  for (const Case& c : kCases) {
    const ParsedMessage m = parse_chat(c.text, c.options());
    EXPECT_EQ(m.reasoning, c.reasoning) << c.text;
    EXPECT_EQ(m.content, c.content) << c.text;
    ASSERT_EQ(m.tool_calls.size(), c.calls.size()) << c.text;
    for (size_t i = 0; i < c.calls.size(); ++i) {
      EXPECT_EQ(m.tool_calls[i].id, fmt::format("call_{}", i));
      EXPECT_EQ(m.tool_calls[i].name, c.calls[i].first);
      const bool partial = !c.partial.empty() && i + 1 == c.calls.size();
      EXPECT_EQ(m.tool_calls[i].partial, partial) << c.text;
      EXPECT_EQ(m.tool_calls[i].arguments, partial ? c.partial : c.calls[i].second) << c.text;
      EXPECT_EQ(Json::accept(m.tool_calls[i].arguments), !partial) << c.text;
    }
  }
}

TEST(ChatParse, EventsAddUpToTheMessage) {
  for (const Case& c : kCases) {
    const Outcome r = outcome_of(c.text, {}, c.options());
    ParsedMessage sum;
    for (const ParseEvent& e : r.events) {
      if (e.kind == Kind::kContent) sum.content += e.text;
      if (e.kind == Kind::kReasoning) sum.reasoning += e.text;
      if (e.kind == Kind::kToolCall) sum.tool_calls.push_back(e.call);
    }
    EXPECT_EQ(sum, r.message) << c.text;
  }
}

TEST(ChatParse, CutsDoNotMatter) {
  std::mt19937 rng(1);
  for (const Case& c : kCases) {
    const ParseOptions options = c.options();
    const Outcome whole = outcome_of(c.text, {}, options);
    const size_t n = c.text.size();
    for (size_t a = 0; a <= n; ++a)
      for (size_t b = a; b <= n; ++b) ASSERT_EQ(outcome_of(c.text, {a, b}, options), whole) << c.text << a << ' ' << b;
    std::vector<size_t> every;
    for (size_t a = 1; a < n; ++a) every.push_back(a);
    ASSERT_EQ(outcome_of(c.text, every, options), whole) << c.text;
    for (int round = 0; round < 20; ++round) {
      std::vector<size_t> cuts(1 + rng() % 8);
      for (size_t& cut : cuts) cut = rng() % (n + 1);
      std::sort(cuts.begin(), cuts.end());
      ASSERT_EQ(outcome_of(c.text, cuts, options), whole) << c.text;
    }
  }
}

TEST(ChatParse, CutsDoNotMatterInRandomText) {
  const std::vector<std::string> parts = {"<|channel>",
                                          "<channel|>",
                                          "thought",
                                          "\n",
                                          "<|tool_call>",
                                          "<tool_call|>",
                                          "<|tool_response>",
                                          "<|\"|>",
                                          "call:f{",
                                          "}",
                                          "a:",
                                          "1",
                                          ",",
                                          "[",
                                          "]",
                                          " ",
                                          "x",
                                          "<",
                                          "<|",
                                          "é",
                                          "\"",
                                          "'",
                                          "\\",
                                          "call",
                                          ":",
                                          "(",
                                          ")",
                                          "=",
                                          "call:f{a:[1,{b:<|\"|>s<|\"|>}]}"};
  std::mt19937 rng(2);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (uint32_t i = 0, n = 1 + rng() % 12; i < n; ++i) text += parts[rng() % parts.size()];
    ParseOptions options{.in_thought = rng() % 2 == 0};
    if (rng() % 2 == 0) options.tools = {"f"};
    const Outcome whole = outcome_of(text, {}, options);
    std::vector<size_t> every;
    for (size_t a = 1; a < text.size(); ++a) every.push_back(a);
    ASSERT_EQ(outcome_of(text, every, options), whole) << text;
    const size_t a = rng() % (text.size() + 1);
    ASSERT_EQ(outcome_of(text, {a}, options), whole) << text;
    for (const ParsedCall& c : whole.message.tool_calls) ASSERT_TRUE(c.partial || Json::accept(c.arguments)) << text;
  }
}

// An answer that is cut anywhere shows no markup but for a marker that was cut itself, and what there is of its call is
// the beginning of what would have come.
TEST(ChatParse, ACutCallIsItsBeginning) {
  const std::string before = "<|channel>thought\nR\n<channel|>Let me look.",
                    body = "call:f{a:<|\"|>é\"x\\\n<|\"|>,b:[1,{\"c\": \"d\\u00e9\\n\"},true],d:{e:-2.5}}";
  const ParsedMessage whole = parse_chat(before + "<|tool_call>" + body + "<tool_call|>");
  ASSERT_EQ(whole.tool_calls.size(), 1u);
  const size_t head = std::string("call:f{").size();
  for (size_t n = 0; n <= body.size(); ++n) {
    ChatParser parser;
    parser.push(before + "<|tool_call>" + body.substr(0, n));
    parser.finish(/*cut=*/true);
    const ParsedMessage& m = parser.message();
    EXPECT_EQ(m.content, "Let me look.") << n;
    ASSERT_EQ(m.tool_calls.size(), n >= head ? 1u : 0u) << n;
    if (n < head) continue;
    EXPECT_EQ(m.tool_calls[0].partial, n < body.size()) << n;
    EXPECT_TRUE(whole.tool_calls[0].arguments.starts_with(m.tool_calls[0].arguments)) << m.tool_calls[0].arguments;
  }
}

// What models write for long must not take long: markers and quotes that never come to an end.
TEST(ChatParse, WorkIsBounded) {
  const auto times = [](std::string_view s, size_t n) {
    std::string all;
    for (size_t i = 0; i < n; ++i) all += s;
    return all;
  };
  for (const std::string_view s :
       {"\ncall:f{a:", "<|tool_call>call:f{a:\"<tool_call|>", "<|tool_call>call:f{a:<|\"|><tool_call|>", "a:'x,",
        "a:\"x,", "{a:[", "\"", "<|\"|>\"", "<|channel>", "call:", "\n", "x,   ", "\\u12"}) {
    for (const std::string_view before : {"", "<|tool_call>call:f{", "call:f{"}) {
      const std::string text = std::string(before) + times(s, 200'000 / s.size());
      const auto start = std::chrono::steady_clock::now();
      ChatParser parser({.tools = {{"f"}}});
      for (size_t at = 0; at < text.size(); at += 4) parser.push(std::string_view(text).substr(at, 4));
      parser.finish();
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      EXPECT_LT(seconds, 4) << before << s;  // of 50 ms on a free core; what is quadratic takes minutes
    }
  }
}

// A parser that gives up what it holds back after every piece must fail the comparison above.
TEST(ChatParse, CutComparisonHasTeeth) {
  const std::string text = "<|channel>thought\nR\n<channel|>Hello";
  ParsedMessage joined;
  for (const size_t half : {size_t(0), size_t(1)}) {
    const ParsedMessage m = parse_chat(half ? text.substr(5) : text.substr(0, 5));
    joined.content += m.content;
    joined.reasoning += m.reasoning;
  }
  EXPECT_NE(joined, parse_chat(text));
}

TEST(ChatParse, TextIsNotHeldBackLongerThanNeeded) {
  ChatParser parser;
  EXPECT_EQ(parser.push("Hello"), (std::vector<ParseEvent>{{Kind::kContent, "Hello", {}}}));
  EXPECT_EQ(parser.push(" <|"), (std::vector<ParseEvent>{{Kind::kContent, " ", {}}}));
  EXPECT_EQ(parser.push("x"), (std::vector<ParseEvent>{{Kind::kContent, "<|x", {}}}));
  EXPECT_TRUE(parser.push("<|tool_call>call:f{a:").empty());
  EXPECT_TRUE(parser.push("1}<tool_call").empty());
  EXPECT_EQ(parser.push("|>"), (std::vector<ParseEvent>{{Kind::kToolCall, "", {"call_0", "f", "{\"a\":1}"}}}));
  EXPECT_TRUE(parser.finish().empty());
}

TEST(ChatParse, DeepNestingIsMalformedNotFatal) {
  const std::string deep = "call:f{a:" + std::string(200000, '[') + std::string(200000, ']') + "}";
  EXPECT_EQ(parse_chat(call(deep)).content, call(deep));
  const std::string fine = "call:f{a:" + std::string(90, '[') + std::string(90, ']') + "}";
  EXPECT_EQ(parse_chat(call(fine)).tool_calls.size(), 1u);
}

TEST(ChatParse, InvalidUtf8InArgumentsIsStillJson) {
  const ParsedMessage m = parse_chat(call("call:f{s:<|\"|>\xFF\xC3<|\"|>}"));
  ASSERT_EQ(m.tool_calls.size(), 1u);
  EXPECT_TRUE(Json::accept(m.tool_calls[0].arguments));
}

}  // namespace
}  // namespace facet
