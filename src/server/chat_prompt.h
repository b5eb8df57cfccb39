#pragma once
#include "server/openai.h"

namespace facet {

struct ChatPrompt {
  std::string text = {};
  std::vector<TextRange> plain = {};            // what messages and tools spell of it, for Tokenizer::encode
  bool in_thought = false;                      // the answer begins inside a thought
  std::vector<RenderedChat::Media> media = {};  // pictures and sounds, in the order of the text
};

// A chat as the model reads it. With continue_last, the last message is the beginning of the answer: nothing closes it.
Result<ChatPrompt> chat_prompt(const ApiRequest& request, Variant variant);

}  // namespace facet
