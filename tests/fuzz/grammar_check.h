#pragma once
#include <cstdint>
#include <random>
#include <string>

#include "base/check.h"
#include "grammar/likely.h"
#include "grammar/masks.h"

// What holds of every grammar that compiles: masks and steps agree, and there is always a way on.
inline void check_grammar(const facet::Result<facet::GrammarPtr>& made, uint32_t seed) {
  using namespace facet;
  if (!made) {
    CHECK(!made.error().what.empty(), "an error without words");
    return;
  }
  static const auto vocab = [] {
    std::vector<std::string> texts;
    for (int b = 0; b < 256; ++b) texts.push_back(std::string(1, char(b)));
    for (const char* t : {"ab", "{\"", "\":", "aaaa", "\xC3\xA9",
                          "\xC3\xA9"
                          "a",
                          "]}", "12", "\\u00"})
      texts.push_back(t);
    std::array<int32_t, grammar::kSpecialTokens> specials;
    for (int32_t& id : specials) id = int32_t(texts.size()), texts.push_back("");
    const int32_t end = int32_t(texts.size());
    texts.push_back("");
    return std::make_shared<GrammarVocab>(std::move(texts), specials, std::vector<int32_t>{end});
  }();
  GrammarMasks masks(vocab, 1 << 20);
  GrammarState state(*made);
  std::vector<uint32_t> mask(vocab->mask_words());
  std::minstd_rand rng(seed + 1);
  for (int step = 0; step < 12; ++step) {
    masks.mask(state, mask);
    std::vector<int32_t> may;
    for (int32_t t = 0; t < vocab->size(); ++t) {
      const bool bit = mask[size_t(t) / 32] >> (t % 32) & 1;
      GrammarState next = state;
      CHECK(next.advance(*vocab, t) == bit, "mask and step differ on token {}", t);
      if (bit) may.push_back(t);
    }
    CHECK(!may.empty(), "a dead end");
    const int32_t pick = may[rng() % may.size()];
    if (vocab->is_eog(pick)) break;
    state.advance(*vocab, pick);
    const LikelyText text = likely_text(state, "{");
    CHECK(GrammarState(state).advance_bytes(text.bytes), "a likely text that may not come");
  }
}
