// The dialects beside OpenAI's: Anthropic's messages, llama-server's completion, Ollama's chat; and the prompts of
// chats that are to be continued.
#include <gtest/gtest.h>

#include "server/anthropic.h"
#include "server/chat_prompt.h"
#include "server/info.h"
#include "server/ollama.h"
#include "server/responses.h"
#include "server/writer.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

const ApiDefaults kDefaults{.sampling = {}, .n_vocab = 100};

Json json(const std::string& text) {
  auto j = parse_json(text, "test");
  EXPECT_TRUE(bool(j)) << text;
  return j ? *j : Json();
}
Result<ApiRequest> messages(const std::string& fields) {
  return parse_anthropic_request(json("{" + fields + "}"), kDefaults);
}
std::string where(const Result<ApiRequest>& r) { return r ? "accepted" : r.error().where; }
std::string rendered(const ApiRequest& r) {
  auto p = chat_prompt(r, Variant::kLarge);
  return p ? p->text : p.error().message();
}

const std::string kUser = R"("messages":[{"role":"user","content":"Hi"}])";

TEST(Anthropic, IsOpenAisRequestInOtherWords) {
  const auto theirs = messages(
      R"("model":"m","max_tokens":50,"system":"Be brief.","stop_sequences":["END"],"temperature":0.5,"top_k":3,"stream":true,
      "metadata":{"user_id":"u"},"tools":[{"name":"f","description":"d","input_schema":{"type":"object","properties":{"a":{"type":"string"}}}}],
      "messages":[{"role":"user","content":"Weather?"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},{"type":"text","text":"Let me see."},{"type":"tool_use","id":"t1","name":"f","input":{"a":"x"}}]},
        {"role":"user","content":[{"type":"text","text":"and?"},{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"sunny"}]}]}])");
  ASSERT_TRUE(bool(theirs)) << theirs.error().message();
  const auto ours = parse_api_request(ApiKind::kChat,
                                      json(
                                          R"({"max_tokens":50,"stop":["END"],"temperature":0.5,"top_k":3,"stream":true,
      "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],
      "messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Weather?"},
        {"role":"assistant","reasoning_content":"hm","content":"Let me see.","tool_calls":[{"id":"t1","function":{"name":"f","arguments":"{\"a\":\"x\"}"}}]},
        {"role":"tool","tool_call_id":"t1","content":"sunny"},{"role":"user","content":"and?"}]})"),
                                      kDefaults);
  ASSERT_TRUE(bool(ours)) << ours.error().message();
  EXPECT_EQ(rendered(*theirs), rendered(*ours));
  EXPECT_EQ(theirs->max_tokens, ours->max_tokens);
  EXPECT_EQ(theirs->stop, ours->stop);
  EXPECT_EQ(theirs->sampling.temperature, ours->sampling.temperature);
  EXPECT_EQ(theirs->sampling.top_k, ours->sampling.top_k);
  EXPECT_TRUE(theirs->stream);
}

