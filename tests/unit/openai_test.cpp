// The OpenAI API without a socket: every field of a request, answers, streams, stop strings.
// Long: a list of requests and what each field does.
#include "server/openai.h"
#include "grammar/grammar.h"
#include "server/constraint.h"

#include <gtest/gtest.h>

#include <cctype>
#include <fstream>

#include "server/access.h"
#include "server/api_fields.h"
#include "server/http.h"
#include "server/writer.h"

namespace facet {
namespace {

const ApiDefaults kDefaults{.sampling = {}, .seed_given = false, .max_tokens = -1, .thinking = false, .n_vocab = 100};

Json json(const std::string& text) {
  auto j = parse_json(text, "test");
  EXPECT_TRUE(bool(j)) << text;
  return j ? *j : Json();
}

// A chat request with one more field, {"key": value}.
Result<ApiRequest> chat(const std::string& field) {
  return parse_api_request(
      ApiKind::kChat,
      json(R"({"messages":[{"role":"user","content":"Hi"}])" + (field.empty() ? "" : "," + field) + "}"), kDefaults);
}
Result<ApiRequest> completion(const std::string& field) {
  return parse_api_request(ApiKind::kCompletion, json(R"({"prompt":"Hi")" + (field.empty() ? "" : "," + field) + "}"),
                           kDefaults);
}

TEST(OpenAiRequest, Defaults) {
  const auto r = chat("");
  ASSERT_TRUE(bool(r)) << r.error().message();
  EXPECT_EQ(r->messages.size(), 1u);
  EXPECT_FALSE(r->stream);
  EXPECT_FALSE(r->seed_given);
  EXPECT_EQ(r->max_tokens, -1);
  EXPECT_EQ(r->sampling.temperature, 1.f);
  EXPECT_EQ(r->sampling.top_k, 64);
}

TEST(OpenAiRequest, ReadsEveryField) {
  const auto r = chat(
      R"("stream":true,"stream_options":{"include_usage":true},"max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":3,
    "min_p":0.125,"seed":9007199254740993,"stop":["a","bc"],"presence_penalty":0.5,"frequency_penalty":-0.5,"repeat_penalty":1.5,
    "repeat_last_n":12,"logit_bias":{"5":-100,"99":2.5},"chat_template_kwargs":{"enable_thinking":true,"preserve_thinking":true},
    "ignore_eos":true,"model":"any","tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],"tool_choice":"auto")");
  ASSERT_TRUE(bool(r)) << r.error().message();
  EXPECT_TRUE(r->stream && r->include_usage && r->thinking && r->preserve_thinking && r->ignore_eos && r->seed_given);
  EXPECT_EQ(r->max_tokens, 7);
  const Sampling& s = r->sampling;
  EXPECT_EQ(s.temperature, .5f);
  EXPECT_EQ(s.top_p, .25f);
  EXPECT_EQ(s.top_k, 3);
  EXPECT_EQ(s.min_p, .125f);
  EXPECT_EQ(s.seed, 9007199254740993u);
  EXPECT_EQ(s.presence_penalty, .5f);
  EXPECT_EQ(s.frequency_penalty, -.5f);
  EXPECT_EQ(s.repeat_penalty, 1.5f);
  EXPECT_EQ(s.repeat_last_n, 12);
  EXPECT_EQ(s.logit_bias, (std::vector<std::pair<int32_t, float>>{{5, -100.f}, {99, 2.5f}}));
  EXPECT_EQ(r->stop, (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(r->tools.size(), 1u);
}

TEST(OpenAiRequest, Accepts) {
  for (const char* f : {R"("max_completion_tokens":5)",
                        R"("n_predict":-1)",
                        R"("max_tokens":5,"n_predict":5)",
                        R"("seed":-1)",
                        R"("seed":0)",
                        R"("stop":"x")",
                        R"("stop":[])",
                        R"("stop":null)",
                        R"("n":1)",
                        R"("response_format":{"type":"text"})",
                        R"("tool_choice":"none")",
                        R"("user":"u")",
                        R"("metadata":{"a":"b"})",
                        R"("store":true)",
                        R"("service_tier":"auto")",
                        R"("safety_identifier":"x")",
                        R"("prompt_cache_key":"x")",
                        R"("temperature":null)",
                        R"("cache_prompt":false)",
                        R"("id_slot":3)",
                        R"("made_up":1)",
                        R"("max_tokens":10.0)",
                        R"("top_k":2.0)",
                        R"("repetition_penalty":1.1)",
                        R"("timings_per_token":true)",
                        R"("return_progress":true)",
                        R"("grammar":"")",
                        R"("mirostat":0)",
                        R"("typical_p":1.0)",
                        R"("stream":true,"stream_options":{"x":1,"continuous_usage_stats":true})"})
    EXPECT_TRUE(bool(completion(f)) || bool(chat(f))) << f;
  for (const char* f :
       {R"("parallel_tool_calls":true)", R"("logprobs":false)", R"("top_logprobs":0)", R"("modalities":["text"])",
        R"("tools":null)", R"("tools":[])", R"("enable_thinking":true)",
        R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":true})", R"("parallel_tool_calls":false)",
        R"("chat_template_kwargs":{"x":1})", R"("reasoning_effort":"none")",
        R"("reasoning_effort":"high","enable_thinking":true)", R"("add_generation_prompt":false)"})
    EXPECT_TRUE(bool(chat(f))) << f;
  for (const char* f :
       {R"("echo":false)", R"("best_of":1)", R"("suffix":"")", R"("suffix":null)", R"("logprobs":null)"})
    EXPECT_TRUE(bool(completion(f))) << f;
}

// Long: a list of bodies.
TEST(OpenAiRequest, RefusesNamingTheField) {
  const std::vector<std::pair<const char*, const char*>> bad = {
      {R"("n":2)", "n"},
      {R"("response_format":{"type":"xml"})", "response_format"},
      {R"("response_format":{"type":"json_schema"})", "response_format.json_schema.schema"},
      {R"("guided_choice":[1])", "guided_choice"},
      {R"("guided_json":"{")", "guided_json"},
      {R"("structured_outputs":{"structural_tag":{}})", "structured_outputs.structural_tag"},
      {R"("guided_regex":"a","grammar":"root ::= \"a\"")", "guided_regex"},
      {R"("response_format":"text")", "response_format"},
      {R"("logprobs":3)", "logprobs"},
      {R"("top_logprobs":3)", "top_logprobs"},
      {R"("parallel_tool_calls":1)", "parallel_tool_calls"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice"},
      {R"("functions":[])", "functions"},
      {R"("grammar":7)", "grammar"},
      {R"("mirostat":2)", "mirostat"},
      {R"("n_probs":1)", "n_probs"},
      {R"("reasoning_effort":"much")", "reasoning_effort"},
      {R"("reasoning_effort":"high","enable_thinking":false)", "reasoning_effort"},
      {R"("continue_final_message":true)", "continue_final_message"},
      {R"("return_progress":1)", "return_progress"},
      {R"("stream":1)", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"continuous_usage_stats":1})", "stream_options.continuous_usage_stats"},
      {R"("stream":true,"stream_options":7)", "stream_options"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-2)", "max_tokens"},
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_tokens":0.0)", "max_tokens"},
      {R"("max_tokens":1e300)", "max_tokens"},
      {R"("max_tokens":16777217.0)", "max_tokens"},
      {R"("max_tokens":-1e15)", "max_tokens"},
      {R"("temperature":1e300)", "temperature"},
      {R"("seed":1e18)", "seed"},
      {R"("max_tokens":99999999999999999999)", "max_tokens"},
      {R"("max_tokens":5,"max_completion_tokens":6)", "max_completion_tokens"},
      {R"("temperature":-0.1)", "temperature"},
      {R"("temperature":101)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("top_p":1.5)", "top_p"},
      {R"("min_p":-1)", "min_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":2.5)", "top_k"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("seed":-2)", "seed"},
      {R"("seed":"1")", "seed"},
      {R"("seed":18446744073709551615)", "seed"},
      {R"("presence_penalty":101)", "presence_penalty"},
      {R"("frequency_penalty":-101)", "frequency_penalty"},
      {R"("repeat_penalty":0)", "repeat_penalty"},
      {R"("repeat_last_n":-2)", "repeat_last_n"},
      {R"("stop":[1])", "stop[0]"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
      {R"("logit_bias":7)", "logit_bias"},
      {R"("logit_bias":[7])", "logit_bias[0]"},
      {R"("logit_bias":[[100,1]])", "logit_bias[0]"},
      {R"("logit_bias":[[1,1],[2,"x"]])", "logit_bias[1]"},
      {R"("logit_bias":{"text":1})", "logit_bias"},
      {R"("logit_bias":{"100":1})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"1x":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias.1"},
      {R"("model":7)", "model"},
      {R"("modalities":["audio"])", "modalities"},
      {R"("enable_thinking":"yes")", "enable_thinking"},
      {R"("chat_template_kwargs":7)", "chat_template_kwargs"},
      {R"("enable_thinking":false,"chat_template_kwargs":{"enable_thinking":true})",
       "chat_template_kwargs.enable_thinking"},
      {R"("tools":7)", "tools"},
      {R"("tools":[{}])", "tools[0].name"},
  };
  for (const auto& [field, param] : bad) {
    const auto r = chat(field);
    ASSERT_FALSE(bool(r)) << field;
    EXPECT_EQ(r.error().where, param) << field << ": " << r.error().message();
  }
  EXPECT_EQ(chat("\"stop\":\"" + std::string(257, 'x') + "\"").error().where, "stop");
  // Clients send empty stop strings; they stop nothing.
  ASSERT_TRUE(bool(chat(R"("stop":"")")));
  EXPECT_TRUE(chat(R"("stop":"")")->stop.empty());
  EXPECT_EQ(chat(R"("stop":["a",""])")->stop, std::vector<std::string>{"a"});
}

TEST(OpenAiRequest, UnknownFields) {
  ApiDefaults strict = kDefaults;
  strict.strict = true;
  auto where = [](const char* field, const ApiDefaults& d) {
    const auto r = parse_api_request(
        ApiKind::kChat, json(R"({"messages":[{"role":"user","content":"Hi"}],)" + std::string(field) + "}"), d);
    return r ? std::string("accepted") : r.error().where;
  };
  EXPECT_EQ(where(R"("made_up":1)", kDefaults), "accepted");
  EXPECT_EQ(where(R"("made_up":1)", strict), "made_up");
  EXPECT_EQ(where(R"("made_up":null)", strict), "accepted");
  EXPECT_EQ(where(R"("chat_template_kwargs":{"x":1})", strict), "chat_template_kwargs.x");
  EXPECT_EQ(where(R"("stream":true,"stream_options":{"x":1})", strict), "stream_options.x");
  EXPECT_EQ(where(R"("user":"u","store":true,"cache_prompt":true)", strict), "accepted");
  // What would change the answer is refused in either case, unless it says that it does not.
  for (const ApiDefaults& d : {kDefaults, strict}) {
    EXPECT_EQ(where(R"("mirostat":2)", d), "mirostat");
    EXPECT_EQ(where(R"("mirostat":0)", d), "accepted");
    EXPECT_EQ(where(R"("json_schema":{})", d), "accepted");
  }
}

// What a request's constraint becomes: whether a text is an answer, or the error's place and words.
std::string form(const std::string& fields, std::string_view text, bool in_thought = false) {
  const auto r = chat(fields);
  if (!r) return r.error().where;
  const auto recipe = grammar_recipe(*r, in_thought);
  if (!recipe) return "none";
  EXPECT_EQ(grammar_recipe(*r, in_thought)->key, recipe->key) << "would be compiled twice";
  const auto g = recipe->compile({});
  if (!g) return g.error().message();
  GrammarState s(*g);
  return s.advance_bytes(text) && s.may_end() ? "yes" : "no";
}
TEST(OpenAiRequest, ConstraintsBecomeGrammars) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})";
  for (const std::string& f :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)" + schema + "}}",
        R"("response_format":{"type":"json_object","schema":)" + schema + "}", R"("json_schema":)" + schema,
        R"("guided_json":)" + schema, R"("structured_outputs":{"json":)" + schema + "}"}) {
    EXPECT_EQ(form(f, R"({"a":1})"), "yes") << f;
    EXPECT_EQ(form(f, R"({"a":"x"})"), "no") << f;
  }
  EXPECT_EQ(form(R"("response_format":{"type":"json_object"})", R"({"x":[1]})"), "yes");
  EXPECT_EQ(form(R"("response_format":{"type":"text"},"grammar":"")", "x"), "none");
  EXPECT_EQ(form(R"("grammar":"root ::= \"a\"+")", "aaa"), "yes");
  EXPECT_EQ(form(R"("guided_regex":"a{3}")", "aa"), "no");
  EXPECT_EQ(form(R"("guided_choice":["x","y"])", "y"), "yes");
  EXPECT_NE(form(R"("guided_json":{"properties":{"b":{"not":{}}}})", "").find("#/properties/b: not"),
            std::string::npos);
  EXPECT_NE(form(R"("guided_regex":"(?=a)b")", "").find("guided_regex: "), std::string::npos);
}
TEST(OpenAiRequest, ToolChoices) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}])";
  // What comes before a call may be anything.
  EXPECT_EQ(form(tools, ""), "yes");
  EXPECT_EQ(form(tools, "any text, {\"a\": <|\"|>"), "yes");
  EXPECT_EQ(form(tools + R"(,"tool_choice":"none")", ""), "none");
  EXPECT_EQ(form(tools + R"(,"tool_choice":"required")", "x"), "no");
  EXPECT_EQ(form(tools + R"(,"tool_choice":{"type":"function","function":{"name":"f"}})", ""), "no");
  EXPECT_EQ(form(tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})", ""), "tool_choice");
  EXPECT_EQ(form(R"("tool_choice":"required")", ""), "tool_choice");
  EXPECT_EQ(form(tools + R"(,"response_format":{"type":"json_object"})", "{}"), "yes");
  EXPECT_EQ(form(tools + R"(,"response_format":{"type":"json_object"})", "text"), "no");
}

