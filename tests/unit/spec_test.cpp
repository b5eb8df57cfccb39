// Trees, acceptance and the choice of lengths: pure functions.
#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "backend/cpu/cpu_ref.h"
#include "session/loop_guard.h"
#include "spec/accept.h"
#include "spec/length.h"
#include "spec/tree.h"

namespace facet::test {
namespace {

Draft draft(int depths, int n_top, unsigned seed) {
  std::mt19937 rng(seed);
  Draft d;
  d.token = {7};
  d.n_top = n_top;
  for (int i = 0; i < depths; ++i) {
    std::vector<float> p(static_cast<size_t>(n_top));
    for (float& x : p) x = -float(rng() % 1000) / 250;
    std::sort(p.begin(), p.end(), std::greater<>());
    for (int r = 0; r < n_top; ++r) d.top.push_back(10 * (i + 1) + r), d.top_log_prob.push_back(p[size_t(r)]);
    d.token.push_back(d.top[size_t(i * n_top)]);
  }
  return d;
}
std::vector<int32_t> path_of(const DraftTree& t, int node) {
  std::vector<int32_t> p;
  for (; node > 0; node = t.parent[size_t(node)]) p.insert(p.begin(), t.token[size_t(node)]);
  return p;
}

// How many tokens of a text the guard lets pass.
size_t passes(const std::vector<int32_t>& text, int times) {
  LoopGuard guard(times);
  for (size_t n = 1; n <= text.size(); ++n)
    if (guard.advance(std::span(text).first(n))) return n;
  return text.size() + 1;
}
TEST(LoopGuard, EndsALoopAndNothingElse) {
  std::mt19937 rng(2);
  std::vector<int32_t> text;
  for (int i = 0; i < 5000; ++i) text.push_back(int32_t(rng() % 50));
  EXPECT_GT(passes(text, 2), text.size());
  for (const int period : {1, 3, 16, 64}) {
    std::vector<int32_t> loop(text.begin(), text.begin() + 100);
    for (int i = 0; i < 2000; ++i) loop.push_back(loop[loop.size() - size_t(period)]);
    for (const int times : {2, 4, 16}) {
      const size_t need = size_t(std::max(LoopGuard::kLeast, period * times));
      // The last `period` tokens before the loop are its first round.
      EXPECT_EQ(passes(loop, times), 100 - size_t(period) + need) << period << " times " << times;
    }
  }
  std::vector<int32_t> rows;  // a table: the same but for a number
  for (int i = 0; i < 300; ++i) rows.insert(rows.end(), {1, 2, 3, 100 + i, 4, 5});
  EXPECT_GT(passes(rows, 2), rows.size());
  std::vector<int32_t> far;  // a longer period than the guard knows
  for (int i = 0; i < 3000; ++i) far.push_back(i % 65);
  EXPECT_GT(passes(far, 2), far.size());
}

TEST(Tree, ChainIsTheDraft) {
  const Draft d = draft(5, 2, 1);
  DraftTree t;
  chain_tree(d, 3, t);
  EXPECT_EQ(t.token, (std::vector<int32_t>{7, 10, 20, 30}));
  EXPECT_EQ(t.parent, (std::vector<int16_t>{-1, 0, 1, 2}));
  EXPECT_TRUE(t.is_chain);
  chain_tree(d, 99, t);
  EXPECT_EQ(t.size(), 6);
}

// The nodes are the best ones of all paths, by exhaustive search.
TEST(Tree, BestFirstIsBest) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const Draft d = draft(4, 4, seed);
    std::map<std::vector<int32_t>, double> score;
    std::function<void(std::vector<int32_t>, double)> grow = [&](std::vector<int32_t> path, double s) {
      if (path.size() == 4) return;
      for (int r = 0; r < 4; ++r) {
        auto next = path;
        next.push_back(d.top[path.size() * 4 + size_t(r)]);
        score[next] = s + double(d.top_log_prob[path.size() * 4 + size_t(r)]);
        grow(next, score[next]);
      }
    };
    grow({}, 0);
    std::vector<double> all;
    for (const auto& [p, s] : score) all.push_back(s);
    std::sort(all.begin(), all.end(), std::greater<>());
    for (int n : {2, 7, 15, 63}) {
      DraftTree t;
      best_first_tree(d, n, t);
      ASSERT_EQ(t.size(), n + 1);
      std::set<std::vector<int32_t>> seen;
      for (int i = 1; i <= n; ++i) {
        EXPECT_LT(t.parent[size_t(i)], i);
        EXPECT_EQ(t.depth[size_t(i)], t.depth[size_t(t.parent[size_t(i)])] + 1);
        EXPECT_TRUE(seen.insert(path_of(t, i)).second) << "a path twice";
        EXPECT_NEAR(score.at(path_of(t, i)), all[size_t(i - 1)], 1e-9) << seed << " node " << i;
      }
    }
  }
}
TEST(Tree, PassesOverWhatCannotBeANode) {
  Draft d = draft(2, 3, 1);
  d.top[0] = -1;
  d.top_log_prob[1] = NAN;
  d.top_log_prob[5] = -INFINITY;
  DraftTree t;
  best_first_tree(d, 15, t);
  EXPECT_EQ(t.token, (std::vector<int32_t>{7, 12, 20, 21}));
  for (float& p : d.top_log_prob) p = NAN;
  best_first_tree(d, 15, t);
  EXPECT_EQ(t.size(), 1);
}

