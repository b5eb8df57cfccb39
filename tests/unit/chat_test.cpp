#include "tokenizer/chat.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tokenizer/chat_parse.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

struct Options {
  bool gp = false, thinking = false, preserve = false;
  Variant variant = Variant::kSmall;
};

std::string render(const std::string& messages, Options o = {}, const std::string& tools = "null") {
  Result<Json> mj = parse_json(messages, "messages"), tj = parse_json(tools, "tools");
  if (!mj || !tj) return "test: " + (mj ? tj.error() : mj.error()).message();
  Result<std::vector<Message>> m = messages_from_json(*mj);
  if (!m) return "error: " + m.error().message();
  Result<std::vector<Json>> t = tools_from_json(*tj);
  if (!t) return "error: " + t.error().message();
  Result<std::string> text = render_chat(*m, *t,
                                         {.add_generation_prompt = o.gp,
                                          .enable_thinking = o.thinking,
                                          .preserve_thinking = o.preserve,
                                          .variant = o.variant});
  return text ? *text : "error: " + text.error().message();
}

constexpr Options kGp{.gp = true};
constexpr Options kGpThinking{.gp = true, .thinking = true};

const std::string kWeatherTool =
    R"([{"type":"function","function":{"name":"get_weather","description":"Get weather",
  "parameters":{"type":"object","properties":{"city":{"type":"string","description":"City"},
  "unit":{"type":"string","enum":["C","F"]}},"required":["city"]}}}])";
const std::string kWeather =
    R"(declaration:get_weather{description:<|"|>Get weather<|"|>,parameters:{properties:{city:{description:<|"|>City<|"|>,type:<|"|>STRING<|"|>},unit:{enum:[<|"|>C<|"|>,<|"|>F<|"|>],type:<|"|>STRING<|"|>}},required:[<|"|>city<|"|>],type:<|"|>OBJECT<|"|>}})";

TEST(Chat, PlainTurns) {
  const std::string hello = R"([{"role":"user","content":" Hello "}])";
  EXPECT_EQ(render(hello, {.gp = true, .variant = Variant::kLarge}),
            "<bos><|turn>user\nHello<turn|>\n<|turn>model\n<|channel>thought\n<channel|>");
  EXPECT_EQ(render(hello, kGp), "<bos><|turn>user\nHello<turn|>\n<|turn>model\n");
  for (const Variant v : {Variant::kLarge, Variant::kSmall})
    EXPECT_EQ(render(hello, {.gp = true, .thinking = true, .variant = v}),
              "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHello<turn|>\n<|turn>model\n");
  EXPECT_EQ(render("[]"), "<bos>");
  EXPECT_EQ(render("[]", kGp), "<bos><|turn>model\n");
}

TEST(Chat, System) {
  EXPECT_EQ(render(R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}])", kGpThinking),
            "<bos><|turn>system\n<|think|>\nBe brief.<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n");
  EXPECT_EQ(render(R"([{"role":"developer","content":"dev"},{"role":"user","content":"q"},
                       {"role":"system","content":"mid"},{"role":"user","content":"r"}])"),
            "<bos><|turn>system\ndev<turn|>\n<|turn>user\nq<turn|>\n<|turn>system\nmid<turn|>\n<|turn>"
            "user\nr<turn|>\n");
}

TEST(Chat, Parts) {
  EXPECT_EQ(render(R"([{"role":"system","content":[{"type":"text","text":" a "},{"type":"text","text":"b"}]},
                       {"role":"user","content":[{"type":"text","text":" u1 "},{"type":"image"},{"type":"text","text":" u2"}]}])",
                   kGp),
            "<bos><|turn>system\na b <turn|>\n<|turn>user\nu1<|image|>u2<turn|>\n<|turn>model\n");
}