TEST(OpenAiRequest, TheDocumentListsWhatIsRefused) {
  std::ifstream in(FACET_SOURCE_DIR "/docs/server.md");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const size_t begin = text.find("### Fields that are refused"), end = text.find("\n###", begin + 1);
  ASSERT_LT(begin, end);
  std::string table = text.substr(begin, end - begin);
  for (const std::string_view name : refused_fields()) {
    std::string shown = fmt::format("`{}`", name);
    const char* neutral = refused_field(name);
    if (*neutral)
      shown += std::isdigit(uint8_t(neutral[0])) || neutral[0] == '-' || std::isalpha(uint8_t(neutral[0]))
                   ? fmt::format(" ({})", neutral)
                   : fmt::format(" (`{}`)", neutral);
    const size_t at = table.find(shown);
    EXPECT_NE(at, std::string::npos) << shown;
    if (at != std::string::npos) table.erase(at, shown.size());
  }
  EXPECT_EQ(table.find('`'), std::string::npos) << table;  // and no others
}

// Nothing of a client comes back longer than this, whatever it sent.
TEST(OpenAiRequest, ErrorsQuoteLittle) {
  const std::string big(100000, '7'), many(100000, 'x');
  std::vector<Error> errors;
  for (const std::string& field :
       {"\"max_tokens\":\"" + many + "\"", "\"tool_choice\":\"" + many + "\"", "\"logit_bias\":{\"" + big + "\":1}",
        "\"logit_bias\":{\"" + std::string(100000, '0') + "5\":101}", "\"response_format\":{\"" + many + "\":1}",
        "\"messages\":[{\"role\":\"" + many + "\"}]",
        "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"" + many + "\"}]}]"}) {
    const auto r = parse_api_request(ApiKind::kChat, json("{" + field + "}"), kDefaults);
    ASSERT_FALSE(bool(r));
    errors.push_back(r.error());
    const auto last = chat(field);
    if (!last) errors.push_back(last.error());
  }
  ApiDefaults strict = kDefaults;
  strict.strict = true;
  const auto unknown = parse_api_request(
      ApiKind::kChat, json(R"({"messages":[{"role":"user","content":"Hi"}],")" + many + "\":1}"), strict);
  ASSERT_FALSE(bool(unknown));
  errors.push_back(unknown.error());
  for (const std::string& text : {"{\"max_tokens\":" + big + "}", "{\"a\":\"" + many, "{\"a\":1e" + big + "}", many})
    if (const auto j = parse_json(text, ""); !j) errors.push_back(j.error());
  for (const Error& e : errors) {
    const std::string body = dump_json(error_json(Dialect::kOpenAi, api_error(e)));
    EXPECT_LT(body.size(), 800u) << body.substr(0, 300);
    EXPECT_EQ(body.find(std::string(201, 'x')), std::string::npos);
    EXPECT_EQ(body.find(std::string(201, '7')), std::string::npos);
    EXPECT_EQ(body.find(std::string(201, '0')), std::string::npos);
  }
}

