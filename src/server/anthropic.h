#pragma once
#include "server/openai.h"

// Anthropic's messages: requests to the same ApiRequest that OpenAI's become. Its answers are in anthropic_writer.cpp.
namespace facet {

Result<ApiRequest> parse_anthropic_request(const Json& body, const ApiDefaults& defaults);

}  // namespace facet