TEST(Chat, ThoughtsOfTheModel) {
  EXPECT_EQ(render(R"([{"role":"user","content":"Hi"},
                       {"role":"assistant","content":"<|channel>thought\nhmm\n<channel|>Hello!"},
                       {"role":"user","content":"2+2?"}])",
                   kGp),
            "<bos><|turn>user\nHi<turn|>\n<|turn>model\nHello!<turn|>\n<|turn>user\n2+2?<turn|>\n<|turn>model\n");
  EXPECT_EQ(render(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning_content":"R1"},
                       {"role":"user","content":"c"},{"role":"assistant","content":"d","reasoning":"R2"}])"),
            "<bos><|turn>user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>user\nc<turn|>\n<|turn>model\n"
            "<|channel>thought\nR2\n<channel|>d<turn|>\n");
  // preserve_thinking keeps an earlier thought only where there are tool calls.
  const std::string both = R"([{"role":"user","content":"a"},
      {"role":"assistant","content":"b","reasoning":"R1"},{"role":"user","content":"c"},
      {"role":"assistant","reasoning":"R2","tool_calls":[{"id":"x","function":{"name":"f"}}]},
      {"role":"tool","tool_call_id":"x","content":"1"},{"role":"user","content":"d"}])";
  EXPECT_EQ(render(both, {.preserve = true}),
            "<bos><|turn>user\na<turn|>\n<|turn>model\nb<turn|>\n<|turn>user\nc<turn|>\n<|turn>model\n"
            "<|channel>thought\nR2\n<channel|><|tool_call>call:f{}<tool_call|>"
            "<|tool_response>response:f{value:<|\"|>1<|\"|>}<tool_response|><turn|>\n<|turn>user\nd<turn|>\n");
  EXPECT_EQ(render(both).find("R2"), std::string::npos);
  EXPECT_EQ(render(R"([{"role":"assistant","content":"x<|channel>thought\nA<channel|>y<channel|>z<|channel>tail"}])"),
            "<bos><|turn>model\nxyz<turn|>\n");
}

TEST(Chat, ConsecutiveAssistantMessagesAreOneTurn) {
  EXPECT_EQ(render(R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},
                       {"role":"assistant","content":"c"},{"role":"user","content":"d"}])",
                   kGp),
            "<bos><|turn>user\na<turn|>\n<|turn>model\nbc<turn|>\n<|turn>user\nd<turn|>\n<|turn>model\n");
  EXPECT_EQ(
      render(R"([{"role":"user","content":"a"},{"role":"assistant","content":""},{"role":"user","content":"b"}])"),
      "<bos><|turn>user\na<turn|>\n<|turn>model\n<turn|>\n<|turn>user\nb<turn|>\n");
}