TEST(Anthropic, Fields) {
  EXPECT_EQ(where(messages(kUser)), "accepted");
  EXPECT_TRUE(messages(kUser + R"(,"thinking":{"type":"enabled","budget_tokens":1024})")->thinking);
  EXPECT_FALSE(messages(kUser + R"(,"thinking":{"type":"disabled"})")->thinking);
  EXPECT_TRUE(messages(kUser + R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})")->one_call);
  EXPECT_EQ(messages(kUser + R"(,"system":[{"type":"text","text":"a","cache_control":{"type":"ephemeral"}}])")
                ->messages[0]
                .role,
            "system");
  for (const auto& [fields, at] : std::vector<std::pair<std::string, std::string>>{
           {"\"model\":\"m\"", "messages"},
           {R"("messages":[])", "messages"},
           {R"("messages":[7])", "messages[0]"},
           {R"("messages":[{"role":"bot","content":"x"}])", "messages[0].role"},
           {R"("messages":[{"role":"user"}])", "messages[0].content"},
           {R"("messages":[{"role":"user","content":[]}])", "messages"},
           {R"("messages":[{"role":"user","content":[{"type":"image","source":{}}]}])", "messages[0].content[0].type"},
           {R"("messages":[{"role":"user","content":[{"type":"tool_use","name":"f"}]}])",
            "messages[0].content[0].type"},
           {R"("messages":[{"role":"user","content":[{"type":"tool_result"}]}])", "messages[0].content[0].tool_use_id"},
           {R"("messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":7}]}])",
            "messages[0].content[0].content"},
           {R"("messages":[{"role":"assistant","content":[{"type":"tool_use","name":"f","input":7}]}])",
            "messages[0].content[0].input"},
           {kUser + R"(,"system":7)", "system"},
           {kUser + R"(,"max_tokens":0)", "max_tokens"},
           {kUser + R"(,"stop_sequences":[7])", "stop_sequences[0]"},
           {kUser + R"(,"temperature":"x")", "temperature"},
           {kUser + R"(,"thinking":{"type":"x"})", "thinking"},
           {kUser + R"(,"tool_choice":{"type":"any"})", "tool_choice"},
           {kUser + R"(,"tools":[{"type":7,"name":"w"}])", "tools[0].type"},
           {kUser + R"(,"tools":[{"name":"two words"}])", "tools[0].name"},
           {kUser + R"(,"tools":[{}])", "tools[0].name"},
           {kUser + R"(,"output_config":{"format":{"type":"x"}})", "output_config.format"},
           {kUser + R"(,"mcp_servers":[{}])", "mcp_servers"}})
    EXPECT_EQ(where(messages(fields)), at) << fields;
  ApiDefaults strict = kDefaults;
  strict.strict = true;
  EXPECT_EQ(where(parse_anthropic_request(json("{" + kUser + R"(,"new":1})"), strict)), "new");
  EXPECT_EQ(where(messages(kUser + R"(,"new":1)")), "accepted");
}

TEST(Anthropic, MessagesOfOneRoleAreOne) {
  const auto r = messages(
      R"("messages":[{"role":"user","content":"a"},{"role":"user","content":"b"},{"role":"assistant","content":"c"},
      {"role":"assistant","content":"d"}])");
  ASSERT_TRUE(bool(r)) << r.error().message();
  ASSERT_EQ(r->messages.size(), 2u);
  EXPECT_TRUE(r->continue_last);
  EXPECT_TRUE(rendered(*r).ends_with("cd")) << rendered(*r);
}

const Usage kUsage{.prompt = 10, .cached = 4, .generated = 5};
AnswerPiece piece(ParseEvent::Kind kind, std::string text) { return {{kind, std::move(text), {}}, {1, 2}, kUsage}; }

TEST(Anthropic, Answers) {
  const ApiAnswer a{.kind = ApiKind::kMessages, .id = "msg_12", .model = "m"};
  const ParsedMessage m{.content = "text", .reasoning = "why", .tool_calls = {{"call_0", "f", R"({"a":1})"}}};
  EXPECT_EQ(
      dump_json(make_writer(a, {})->whole(m, {}, {.why = Stop::kEos, .usage = kUsage})),
      R"({"id":"msg_12","type":"message","role":"assistant","model":"m","content":[{"type":"thinking","thinking":"why","signature":""},)"
      R"({"type":"text","text":"text"},{"type":"tool_use","id":"toolu_12_0","name":"f","input":{"a":1}}],"stop_reason":"tool_use","stop_sequence":null,)"
      R"("usage":{"input_tokens":6,"cache_creation_input_tokens":0,"cache_read_input_tokens":4,"output_tokens":5}})");
  const Json stopped = make_writer(a, {})->whole({.content = "t", .reasoning = {}, .tool_calls = {}}, {},
                                                 {.stopped = true, .stop_word = "END", .usage = kUsage});
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
  EXPECT_EQ(make_writer(a, {})->whole({}, {}, {.why = Stop::kLength, .usage = kUsage})["stop_reason"], "max_tokens");
}

