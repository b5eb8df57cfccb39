#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tokenizer/chat.h"
#include "tokenizer/tokenizer.h"

namespace facet {

struct MatrixSet {
  std::string name;
  std::vector<std::string> prompts;  // questions of a user; raw: whole prompts, with their special tokens
  bool raw = false;
};

std::vector<MatrixSet> builtin_sets();  // chat, code, json
// JSON lines {kind, prompt} (questions) or {kind, context} (whole prompts); a set for each kind, in their order.
Result<std::vector<MatrixSet>> read_prompt_sets(const std::string& path);

// The first `count` prompts of a set as token ids. context > 0: of exactly so many tokens, the question at the end and
// prose before it; raw prompts are cut in front, or are an error where they are shorter. 0: as they are.
Result<std::vector<std::vector<int32_t>>> matrix_prompts(const Tokenizer& t, Variant variant, const MatrixSet& set,
                                                         int context, int count);
// Random ids below n_vocab instead, for models without a vocabulary; context 0 is 64 tokens.
std::vector<std::vector<int32_t>> random_prompts(int n_vocab, int context, int count);

// So many sentences of plain prose, the same for the same number.
std::string filler_text(int sentences);

}  // namespace facet
