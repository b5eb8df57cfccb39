// The scheduler against a virtual clock: who waits for how long, and how long steps with readers are.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace facet::test {
namespace {

using Grants = std::vector<std::pair<int, int>>;
Grants of(const std::vector<SeqGrant>& g) {
  Grants v;
  for (const SeqGrant& x : g) v.emplace_back(x.id, x.n);
  return v;
}
Grants first_step(std::vector<SeqDemand> d, int chunk) {
  for (SeqDemand& x : d) x.arrival = uint64_t(x.id + 1);
  return of(Scheduler(chunk, 0).schedule(d));
}

TEST(Scheduler, DecodesFirstThenTheShortestPrompt) {
  EXPECT_EQ(first_step({{0, 900, false}, {1, 1, true}, {2, 50, false}, {3, 1, true}}, 512),
            (Grants{{1, 1}, {3, 1}, {2, 50}, {0, 460}}));
  EXPECT_EQ(first_step({{0, 90, false}, {1, 1, true}, {2, 90, false}}, 100), (Grants{{1, 1}, {2, 9}, {0, 90}}))
      << "of equals the one that came first; short sequences lead";
  EXPECT_EQ(first_step({{0, 0, false}, {1, 0, true}}, 512), Grants{});
  EXPECT_EQ(first_step({{0, 5, false}, {1, 1, true}, {2, 1, true}}, 1), (Grants{{1, 1}}));
}

TEST(Scheduler, PrioritiesGoBeforeLengths) {
  EXPECT_EQ(first_step({{.id = 0, .pending = 20},
                        {.id = 1, .pending = 900, .priority = -1},
                        {.id = 2, .pending = 1, .decoding = true, .priority = 5},
                        {.id = 3, .pending = 30, .priority = 2}},
                       512),
            (Grants{{2, 1}, {1, 511}}))
      << "an answer that has begun goes on; then the smallest number";
  EXPECT_EQ(
      first_step({{.id = 0, .pending = 90, .priority = 1}, {.id = 1, .pending = 100}, {.id = 2, .pending = 40}}, 200),
      (Grants{{2, 40}, {1, 100}, {0, 60}}))
      << "within one priority the shortest";
}

// Requests that arrive at given times (tokens computed so far) on a machine that computes a token a tick.
struct Job {
  int id = 0, prompt = 0;
  int64_t arrives = 0;
  int64_t done = -1, ahead = 0;  // ahead: tokens of earlier requests that were pending when it came
};
void simulate(Scheduler& s, std::vector<Job>& jobs) {
  std::vector<int> left;
  for (const Job& j : jobs) left.push_back(j.prompt);
  std::vector<bool> seen(jobs.size());
  for (int64_t now = 0;;) {
    std::vector<SeqDemand> d;
    bool more = false;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (left[i] == 0) continue;
      more = true;
      if (jobs[i].arrives > now) continue;
      if (!seen[i]) {
        seen[i] = true;
        for (size_t k = 0; k < i; ++k)
          if (jobs[k].arrives <= now) jobs[i].ahead += left[k];
      }
      d.push_back({jobs[i].id, left[i], false, uint64_t(i + 1)});
    }
    if (!more) return;
    if (d.empty()) {
      ++now;
      continue;
    }
    for (const SeqGrant& g : s.schedule(d)) {
      left[size_t(g.id)] -= g.n;
      now += g.n;
      if (left[size_t(g.id)] == 0) jobs[size_t(g.id)].done = now;
    }
  }
}

TEST(Scheduler, AShortQuestionDoesNotWaitBehindLongPrompts) {
  std::vector<Job> jobs{{0, 11000, 0}, {1, 11000, 0}, {2, 11000, 0}, {3, 12, 600}};
  Scheduler s(512, .05);
  simulate(s, jobs);
  EXPECT_LE(jobs[3].done - 600, 2 * 512);
}

