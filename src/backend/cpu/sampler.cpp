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

void penalise_recent(SamplerScratch& scratch, const SampleRow& row) {
  std::vector<Candidate>& c = scratch.candidates;
  const Sampling& s = *row.sampling;
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

void penalise(SamplerScratch& scratch, const SampleRow& row) {
  std::vector<Candidate>& c = scratch.candidates;
  const Sampling& s = *row.sampling;
  for (int32_t id : row.suppressed)
    if (id >= 0 && size_t(id) < c.size()) c[size_t(id)].logit = -INFINITY;
  for (const auto& [id, bias] : s.logit_bias)
    if (id >= 0 && size_t(id) < c.size()) c[size_t(id)].logit += bias;
  if (has_penalties(s)) penalise_recent(scratch, row);
  if (s.uses_dry())
    for (const Candidate& d : dry_penalties(row, scratch))
      if (d.id >= 0 && size_t(d.id) < c.size()) c[size_t(d.id)].logit -= d.logit;
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

// XTC: all but the least likely of those with a probability of the threshold or more go. Candidates are sorted.
void exclude_top(std::vector<Candidate>& c, const SampleRow& row) {
  const Sampling& s = *row.sampling;
  constexpr uint64_t kOtherDraw = 0x9D39247E33776D41ull;  // independent of the one that picks the token
  if (c.size() < 2 || uniform_at(s.seed ^ kOtherDraw, row.position) >= double(s.xtc_probability)) return;
  double total = 0;
  for (const Candidate& x : c) total += std::exp(double(x.logit) - double(c[0].logit));
  size_t above = 0;
  while (above < c.size() && std::exp(double(c[above].logit) - double(c[0].logit)) >= double(s.xtc_threshold) * total)
    ++above;
  if (above > 1) c.erase(c.begin(), c.begin() + ptrdiff_t(above - 1));
}

// The candidates that are drawn from, with their weights. One at least is finite.
void weigh(const SampleRow& row, SamplerScratch& scratch) {
  const Sampling& s = *row.sampling;
  std::vector<Candidate>& c = scratch.candidates;
  const size_t keep = s.top_k > 0 ? std::min(c.size(), size_t(s.top_k)) : c.size();
  scratch.chances.reserve(std::max(keep, size_t(64)));  // no later step allocates
  std::partial_sort(c.begin(), c.begin() + ptrdiff_t(keep), c.end(), before);
  c.resize(keep);
  while (c.back().logit == -INFINITY) c.pop_back();
  truncate(c, s);
  if (s.uses_xtc()) exclude_top(c, row);
  const double top = c[0].logit, t = s.temperature;
  for (const Candidate& x : c) scratch.chances.push_back({x.id, std::exp((double(x.logit) - top) / t)});
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

std::span<const Candidate> dry_penalties(const SampleRow& row, SamplerScratch& scratch) {
  const Sampling& s = *row.sampling;
  scratch.dry.clear();
  const size_t total = row.history.size() + row.draft.size();
  const size_t n = s.dry_last_n < 0 ? total : std::min(total, size_t(s.dry_last_n));
  const auto back = [&](size_t i) {  // the i-th token before the row
    const size_t at = total - 1 - i;
    return at < row.history.size() ? row.history[at] : row.draft[at - row.history.size()];
  };
  const auto breaks = [&](int32_t id) {
    return s.dry_breakers && std::binary_search(s.dry_breakers->begin(), s.dry_breakers->end(), id);
  };
  size_t longest = 0;  // tokens at the end that a repetition may have
  while (longest < n && !breaks(back(longest))) ++longest;
  if (longest < size_t(std::max(1, s.dry_allowed_length))) return scratch.dry;
  // z[i]: how many tokens before the i-th are those at the end. The Z-function of the text read backwards.
  std::vector<int>& z = scratch.repeats;
  z.assign(n, 0);
  for (size_t i = 1, left = 0, right = 0; i < n; ++i) {
    size_t k = i < right ? std::min(right - i, size_t(z[i - left])) : 0;
    while (i + k < n && back(k) == back(i + k)) ++k;
    z[i] = int(k);
    if (i + k > right) left = i, right = i + k;
  }
  for (size_t i = 1; i < n; ++i)
    if (const size_t k = std::min(size_t(z[i]), longest); k >= size_t(std::max(1, s.dry_allowed_length)))
      if (const int32_t next = back(i - 1); !breaks(next)) scratch.dry.push_back({next, float(k)});
  std::sort(scratch.dry.begin(), scratch.dry.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id || (a.id == b.id && a.logit > b.logit); });
  scratch.dry.erase(std::unique(scratch.dry.begin(), scratch.dry.end(),
                                [](const Candidate& a, const Candidate& b) { return a.id == b.id; }),
                    scratch.dry.end());
  for (Candidate& d : scratch.dry) {
    const double exponent = double(d.logit) - double(s.dry_allowed_length);
    d.logit = float(std::min(1e30, double(s.dry_multiplier) * std::pow(double(s.dry_base), exponent)));
  }
  return scratch.dry;
}

int32_t sample_row(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch) {
  const Sampling& s = *row.sampling;
  if (!row.allowed.empty()) {
    mask(logits, row.allowed, scratch.masked);
    logits = scratch.masked;
  }
  if (s.temperature <= 0.f && s.logit_bias.empty() && !has_penalties(s) && !s.uses_dry()) {
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

  scratch.chances.clear();
  weigh(row, scratch);
  double total = 0;
  for (const Chance& x : scratch.chances) total += x.weight;
  double u = uniform_at(s.seed, row.position) * total;
  for (const Chance& x : scratch.chances) {
    u -= x.weight;
    if (u < 0) return x.id;
  }
  return scratch.chances.back().id;
}

std::span<const Chance> chances_of(std::span<const float> logits, const SampleRow& row, SamplerScratch& scratch) {
  scratch.chances.clear();
  const int32_t drawn = sample_row(logits, row, scratch);
  if (drawn >= 0 && row.sampling->temperature <= 0.f) scratch.chances.assign(1, {drawn, 1});
  return drawn < 0 ? std::span<const Chance>{} : scratch.chances;
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
