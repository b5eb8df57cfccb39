// Which drafts of sequences that decode together are verified: against every other choice, with the times of steps as
// they are on GPUs, edges of tiles included.
#include "spec/admit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>

namespace facet::test {
namespace {

using Admit = std::function<std::vector<int>(std::span<const BatchDraft>, const StepTimes&, double)>;

StepTimes times(int most, const std::function<double(int)>& t) {
  StepTimes s(most);
  for (int n = 1; n <= most; ++n) s.observe(n, t(n));
  return s;
}

struct Batch {
  std::vector<std::vector<float>> chance;
  std::vector<int> least;
  std::vector<BatchDraft> drafts() const {
    std::vector<BatchDraft> d;
    for (size_t i = 0; i < chance.size(); ++i) d.push_back({.chance = chance[i], .least = least[i]});
    return d;
  }
};
Batch batch(std::mt19937& rng, int sequences, int most) {
  std::uniform_real_distribution<float> u(0, 1);
  Batch b;
  for (int i = 0; i < sequences; ++i) {
    std::vector<float> c(rng() % unsigned(most + 1));
    float p = 1;
    for (float& x : c) x = p *= rng() % 8 == 0 ? 1 : .3f + .7f * u(rng);
    b.chance.push_back(c);
    b.least.push_back(rng() % 6 == 0 ? int(rng() % unsigned(most + 1)) : 0);
  }
  return b;
}

double rate(const Batch& b, const std::vector<int>& taken, const StepTimes& step, double spent) {
  double tokens = double(b.chance.size());
  int rows = int(b.chance.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    rows += taken[i];
    tokens += std::accumulate(b.chance[i].begin(), b.chance[i].begin() + taken[i], 0.);
  }
  return tokens / (spent + step.at(rows));
}
// The best rate of all choices, tried one by one.
double best_rate(const Batch& b, const StepTimes& step, double spent) {
  std::vector<int> taken, least;
  for (size_t i = 0; i < b.chance.size(); ++i)
    least.push_back(std::min(b.least[i], int(b.chance[i].size()))), taken.push_back(least.back());
  double best = 0;
  while (true) {
    best = std::max(best, rate(b, taken, step, spent));
    size_t i = 0;
    while (i < taken.size() && taken[i] == int(b.chance[i].size())) taken[i] = least[i], ++i;
    if (i == taken.size()) return best;
    ++taken[i];
  }
}

// What is wrong with it on random batches; empty: nothing.
std::string fault(const Admit& admit) {
  std::mt19937 rng(7);
  std::uniform_real_distribution<double> u(0, 1);
  int cut = 0, whole = 0;
  for (int run = 0; run < 600; ++run) {
    const int sequences = 1 + int(rng() % 4);
    const Batch b = batch(rng, sequences, 5);
    // Flat up to the edge of a tile, then a jump; a slope that may be nothing or more than a token is worth.
    const double slope = .5 * u(rng) * u(rng), jump = u(rng) < .5 ? 0 : u(rng), spent = u(rng) < .5 ? 0 : u(rng);
    const int tile = 1 + int(rng() % 8);
    const StepTimes step = times(32, [&](int n) { return 1 + slope * n + jump * double((n - 1) / tile); });
    const auto drafts = b.drafts();
    const std::vector<int> taken = admit(drafts, step, spent);
    if (taken.size() != drafts.size()) return "one number for each sequence";
    for (size_t i = 0; i < taken.size(); ++i) {
      const int n = int(b.chance[i].size());
      if (taken[i] < std::min(b.least[i], n)) return "fewer than the least";
      if (taken[i] > n) return "more than there are";
      cut += taken[i]<n, whole += n> 0 && taken[i] == n;
    }
    const double got = rate(b, taken, step, spent), best = best_rate(b, step, spent);
    if (got < best * (1 - 1e-6)) return "another choice is faster";
  }
  if (cut < 200 || whole < 200) return "cases that say nothing";
  return "";
}

TEST(AdmitDrafts, NoOtherChoiceIsFaster) { EXPECT_EQ(fault(admit_drafts), ""); }

// Rules of others, and mistakes that are easily made.
TEST(AdmitDrafts, BitesOnPlantedBugs) {
  const auto greedy = [](std::span<const BatchDraft> d, const StepTimes& step, double spent, bool stops, bool each) {
    // One row after the other, the likeliest first.
    std::vector<int> taken;
    double tokens = double(d.size());
    int rows = int(d.size());
    for (const BatchDraft& b : d) {
      taken.push_back(std::min(b.least, int(b.chance.size())));
      rows += taken.back();
      for (int k = 0; k < taken.back(); ++k) tokens += double(b.chance[size_t(k)]);
    }
    std::vector<int> best = taken;
    double best_rate = tokens / (spent + step.at(rows));
    while (true) {
      int at = -1;
      for (int i = 0; i < int(d.size()); ++i) {
        const auto& c = d[size_t(i)].chance;
        if (taken[size_t(i)] >= int(c.size())) continue;
        const auto worth = [&](int s) {
          return each ? -taken[size_t(s)] : d[size_t(s)].chance[size_t(taken[size_t(s)])];
        };
        if (at < 0 || worth(i) > worth(at)) at = i;
      }
      if (at < 0) return best;
      tokens += double(d[size_t(at)].chance[size_t(taken[size_t(at)]++)]);
      const double rate = tokens / (spent + step.at(++rows));
      if (rate > best_rate)
        best = taken, best_rate = rate;
      else if (stops)
        return best;
    }
  };
  using D = std::span<const BatchDraft>;
  EXPECT_EQ(fault([&](D d, const StepTimes& s, double spent) { return greedy(d, s, spent, false, false); }), "")
      << "the same in another way";
  const std::pair<const char*, Admit> planted[] = {
      {"it stops at the first fall", [&](D d, const StepTimes& s, double p) { return greedy(d, s, p, true, false); }},
      {"as many of each", [&](D d, const StepTimes& s, double p) { return greedy(d, s, p, false, true); }},
      {"drafting costs nothing", [&](D d, const StepTimes& s, double) { return admit_drafts(d, s, 0); }},
      {"each for itself",
       [&](D d, const StepTimes& s, double p) {
         std::vector<int> t;
         for (size_t i = 0; i < d.size(); ++i) t.push_back(admit_drafts(d.subspan(i, 1), s, p)[0]);
         return t;
       }},
      {"all", [&](D d, const StepTimes&, double) {
         std::vector<int> t;
         for (const BatchDraft& b : d) t.push_back(int(b.chance.size()));
         return t;
       }}};
  for (const auto& [what, admit] : planted) EXPECT_EQ(fault(admit), "another choice is faster") << what;
  EXPECT_EQ(fault([](D d, const StepTimes& s, double p) {
              std::vector<BatchDraft> none(d.begin(), d.end());
              for (BatchDraft& b : none) b.least = 0;
              return admit_drafts(none, s, p);
            }),
            "fewer than the least");
}

// Drafts of four that are right in 80 % each, as load rises: where a row costs the same wherever it comes, the less
// likely ones go. In a mixture of experts a few rows more read many experts more, and many rows next to none.
TEST(AdmitDrafts, TreesShrinkWithLoad) {
  std::vector<float> chain;
  for (float p = .8f; chain.size() < 4; p *= .8f) chain.push_back(p);
  const auto rows_each = [&](int n, const StepTimes& step) {
    const std::vector<BatchDraft> drafts(size_t(n), BatchDraft{.chance = chain});
    const std::vector<int> taken = admit_drafts(drafts, step, 0);
    const Batch b{.chance = std::vector(size_t(n), chain), .least = std::vector<int>(size_t(n))};
    const double got = rate(b, taken, step, 0);
    EXPECT_GE(got, rate(b, std::vector<int>(size_t(n), 0), step, 0) * .999999) << n << " sequences: slower than none";
    EXPECT_GE(got, rate(b, std::vector<int>(size_t(n), 4), step, 0) * .999999) << n << " sequences: slower than all";
    return double(std::accumulate(taken.begin(), taken.end(), 0)) / n;
  };
  const StepTimes dense = times(1024, [](int n) { return 4 + .06 * n; });
  double before = 5;
  for (const int n : {1, 4, 16, 48, 128, 200}) {
    const double each = rows_each(n, dense);
    EXPECT_LE(each, before) << n << " sequences";
    before = each;
  }
  EXPECT_EQ(rows_each(1, dense), 4);
  EXPECT_LT(rows_each(200, dense), 3);
  const StepTimes mixture = times(1024, [](int n) {
    return 1.5 + 5 * (1 - std::pow(.98, n)) + std::max(0., .045 * (n - 24)) + .2 * double((n - 1) / 64);
  });
  for (const int n : {1, 4, 16, 48, 128, 200}) rows_each(n, mixture);
  // Unlikely ones go first, whoever's they are.
  const std::vector<float> sure{.99f, .98f, .97f, .96f}, unsure{.5f, .2f, .1f, .01f};
  std::vector<BatchDraft> mixed;
  for (int i = 0; i < 32; ++i) mixed.push_back({.chance = i % 2 ? std::span(sure) : std::span(unsure)});
  const std::vector<int> taken = admit_drafts(mixed, dense, 0);
  EXPECT_EQ(taken[1], 4);
  EXPECT_LT(taken[0], 4);
}

TEST(AdmitDrafts, TakesAllWhereNothingIsKnown) {
  const std::vector<float> c{.5f, .1f};
  EXPECT_EQ(admit_drafts(std::vector{BatchDraft{.chance = c}}, StepTimes(4), 0), std::vector<int>{2});
  EXPECT_TRUE(admit_drafts({}, StepTimes(4), 0).empty());
}

}  // namespace
}  // namespace facet::test
