#pragma once
#include <memory>

#include "server/writer.h"

// The writers behind make_writer.
namespace facet {

std::unique_ptr<AnswerWriter> make_openai_writer(ApiAnswer a, WriterContext c);
std::unique_ptr<AnswerWriter> make_native_writer(ApiAnswer a, WriterContext c);
std::unique_ptr<AnswerWriter> make_anthropic_writer(ApiAnswer a);
std::unique_ptr<AnswerWriter> make_responses_writer(ApiAnswer a, WriterContext c);
std::unique_ptr<AnswerWriter> make_ollama_writer(ApiAnswer a);

// A token as JSON can have it: the bytes as text, or, where they are none, in OpenAI's way: "bytes:\\xe2\\x82".
std::string token_name(const std::string& bytes);
// [{token, logprob, bytes, top_logprobs}]
Json chat_logprobs(const std::vector<LoggedToken>& tokens);
// llama-server's answer, whole.
Json native_json(const ApiAnswer& a, const WriterContext& c, const std::string& text,
                 const std::vector<int32_t>& tokens, const AnswerEnd& e);

}  // namespace facet