TEST(OpenAiRequest, NumbersThatAreNone) {
  for (const char* text : {R"({"temperature":NaN})", R"({"temperature":Infinity})", R"({"temperature":-Infinity})",
                           R"({"temperature":nan})", R"({"temperature":1e999})", R"({"max_tokens":-1e999})"})
    EXPECT_FALSE(bool(parse_json(text, ""))) << text;
}

TEST(OpenAiRequest, IntegersWrittenAsFloats) {
  EXPECT_EQ(chat(R"("max_tokens":10.0)")->max_tokens, 10);
  EXPECT_EQ(chat(R"("max_tokens":1e1)")->max_tokens, 10);
  EXPECT_EQ(chat(R"("top_k":2.0)")->sampling.top_k, 2);
  EXPECT_EQ(chat(R"("seed":3.0)")->sampling.seed, 3u);
  EXPECT_EQ(chat(R"("repeat_last_n":-1.0)")->sampling.repeat_last_n, -1);
}

TEST(OpenAiRequest, BiasOfText) {
  ApiDefaults d = kDefaults;
  d.tokenize = [](std::string_view text) { return std::vector<int32_t>(text.size(), 7); };
  auto parse = [&](const std::string& bias) {
    return parse_api_request(ApiKind::kNative, json(R"({"prompt":"x","logit_bias":)" + bias + "}"), d);
  };
  using Bias = std::vector<std::pair<int32_t, float>>;
  EXPECT_EQ(parse(R"([[5,1],["ab",-2.5],["6",3],[8,false]])")->sampling.logit_bias,
            (Bias{{5, 1.f}, {7, -2.5f}, {7, -2.5f}, {6, 3.f}, {8, -1e9f}}));
  EXPECT_EQ(parse(R"({"ab":1,"5":2})")->sampling.logit_bias, (Bias{{7, 1.f}, {7, 1.f}, {5, 2.f}}));
  EXPECT_EQ(parse(R"({"500":1})").error().where, "logit_bias");  // meant as an id
  EXPECT_EQ(parse("{\"" + std::string(257, 'x') + "\":1}").error().where, "logit_bias");
  std::string many = "[";  // few entries of many tokens
  for (int i = 0; i < 5; ++i) many += "[\"" + std::string(250, char('a' + i)) + "\",1],";
  many.back() = ']';
  EXPECT_EQ(parse(many).error().where, "logit_bias");
}

