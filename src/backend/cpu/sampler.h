#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "backend/sampling.h"

namespace facet {

// Uniform in [0, 1) with 53 bits, a function of its arguments alone (two rounds of the splitmix64 finaliser).
double uniform_at(uint64_t seed, int64_t position);

struct Candidate {
  int32_t id;
  float logit;
};
// Memory that drawing needs, kept between draws.
struct SamplerScratch {
  std::vector<Candidate> candidates;
  std::vector<int32_t> recent;
  std::vector<float> masked;
};

// The meaning of the verb `sample` for one row: the id drawn from logits [V] under row.sampling. Logits are only read.
// A row without any finite logit, or with a NaN, gives -1: the caller reports it as a broken model or kernel.
int32_t sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch);

// The meaning of the verb `top_k` for one row: the ids.size() largest of logits [V], lowest id first on ties, and their
// natural log-probabilities under the softmax of all. Where there are no more: id -1 and minus infinity.
void top_k_row(std::span<const float> logits, std::span<int32_t> ids, std::span<float> log_probs,
               SamplerScratch& scratch);

}  // namespace facet
