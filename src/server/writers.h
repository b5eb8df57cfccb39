#pragma once
#include <memory>

#include "server/writer.h"

// The writers behind make_writer.
namespace facet {

std::unique_ptr<AnswerWriter> make_openai_writer(ApiAnswer a, const ApiRequest& r);
std::unique_ptr<AnswerWriter> make_native_writer(ApiAnswer a, WriterContext c);
std::unique_ptr<AnswerWriter> make_anthropic_writer(ApiAnswer a);
std::unique_ptr<AnswerWriter> make_ollama_writer(ApiAnswer a);

}  // namespace facet
