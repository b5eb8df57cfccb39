#include "backend/cpu/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

namespace facet::test {
namespace {

int32_t draw(const std::vector<float>& logits, const Sampling& s, int64_t position = 0,
             std::vector<int32_t> history = {}, std::vector<int32_t> draft = {}, std::vector<int32_t> suppressed = {}) {
  SamplerScratch scratch;
  return sample_row(
      logits, {.sampling = &s, .position = position, .history = history, .draft = draft, .suppressed = suppressed},
      scratch);
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowestIdOnTies) {
  Sampling s{.temperature = 0};
  EXPECT_EQ(draw({1, 3, 3, 2}, s), 1);
  EXPECT_EQ(draw({1, 3, 3, 2}, s, 0, {}, {}, {1}), 2);
  s.logit_bias = {{3, 5.f}};
  EXPECT_EQ(draw({1, 3, 3, 2}, s), 3);
}

TEST(Sampler, DrawsOnlyWhatIsAllowed) {
  std::vector<float> logits(70);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float((i * 37) % 71);
  logits[5] = NAN;  // of a token that is not allowed
  const std::vector<uint32_t> mask{1u << 3 | 1u << 30, 0, 1u << 4};
  for (const float temperature : {0.f, 1.f, 50.f})
    for (const float bias : {0.f, 1000.f}) {
      Sampling s{.temperature = temperature, .top_p = 1, .seed = 4};
      if (bias > 0) s.logit_bias = {{7, bias}}, s.repeat_penalty = 1.3f;
      std::map<int32_t, int> seen;
      SamplerScratch scratch;
      for (int p = 0; p < 300; ++p)
        ++seen[sample_row(logits, {.sampling = &s, .position = p, .allowed = mask}, scratch)];
      for (const auto& [id, n] : seen) EXPECT_TRUE(id == 3 || id == 30 || id == 68) << id;
      EXPECT_EQ(seen.size(), temperature > 1 ? 3u : seen.size());
    }
  const std::vector<uint32_t> none(3);
  SamplerScratch scratch;
  const Sampling s;
  EXPECT_EQ(sample_row(logits, {.sampling = &s, .allowed = none}, scratch), -1);
}

TEST(Sampler, ReportsLogitsWithoutAFiniteNumber) {
  const Sampling s;
  EXPECT_EQ(draw({1, NAN, 2}, s), -1);
  EXPECT_EQ(draw({-INFINITY, -INFINITY}, s), -1);
}

TEST(Sampler, TopKIsTheSoftmaxSorted) {
  std::vector<float> logits(50);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float((i * 37) % 11) / 3;
  logits[7] = -INFINITY;
  SamplerScratch scratch;
  std::vector<int32_t> ids(50);
  std::vector<float> log_probs(50);
  top_k_row(logits, ids, log_probs, scratch);
  double total = 0;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const float a = logits[size_t(ids[i])];
    total += std::exp(double(log_probs[i]));
    EXPECT_NEAR(log_probs[i] - log_probs[0], a - logits[size_t(ids[0])], 1e-6);
    const float before = i > 0 ? logits[size_t(ids[i - 1])] : INFINITY;
    EXPECT_TRUE(before > a || (before == a && ids[i - 1] < ids[i])) << i;
  }
  EXPECT_NEAR(total, 1, 1e-6);
  EXPECT_EQ(ids.back(), -1) << "one token is impossible";
  std::vector<int32_t> few(3);
  std::vector<float> few_log_probs(3);
  top_k_row(logits, few, few_log_probs, scratch);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), ids.begin()));
  EXPECT_TRUE(std::equal(few_log_probs.begin(), few_log_probs.end(), log_probs.begin()));
}

TEST(Sampler, TheSameSeedAndPositionGiveTheSameToken) {
  std::vector<float> logits(50);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(float(i));
  const Sampling s{.top_k = 0, .top_p = 1, .seed = 5}, t{.top_k = 0, .top_p = 1, .seed = 6};
  int same_seed = 0, other_seed = 0, next = 0;
  for (int p = 0; p < 200; ++p) {
    same_seed += draw(logits, s, p) == draw(logits, s, p);
    other_seed += draw(logits, s, p) == draw(logits, t, p);
    next += draw(logits, s, p) == draw(logits, s, p + 1);
  }
  EXPECT_EQ(same_seed, 200);
  EXPECT_LT(other_seed, 30);
  EXPECT_LT(next, 30);
}

