#pragma once
#include <cstdint>
#include <span>

#include "api/engine.h"
#include "backend/cpu/sampler.h"

namespace facet {

// What a row of logits says of a token and of the k likeliest. A row without a finite number, or an id below 0, gives
// an entry without meaning: the request fails with the draw of that row.
TokenLogprobs logprobs_of(std::span<const float> logits, int32_t id, int k);
// The same of the tokens that were drawn from (chances_of), likeliest first; there may be fewer than k.
TokenLogprobs drawn_logprobs_of(std::span<const Chance> chances, int32_t id, int k);

}  // namespace facet