TEST(Anthropic, Streams) {
  auto w = make_writer({.kind = ApiKind::kMessages, .id = "msg_12", .model = "m"}, {});
  std::string all = w->begin(10, 0);
  all += w->piece(piece(ParseEvent::Kind::kReasoning, "hm"));
  all += w->piece(piece(ParseEvent::Kind::kContent, "a"));
  all += w->piece(piece(ParseEvent::Kind::kContent, "b"));
  all += w->piece({{ParseEvent::Kind::kToolCall, "", {"call_0", "f", R"({"a":1})"}}, {}, kUsage});
  all += w->end({.why = Stop::kEos, .usage = kUsage});
  std::string kinds;
  std::vector<Json> events;
  for (size_t at = 0; at < all.size();) {
    const size_t data = all.find("\ndata: ", at), end = all.find("\n\n", at);
    ASSERT_LT(data, end);
    events.push_back(json(all.substr(data + 7, end - data - 7)));
    EXPECT_EQ("event: " + events.back()["type"].get<std::string>(), all.substr(at, data - at));
    kinds += events.back()["type"].get<std::string>() +
             (events.back().contains("index") ? dump_json(events.back()["index"]) : "") + " ";
    at = end + 2;
  }
  EXPECT_EQ(kinds,
            "message_start content_block_start0 content_block_delta0 content_block_delta0 content_block_stop0 "
            "content_block_start1 "
            "content_block_delta1 content_block_delta1 content_block_stop1 content_block_start2 content_block_delta2 "
            "content_block_stop2 message_delta message_stop ");
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 10);
  EXPECT_EQ(dump_json(events[10]["delta"]), R"({"type":"input_json_delta","partial_json":"{\"a\":1}"})");
  EXPECT_EQ(events[12]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[12]["usage"]["cache_read_input_tokens"], 4);
}

TEST(Anthropic, Errors) {
  EXPECT_EQ(dump_json(error_json(Dialect::kAnthropic, {.status = 401, .message = "no"})),
            R"({"type":"error","error":{"type":"authentication_error","message":"no"}})");
  EXPECT_EQ(error_json(Dialect::kAnthropic, {.status = 503})["error"]["type"], "overloaded_error");
  EXPECT_EQ(error_json(Dialect::kAnthropic, {.status = 500})["error"]["type"], "api_error");
}

TEST(Native, Answers) {
  WriterContext c;
  c.request = *parse_api_request(ApiKind::kNative,
                                 json(R"({"prompt":"Hi","n_predict":7,"return_tokens":true,"seed":3})"), kDefaults);
  c.prompt = "<bos>Hi";
  const ApiAnswer a{.kind = ApiKind::kNative, .id = "cmpl-1", .model = "m"};
  const Json j = make_writer(a, c)->whole({.content = "a\nb", .reasoning = {}, .tool_calls = {}}, {5, 6},
                                          {.why = Stop::kLength, .usage = kUsage});
  EXPECT_EQ(j["content"], "a\nb");
  EXPECT_EQ(j["tokens"], Json({5, 6}));
  EXPECT_EQ(j["stop_type"], "limit");
  EXPECT_EQ(j["has_new_line"], true);
  EXPECT_EQ(j["truncated"], false);
  EXPECT_EQ(j["tokens_evaluated"], 10);
  EXPECT_EQ(j["tokens_predicted"], 5);
  EXPECT_EQ(j["generation_settings"]["n_predict"], 7);
  EXPECT_EQ(j["generation_settings"]["seed"], 3);
  EXPECT_EQ(j["prompt"], "<bos>Hi");
  EXPECT_EQ(j["timings"]["cache_n"], 4);
  c.request.response_fields = {"content", "generation_settings/n_predict", "nothing", "content/x"};
  EXPECT_EQ(dump_json(make_writer(a, c)->whole({.content = "t", .reasoning = {}, .tool_calls = {}}, {},
                                               {.stopped = true, .stop_word = "w", .usage = kUsage})),
            R"({"content":"t","generation_settings/n_predict":7})");
  auto w = make_writer(a, c);
  EXPECT_EQ(w->begin(10, 0), "");
  EXPECT_EQ(
      w->piece(piece(ParseEvent::Kind::kContent, "t")),
      R"(data: {"index":0,"content":"t","tokens":[1,2],"stop":false,"id_slot":-1,"tokens_predicted":5,"tokens_evaluated":10})"
      "\n\n");
  const Json last = json(w->end({.stopped = true, .stop_word = "w", .usage = kUsage}).substr(6));
  EXPECT_EQ(last["stop"], true);
  EXPECT_EQ(last["stop_type"], "word");
  EXPECT_EQ(last["stopping_word"], "w");
  EXPECT_EQ(make_writer(a, {})->whole({}, {}, {.why = Stop::kContext, .usage = kUsage})["truncated"], true);
}