// Chi-square of 1e5 draws on 16 tokens, against the distribution that softmax and truncation define.
double chi_square_p(const Sampling& s, const std::vector<float>& logits, const std::vector<bool>& kept, double t) {
  std::vector<double> p(logits.size());
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) total += p[i] = kept[i] ? std::exp(logits[i] / t) : 0;
  std::map<int32_t, int> count;
  const int n = 100000;
  for (int i = 0; i < n; ++i) ++count[draw(logits, s, i)];
  double chi = 0;
  int dof = -1;
  for (size_t i = 0; i < p.size(); ++i) {
    const double want = p[i] / total * n, got = count[int32_t(i)];
    if (!kept[i]) {
      EXPECT_EQ(got, 0) << "token " << i << " is cut off";
      continue;
    }
    chi += (got - want) * (got - want) / want;
    ++dof;
  }
  // Wilson-Hilferty: the cube root of a chi-square over its degrees of freedom is close to normal.
  const double z = (std::cbrt(chi / dof) - (1 - 2. / (9 * dof))) / std::sqrt(2. / (9 * dof));
  return std::erfc(z / std::sqrt(2)) / 2;
}

TEST(Sampler, DrawsFollowTheDistribution) {
  std::vector<float> logits(16);
  for (size_t i = 0; i < 16; ++i) logits[i] = 1.5f * std::cos(float(i) * 1.7f);
  const std::vector<bool> all(16, true);
  EXPECT_GT(chi_square_p({.temperature = 1, .top_k = 0, .top_p = 1, .seed = 3}, logits, all, 1), .01);
  EXPECT_GT(chi_square_p({.temperature = .7f, .top_k = 0, .top_p = 1, .seed = 4}, logits, all, .7), .01);
  EXPECT_LT(chi_square_p({.temperature = .75f, .top_k = 0, .top_p = 1, .seed = 4}, logits, all, .7), 1e-6)
      << "a wrong temperature must show";
  std::vector<bool> top4(16, false);
  std::vector<size_t> order(16);
  for (size_t i = 0; i < 16; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  for (size_t i = 0; i < 4; ++i) top4[order[i]] = true;
  EXPECT_GT(chi_square_p({.temperature = 1, .top_k = 4, .top_p = 1, .seed = 5}, logits, top4, 1), .01);
}

TEST(Sampler, TruncationKeepsWhatItSays) {
  const std::vector<float> logits{std::log(.5f), std::log(.3f), std::log(.15f), std::log(.05f)};
  auto kept = [&](const Sampling& s) {
    std::map<int32_t, int> seen;
    for (int i = 0; i < 2000; ++i) ++seen[draw(logits, s, i)];
    return seen.size();
  };
  EXPECT_EQ(kept({.top_k = 0, .top_p = 1}), 4u);
  EXPECT_EQ(kept({.top_k = 0, .top_p = .79f}), 2u);  // .5 + .3 reach it
  EXPECT_EQ(kept({.top_k = 0, .top_p = .81f}), 3u);
  EXPECT_EQ(kept({.top_k = 0, .top_p = 0}), 1u);
  EXPECT_EQ(kept({.top_k = 0, .top_p = 1, .min_p = .25f}), 3u);  // .15 is at least .25 * .5
  EXPECT_EQ(kept({.top_k = 1, .top_p = 1}), 1u);
}

TEST(Sampler, PenaltiesLookAtHistoryAndDraft) {
  const std::vector<float> logits{2, 1.9f, -1};
  Sampling s{.temperature = 0, .repeat_penalty = 1.2f};
  EXPECT_EQ(draw(logits, s), 0);
  EXPECT_EQ(draw(logits, s, 0, {0}), 1);
  EXPECT_EQ(draw(logits, s, 0, {}, {0}), 1);
  EXPECT_EQ(draw(logits, s, 0, {0, 2, 2}), 1);
  s.repeat_last_n = 2;
  EXPECT_EQ(draw(logits, s, 0, {0, 2, 2}), 0) << "beyond the last two";
  EXPECT_EQ(draw(logits, s, 0, {0, 2}, {2}), 0);
  EXPECT_EQ(draw(logits, s, 0, {2, 0}, {2}), 1);
  const Sampling f{.temperature = 0, .frequency_penalty = .06f};
  EXPECT_EQ(draw(logits, f, 0, {0}), 0);
  EXPECT_EQ(draw(logits, f, 0, {0, 0}), 1);
  const Sampling p{.temperature = 0, .presence_penalty = .2f};
  EXPECT_EQ(draw(logits, p, 0, {0, 0}), 1);
}

// A slow reading of DRY: for each token, the longest end of the text that it has followed before.
std::map<int32_t, int> repetitions(std::vector<int32_t> text, int allowed, int last_n,
                                   const std::set<int32_t>& breakers) {
  if (last_n >= 0 && text.size() > size_t(last_n)) text.erase(text.begin(), text.end() - last_n);
  std::map<int32_t, int> out;
  const int n = int(text.size());
  for (int at = 0; at < n; ++at) {  // text[at] has followed text[at - k .. at)
    int k = 0;
    while (k < at && text[size_t(at - 1 - k)] == text[size_t(n - 1 - k)] && !breakers.count(text[size_t(n - 1 - k)]))
      ++k;
    if (k >= allowed && !breakers.count(text[size_t(at)])) out[text[size_t(at)]] = std::max(out[text[size_t(at)]], k);
  }
  return out;
}
TEST(Sampler, DryFindsRepetitions) {
  std::mt19937 random(5);
  size_t found = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> text(random() % 40);
    const int letters = 2 + int(random() % 4);
    for (int32_t& t : text) t = int32_t(random() % unsigned(letters));
    Sampling s{.dry_multiplier = 2.f, .dry_base = 1.5f, .dry_allowed_length = 1 + int(random() % 3)};
    s.dry_last_n = random() % 3 == 0 ? int(random() % 20) : -1;
    std::set<int32_t> breakers;
    if (random() % 2) breakers.insert(1);
    s.dry_breakers = std::make_shared<const std::vector<int32_t>>(breakers.begin(), breakers.end());
    const size_t split = text.empty() ? 0 : random() % text.size();
    SamplerScratch scratch;
    const SampleRow row{
        .sampling = &s, .history = std::span(text).first(split), .draft = std::span(text).subspan(split)};
    std::map<int32_t, float> got;
    for (const Candidate& c : dry_penalties(row, scratch)) EXPECT_TRUE(got.emplace(c.id, c.logit).second) << c.id;
    const auto want = repetitions(text, s.dry_allowed_length, s.dry_last_n, breakers);
    ASSERT_EQ(got.size(), want.size()) << round;
    for (const auto& [id, k] : want)
      EXPECT_FLOAT_EQ(got[id], 2.f * std::pow(1.5f, float(k - s.dry_allowed_length))) << round;
    found += want.size();
  }
  EXPECT_GT(found, 1000u);
  const Sampling s{.temperature = 0, .dry_multiplier = 5.f};
  EXPECT_EQ(draw({1, 2, 3}, s, 0, {0, 1, 2, 0, 1}), 1);  // 2 would repeat 0 1
  EXPECT_EQ(draw({1, 2, 3}, s, 0, {1, 1, 2, 0, 1}), 2);
}

