#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace facet {

// How a token is drawn from logits. Defaults are Google's for Gemma 4. Applied in this order, which is llama.cpp's:
// tokens that are not allowed (SampleRow), suppressed tokens, bias, penalties, DRY, top-k, top-p, min-p, XTC,
// temperature, draw.
struct Sampling {
  float temperature = 1.f;  // <= 0: the largest logit, lowest id on ties
  int top_k = 64;           // <= 0: off
  float top_p = .95f;       // >= 1: off
  float min_p = 0.f;        // <= 0: off
  float repeat_penalty = 1.f, presence_penalty = 0.f, frequency_penalty = 0.f;
  int repeat_last_n = 64;  // tokens the penalties look back on; -1: all
  uint64_t seed = 0;
  std::vector<std::pair<int32_t, float>> logit_bias = {};
  // DRY ("don't repeat yourself"): a token that would go on with a repetition of n >= dry_allowed_length tokens loses
  // dry_multiplier * dry_base ^ (n - dry_allowed_length) from its logit.
  float dry_multiplier = 0.f, dry_base = 1.75f;  // multiplier 0: off
  int dry_allowed_length = 2;
  int dry_last_n = -1;  // tokens it looks back on; -1: all
  // Ascending ids of tokens that no repetition goes across; null: none.
  std::shared_ptr<const std::vector<int32_t>> dry_breakers = {};
  // XTC ("exclude top choices"): with xtc_probability, of the candidates with a probability of xtc_threshold or more
  // all but the least likely go.
  float xtc_probability = 0.f, xtc_threshold = .1f;
  bool uses_dry() const { return dry_multiplier > 0.f && dry_base >= 1.f; }
  bool uses_xtc() const { return temperature > 0.f && xtc_probability > 0.f && xtc_threshold <= .5f; }
};

// One row to draw from. The random number depends on (seed, position) alone, so neither neighbours in a batch nor
// the way steps were cut change a request's tokens.
struct SampleRow {
  const Sampling* sampling = nullptr;
  int64_t position = 0;                      // of the token that is drawn, in its sequence
  std::span<const int32_t> history = {};     // tokens before the row, oldest first
  std::span<const int32_t> draft = {};       // more of them: the draft path up to this row
  std::span<const int32_t> suppressed = {};  // never drawn
  // Bit t (word t / 32, bit t % 32): token t may be drawn. What is not allowed counts as minus infinity, whatever its
  // logit is. Empty: all are.
  std::span<const uint32_t> allowed = {};
};

}  // namespace facet