TEST(Accept, ChainUpToTheFirstDifference) {
  DraftTree t;
  chain_tree(draft(3, 1, 1), 3, t);  // 7, 10, 20, 30
  Accepted a;
  accept(t, std::vector<int32_t>{10, 20, 30, 5}, a);
  EXPECT_EQ(a.path, (std::vector<int16_t>{0, 1, 2, 3}));
  EXPECT_EQ(a.next, 5);
  accept(t, std::vector<int32_t>{10, 21, 30, 5}, a);
  EXPECT_EQ(a.path, (std::vector<int16_t>{0, 1}));
  EXPECT_EQ(a.next, 21);
  accept(t, std::vector<int32_t>{9, 20, 30, 5}, a);
  EXPECT_EQ(a.path, (std::vector<int16_t>{0}));
  EXPECT_EQ(a.next, 9);
  accept(t, std::vector<int32_t>{-1, 20, 30, 5}, a);
  EXPECT_EQ(a.next, -1) << "logits without a finite number";
}
// A walk from the root, child by child, on random trees and draws.
TEST(Accept, TreeFollowsTheDraws) {
  std::mt19937 rng(5);
  for (int round = 0; round < 500; ++round) {
    DraftTree t;
    best_first_tree(draft(5, 4, unsigned(round)), 15, t);
    std::vector<int32_t> drawn(size_t(t.size()));
    for (int i = 0; i < t.size(); ++i) drawn[size_t(i)] = 10 * (t.depth[size_t(i)] + 1) + int32_t(rng() % 3);
    std::vector<int16_t> want{0};
    for (bool more = true; more;) {
      more = false;
      for (int i = 1; i < t.size() && !more; ++i)
        if (t.parent[size_t(i)] == want.back() && t.token[size_t(i)] == drawn[size_t(want.back())])
          want.push_back(int16_t(i)), more = true;
    }
    Accepted a;
    accept(t, drawn, a);
    EXPECT_EQ(a.path, want);
    EXPECT_EQ(a.next, drawn[size_t(want.back())]);
  }
}

TEST(StepTimes, FollowsAndInterpolates) {
  StepTimes t(32);
  EXPECT_EQ(t.at(4), 0);
  t.observe(1, 1), t.observe(5, 2), t.observe(9, 4);
  EXPECT_NEAR(t.at(1), 1, 1e-9);
  EXPECT_NEAR(t.at(3), 1.5, 1e-9);
  EXPECT_NEAR(t.at(13), 6, 1e-9);
  for (int i = 0; i < 200; ++i) t.observe(5, 4);  // everything takes twice as long, one of them is seen
  EXPECT_NEAR(t.at(5), 4, .05);
  EXPECT_GT(t.at(1), 1.1) << "the others drift along";
}
TEST(StepTimes, ForgetsABurstOfAnotherProgram) {
  StepTimes t(32);
  t.observe(1, 1), t.observe(8, 3);
  for (int i = 0; i < 20; ++i) t.observe(1, 4);
  EXPECT_GT(t.at(1), 2.5);
  for (int i = 0; i < 3; ++i) t.observe(1, 1);
  EXPECT_NEAR(t.at(1), 1, .15);
}
TEST(DraftTimes, IsALine) {
  DraftTimes t;
  t.observe(4, .5);
  EXPECT_NEAR(t.at(8), .5, 1e-9);
  for (int i = 0; i < 50; ++i) t.observe(2 + i % 6, .1 + .1 * (2 + i % 6));
  EXPECT_NEAR(t.at(10), 1.1, .1);
}