TEST(Sampler, XtcExcludesTheTop) {
  // Probabilities .5, .3, .15, .05: of the three from .1 on the least likely stays.
  const std::vector<float> logits{std::log(.5f), std::log(.3f), std::log(.15f), std::log(.05f)};
  Sampling s{.top_k = 0, .top_p = 1, .xtc_probability = 1, .xtc_threshold = .1f};
  std::map<int32_t, int> seen;
  for (int p = 0; p < 4000; ++p) ++seen[draw(logits, s, p)];
  EXPECT_EQ(seen.count(0) + seen.count(1), 0u);
  EXPECT_NEAR(seen[2] / 4000., .75, .03);
  s.xtc_threshold = .6f;  // off: no token but one can have it
  EXPECT_GT((seen.clear(),
             [&] {
               for (int p = 0; p < 400; ++p) ++seen[draw(logits, s, p)];
               return seen[0];
             }()),
            100);
  s.xtc_threshold = .4f;  // one alone has it: it stays
  seen.clear();
  for (int p = 0; p < 400; ++p) ++seen[draw(logits, s, p)];
  EXPECT_GT(seen[0], 100);
  s.xtc_threshold = .1f, s.xtc_probability = .25f;
  seen.clear();
  for (int p = 0; p < 8000; ++p) ++seen[draw(logits, s, p)];
  EXPECT_NEAR((seen[0] + seen[1]) / 8000., .75 * .8, .03);
}

TEST(Sampler, ChancesAreWhatIsDrawnFrom) {
  const std::vector<float> logits{1, 3, 2, -INFINITY, 0};
  Sampling s{.temperature = .8f, .top_k = 3, .top_p = 1};
  SamplerScratch scratch;
  const SampleRow row{.sampling = &s};
  std::vector<Chance> chances;
  for (const Chance& c : chances_of(logits, row, scratch)) chances.push_back(c);
  ASSERT_EQ(chances.size(), 3u);
  EXPECT_EQ(chances[0].id, 1);
  double total = 0;
  for (const Chance& c : chances) total += c.weight;
  std::map<int32_t, int> seen;
  for (int p = 0; p < 8000; ++p) ++seen[draw(logits, s, p)];
  for (const Chance& c : chances) EXPECT_NEAR(seen[c.id] / 8000., c.weight / total, .02);
  s.temperature = 0;
  ASSERT_EQ(chances_of(logits, row, scratch).size(), 1u);
  EXPECT_EQ(chances_of(logits, row, scratch)[0].id, 1);
  EXPECT_TRUE(chances_of(std::vector<float>{NAN}, row, scratch).empty());
}

}  // namespace
}  // namespace facet::test
