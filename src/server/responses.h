#pragma once
#include "server/openai.h"

// OpenAI's responses: requests to the same ApiRequest that chats become. Nothing is stored: each request brings its
// whole conversation. Its answers are in responses_writer.cpp.
namespace facet {

Result<ApiRequest> parse_responses_request(const Json& body, const ApiDefaults& defaults);

}  // namespace facet
