#pragma once
#include "server/openai.h"

// Ollama's chat and generate: requests to the same ApiRequest that OpenAI's become. Its answers are in
// ollama_writer.cpp.
namespace facet {

// A request without a message or a prompt asks to load the model, or to unload it: the answer is ollama_loaded().
Result<ApiRequest> parse_ollama_request(ApiKind kind, const Json& body, const ApiDefaults& defaults);
Json ollama_loaded(const ApiAnswer& a, bool unload);

}  // namespace facet