// Rounds of one request against a drafter that is right with probability p at each position.
struct Play {
  double seconds = 0;
  int tokens = 0, asked = 0;  // asked: rounds with a draft
};
Play play(DraftChooser c, std::vector<double> p, double row_cost, int rounds, unsigned seed,
          std::vector<double> draft_cost) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> uniform;
  StepTimes step(64);
  for (int n : {1, 2, 4, 8, 16}) step.observe(n, 1 + row_cost * (n - 1));
  std::vector<DraftTimes> draft_times(p.size());
  Play out;
  for (int i = 0; i < rounds; ++i) {
    const DraftChoice d = c.choose(step, draft_times, 100, 1);
    int right = 0;
    while (d.method >= 0 && right < d.n && uniform(rng) < p[size_t(d.method)]) ++right;
    const double draft_s = d.method >= 0 ? draft_cost[size_t(d.method)] : 0;
    if (d.method >= 0) draft_times[size_t(d.method)].observe(d.n, draft_s);
    step.observe(1 + d.n, 1 + row_cost * d.n);
    c.observe(d, d.n, right);
    out.seconds += draft_s + 1 + row_cost * d.n;
    out.tokens += 1 + right;
    out.asked += d.method >= 0;
  }
  return out;
}
double best_fixed(double p, double row_cost, double draft_cost, int most) {
  double best = 1;
  for (int n = 1; n <= most; ++n) {
    double tokens = 1, all = 1;
    for (int k = 0; k < n; ++k) tokens += all *= p;
    best = std::max(best, tokens / (1 + row_cost * n + draft_cost));
  }
  return best;
}