TEST(Chat, ToolDeclarations) {
  const std::string user = R"([{"role":"user","content":"Weather?"}])";
  EXPECT_EQ(render(user, kGp, kWeatherTool),
            "<bos><|turn>system\n<|tool>" + kWeather + "<tool|><turn|>\n<|turn>user\nWeather?<turn|>\n<|turn>model\n");
  EXPECT_EQ(
      render(R"([{"role":"system","content":"Sys."},{"role":"user","content":"Weather?"}])", kGpThinking, kWeatherTool),
      "<bos><|turn>system\n<|think|>\nSys.<|tool>" + kWeather +
          "<tool|><turn|>\n<|turn>user\nWeather?<turn|>\n<|turn>model\n");

  const auto declaration = [&](const std::string& function) {
    const std::string text = render("[]", {}, "[" + function + "]");
    const std::string head = "<bos><|turn>system\n<|tool>", tail = "<tool|><turn|>\n";
    if (!text.starts_with(head) || !text.ends_with(tail)) return text;
    return text.substr(head.size(), text.size() - head.size() - tail.size());
  };
  const auto property = [&](const std::string& schema) {
    const std::string text = declaration(R"({"name":"f","parameters":{"type":"object","properties":)" + schema + "}}");
    const std::string head = "declaration:f{description:<|\"|><|\"|>,parameters:{properties:{";
    const std::string tail = "},type:<|\"|>OBJECT<|\"|>}}";
    if (!text.starts_with(head) || !text.ends_with(tail)) return text;
    return text.substr(head.size(), text.size() - head.size() - tail.size());
  };
  EXPECT_EQ(declaration(R"({"name":"f","description":"D"})"), R"(declaration:f{description:<|"|>D<|"|>})");
  EXPECT_EQ(declaration(R"({"name":"f","description":"D","parameters":{"type":"object","properties":{}}})"),
            R"(declaration:f{description:<|"|>D<|"|>,parameters:{type:<|"|>OBJECT<|"|>}})");
  EXPECT_EQ(declaration(R"({"name":"f"})"), R"(declaration:f{description:<|"|><|"|>})");
  EXPECT_EQ(declaration(R"({"name":"f","response":{"description":"r","type":"object"}})"),
            R"(declaration:f{description:<|"|><|"|>,response:{description:<|"|>r<|"|>,type:<|"|>OBJECT<|"|>}})");
  EXPECT_EQ(
      property(R"({"o":{"type":"object","description":"obj","required":["b"],
                 "properties":{"b":{"type":"integer"},"A":{"type":"number","nullable":true}}}})"),
      R"(o:{description:<|"|>obj<|"|>,properties:{A:{nullable:true,type:<|"|>NUMBER<|"|>},b:{type:<|"|>INTEGER<|"|>}},required:[<|"|>b<|"|>],type:<|"|>OBJECT<|"|>})");
  EXPECT_EQ(property(R"({"l":{"type":"array","items":{"type":"string","enum":["p","q"]}}})"),
            R"(l:{items:{enum:[<|"|>p<|"|>,<|"|>q<|"|>],type:<|"|>STRING<|"|>},type:<|"|>ARRAY<|"|>})");
  EXPECT_EQ(property(R"({"a":{"type":["string","null"]},"b":{}})"),
            R"(a:{type:<|"|>['STRING', 'NULL']<|"|>},b:{type:<|"|><|"|>})");
  // Other schema fields are dropped, also enums that are not of strings.
  EXPECT_EQ(property(R"({"n":{"type":"integer","enum":[1,2],"minimum":0,"default":1}})"),
            R"(n:{type:<|"|>INTEGER<|"|>})");
  // An object without properties lists its other members instead.
  EXPECT_EQ(property(R"({"o":{"type":"object","x":{"type":"string"},"nullable":false}})"),
            R"(o:{properties:{x:{type:<|"|>STRING<|"|>}},type:<|"|>OBJECT<|"|>})");
  // Keys of values are quoted in declarations.
  EXPECT_EQ(property(R"({"l":{"type":"array","items":{"default":{"k":1}}}})"),
            R"(l:{items:{default:{<|"|>k<|"|>:1}},type:<|"|>ARRAY<|"|>})");
}

std::string conversation(const std::string& rest) { return R"([{"role":"user","content":"Weather?"},)" + rest + "]"; }
const std::string kAsked = "<bos><|turn>user\nWeather?<turn|>\n<|turn>model\n";

TEST(Chat, OpenCall) {
  EXPECT_EQ(
      render(conversation(R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"get_weather",
        "arguments":{"city":"Paris","unit":"C","n":3,"f":1.5,"b":true,"z":null,"l":["a",2],"o":{"k":"v"}}}}]})"),
             kGp),
      kAsked +
          R"(<|tool_call>call:get_weather{b:true,city:<|"|>Paris<|"|>,f:1.5,l:[<|"|>a<|"|>,2],n:3,o:{k:<|"|>v<|"|>},unit:<|"|>C<|"|>,z:null}<tool_call|><|tool_response>)");
}

const std::string kCall =
    R"({"role":"assistant","tool_calls":[{"id":"c0","type":"function","function":{"name":"get_weather","arguments":"{\"city\":\"Paris\"}"}}]})";
const std::string kResult = R"({"role":"tool","tool_call_id":"c0","content":"{\"temp\": 20}"})";
const std::string kAnswered =
    kAsked +
    R"(<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|><|tool_response>response:get_weather{value:<|"|>{"temp": 20}<|"|>}<tool_response|>)";

