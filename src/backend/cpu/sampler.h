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
struct Chance {
  int32_t id;
  double weight;  // its share of the weights' sum is its probability
};
// Memory that drawing needs, kept between draws.
struct SamplerScratch {
  std::vector<Candidate> candidates;
  std::vector<int32_t> recent;
  std::vector<float> masked;
  std::vector<Chance> chances;
  std::vector<Candidate> dry;
  std::vector<int> repeats;
};

// The meaning of the verb `sample` for one row: the id drawn from logits [V] under row.sampling. Logits are only read.
// A row without any finite logit, or with a NaN, gives -1: the caller reports it as a broken model or kernel.
int32_t sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch);

// The tokens that sample_row draws from, likeliest first; greedy: the one. Empty where sample_row gives -1. Valid until
// scratch is used again.
std::span<const Chance> chances_of(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch);

// What DRY takes from logits, each id once with its penalty. Valid until scratch is used again.
std::span<const Candidate> dry_penalties(const SampleRow& row, SamplerScratch& scratch);

// The meaning of the verb `top_k` for one row: the ids.size() largest of logits [V], lowest id first on ties, and their
// natural log-probabilities under the softmax of all. Where there are no more: id -1 and minus infinity.
void top_k_row(std::span<const float> logits, std::span<int32_t> ids, std::span<float> log_probs,
               SamplerScratch& scratch);

}  // namespace facet
