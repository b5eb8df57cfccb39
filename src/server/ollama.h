#pragma once
#include "server/openai.h"

// Ollama's chat and generate: requests to the same ApiRequest that OpenAI's become. Its answers are in
// ollama_writer.cpp.
namespace facet {

// A request without a message or a prompt asks to load the model: the answer is ollama_loaded().
Result<ApiRequest> parse_ollama_request(ApiKind kind, const Json& body, const ApiDefaults& defaults);
Json ollama_loaded(const ApiAnswer& a);

struct OllamaModel {
  std::string name = {}, chat_template = {};
  int64_t created = 0;
  int n_ctx = 0;
};
Json ollama_tags(const OllamaModel& m);
Json ollama_show(const OllamaModel& m);

}  // namespace facet