TEST(DraftChooser, ComesCloseToTheBestFixedLength) {
  for (const double p : {0., .2, .5, .8, .95})
    for (const double row : {.02, .1, .4}) {
      const Play r = play(DraftChooser({15}, {.max = 15}), {p}, row, 600, 3, {.1});
      EXPECT_GT(r.tokens / r.seconds, .95 * best_fixed(p, row, .1, 15)) << p << " " << row;
    }
}
// In long answers luck must not decide: not near break-even, where one choice is as good as the next one, either.
TEST(DraftChooser, BadLuckIsMadeGood) {
  double sum = 0;
  int n = 0;
  for (const double p : {0., .2, .3, .4, .5, .6, .7, .8, .9, .95, 1.})
    for (const double row : {.02, .1, .4})
      for (const double draft : {.1, .5}) {
        double of_best = 0;
        constexpr int kSeeds = 8;
        for (unsigned seed = 0; seed < kSeeds; ++seed) {
          const Play r = play(DraftChooser({15}, {.max = 15}), {p}, row, 3000, seed, {draft});
          of_best += r.tokens / r.seconds / best_fixed(p, row, draft, 15) / kSeeds;
        }
        EXPECT_GT(of_best, .94) << p << " " << row << " " << draft;
        sum += of_best, ++n;
      }
  EXPECT_GT(sum / n, .985);
}
TEST(DraftChooser, LeavesADrafterThatIsNeverRight) {
  for (const double row : {.02, .1, .4}) {
    DraftChooser c({15}, {.max = 15});
    const Play start = play(c, {0}, row, 32, 1, {.05}), r = play(c, {0}, row, 1000, 1, {.05});
    EXPECT_LT((r.seconds - start.seconds) / (r.tokens - start.tokens), 1.02) << row;
  }
}
// After 32 rounds it is hardly asked any more, however dear, and costs less than 2 %.
TEST(DraftChooser, HardlyAsksOneThatIsNeverRight) {
  for (const double row : {.02, .1, .4})
    for (const double draft : {.05, .5, 4.})
      for (const int rounds : {288, 1056}) {
        const DraftChooser one({15}, {.max = 15}), two({15, 7}, {.max = 15});
        for (const bool both : {false, true}) {
          const std::vector<double> p(both ? 2 : 1), cost(both ? 2 : 1, draft);
          const DraftChooser& c = both ? two : one;
          const Play start = play(c, p, row, 32, 1, cost), r = play(c, p, row, rounds, 1, cost);
          const int steps = rounds - 32;
          EXPECT_LT((r.seconds - start.seconds) / (r.tokens - start.tokens), 1.02)
              << row << " " << draft << " " << both;
          EXPECT_LT(r.asked - start.asked, steps / 32) << row << " " << draft << " " << both;
        }
      }
}
// Nor is one that is always right, where its passes and rows cost more than its tokens bring.
TEST(DraftChooser, LeavesADrafterThatIsRightAndDoesNotPay) {
  for (const double row : {.2, .4, .6})
    for (const double pass : {.8, 1.}) {
      DraftChooser c({15}, {.max = 15});
      StepTimes step(64);
      for (const int n : {1, 2, 4, 8, 16}) step.observe(n, 1 + row * (n - 1));
      std::vector<DraftTimes> times(1);
      double seconds = 0;
      int tokens = 0;
      for (int round = 0; round < 600; ++round) {
        const DraftChoice d = c.choose(step, times, 100, 1);
        const double draft_s = d.method >= 0 ? .1 + pass * d.n : 0;
        if (d.method >= 0) times[0].observe(d.n, draft_s);
        step.observe(1 + d.n, 1 + row * d.n);
        c.observe(d, d.n, d.n);
        seconds += draft_s + 1 + row * d.n, tokens += 1 + d.n;
      }
      EXPECT_GT(tokens / seconds, .98) << row << " " << pass;
    }
}
// What loses even if all of it is right is not tried for long.
TEST(DraftChooser, DoesNotTryWhatCannotPay) {
  const Play r = play(DraftChooser({4}, {.max = 4}), {.9}, .1, 500, 1, {5.});
  EXPECT_LE(r.asked, 2);
}
TEST(DraftChooser, PicksTheBetterMethod) {
  const Play r = play(DraftChooser({15, 15}, {.max = 15}), {.3, .9}, .05, 400, 1, {.1, .1});
  EXPECT_GT(r.tokens / r.seconds, .9 * best_fixed(.9, .05, .1, 15));
}
TEST(DraftChooser, NextRequestsProfit) {  // short answers, to a drafter that is never right and to one that always is
  for (const double p : {0., 1.}) {
    DraftChooser c({15}, {.max = 15});
    StepTimes step(64);
    for (int n : {1, 2, 4, 8, 16}) step.observe(n, 1 + .2 * (n - 1));
    std::vector<DraftTimes> times(1);
    double seconds = 0;
    int tokens = 0;
    for (int r = 0; r < 60; ++r) {
      c.next_request();
      for (int round = 0; round < (p > 0 ? 4 : 20); ++round) {
        const DraftChoice d = c.choose(step, times, 100, 1);
        if (d.method >= 0) times[0].observe(d.n, .5);
        c.observe(d, d.n, p > 0 ? d.n : 0);
        if (r < 5) continue;
        seconds += 1 + .2 * d.n + (d.method >= 0 ? .5 : 0);
        tokens += 1 + (p > 0 ? d.n : 0);
      }
    }
    EXPECT_GT(tokens / seconds, p > 0 ? .95 * 16 / 4.5 : .97);
  }
}
TEST(WorthVerifying, StopsWhereARowBringsLessThanItTakes) {
  StepTimes step(64);
  for (int n : {1, 2, 4, 8, 16}) step.observe(n, 1 + .4 * (n - 1));
  const float sure = -.01f, unsure = std::log(.5f), poor = std::log(.1f);
  EXPECT_EQ(worth_verifying(std::vector<float>{sure, sure, poor, sure}, step, 1), 2);
  EXPECT_EQ(worth_verifying(std::vector<float>{sure, unsure, unsure, unsure}, step, 1), 2);
  EXPECT_EQ(worth_verifying(std::vector<float>{poor, sure, sure}, step, 1), 0);
  EXPECT_EQ(worth_verifying(std::vector<float>{poor, sure}, StepTimes(4), 1), 2) << "nothing is known about times";
}
TEST(DraftChooser, KeepsToItsLimits) {
  DraftChooser c({15}, {.min = 3, .max = 3});
  const StepTimes step(64);
  const std::vector<DraftTimes> times(1);
  EXPECT_EQ(c.choose(step, times, 100, 1), (DraftChoice{0, 3}));
  EXPECT_EQ(c.choose(step, times, 2, 1), (DraftChoice{0, 2})) << "two tokens are left";
  EXPECT_EQ(c.choose(step, times, 0, 1), DraftChoice{});
  DraftChooser none;
  EXPECT_EQ(none.choose(step, {}, 100, 1), DraftChoice{});
}

}  // namespace
}  // namespace facet::test
