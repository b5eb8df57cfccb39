#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace facet {

class GgufFile;

// tokenizer.ggml.token_type.
enum TokenType : int {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

// What a file says about its tokens, before it is known to be usable (Tokenizer::create checks that).
struct Vocab {
  std::vector<std::string> tokens;  // text by id, U+2581 for a space
  std::vector<int> types;           // TokenType by id
  std::vector<std::string> merges;  // "left right", best first
  std::vector<int32_t> suppress;    // ids that must not be generated (tokenizer.ggml.suppress_tokens)
  std::vector<int32_t> eos_ids;     // tokenizer.ggml.eos_token_id and eos_token_ids, see Tokenizer::eog()
  std::string chat_template;        // Jinja source; empty if the file has none
  std::string where;                // file, for messages
  std::vector<std::string> notes;   // deviations that are understood and corrected, one sentence each

  bool empty() const { return tokens.empty(); }
};

// Reads tokenizer.* of a Gemma 4 file. A file that declares tokenizer.ggml.model = "no_vocab" gives an empty
// Vocab: it holds a network whose tokens are those of another file.
Result<Vocab> vocab_from_gguf(const GgufFile& file);

}  // namespace facet