TEST(Native, Fields) {
  auto at = [](const std::string& field) {
    return where(parse_api_request(ApiKind::kNative, json(R"({"prompt":"x",)" + field + "}"), kDefaults));
  };
  std::string many = R"("response_fields":["a")";
  for (int i = 0; i < 16; ++i) many += R"(,"a")";
  EXPECT_EQ(at(many + "]"), "response_fields");
  EXPECT_EQ(at(R"("response_fields":[1])"), "response_fields");
  EXPECT_EQ(at(R"("return_tokens":1)"), "return_tokens");
  EXPECT_EQ(at(R"("n_probs":0,"id_slot":1,"cache_prompt":true,"samplers":null)"), "accepted");
  EXPECT_EQ(at(R"("n_probs":100,"post_sampling_probs":true,"n_cmpl":1)"), "accepted");
  EXPECT_EQ(at(R"("n_probs":101)"), "n_probs");
  EXPECT_EQ(at(R"("speculative.n_max":3,"dry_multiplier":0.8,"xtc_probability":0.5)"), "accepted");
  EXPECT_EQ(at(R"("dry_multiplier":0.8,"dry_sequence_breakers":[""])"), "dry_sequence_breakers");
}

TEST(Ollama, RequestsAndAnswers) {
  auto chat = [](const std::string& fields) {
    return parse_ollama_request(ApiKind::kOllamaChat, json("{" + fields + "}"), kDefaults);
  };
  const auto r = chat(
      kUser +
      R"(,"think":true,"keep_alive":"5m","options":{"temperature":0,"num_predict":5,"num_ctx":4096,"stop":["x"],"seed":1})");
  ASSERT_TRUE(bool(r)) << r.error().message();
  EXPECT_TRUE(r->stream && r->thinking && r->chat());
  EXPECT_EQ(r->max_tokens, 5);
  EXPECT_EQ(r->sampling.temperature, 0);
  EXPECT_EQ(r->stop, std::vector<std::string>{"x"});
  EXPECT_FALSE(chat(R"("model":"m")")->chat());  // asks to load
  EXPECT_EQ(where(chat(kUser + R"(,"format":"xml")")), "format");
  EXPECT_EQ(where(chat(kUser + R"(,"options":{"mirostat":1})")), "options.mirostat");
  EXPECT_EQ(where(chat(kUser + R"(,"options":{"num_predict":-3})")), "options.num_predict");
  EXPECT_EQ(chat(kUser + R"(,"options":{"num_predict":0})")->max_tokens, -1);
  EXPECT_EQ(where(chat(R"("messages":[{"role":"user","content":"x","images":["eA=="]}])")), "messages[0].images");
  const auto g = parse_ollama_request(ApiKind::kOllamaGenerate, json(R"({"prompt":"p","system":"s"})"), kDefaults);
  ASSERT_EQ(g->messages.size(), 2u);
  EXPECT_EQ(
      parse_ollama_request(ApiKind::kOllamaGenerate, json(R"({"prompt":"p","raw":true})"), kDefaults)->prompt.size(),
      1u);

  const ApiAnswer a{.kind = ApiKind::kOllamaChat, .id = "x", .model = "m", .created = 0};
  auto w = make_writer(a, {});
  EXPECT_EQ(
      w->piece(piece(ParseEvent::Kind::kReasoning, "t")),
      R"({"model":"m","created_at":"1970-01-01T00:00:00Z","message":{"role":"assistant","content":"","thinking":"t"},"done":false})"
      "\n");
  const Json end = json(w->end({.why = Stop::kLength, .usage = kUsage}));
  EXPECT_EQ(end["done_reason"], "length");
  EXPECT_EQ(end["prompt_eval_count"], 10);
  EXPECT_EQ(error_json(Dialect::kOllama, {.status = 400, .message = "m"}), Json({{"error", "m"}}));
}

