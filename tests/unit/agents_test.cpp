// What agents' clients send beside what the dialects' own documents have, and what they look at in answers: Claude
// Code, Codex, Ollama's.
#include <gtest/gtest.h>

#include "server/anthropic.h"
#include "server/chat_prompt.h"
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
Result<ApiRequest> responses(const std::string& fields) {
  return parse_responses_request(json("{" + fields + "}"), kDefaults);
}

const std::string kUser = R"("messages":[{"role":"user","content":"Hi"}])";
const Usage kUsage{.prompt = 10, .cached = 4, .generated = 5};

std::string content_of(const ApiRequest& r, size_t i) {
  const auto& c = r.messages[i].content;
  if (const auto* text = std::get_if<std::string>(&c)) return *text;
  std::string all;
  if (const auto* parts = std::get_if<std::vector<ContentPart>>(&c))
    for (const ContentPart& p : *parts) all += p.text;
  return all;
}

TEST(Anthropic, WhatClaudeCodeSends) {
  const auto r = messages(
      R"("system":[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"Be brief.\nx-anthropic-y: 1\nDo."}],
      "betas":["x"],"context_management":{"edits":[]},"metadata":{"user_id":"u"},
      "tools":[{"type":"web_search_20250305","name":"web_search"},{"name":"Read","input_schema":{"type":"object"},"cache_control":{"type":"ephemeral"}},{"type":"tool_reference","tool_name":"x"}],
      "tool_choice":{"type":"tool","name":"web_search"},
      "messages":[{"role":"user","content":[{"type":"text","text":"See"},{"type":"image","source":{}}]},
        {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":"s"},{"type":"redacted_thinking","data":"d"},
          {"type":"server_tool_use","id":"s","name":"web_search","input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":[]},
          {"type":"tool_use","id":"t","name":"Read","input":{}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a"},{"type":"image","source":{}},{"type":"tool_reference","tool_name":"x"}]},
          {"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"D"}},{"type":"search_result","content":[{"type":"text","text":"S"}]}]},
        {"role":"system","content":"Skills: a."}])");
  ASSERT_TRUE(bool(r)) << r.error().message();
  ASSERT_EQ(r->messages.size(), 6u);
  EXPECT_EQ(content_of(*r, 0), "Be brief.\nDo.");
  EXPECT_EQ(content_of(*r, 1), "See\n[picture left out: this model takes none]");
  EXPECT_EQ(content_of(*r, 3), "a\n[picture left out: this model takes none]");
  EXPECT_EQ(content_of(*r, 4), "T\nDS");
  EXPECT_EQ(r->messages[5].role, "system");
  ASSERT_EQ(r->tools.size(), 1u);
  EXPECT_EQ(r->call.kind, CallChoice::Kind::kFree);  // the tool it names was left out
  EXPECT_EQ(r->left_out.media, 2);
  EXPECT_EQ(r->left_out.tools, 2);
  EXPECT_EQ(r->left_out.items, 3);
  // None is left: as if there had been none.
  const auto none =
      messages(kUser + R"(,"tools":[{"type":"web_search_20250305","name":"w"}],"tool_choice":{"type":"any"})");
  ASSERT_TRUE(bool(none)) << none.error().message();
  EXPECT_TRUE(none->tools.empty());
  EXPECT_EQ(none->call.kind, CallChoice::Kind::kFree);
}

TEST(Responses, WhatCodexSends) {
  const auto r = responses(R"("instructions":"You are Codex.","context_management":[{"type":"compaction"}],"input":[
      {"role":"user","content":[{"type":"input_text","text":"Hi"},{"type":"input_image","image_url":"x"}]},
      {"type":"reasoning","summary":[],"encrypted_content":"e"},
      {"type":"custom_tool_call","call_id":"c1","name":"apply_patch","input":"*** Begin"},
      {"type":"custom_tool_call_output","call_id":"c1","output":"Done"},
      {"type":"local_shell_call","call_id":"c2","status":"completed","action":{"type":"exec","command":["ls"]}},
      {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"x"}]},
      {"type":"shell_call","call_id":"c3","action":{"commands":["ls"]}},{"type":"shell_call_output","call_id":"c3","output":[{"stdout":"a"}]},
      {"type":"function_call","call_id":"c4","namespace":"mcp","name":"x","arguments":"{}"},
      {"type":"web_search_call","id":"w","status":"completed"},{"type":"compaction","encrypted_content":"e"},
      {"role":"user","content":"Go on"}],
      "tools":[{"type":"function","name":"shell","parameters":{}},{"type":"custom","name":"apply_patch","description":"Patch","format":{"type":"grammar","syntax":"lark","definition":"start: x"}},
        {"type":"web_search"},{"type":"namespace","name":"mcp","tools":[{"type":"function","name":"x","parameters":{}}]}],
      "tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":"function","name":"shell"},{"type":"web_search"}]})");
  ASSERT_TRUE(bool(r)) << r.error().message();
  EXPECT_EQ(content_of(*r, 1), "Hi\n[picture left out: this model takes none]");
  ASSERT_EQ(r->messages[2].tool_calls.size(), 1u);
  EXPECT_EQ(dump_json(r->messages[2].tool_calls[0].arguments), R"({"input":"*** Begin"})");
  EXPECT_EQ(r->messages[4].tool_calls[0].name, "local_shell");
  EXPECT_EQ(content_of(*r, 5), "a\n[picture left out: this model takes none]");
  EXPECT_EQ(content_of(*r, 7), R"([{"stdout":"a"}])");
  EXPECT_EQ(r->messages[8].tool_calls[0].name, "mcp__x");
  ASSERT_EQ(r->tools.size(), 3u);
  EXPECT_EQ(r->tools[1]["parameters"]["required"], Json::array({"input"}));
  EXPECT_EQ(r->tools[2]["name"], "mcp__x");
  EXPECT_EQ(r->call.allowed, std::vector<std::string>{"shell"});
  EXPECT_EQ(r->left_out.tools, 1);
  EXPECT_EQ(r->left_out.items, 2);
}

