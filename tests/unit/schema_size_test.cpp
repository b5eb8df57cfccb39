// One limit of schemas in every dialect.
#include "server/schema_size.h"

#include <gtest/gtest.h>

#include "server/anthropic.h"
#include "server/ollama.h"
#include "server/responses.h"
#include "tokenizer/json.h"

namespace facet {
namespace {

const ApiDefaults kDefaults{.sampling = {}, .seed_given = false, .max_tokens = -1, .thinking = false, .n_vocab = 100};

Json schema_of(size_t bytes) {
  const Json empty = {{"type", "object"}, {"description", ""}};
  return {{"type", "object"}, {"description", std::string(bytes - dump_json(empty).size(), 'x')}};
}

using Parse = Result<ApiRequest> (*)(const std::vector<Json>& schemas);
Json functions(const std::vector<Json>& schemas, const char* key, bool nested) {
  Json tools = Json::array();
  for (const Json& s : schemas) {
    Json f = {{"name", "f" + std::to_string(tools.size())}, {key, s}};
    if (nested)
      f = {{"type", "function"}, {"function", f}};
    else if (std::string(key) == "parameters")
      f["type"] = "function";
    tools.push_back(std::move(f));
  }
  return tools;
}
const Json kMessages = Json::parse(R"([{"role":"user","content":"x"}])");

const std::pair<const char*, Parse> kDialects[] = {
    {"chat",
     [](const std::vector<Json>& s) {
       return parse_api_request(ApiKind::kChat, {{"messages", kMessages}, {"tools", functions(s, "parameters", true)}},
                                kDefaults);
     }},
    {"responses",
     [](const std::vector<Json>& s) {
       return parse_responses_request({{"input", "x"}, {"tools", functions(s, "parameters", false)}}, kDefaults);
     }},
    {"messages",
     [](const std::vector<Json>& s) {
       return parse_anthropic_request(
           {{"max_tokens", 1}, {"messages", kMessages}, {"tools", functions(s, "input_schema", false)}}, kDefaults);
     }},
    {"ollama",
     [](const std::vector<Json>& s) {
       return parse_ollama_request(ApiKind::kOllamaChat,
                                   {{"messages", kMessages}, {"tools", functions(s, "parameters", true)}}, kDefaults);
     }},
};

std::string verdict(const Result<ApiRequest>& r) {
  if (!r) return "parse: " + r.error().message();
  const auto ok = check_schema_sizes(*r);
  return ok ? "" : ok.error().message();
}

TEST(SchemaSize, IsTheSameInEveryDialect) {
  for (const auto& [name, parse] : kDialects) {
    EXPECT_EQ(verdict(parse({schema_of(kMaxSchema)})), "") << name;
    const std::string one = verdict(parse({schema_of(100), schema_of(kMaxSchema + 1)}));
    EXPECT_NE(one.find("tools[1].parameters: expected at most 262144 bytes, found 262145"), std::string::npos)
        << name << ": " << one;
    EXPECT_EQ(verdict(parse(std::vector<Json>(3, schema_of(kMaxSchema)))), "") << name;
    const std::string all = verdict(parse(std::vector<Json>(4, schema_of(kMaxSchema))));
    EXPECT_TRUE(all.starts_with("tools: expected at most 1048576 bytes, found ")) << name << ": " << all;
  }
}

TEST(SchemaSize, OfTheAnswersForm) {
  const Json ask = {{"messages", kMessages}};
  for (const size_t n : {kMaxSchema, kMaxSchema + 1}) {
    Json chat = ask, ollama = ask;
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", schema_of(n)}}}};
    ollama["format"] = schema_of(n);
    EXPECT_EQ(verdict(parse_api_request(ApiKind::kChat, chat, kDefaults)).empty(), n == kMaxSchema);
    EXPECT_EQ(verdict(parse_ollama_request(ApiKind::kOllamaChat, ollama, kDefaults)).empty(), n == kMaxSchema);
  }
}

}  // namespace
}  // namespace facet