TEST(Chat, ToolResults) {
  EXPECT_EQ(render(conversation(kCall + "," + kResult), kGp), kAnswered);
  EXPECT_EQ(render(conversation(kCall + "," + kResult +
                                R"(,{"role":"assistant","content":"It is 20."},{"role":"user","content":"Thanks"})"),
                   kGp),
            kAnswered + "It is 20.<turn|>\n<|turn>user\nThanks<turn|>\n<|turn>model\n");
  // A structured result, in the model's own form.
  EXPECT_EQ(render(conversation(R"({"role":"assistant","tool_calls":[{"function":{"name":"f"}}],
                       "tool_responses":[{"name":"f","response":{"b":1,"A":[true]}},{"response":2.0}]})"),
                   kGp),
            kAsked +
                "<|tool_call>call:f{}<tool_call|><|tool_response>response:f{A:[true],b:1}<tool_response|>"
                "<|tool_response>response:unknown{value:2.0}<tool_response|>");
  // Text parts are joined; media follow the block. The name falls back to the message's own, then to
  // "unknown".
  EXPECT_EQ(render(conversation(
                R"({"role":"assistant","tool_calls":[{"id":"c0","function":{"name":"f"}}]},
       {"role":"tool","tool_call_id":"other","name":"g","content":[{"type":"text","text":"a "},{"type":"image"},{"type":"text","text":"b"}]},
       {"role":"tool","tool_call_id":"other","content":null})")),
            kAsked +
                "<|tool_call>call:f{}<tool_call|><|tool_response>response:g{value:<|\"|>a "
                "b<|\"|>}<tool_response|><|image|>"
                "<|tool_response>response:unknown{value:null}<tool_response|>");
  // A result that answers nothing vanishes.
  EXPECT_EQ(render(conversation(kResult)), "<bos><|turn>user\nWeather?<turn|>\n");
}

TEST(Chat, ParallelCallsWithThought) {
  const std::string loop =
      R"([{"role":"user","content":"q"},{"role":"assistant","reasoning":"R","tool_calls":[
      {"id":"c0","function":{"name":"a","arguments":{"x":1}}},{"id":"c1","function":{"name":"b","arguments":{}}}]},
      {"role":"tool","tool_call_id":"c1","content":"two"},{"role":"tool","tool_call_id":"c0","content":"one"})";
  const std::string prompt =
      "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nq<turn|>\n<|turn>model\n<|channel>thought\nR\n<"
      "channel|>"
      "<|tool_call>call:a{x:1}<tool_call|><|tool_call>call:b{}<tool_call|>"
      "<|tool_response>response:b{value:<|\"|>two<|\"|>}<tool_response|>"
      "<|tool_response>response:a{value:<|\"|>one<|\"|>}<tool_response|>";
  EXPECT_EQ(render(loop + R"(,{"role":"assistant","content":"done"}])", kGpThinking),
            prompt + "done<turn|>\n<|turn>model\n");
  EXPECT_EQ(render(loop + "]", kGpThinking), prompt + "<|channel>thought\n");
  EXPECT_TRUE(ends_in_thought(render(loop + "]", kGpThinking)));
  EXPECT_FALSE(ends_in_thought(render(loop + "]", kGp)));
}

TEST(Chat, ContentOfACallComesAfterItsResult) {
  const std::string call_with_content = R"({"role":"assistant","content":"Let me check.",)" + kCall.substr(20);
  const std::string messages = conversation(call_with_content + "," + kResult);
  EXPECT_EQ(render(messages), kAnswered + "Let me check.<turn|>\n");
  // The template would leave the model outside of any turn.
  EXPECT_EQ(render(messages, kGp), kAnswered + "Let me check.<turn|>\n<|turn>model\n");
}