TEST(Responses, CallsOfCustomToolsAndNamespaces) {
  WriterContext c;
  c.request = *responses(
      R"("input":"Hi","tools":[{"type":"custom","name":"p"},{"type":"namespace","name":"m","tools":[{"type":"function","name":"x"}]}])");
  const ApiAnswer a{.kind = ApiKind::kResponses, .id = "resp_12", .model = "m"};
  const ParsedCall custom{"call_0", "p", R"({"input":"a\nb"})"}, spaced{"call_1", "m__x", R"({"k":1})"},
      cut{"call_2", "p", R"({"input":"a\nb)", true};
  auto w = make_writer(a, c);
  std::string all = w->begin(10, 0);
  for (const ParsedCall& call : {custom, spaced, cut})
    all += w->piece({{ParseEvent::Kind::kToolCall, "", call}, {}, kUsage});
  all += w->end({.why = Stop::kLength, .usage = {kUsage, 3}});
  EXPECT_NE(all.find("event: response.custom_tool_call_input.delta"), std::string::npos);
  EXPECT_NE(all.find("event: response.custom_tool_call_input.done"), std::string::npos);
  const Json whole = make_writer(a, c)->whole({.content = "", .reasoning = "", .tool_calls = {custom, spaced, cut}}, {},
                                              {.why = Stop::kLength, .usage = {kUsage, 3}});
  const Json& out = whole["output"];
  EXPECT_EQ(out[0]["type"], "custom_tool_call");
  EXPECT_EQ(out[0]["input"], "a\nb");
  EXPECT_EQ(out[1]["type"], "function_call");
  EXPECT_EQ(out[1]["name"], "x");
  EXPECT_EQ(out[1]["namespace"], "m");
  EXPECT_EQ(out[2]["input"], "a\nb");
  EXPECT_EQ(out[2]["status"], "incomplete");
  EXPECT_EQ(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 3);
  const size_t last = all.rfind("data: ");
  EXPECT_EQ(json(all.substr(last + 6))["response"]["output"], out);
}

TEST(Ollama, ResultsWithoutIds) {
  const auto render = [](const std::string& results) {
    const auto r =
        parse_ollama_request(ApiKind::kOllamaChat,
                             json(R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"",
      "tool_calls":[{"function":{"name":"a","arguments":{}}},{"function":{"name":"b","arguments":{}}}]},)" +
                                  results + "]}"),
                             kDefaults);
    EXPECT_TRUE(bool(r)) << r.error().message();
    return chat_prompt(*r, Variant::kSmall)->text;
  };
  const std::string named =
      render(R"({"role":"tool","tool_name":"b","content":"1"},{"role":"tool","tool_name":"a","content":"2"})");
  EXPECT_NE(named.find("response:b{value:<|\"|>1"), std::string::npos) << named;
  EXPECT_NE(named.find("response:a{value:<|\"|>2"), std::string::npos) << named;
  const std::string placed = render(R"({"role":"tool","content":"1"},{"role":"tool","content":"2"})");
  EXPECT_NE(placed.find("response:a{value:<|\"|>1"), std::string::npos) << placed;
  EXPECT_NE(placed.find("response:b{value:<|\"|>2"), std::string::npos) << placed;
}

}  // namespace
}  // namespace facet