TEST(OpenAiRequest, Continuation) {
  auto parse = [](const std::string& fields) {
    return parse_api_request(ApiKind::kChat, json("{" + fields + "}"), kDefaults);
  };
  const std::string u = R"({"role":"user","content":"u"})", a = R"({"role":"assistant","content":"a"})";
  EXPECT_FALSE(parse("\"messages\":[" + u + "]")->continue_last);
  EXPECT_TRUE(parse("\"messages\":[" + u + "," + a + "]")->continue_last);
  EXPECT_FALSE(parse("\"messages\":[" + u + "," + a + R"(],"continue_final_message":false)")->continue_last);
  EXPECT_TRUE(parse("\"messages\":[" + u + "," + a + R"(],"continue_final_message":true,"add_generation_prompt":false)")
                  ->continue_last);
  EXPECT_EQ(parse("\"messages\":[" + u + "," + a + R"(],"continue_final_message":true,"add_generation_prompt":true)")
                .error()
                .where,
            "continue_final_message");
  EXPECT_EQ(parse("\"messages\":[" + u + "," + a + "," + a + "]").error().where, "messages[2]");
  EXPECT_TRUE(bool(parse("\"messages\":[" + u + "," + a + "," + a + "," + u + "]")));
}

TEST(OpenAiRequest, Messages) {
  auto where = [](const std::string& messages) {
    const auto r = parse_api_request(ApiKind::kChat, json(R"({"messages":)" + messages + "}"), kDefaults);
    return r ? std::string("accepted") : r.error().where;
  };
  EXPECT_EQ(where("null"), "messages");
  EXPECT_EQ(where("[]"), "messages");
  EXPECT_EQ(where("7"), "messages");
  EXPECT_EQ(where(R"([{"role":"bad","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(where(R"([{"role":"user","content":7}])"), "messages[0].content");
  EXPECT_EQ(where(R"([{"role":"user","content":[{"type":"text","text":"a"}]}])"), "accepted");
  EXPECT_EQ(
      where(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}])"),
      "messages[0].content[1].type");
  std::string many = "[";
  for (int i = 0; i < 10'001; ++i) many += R"({"role":"user","content":"x"},)";
  many.back() = ']';
  EXPECT_EQ(where(many), "messages");
}

TEST(OpenAiRequest, ToolChoiceNoneLeavesTheToolsOut) {
  const auto r = chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none")");
  ASSERT_TRUE(bool(r));
  EXPECT_TRUE(r->tools.empty());
}