TEST(ChatPrompt, ContinuesTheLastMessage) {
  auto prompt = [](const std::string& tail, bool thinking = false) {
    const auto r = parse_api_request(ApiKind::kChat,
                                     json(R"({"messages":[{"role":"user","content":"Hi"})" + tail + "]}"), kDefaults);
    EXPECT_TRUE(bool(r)) << r.error().message();
    ApiRequest q = *r;
    q.thinking = thinking;
    auto p = chat_prompt(q, Variant::kLarge);
    EXPECT_TRUE(bool(p));
    return *p;
  };
  const std::string open = prompt("").text, thinking = prompt("", true).text;
  ASSERT_TRUE(open.ends_with("<|turn>model\n<|channel>thought\n<channel|>")) << open;
  EXPECT_EQ(prompt(R"(,{"role":"assistant","content":"Once upon "})").text, open + "Once upon ");  // the space stays
  EXPECT_EQ(prompt(R"(,{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]})").text,
            open + "ab");
  const ChatPrompt thought = prompt(R"(,{"role":"assistant","reasoning":"hm"})", true);
  EXPECT_TRUE(thought.in_thought);
  EXPECT_EQ(thought.text, thinking + "<|channel>thought\nhm");
  const ChatPrompt after = prompt(R"(,{"role":"assistant","reasoning_content":"hm","content":"So"})", true);
  EXPECT_FALSE(after.in_thought);
  EXPECT_EQ(after.text, thinking + "<|channel>thought\nhm\n<channel|>So");
}

TEST(Info, Names) {
  EXPECT_EQ(percent_decoded("a%2Fb%20c"), "a/b c");
  EXPECT_EQ(percent_decoded("%"), "%");
  EXPECT_EQ(percent_decoded("%2"), "%2");
  EXPECT_EQ(percent_decoded("%zz"), "%zz");
  EXPECT_EQ(percent_decoded("%+1"), "%+1");
}

// --- OpenAI's responses

Result<ApiRequest> responses(const std::string& fields) {
  return parse_responses_request(json("{" + fields + "}"), kDefaults);
}

TEST(Responses, IsAChatInOtherWords) {
  const auto theirs = responses(
      R"("model":"m","instructions":"Be brief.","max_output_tokens":50,"stream":true,"temperature":0.5,"store":true,"include":["reasoning.encrypted_content"],
      "tools":[{"type":"function","name":"f","description":"d","strict":false,"parameters":{"type":"object","properties":{"a":{"type":"string"}}}}],
      "input":[{"role":"user","content":[{"type":"input_text","text":"Weather?"}]},
        {"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
        {"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Let me see.","annotations":[]}]},
        {"type":"function_call","call_id":"t1","name":"f","arguments":"{\"a\":\"x\"}"},
        {"type":"function_call_output","call_id":"t1","output":"sunny"},
        {"role":"user","content":"and?"}])");
  ASSERT_TRUE(bool(theirs)) << theirs.error().message();
  const auto ours = parse_api_request(ApiKind::kChat,
                                      json(
                                          R"({"max_tokens":50,"temperature":0.5,
      "tools":[{"type":"function","function":{"name":"f","description":"d","strict":false,"parameters":{"type":"object","properties":{"a":{"type":"string"}}}}}],
      "messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Weather?"},
        {"role":"assistant","reasoning_content":"hm","content":"Let me see.","tool_calls":[{"id":"t1","function":{"name":"f","arguments":"{\"a\":\"x\"}"}}]},
        {"role":"tool","tool_call_id":"t1","content":"sunny"},{"role":"user","content":"and?"}]})"),
                                      kDefaults);
  ASSERT_TRUE(bool(ours)) << ours.error().message();
  EXPECT_EQ(rendered(*theirs), rendered(*ours));
  EXPECT_EQ(theirs->max_tokens, ours->max_tokens);
  EXPECT_TRUE(theirs->stream);
}

