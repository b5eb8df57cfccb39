#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai.h"
#include "tokenizer/tokenizer.h"

// llama-server's paths that only turn text to tokens and back. Pure functions of a body.
namespace facet {

inline constexpr size_t kMaxTokenizeBytes = 1 << 20;
inline constexpr size_t kMaxDetokenizedBytes = 16 << 20;  // of text

// The answers as JSON, written piece by piece: a value of a million ids takes ten times the memory of its text.
Result<std::string> tokenize_json(const Json& body, const Tokenizer& tokenizer, bool strict);
Result<std::string> detokenize_json(const Json& body, const Tokenizer& tokenizer, bool strict);

// Ascending ids of the tokens whose text holds `text`.
std::vector<int32_t> tokens_with(const Tokenizer& tokenizer, std::string_view text);

}  // namespace facet
