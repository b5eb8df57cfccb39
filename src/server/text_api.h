#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "server/openai.h"
#include "tokenizer/tokenizer.h"

// llama-server's paths that only turn text to tokens and back. Pure functions of a body.
namespace facet {

inline constexpr size_t kMaxTokenizeBytes = 1 << 20;

Result<Json> tokenize_json(const Json& body, const Tokenizer& tokenizer, bool strict);
Result<Json> detokenize_json(const Json& body, const Tokenizer& tokenizer, bool strict);

// A prompt's ids; <bos> comes before a text that begins it. plain: as Tokenizer::encode has it, of a prompt that is one
// text.
std::vector<int32_t> encode_prompt(const std::vector<PromptPart>& parts, const Tokenizer& tokenizer,
                                   std::span<const TextRange> plain = {});

// Ascending ids of the tokens whose text holds `text`.
std::vector<int32_t> tokens_with(const Tokenizer& tokenizer, std::string_view text);

}  // namespace facet