TEST(OpenAiRequest, Prompts) {
  auto parse = [](const std::string& prompt) {
    return parse_api_request(ApiKind::kCompletion, json(R"({"prompt":)" + prompt + "}"), kDefaults);
  };
  using Ids = std::vector<int32_t>;
  using Parts = std::vector<PromptPart>;
  EXPECT_EQ(parse(R"("abc")")->prompt, (Parts{"abc"}));
  EXPECT_EQ(parse(R"(["abc"])")->prompt, (Parts{"abc"}));
  EXPECT_EQ(parse("[1,2,99]")->prompt, (Parts{Ids{1, 2, 99}}));
  EXPECT_EQ(parse("[[1,2.0]]")->prompt, (Parts{Ids{1, 2}}));
  EXPECT_EQ(parse(R"(["a",1,2,"b",3])")->prompt, (Parts{"a", Ids{1, 2}, "b", Ids{3}}));
  EXPECT_EQ(parse(R"([1,"a","b"])")->prompt, (Parts{Ids{1}, "a", "b"}));
  EXPECT_EQ(parse("[[1],[2]]")->more_prompts, (std::vector<Parts>{{Ids{2}}}));
  EXPECT_EQ(parse("[[1],[]]").error().where, "prompt[1]");
  EXPECT_EQ(parse("[1,2.5]").error().where, "prompt[1]");
  EXPECT_EQ(parse("[]").error().where, "prompt");
  EXPECT_EQ(parse("null").error().where, "prompt");
  EXPECT_EQ(parse("[1,100]").error().where, "prompt[1]");
  EXPECT_EQ(parse("[1,-1]").error().where, "prompt[1]");
  EXPECT_EQ(parse(R"(["a","b"])")->more_prompts, (std::vector<Parts>{{"b"}}));
  EXPECT_EQ(completion(R"("echo":3)").error().where, "echo");
  EXPECT_EQ(completion(R"("logprobs":true)").error().where, "logprobs");
  EXPECT_EQ(completion(R"("logprobs":0)")->logprobs, 0);
  EXPECT_EQ(completion(R"("echo":true,"max_tokens":0)")->max_tokens, 0);
  EXPECT_EQ(completion("\"draft\":\"none\"")->draft, false);
  EXPECT_FALSE(bool(parse_api_request(ApiKind::kChat, json("[]"), kDefaults)));
}

