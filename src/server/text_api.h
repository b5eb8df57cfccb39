#pragma once
#include "server/openai.h"
#include "tokenizer/tokenizer.h"

// llama-server's paths that only turn text to tokens and back. Pure functions of a body.
namespace facet {

inline constexpr size_t kMaxTokenizeBytes = 1 << 20;

Result<Json> tokenize_json(const Json& body, const Tokenizer& tokenizer, bool strict);
Result<Json> detokenize_json(const Json& body, const Tokenizer& tokenizer, bool strict);

// A prompt's ids; <bos> comes before a text that begins it.
std::vector<int32_t> encode_prompt(const std::vector<PromptPart>& parts, const Tokenizer& tokenizer);

}  // namespace facet