TEST(Chat, Numbers) {
  EXPECT_EQ(render(
                R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":
            {"a":1e20,"b":0.1,"B2":1000000000000000,"c":-3,"d":1.0,"e":{},"g":[]}}}]}])"),
            "<bos><|turn>model\n<|tool_call>call:f{a:1e+20,b:0.1,B2:1000000000000000,c:-3,d:1.0,e:{},g:[]}<"
            "tool_call|>"
            "<|tool_response>");
  const std::pair<double, const char*> numbers[] = {
      {1.0, "1.0"},        {-0.0, "-0.0"},
      {0.1, "0.1"},        {1e15, "1000000000000000.0"},
      {1e16, "1e+16"},     {123456789.125, "123456789.125"},
      {0.0001, "0.0001"},  {0.00001, "1e-05"},
      {1.5e-7, "1.5e-07"}, {1.7976931348623157e308, "1.7976931348623157e+308"},
      {5e-324, "5e-324"},  {2.0 / 3, "0.6666666666666666"}};
  for (const auto& [value, text] : numbers) EXPECT_EQ(python_number(value), text);
}

TEST(Chat, KeysSortIgnoringCaseAndStably) {
  const auto keys = [](const std::string& object) {
    const std::string text =
        render(R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" + object + "}}]}]");
    const size_t begin = text.find('{') + 1;
    return text.substr(begin, text.find('}') - begin);
  };
  EXPECT_EQ(keys(R"({"b":1,"C":2,"a":3,"_":4})"), "_:4,a:3,b:1,C:2");
  EXPECT_EQ(keys(R"({"b":1,"B":2})"), "b:1,B:2");
  EXPECT_EQ(keys(R"({"B":2,"b":1})"), "B:2,b:1");
}

TEST(Chat, ErrorsNameTheMessage) {
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_TRUE(text.starts_with("error: ") && text.find(part) != std::string::npos) << text;
  };
  const std::string u = R"({"role":"user","content":"x"},)";
  contains(render("[" + u + R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[1]"}}]}])"),
           "messages[1].tool_calls[0].function.arguments");
  contains(render("[" + u + R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])"),
           "messages[1].tool_calls[0].function.arguments");
  contains(render("[" + u + R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":3}}]}])"),
           "messages[1].tool_calls[0].function.arguments");
  contains(render("[" + u + R"({"role":"assistant","tool_calls":[{"function":{}}]}])"), "messages[1].tool_calls[0]");
  contains(render("[" + u + R"({"role":"robot","content":"x"}])"), "messages[1].role");
  contains(render("[" + u + R"({"content":"x"}])"), "messages[1].role");
  contains(render("[" + u + R"({"role":"tool","content":{"a":1}}])"), "messages[1].content");
  contains(render("[" + u + R"({"role":"user","content":[{"type":"text"}]}])"), "messages[1].content[0].text");
  contains(render("[" + u + R"({"role":"user","content":[{"type":"smell"}]}])"), "smell");
  contains(render("[" + u + R"({"role":"assistant","reasoning":5}])"), "messages[1].reasoning");
  contains(render("[1]"), "messages[0]");
  contains(render("{}"), "messages");
  contains(render("[]", {}, "[{}]"), "tools[0].name");
  contains(render("[]", {}, R"([{"name":"f","parameters":[]}])"), "tools[0].parameters");
  // The template's own rule, for messages that do not come from JSON.
  Message m{.role = "assistant"};
  m.tool_calls.push_back({"c", "f", "a string"});
  const Result<std::string> r = render_chat({{.role = "user"}, m}, {}, {});
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().message().find("messages[1].tool_calls[0]"), std::string::npos);
  EXPECT_FALSE(parse_json(std::string(100000, '['), "x"));
  // Few long keys are as much work as many short ones: the bytes that are compared count.
  const auto wide = [](size_t n, size_t length) {
    std::string s = "{";
    for (size_t i = 0; i < n; ++i) {
      std::string key = std::to_string(i);
      s += (i ? ",\"" : "\"") + std::string(length - key.size(), 'k') + key + "\":[1,{\"a\":\"b,c\"}]";
    }
    return s + "}";
  };
  EXPECT_TRUE(parse_json(wide(5500, 6), "x"));
  EXPECT_TRUE(parse_json(wide(650, 1500), "x"));
  EXPECT_FALSE(parse_json(wide(7000, 6), "x"));
  EXPECT_FALSE(parse_json(wide(5500, 1500), "x"));
  EXPECT_TRUE(parse_json(R"({"a\"b,{":1,"c":{"d":[{},{"e":2}]},"f":"g"})", "x"));
  EXPECT_FALSE(parse_json("[1e999]", "x"));  // the library reports this one as another exception
}