TEST(OpenAiAnswer, LogProbabilities) {
  const std::vector<LoggedToken> tokens = {{.text = "<bos>"},
                                           {.text = "\xC3\xA9", .logprob = -.5f, .top = {{7, "\xC3\xA9", -.5f}}},
                                           {.text = "\xE2\x82", .logprob = -1.f, .top = {{8, "x", -.25f}}}};
  ApiRequest r;
  r.logprobs = 1;
  const AnswerEnd end{.why = Stop::kLength, .logprobs = tokens};
  const Json text = make_writer({.kind = ApiKind::kCompletion}, {.request = r})->whole({}, {}, end);
  EXPECT_EQ(
      dump_json(text["choices"][0]["logprobs"]),
      R"({"tokens":["<bos>","é","bytes:\\xe2\\x82"],"token_logprobs":[null,-0.5,-1.0],"top_logprobs":[null,{"é":-0.5},{"x":-0.25}],"text_offset":[0,5,6]})");
  const Json chat = make_writer({.kind = ApiKind::kChat}, {.request = r})->whole({}, {}, end);
  EXPECT_EQ(
      dump_json(chat["choices"][0]["logprobs"]["content"][1]),
      R"({"token":"é","logprob":-0.5,"bytes":[195,169],"top_logprobs":[{"token":"é","logprob":-0.5,"bytes":[195,169]}]})");
}

TEST(OpenAiRequest, LargeObjectsAreRefusedQuickly) {
  std::string text = "{";
  for (int i = 0; i < 1000000; ++i) text += "\"" + std::to_string(i) + "\":1,";
  text.back() = '}';
  EXPECT_FALSE(bool(parse_json(text, "body")));
  std::string array = "[";
  for (int i = 0; i < 100000; ++i) array += "1,";
  array.back() = ']';
  EXPECT_TRUE(bool(parse_json(array, "body")));
}

// --- stop strings

struct Cut {
  std::string text;
  bool stopped;
  bool operator==(const Cut&) const = default;
};
Cut match(const std::vector<std::string>& stop, const std::vector<std::string>& pieces) {
  StopMatcher m(stop);
  Cut c{"", false};
  for (const std::string& p : pieces) {
    c.text += m.push(p);
    if (m.stopped()) c.text += m.push("more");
  }
  c.text += m.finish();
  c.stopped = m.stopped();
  return c;
}

TEST(StopStrings, AreFoundWhereverTheTextIsCut) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"STOP"}, "some text STOP and more"},
      {{"STOP"}, "STSTOSTOP"},
      {{"STOP"}, "no such text STO"},
      {{"abcd", "bc"}, "xabcd"},  // the one that is complete first
      {{"bc", "abc"}, "xxabc"},   // both at once: the longer
      {{"aab"}, "aaaaab"},
      {{"\n\n", "é!"}, "línea é é! x"},
      {{"x"}, "x"},
      {{"ab", "ba"}, "cba"},
  };
  for (const auto& [stop, text] : cases) {
    const Cut whole = match(stop, {text});
    std::vector<std::string> bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(match(stop, bytes), whole) << text;
    for (size_t i = 0; i <= text.size(); ++i)
      for (size_t j = i; j <= text.size(); ++j)
        EXPECT_EQ(match(stop, {text.substr(0, i), text.substr(i, j - i), text.substr(j)}), whole)
            << text << " cut at " << i << ", " << j;
  }
  EXPECT_EQ(match({"STOP"}, {"some text STOP and more"}), (Cut{"some text ", true}));
  EXPECT_EQ(match({"STOP"}, {"no such text STO"}), (Cut{"no such text STO", false}));
  EXPECT_EQ(match({"abcd", "bc"}, {"xabcd"}), (Cut{"xa", true}));
  EXPECT_EQ(match({"bc", "abc"}, {"xxabc"}), (Cut{"xx", true}));
  EXPECT_EQ(match({}, {"abc"}), (Cut{"abc", false}));
}

TEST(StopStrings, HoldBackNoMoreThanNeeded) {
  StopMatcher m({"STOP"});
  EXPECT_EQ(m.push("abc S"), "abc ");
  EXPECT_EQ(m.push("T"), "");
  EXPECT_EQ(m.push("x"), "STx");
}

