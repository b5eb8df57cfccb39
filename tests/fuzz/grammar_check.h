#pragma once
#include <cstdint>
#include <random>
#include <string>

#include "base/check.h"
#include "grammar/likely.h"
#include "grammar/masks.h"

// What compiling may cost here: sanitizers make it several times as slow, and a unit may take two seconds.
inline facet::GrammarOptions fuzz_options() {
  facet::GrammarOptions o;
  o.limits.work = facet::CompileLimits::kDefaultWork / 8;
  return o;
}

// What holds of every grammar that compiles: masks and steps agree, and there is always a way on, until the work that
// is allowed is over; then nothing more is said, and soon.
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
  GrammarWork work(GrammarWork::kMost / 16);
  const GrammarWorkScope scope(work);
  GrammarMasks masks(vocab, 1 << 20);
  GrammarState state(*made);
  std::vector<uint32_t> mask(vocab->mask_words());
  std::minstd_rand rng(seed + 1);
  // The first tokens are looked at closely; then the text gets long.
  for (int step = 0; step < 60; ++step) {
    const bool closely = step < 12;
    if (!masks.mask(state, mask)) {
      CHECK(work.over(), "no mask, though there is work left");
      break;
    }
    std::vector<int32_t> may;
    for (int32_t t = 0; t < vocab->size(); ++t) {
      const bool bit = mask[size_t(t) / 32] >> (t % 32) & 1;
      if (closely) {
        GrammarState next = state;
        const bool follows = next.advance(*vocab, t);
        if (work.over()) return;
        CHECK(follows == bit, "mask and step differ on token {}", t);
      }
      if (bit) may.push_back(t);
    }
    CHECK(!may.empty(), "a dead end");
    const int32_t pick = may[rng() % may.size()];
    if (vocab->is_eog(pick)) {
      if (closely || may.size() == 1) break;
      continue;
    }
    CHECK(state.advance(*vocab, pick) || work.over(), "a token that the mask allows");
    if (work.over()) break;
    const LikelyText text = likely_text(state, "{");
    CHECK(GrammarState(state).advance_bytes(text.bytes) || work.over(), "a likely text that may not come");
  }
  CHECK(work.spent() <= GrammarWork::kMost / 16 + 200'000, "{} units of work", work.spent());
}
