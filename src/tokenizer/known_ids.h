#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace facet {

// What llama.cpp's tokenizer gives for a text with the published Gemma 4 vocabulary, without <bos>
// (llama.cpp models/ggml-vocab-gemma-4.gguf.inp and .out).
struct KnownEncoding {
  std::string_view text;
  std::vector<int32_t> ids;
};
std::span<const KnownEncoding> gemma4_known_encodings();
inline constexpr int kGemma4VocabSize = 262144;

}  // namespace facet