ParsedMessage answer(bool chat, const std::vector<std::string>& stop, const std::string& text, size_t piece,
                     bool one_call = false) {
  AnswerText a(chat, {}, stop, one_call);
  ParsedMessage m;
  for (size_t i = 0; i < text.size(); i += piece)
    for (const ParseEvent& e : a.push(text.substr(i, piece))) add_event(m, e);
  for (const ParseEvent& e : a.finish()) add_event(m, e);
  return m;
}

TEST(AnswerText, StopsInContentOnly) {
  const std::string text =
      "<|channel>thought\nan END of it\n<channel|>before END after<|tool_call>call:f{}<tool_call|>";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const ParsedMessage m = answer(true, {"END"}, text, piece);
    EXPECT_EQ(m.reasoning, "an END of it");
    EXPECT_EQ(m.content, "before ");
    EXPECT_TRUE(m.tool_calls.empty());
    const ParsedMessage all = answer(true, {"nowhere"}, text, piece);
    EXPECT_EQ(all.content, "before END after");
    ASSERT_EQ(all.tool_calls.size(), 1u);
    EXPECT_EQ(answer(false, {"END"}, text, piece).content, "<|channel>thought\nan ");
  }
}

TEST(AnswerText, EndsWithTheFirstCall) {
  const std::string text = "so<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|>and";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    const ParsedMessage m = answer(true, {"soX"}, text, piece, /*one_call=*/true);
    EXPECT_EQ(m.content, "so");
    ASSERT_EQ(m.tool_calls.size(), 1u);
    EXPECT_EQ(m.tool_calls[0].name, "f");
    EXPECT_EQ(answer(true, {}, text, piece).tool_calls.size(), 2u);
  }
}

// --- answers

const Usage kUsage{.prompt = 10,
                   .cached = 4,
                   .generated = 5,
                   .prefill_s = .5,
                   .decode_s = .25,
                   .steps = 6,
                   .drafted = 0,
                   .accepted = 0};

TEST(OpenAiAnswer, Whole) {
  const ApiAnswer a{.kind = ApiKind::kChat, .id = "chatcmpl-12ab", .model = "m", .created = 7};
  ParsedMessage m{.content = "text", .reasoning = "why", .tool_calls = {}};
  EXPECT_EQ(
      dump_json(api_response(a, m, "stop", kUsage)),
      R"({"id":"chatcmpl-12ab","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"text","reasoning_content":"why"},"logprobs":null,"finish_reason":"stop"}],)"
      R"("usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":0}},)"
      R"("timings":{"cache_n":4,"prompt_n":6,"prompt_ms":500.0,"prompt_per_token_ms":83.333,"prompt_per_second":12.0,"predicted_n":5,"predicted_ms":250.0,"predicted_per_token_ms":50.0,"predicted_per_second":20.0}})");
  m = {.content = "", .reasoning = "", .tool_calls = {{"call_0", "f", "{}"}}};
  const Json j = api_response(a, m, "tool_calls", kUsage)["choices"][0]["message"];
  EXPECT_TRUE(j["content"].is_null());
  EXPECT_EQ(dump_json(j["tool_calls"]),
            R"([{"id":"call_12ab_0","type":"function","function":{"name":"f","arguments":"{}"}}])");
  const Json text = api_response({.kind = ApiKind::kCompletion, .id = "cmpl-1", .model = "m", .created = 7},
                                 {.content = "t", .reasoning = "", .tool_calls = {}}, "length", kUsage);
  EXPECT_EQ(text["object"], "text_completion");
  EXPECT_EQ(text["choices"][0]["text"], "t");
}

TEST(OpenAiAnswer, NoTimeGivesNoInfinity) {
  const Json t = timings_json(Usage{.prompt = 3,
                                    .cached = 3,
                                    .generated = 0,
                                    .prefill_s = 0,
                                    .decode_s = 0,
                                    .steps = 0,
                                    .drafted = 8,
                                    .accepted = 2});
  EXPECT_EQ(t["prompt_per_second"], 0);
  EXPECT_EQ(t["predicted_per_second"], 0);
  EXPECT_EQ(t["draft_n_accepted"], 2);
}

TEST(OpenAiAnswer, SaysHowDraftingWent) {
  Usage u{.prompt = 3,
          .generated = 9,
          .drafted = 12,
          .accepted = 5,
          .decode_steps = 3,
          .rounds = 3,
          .decoded = 8,
          .offered_at = {3, 3, 2},
          .accepted_at = {3, 2, 0}};
  u.methods = {{0, "mtp"}, {8, "none"}};
  u.draft_inactive_reason = "drafts did not pay and were given up";
  const Json t = timings_json(u);
  EXPECT_EQ(dump_json(t["draft_accepted_at"]), "[1.0,0.667,0.0]");
  EXPECT_EQ(t["draft_tokens_per_step"], 2.667);
  EXPECT_EQ(dump_json(t["draft_methods"]), R"([{"at":0,"method":"mtp"},{"at":8,"method":"none"}])");
  EXPECT_EQ(t["draft_inactive_reason"], u.draft_inactive_reason);
  EXPECT_FALSE(timings_json(kUsage).contains("draft_n"));
}

