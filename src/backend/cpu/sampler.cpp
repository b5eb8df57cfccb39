#include "backend/cpu/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace facet {
namespace {

uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

bool before(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

struct Best {
  int32_t id;  // the lowest with the largest logit; -1 if none is above minus infinity
  bool nan;    // there is one among the logits
};
Best best_of(std::span<const float> x) {
  constexpr size_t kLanes = 16;  // the compiler makes vectors of them
  float top[kLanes];
  int nan[kLanes] = {};
  std::fill_n(top, kLanes, -INFINITY);
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes)
    for (size_t k = 0; k < kLanes; ++k) {
      const float v = x[i + k];
      top[k] = v > top[k] ? v : top[k];
      nan[k] |= v != v;
    }
  for (; i < x.size(); ++i) {
    top[0] = x[i] > top[0] ? x[i] : top[0];
    nan[0] |= x[i] != x[i];
  }
  const float most = *std::max_element(top, top + kLanes);
  const auto at = most > -INFINITY ? std::find(x.begin(), x.end(), most) : x.end();
  return {at == x.end() ? -1 : int32_t(at - x.begin()),
          std::find_if(nan, nan + kLanes, [](int n) { return n != 0; }) != nan + kLanes};
}

bool has_penalties(const Sampling& s) {
  return s.repeat_penalty != 1.f || s.presence_penalty != 0.f || s.frequency_penalty != 0.f;
}

// The last n tokens of history followed by draft, sorted.
void collect_recent(const SampleRow& row, int last_n, std::vector<int32_t>& recent) {
  recent.clear();
  const size_t total = row.history.size() + row.draft.size();
  size_t i = last_n < 0 ? 0 : total - std::min(total, size_t(last_n));
  for (; i < total; ++i) recent.push_back(i < row.history.size() ? row.history[i] : row.draft[i - row.history.size()]);
  std::sort(recent.begin(), recent.end());
}

void penalise(SamplerScratch& scratch, const SampleRow& row) {
  std::vector<Candidate>& c = scratch.candidates;
  const Sampling& s = *row.sampling;
  for (int32_t id : row.suppressed)
    if (id >= 0 && size_t(id) < c.size()) c[size_t(id)].logit = -INFINITY;
  for (const auto& [id, bias] : s.logit_bias)
    if (id >= 0 && size_t(id) < c.size()) c[size_t(id)].logit += bias;
  if (!has_penalties(s)) return;
  collect_recent(row, s.repeat_last_n, scratch.recent);
  for (auto first = scratch.recent.begin(); first != scratch.recent.end();) {
    const auto last = std::upper_bound(first, scratch.recent.end(), *first);
    if (*first >= 0 && size_t(*first) < c.size()) {
      float& l = c[size_t(*first)].logit;
      l = l > 0 ? l / s.repeat_penalty : l * s.repeat_penalty;
      l -= float(last - first) * s.frequency_penalty + s.presence_penalty;
    }
    first = last;
  }
}

// The logits of what is allowed, minus infinity for the rest.
void mask(std::span<const float> logits, std::span<const uint32_t> allowed, std::vector<float>& out) {
  CHECK(allowed.size() == (logits.size() + 31) / 32, "a mask of {} words for {} logits", allowed.size(), logits.size());
  out.assign(logits.size(), -INFINITY);
  for (size_t w = 0; w < allowed.size(); ++w)
    for (uint32_t bits = allowed[w]; bits != 0; bits &= bits - 1)
      if (const size_t id = 32 * w + size_t(std::countr_zero(bits)); id < logits.size()) out[id] = logits[id];
}

// Drops the tail that top-p and min-p exclude from candidates sorted best first; the best one always stays.
void truncate(std::vector<Candidate>& c, const Sampling& s) {
  if (s.top_p < 1.f) {
    double total = 0, sum = 0;
    for (const Candidate& x : c) total += std::exp(double(x.logit) - double(c[0].logit));
    size_t keep = 0;
    while (keep < c.size() && (keep == 0 || sum < double(s.top_p) * total))
      sum += std::exp(double(c[keep++].logit) - double(c[0].logit));
    c.resize(keep);
  }
  if (s.min_p > 0.f) {
    const double floor = double(c[0].logit) + std::log(double(s.min_p));
    while (c.size() > 1 && double(c.back().logit) < floor) c.pop_back();
  }
}

// exp(x) for x <= 0 within 2e-7 of it, by the exponent's bits and a polynomial of 2^f, |f| <= 1/2. The
// compiler makes vectors of it.
float exp_of(float x) {
  constexpr float kRounds = 12582912;  // 1.5 * 2^23: the sum's last bits are the nearest integer
  const float y = (x < -87.f ? -87.f : x) * 1.44269504f, at = y + kRounds, f = y - (at - kRounds);
  const float p =
      1.f + f * (.693147182f + f * (.240226462f + f * (.0555032687f +
                                                       f * (.00961817801f + f * (.00133997729f + f * .00015469732f)))));
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(at) << 23));
}
double sum_of_exp(std::span<const float> x, float top) {
  constexpr size_t kLanes = 16;
  double total = 0;
  size_t i = 0;
  for (; i + kLanes <= x.size();) {
    float part[kLanes] = {};
    for (const size_t end = std::min(i + 64 * kLanes, x.size() - x.size() % kLanes); i < end; i += kLanes)
      for (size_t k = 0; k < kLanes; ++k) part[k] += exp_of(x[i + k] - top);
    for (const float p : part) total += double(p);
  }
  for (; i < x.size(); ++i) total += double(exp_of(x[i] - top));
  return total;
}