TEST(Responses, Fields) {
  const std::string hi = R"("input":"Hi")";
  EXPECT_EQ(where(responses(hi)), "accepted");
  EXPECT_TRUE(responses(hi + R"(,"reasoning":{"effort":"low"})")->thinking);
  EXPECT_EQ(responses(hi + R"(,"reasoning":{"effort":"low"})")->thought_budget, 1024);
  EXPECT_FALSE(responses(hi + R"(,"reasoning":{"effort":"none"})")->thinking);
  EXPECT_EQ(responses(hi + R"(,"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"}}})")
                ->constraint.kind,
            Constraint::Kind::kSchema);
  EXPECT_EQ(responses(hi + R"(,"include":["message.output_text.logprobs"],"top_logprobs":3)")->logprobs, 3);
  // A system message after the instructions is part of them.
  EXPECT_EQ(
      responses(R"("instructions":"a","input":[{"role":"developer","content":"b"},{"role":"user","content":"c"}])")
          ->messages.size(),
      2u);
  for (const auto& [fields, at] : std::vector<std::pair<std::string, std::string>>{
           {"\"model\":\"m\"", "input"},
           {R"("input":[])", "input"},
           {R"("input":[7])", "input[0]"},
           {R"("input":[{"role":"x","content":""}])", "input[0].role"},
           {R"("input":[{"role":"user"}])", "input[0].content"},
           {R"("input":[{"role":"user","content":[{"type":"input_image"}]}])", "input[0].content[0].type"},
           {R"("input":[{"type":"item_reference","id":"x"}])", "input[0].type"},
           {R"("input":[{"type":"function_call","name":"f","arguments":"["}])", "input[0].arguments"},
           {R"("input":[{"type":"function_call_output","output":"x"}])", "input[0].call_id"},
           {hi + R"(,"previous_response_id":"resp_1")", "previous_response_id"},
           {hi + R"(,"conversation":"c")", "conversation"},
           {hi + R"(,"background":true)", "background"},
           {hi + R"(,"max_output_tokens":0)", "max_output_tokens"},
           {hi + R"(,"tools":[{"name":"f"}])", "tools[0].type"},
           {hi + R"(,"tools":[{"type":"custom","name":"a b"}])", "tools[0].name"},
           {R"("input":[{"type":"what"}])", "input[0].type"},
           {hi + R"(,"tool_choice":"required")", "tool_choice"},
           {hi + R"(,"reasoning":{"effort":"much"})", "reasoning.effort"},
           {hi + R"(,"text":{"format":{"type":"xml"}})", "text.format"},
           {hi + R"(,"top_logprobs":99)", "top_logprobs"}})
    EXPECT_EQ(where(responses(fields)), at) << fields;
}

WriterContext responses_context(const std::string& fields) {
  WriterContext c;
  c.request = *responses(fields);
  return c;
}

TEST(Responses, AStreamEndsInWhatTheWholeAnswerIs) {
  const ApiAnswer a{.kind = ApiKind::kResponses, .id = "resp_12", .model = "m"};
  const auto c = responses_context(R"("input":"Hi","instructions":"I")");
  auto w = make_writer(a, c);
  std::string all = w->begin(10, 0);
  all += w->piece(piece(ParseEvent::Kind::kReasoning, "hm"));
  all += w->piece(piece(ParseEvent::Kind::kContent, "a"));
  all += w->piece(piece(ParseEvent::Kind::kContent, "b"));
  all += w->piece({{ParseEvent::Kind::kToolCall, "", {"call_0", "f", R"({"a":1})"}}, {}, kUsage});
  all += w->end({.why = Stop::kEos, .usage = kUsage});
  std::string kinds, text;
  Json last;
  int64_t number = 0;
  for (size_t at = 0; at < all.size();) {
    const size_t data = all.find("\ndata: ", at), end = all.find("\n\n", at);
    ASSERT_LT(data, end);
    last = json(all.substr(data + 7, end - data - 7));
    EXPECT_EQ("event: " + last["type"].get<std::string>(), all.substr(at, data - at));
    EXPECT_EQ(last["sequence_number"], number++);
    kinds += last["type"].get<std::string>().substr(9) + " ";
    if (last["type"] == "response.output_text.delta") text += last["delta"].get<std::string>();
    at = end + 2;
  }
  EXPECT_EQ(kinds,
            "created in_progress output_item.added content_part.added reasoning_text.delta reasoning_text.done "
            "content_part.done output_item.done output_item.added content_part.added output_text.delta "
            "output_text.delta output_text.done content_part.done output_item.done output_item.added "
            "function_call_arguments.delta function_call_arguments.done output_item.done completed ");
  EXPECT_EQ(text, "ab");
  const ParsedMessage m{.content = "ab", .reasoning = "hm", .tool_calls = {{"call_0", "f", R"({"a":1})"}}};
  Json whole = make_writer(a, c)->whole(m, {}, {.why = Stop::kEos, .usage = kUsage});
  EXPECT_EQ(dump_json(whole["output"]), dump_json(last["response"]["output"]));
  EXPECT_EQ(whole["instructions"], "I");
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["usage"]["total_tokens"], 15);
  const Json cut = make_writer(a, c)->whole({}, {}, {.why = Stop::kLength, .usage = kUsage});
  EXPECT_EQ(cut["status"], "incomplete");
  EXPECT_EQ(cut["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(cut["output"][0]["type"], "message");  // an empty one
}

}  // namespace
}  // namespace facet
