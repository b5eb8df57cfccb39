#include "engine/logprobs.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/sampler.h"

namespace facet {

TokenLogprobs logprobs_of(std::span<const float> logits, int32_t id, int k) {
  TokenLogprobs out{.id = id};
  if (id < 0 || size_t(id) >= logits.size()) return out;
  // One entry at least: the largest logit's log-probability tells the sum of all.
  std::vector<int32_t> ids(size_t(std::clamp(k, 1, int(logits.size()))));
  std::vector<float> log_probs(ids.size());
  SamplerScratch scratch;
  top_k_row(logits, ids, log_probs, scratch);
  if (ids[0] < 0) return out;
  const double log_total = double(logits[size_t(ids[0])]) - double(log_probs[0]);
  out.logprob = float(double(logits[size_t(id)]) - log_total);
  for (size_t i = 0; i < ids.size() && int(i) < k && ids[i] >= 0; ++i) out.top.emplace_back(ids[i], log_probs[i]);
  return out;
}

TokenLogprobs drawn_logprobs_of(std::span<const Chance> chances, int32_t id, int k) {
  TokenLogprobs out{.id = id};
  double total = 0;
  for (const Chance& c : chances) total += c.weight;
  for (const Chance& c : chances) {
    const float l = float(std::log(c.weight / total));
    if (c.id == id) out.logprob = l;
    if (int(out.top.size()) < k && std::isfinite(l)) out.top.emplace_back(c.id, l);
  }
  return out;
}

}  // namespace facet