// The k best, best first. A heap of the best so far, the worst of them in front: one pass, as few are wanted of many.
void best_few(std::span<const float> logits, size_t k, std::vector<Candidate>& best) {
  for (size_t i = 0; i < logits.size(); ++i) {
    const Candidate c{int32_t(i), logits[i]};
    if (best.size() == k) {
      if (!before(c, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), before);
      best.back() = c;
    } else if (c.logit > -INFINITY) {
      best.push_back(c);
    } else {
      continue;
    }
    std::push_heap(best.begin(), best.end(), before);
  }
  std::sort_heap(best.begin(), best.end(), before);
}

}  // namespace

double uniform_at(uint64_t seed, int64_t position) {
  return double(mix(mix(seed) ^ uint64_t(position)) >> 11) * 0x1p-53;
}

int32_t sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch) {
  const Sampling& s = *row.sampling;
  if (!row.allowed.empty()) {
    mask(logits, row.allowed, scratch.masked);
    logits = scratch.masked;
  }
  if (s.temperature <= 0.f && s.logit_bias.empty() && !has_penalties(s)) {
    const Best best = best_of(logits);
    if (best.nan || best.id < 0 || !std::isfinite(logits[size_t(best.id)])) return -1;
    if (std::find(row.suppressed.begin(), row.suppressed.end(), best.id) == row.suppressed.end()) return best.id;
  }
  std::vector<Candidate>& c = scratch.candidates;
  c.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return -1;
    c[i] = {int32_t(i), logits[i]};
  }
  penalise(scratch, row);
  const auto best = std::min_element(c.begin(), c.end(), before);
  if (best == c.end() || !std::isfinite(best->logit)) return -1;
  if (s.temperature <= 0.f) return best->id;

  const size_t keep = s.top_k > 0 ? std::min(c.size(), size_t(s.top_k)) : c.size();
  std::partial_sort(c.begin(), c.begin() + ptrdiff_t(keep), c.end(), before);
  c.resize(keep);
  while (c.back().logit == -INFINITY) c.pop_back();  // the best one is finite
  truncate(c, s);
  const double top = c[0].logit, t = s.temperature;
  double total = 0;
  for (const Candidate& x : c) total += std::exp((double(x.logit) - top) / t);
  double u = uniform_at(s.seed, row.position) * total;
  for (const Candidate& x : c) {
    u -= std::exp((double(x.logit) - top) / t);
    if (u < 0) return x.id;
  }
  return c.back().id;
}

void top_k_row(std::span<const float> logits, std::span<int32_t> ids, std::span<float> log_probs,
               SamplerScratch& scratch) {
  std::vector<Candidate>& best = scratch.candidates;
  best.clear();
  if (ids.size() == 1) {
    if (const int32_t id = best_of(logits).id; id >= 0) best.push_back({id, logits[size_t(id)]});
  } else {
    best_few(logits, ids.size(), best);
  }
  const float top = best.empty() ? -INFINITY : best[0].logit;
  const double log_total = double(top) + std::log(sum_of_exp(logits, top));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = i < best.size() ? best[i].id : -1;
    log_probs[i] = i < best.size() ? float(double(best[i].logit) - log_total) : -INFINITY;
  }
}

}  // namespace facet