// A prompt waits for no more than its own length of later ones, however many of them come.
TEST(Scheduler, NobodyWaitsForEver) {
  std::vector<Job> jobs{{0, 3000, 0}};
  for (int i = 1; i <= 4000; ++i) jobs.push_back({i, 10, int64_t(i) * 10});  // enough for the whole machine
  Scheduler s(64, .05);
  simulate(s, jobs);
  EXPECT_LE(jobs[0].done, 2 * 3000 + 2 * 64) << "its own tokens, as many of later ones, and the steps at both ends";
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    jobs.clear();
    for (int i = 0; i < 200; ++i)
      jobs.push_back({i, 1 + int(rng() % (rng() % 2 ? 20 : 4000)), int64_t(i) * int64_t(rng() % 900)});
    std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.arrives < b.arrives; });
    for (int i = 0; i < 200; ++i) jobs[size_t(i)].id = i;
    Scheduler t(64, .05);
    simulate(t, jobs);
    for (const Job& j : jobs) {
      // Those that came while it waited, and by ageing went before it, are at most as long as it each.
      int64_t later = 0;
      for (const Job& k : jobs)
        if (k.id > j.id && k.arrives < j.done) later += std::min(k.prompt, j.prompt);
      EXPECT_LE(j.done - j.arrives, j.ahead + j.prompt + std::max<int64_t>(j.prompt, later) + 128)
          << seed << " " << j.id;
    }
  }
}

// Planted bug: without ageing the long prompt is the last of all.
TEST(Scheduler, AgeingIsWhatKeepsItFromStarving) {
  std::vector<Job> jobs{{0, 3000, 0}};
  for (int i = 1; i <= 4000; ++i) jobs.push_back({i, 10, int64_t(i) * 10});
  std::vector<int> left;
  int64_t now = 0, done = -1;
  for (const Job& j : jobs) left.push_back(j.prompt);
  while (done < 0) {
    std::vector<SeqDemand> d;
    for (const Job& j : jobs)
      if (left[size_t(j.id)] > 0 && j.arrives <= now)
        d.push_back({j.id, left[size_t(j.id)], false, uint64_t(j.id + 1)});
    Scheduler fresh(64, .05);  // knows nothing of who was passed over
    for (const SeqGrant& g : fresh.schedule(d)) left[size_t(g.id)] -= g.n, now += g.n;
    if (left[0] == 0) done = now;
  }
  EXPECT_GT(done, 30000);
}

// A step of p prompt tokens takes base + p * each seconds. Beside a reader steps stay within the bound once the times
// are known, use most of it, and without readers they are as large as they may.
TEST(Scheduler, StepsBesideReadersKeepToTheirTime) {
  for (const auto& [base, each] : {std::pair{.005, 1e-3}, {.002, 2e-5}, {.030, 4e-4}, {.010, 1e-6}}) {
    Scheduler s(4096, .05);
    const std::vector<SeqDemand> alone{{0, 1 << 20, false, 1}}, beside{{0, 1 << 20, false, 1}, {1, 1, true, 2}};
    EXPECT_EQ(of(s.schedule(alone)), (Grants{{0, 4096}}));
    double slowest = 0, last = 0;
    for (int step = 0; step < 60; ++step) {
      const auto g = of(s.schedule(beside));
      ASSERT_EQ(g.size(), 2u);
      const int n = std::max(g[0].second, g[1].second);
      last = base + n * each;
      if (step >= 8) slowest = std::max(slowest, last);
      s.observe(n, last);
    }
    EXPECT_LE(slowest, .05 * 1.1) << base << " " << each;
    EXPECT_GE(last, std::min(.05, base + 4095 * each) * .9) << base << " " << each;
    EXPECT_EQ(of(s.schedule(alone)), (Grants{{0, 4096}}));
  }
  Scheduler slow(4096, .05);  // the readers alone take longer than the bound: the prompt goes on all the same
  for (int step = 0; step < 20; ++step) slow.observe(16 + step, .2);
  EXPECT_EQ(of(slow.schedule(std::vector<SeqDemand>{{0, 9000, false, 1}, {1, 1, true, 2}})), (Grants{{1, 1}, {0, 16}}));
}

// One slow step (another program ran) shrinks chunks for a few steps, not for good.
TEST(Scheduler, AnOutlierIsForgotten) {
  Scheduler s(4096, .05);
  const std::vector<SeqDemand> d{{0, 1 << 20, false, 1}, {1, 1, true, 2}};
  auto run = [&](double factor) {
    int n = 0;
    for (const auto& [id, k] : of(s.schedule(d))) n = std::max(n, k);
    s.observe(n, factor * (.002 + 2e-5 * n));
    return n;
  };
  for (int i = 0; i < 30; ++i) run(1);
  const int before = run(1);
  run(40);
  for (int i = 0; i < 40; ++i) run(1);
  EXPECT_GE(run(1), before * 9 / 10);
}

}  // namespace
}  // namespace facet::test
