#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace facet {

// The text that an answer goes on with where its grammar leaves next to no choice: names and punctuation of a schema,
// the head of a tool call.
struct LikelyText {
  std::string bytes = {};
  size_t sure = 0;      // so many of them are the only ones that may come; then whitespace was guessed
  bool closed = false;  // no text may follow it
};
// before: what stands in front of it. Whitespace is guessed to be what last followed the same character there.
LikelyText likely_text(const GrammarState& state, std::string_view before);

// The same as tokens, special ones among them. As drafts they cost no drafter; the model may still write a text in
// other tokens.
struct LikelyTokens {
  std::vector<int32_t> token = {};
  // Of each: nothing was guessed up to its end, and no longer token can begin with its text and go on with free text.
  std::vector<bool> sure = {};
};

// At most so many tokens behind `history`, the sequence whose end has led to the state.
LikelyTokens likely_tokens(const GrammarState& state, const GrammarVocab& vocab, const Tokenizer& tokenizer,
                           std::span<const int32_t> history, int most);

}  // namespace facet
