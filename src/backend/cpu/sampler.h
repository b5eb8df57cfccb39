#pragma once
#include <cstdint>
#include <span>

#include "backend/sampling.h"

namespace facet {

// Uniform in [0, 1) with 53 bits, a function of its arguments alone (two rounds of the splitmix64 finaliser).
double uniform_at(uint64_t seed, int64_t position);

// The meaning of the verb `sample` for one row: the id drawn from logits [V] under row.sampling. Logits are only read.
// A row without any finite logit, or with a NaN, gives -1: the caller reports it as a broken model or kernel.
int32_t sample_row(std::span<const float> logits, const SampleRow& row);

}  // namespace facet