TEST(OpenAiAnswer, Stream) {
  const ApiAnswer a{.kind = ApiKind::kChat, .id = "chatcmpl-1", .model = "m", .created = 7};
  const std::string head =
      R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[)";
  EXPECT_EQ(sse(chunk_role(a)),
            head + R"({"index":0,"delta":{"role":"assistant","content":null},"logprobs":null,"finish_reason":null}]})"
                   "\n\n");
  EXPECT_EQ(sse(chunk_event(a, {ParseEvent::Kind::kContent, "a\nb\xff", {}}, 0)),
            head + R"({"index":0,"delta":{"content":"a\nb)"
                   "\xEF\xBF\xBD"
                   R"("},"logprobs":null,"finish_reason":null}]})"
                   "\n\n");
  EXPECT_EQ(chunk_event(a, {ParseEvent::Kind::kReasoning, "r", {}}, 0)["choices"][0]["delta"],
            Json({{"reasoning_content", "r"}}));
  EXPECT_EQ(
      dump_json(chunk_event(a, {ParseEvent::Kind::kToolCall, "", {"call_1", "f", "{}"}}, 1)["choices"][0]["delta"]),
      R"({"tool_calls":[{"index":1,"id":"call_1_1","type":"function","function":{"name":"f","arguments":"{}"}}]})");
  const Json finish = chunk_finish(a, "stop", kUsage);
  EXPECT_EQ(finish["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(finish.contains("timings"));
  const Json usage = chunk_usage(a, kUsage);
  EXPECT_TRUE(usage["choices"].empty());
  EXPECT_EQ(usage["usage"]["total_tokens"], 15);
  EXPECT_EQ(kSseDone, "data: [DONE]\n\n");
}

TEST(OpenAiAnswer, FinishReason) {
  EXPECT_STREQ(finish_reason(Stop::kEos, false, false), "stop");
  EXPECT_STREQ(finish_reason(Stop::kEos, false, true), "tool_calls");
  EXPECT_STREQ(finish_reason(Stop::kLength, false, false), "length");
  EXPECT_STREQ(finish_reason(Stop::kContext, false, true), "length");
  EXPECT_STREQ(finish_reason(Stop::kCancelled, true, false), "stop");
  EXPECT_STREQ(finish_reason(Stop::kLength, true, false), "stop");
}

TEST(OpenAiAnswer, Errors) {
  const Json e = error_json(Dialect::kOpenAi, api_error({"stop[0]", "expected a string", "hint"}));
  EXPECT_EQ(
      dump_json(e),
      R"_({"error":{"message":"stop[0]: expected a string (hint)","type":"invalid_request_error","param":"stop[0]","code":null}})_");
  EXPECT_EQ(error_json(Dialect::kOpenAi,
                       {.status = 401, .message = "m", .param = "", .code = "invalid_api_key"})["error"]["type"],
            "authentication_error");
  EXPECT_EQ(error_json(Dialect::kOpenAi, {.status = 503, .message = "m", .param = "", .code = ""})["error"]["type"],
            "unavailable_error");
}

TEST(OpenAiAnswer, APromptThatIsTooLong) {
  const Json e = error_json(Dialect::kOpenAi, {.code = "context_length_exceeded", .n_prompt = 9, .n_ctx = 8})["error"];
  EXPECT_EQ(e["type"], "exceed_context_size_error");
  EXPECT_EQ(e["n_prompt_tokens"], 9);
  EXPECT_EQ(e["n_ctx"], 8);
}

TEST(Server, ComparesKeys) {
  EXPECT_TRUE(same_key("secret", "secret"));
  for (const char* k : {"", "secre", "secret ", "Secret", "secretsecret", "xecret", "secrex"})
    EXPECT_FALSE(same_key(k, "secret")) << k;
  EXPECT_FALSE(same_key("", ""));
}

TEST(Server, Hosts) {
  EXPECT_EQ(host_name("localhost:80"), "localhost");
  EXPECT_EQ(host_name("http://evil.example:80/x"), "evil.example");
  EXPECT_EQ(host_name("[::1]:80"), "::1");
  EXPECT_EQ(host_name("[::1"), "::1");
  for (const char* h : {"127.0.0.1", "127.1.2.3", "::1", "localhost"}) EXPECT_TRUE(*is_loopback(h)) << h;
  for (const char* h : {"0.0.0.0", "192.168.1.1", "::", "::ffff:192.168.1.1"}) EXPECT_FALSE(*is_loopback(h)) << h;
  for (const char* h : {"", "example.org", "127.0.0.1:80"}) EXPECT_FALSE(bool(is_loopback(h))) << h;
}

}  // namespace
}  // namespace facet
