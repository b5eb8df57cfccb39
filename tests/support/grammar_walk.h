#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "grammar/masks.h"

// Vocabularies for grammars and random answers under masks.
namespace facet::test {

// Every byte, then some of the texts that real vocabularies have, then special tokens and two ends.
struct SmallVocab {
  std::shared_ptr<const GrammarVocab> vocab;
  std::array<int32_t, grammar::kSpecialTokens> specials;
  int32_t eog;
};
inline SmallVocab small_vocab(std::vector<std::string> more) {
  std::vector<std::string> texts;
  for (int b = 0; b < 256; ++b) texts.push_back(std::string(1, char(b)));
  texts.insert(texts.end(), more.begin(), more.end());
  SmallVocab v;
  for (int32_t& id : v.specials) {
    id = int32_t(texts.size());
    texts.push_back("");
  }
  v.eog = int32_t(texts.size());
  texts.push_back("");
  v.vocab = std::make_shared<GrammarVocab>(std::move(texts), v.specials, std::vector<int32_t>{v.eog});
  return v;
}

inline std::vector<int32_t> allowed(std::span<const uint32_t> mask) {
  std::vector<int32_t> out;
  for (size_t w = 0; w < mask.size(); ++w)
    for (uint32_t bits = mask[w]; bits; bits &= bits - 1) out.push_back(int32_t(w * 32) + __builtin_ctz(bits));
  return out;
}

inline const char* special_text(int t) {
  constexpr const char* kTexts[] = {"<|\"|>", "<|tool_call>", "<tool_call|>", "<|channel>", "<channel|>"};
  return kTexts[t];
}

// A random answer. After `patience` tokens it takes the shortest way out that it sees: the end, else a token that
// closes something. False if it got stuck, which no grammar may allow.
inline bool random_answer(GrammarMasks& masks, GrammarState state, std::mt19937& rng, int patience, int max_tokens,
                          std::string& text, bool& ended) {
  const GrammarVocab& vocab = masks.vocab();
  std::vector<uint32_t> mask(vocab.mask_words());
  ended = false;
  for (int n = 0; n < max_tokens; ++n) {
    masks.mask(state, mask);
    const std::vector<int32_t> may = allowed(mask);
    if (may.empty()) return false;
    if (vocab.is_eog(may.back()) && (n > patience || may.size() == 1 || rng() % 8 == 0)) {
      ended = true;
      return true;
    }
    int32_t pick = -1;
    for (int tries = 0; tries < 12 && (pick < 0 || vocab.is_eog(pick)); ++tries) pick = may[rng() % may.size()];
    if (n > patience) {
      for (const char* closing : {"\"", "0", "null", "[]", "]", "}"})
        for (const int32_t t : may)
          if (vocab.text(t) == closing && (may.size() < 60 || *closing == '"'))
            pick = t;  // many may follow in a string
      for (const int32_t t : may)
        if (vocab.special_of(t) >= 0) pick = t;
    }
    if (vocab.is_eog(pick)) continue;
    if (!state.advance(vocab, pick)) return false;
    if (const int s = vocab.special_of(pick); s >= 0)
      text += special_text(s);
    else
      text += vocab.text(pick);
  }
  return true;
}

}  // namespace facet::test