TEST(Chat, VariantOfATemplate) {
  EXPECT_EQ(chat_variant("", false), Variant::kLarge);
  EXPECT_EQ(chat_variant("", true), Variant::kSmall);
  EXPECT_EQ(chat_variant("{{ messages }}", true), Variant::kSmall);
  EXPECT_EQ(chat_variant(R"({{- '<|turn>model\n' -}} {{- '<|channel>thought\n<channel|>' -}})", true), Variant::kLarge);
  EXPECT_EQ(chat_variant(R"({{- '<|turn>model\n' -}} {{- '<|channel>thought\n' + t + '\n<channel|>' -}})", false),
            Variant::kSmall);
}

// What the model wrote and a client sends back is what the next prompt contains, token for token.
TEST(Chat, ParsedTextRendersBack) {
  const std::string text =
      "<|channel>thought\nFirst this,\nthen that.\n<channel|><|tool_call>call:get_weather{city:<|\"|>Paris "
      "\"x\"\n<|\"|>,days:[1,2.5,true,null],o:{k:<|\"|>v<|\"|>}}<tool_call|><|tool_call>call:b{}<tool_call|>";
  const ParsedMessage parsed = parse_chat(text);
  Message m{.role = "assistant", .content = parsed.content, .reasoning = parsed.reasoning};
  for (const ParsedCall& c : parsed.tool_calls) m.tool_calls.push_back({c.id, c.name, Json::parse(c.arguments)});
  const Result<std::string> prompt = render_chat({{.role = "user", .content = "q"}, m}, {}, {});
  ASSERT_TRUE(prompt);
  EXPECT_EQ(*prompt, "<bos><|turn>user\nq<turn|>\n<|turn>model\n" + text + "<|tool_response>");
}

// Whatever messages and tools spell, the ranges hold it, and what is between them is the template's alone.
TEST(Chat, RangesHoldWhatIsNotTheTemplates) {
  const auto rendered = [](const std::string& x) {
    const Json tool = {{"name", x},
                       {"description", x},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", {{x, {{"type", "string"}, {"description", x}, {"enum", {x}}}}}},
                         {"required", {x}}}}};
    std::vector<Message> m{{.role = "system", .content = x}, {.role = "user", .content = x}};
    m.push_back({.role = "assistant", .content = {}, .reasoning = x});
    m.back().tool_calls.push_back({"id", x, Json{{x, Json::array({x, 1, Json{{x, x}}})}}});
    m.push_back({.role = "tool", .content = x, .tool_call_id = "id"});
    m.push_back({.role = "user",
                 .content = std::vector<ContentPart>{{ContentPart::Kind::kText, x}, {ContentPart::Kind::kText, x}}});
    auto r = render_chat_ranges(m, {tool}, {.add_generation_prompt = true, .preserve_thinking = true});
    EXPECT_TRUE(r);
    EXPECT_EQ(r->text, *render_chat(m, {tool}, {.add_generation_prompt = true, .preserve_thinking = true}));
    return *r;
  };
  const auto between = [](const RenderedChat& r) {
    std::string out;
    size_t at = 0;
    for (const TextRange& p : r.plain) {
      EXPECT_LE(at, p.begin);
      EXPECT_LT(p.begin, p.end);
      out += r.text.substr(at, p.begin - at) + "|";
      at = p.end;
    }
    return out + r.text.substr(at);
  };
  const std::string want = between(rendered("x"));
  EXPECT_GE(std::count(want.begin(), want.end(), '|'), 18);
  for (const char* text :
       {"<turn|>", "<|tool_call>call:f{}<tool_call|>", "<|\"|>", "<|channel>thought", "<bos>", "a<|turn>b"})
    EXPECT_EQ(between(rendered(text)), want) << text;
  EXPECT_EQ(rendered("a\xFE\xFF").text.find('\xFE'), std::string::npos);  // bytes that no UTF-8 has
}

}  // namespace
}  // namespace facet
