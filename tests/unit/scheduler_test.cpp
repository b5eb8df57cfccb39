// The scheduler against a virtual clock: who waits for how long, and how long steps with readers are.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

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

// A prompt waits for what is ahead of it when it comes, for no more than its own length of later ones, however many of
// them come, and for the steps at both ends and the one in which it becomes due.
TEST(Scheduler, NobodyWaitsForEver) {
  std::vector<Job> jobs{{0, 3000, 0}};
  for (int i = 1; i <= 4000; ++i) jobs.push_back({i, 10, int64_t(i) * 10});  // enough for the whole machine
  Scheduler s(64, .05);
  simulate(s, jobs);
  EXPECT_LE(jobs[0].done, 2 * 3000 + 2 * 64) << "its own tokens, as many of later ones, and the steps at both ends";
  const auto check = [](std::vector<Job> all, const std::string& what) {
    std::stable_sort(all.begin(), all.end(), [](const Job& a, const Job& b) { return a.arrives < b.arrives; });
    for (size_t i = 0; i < all.size(); ++i) all[i].id = int(i);
    Scheduler t(64, .05);
    simulate(t, all);
    for (const Job& j : all) {
      EXPECT_LE(j.done - j.arrives, j.ahead + 2 * j.prompt + 3 * 64) << what << " " << j.id;
      // Those that came while it waited, and by ageing went before it, are at most as long as it each.
      int64_t later = 0;
      for (const Job& k : all)
        if (k.id > j.id && k.arrives < j.done) later += std::min(k.prompt, j.prompt);
      EXPECT_LE(j.done - j.arrives, j.ahead + j.prompt + std::max<int64_t>(j.prompt, later) + 128)
          << what << " " << j.id;
    }
  };
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 rng(seed);
    jobs.clear();
    for (int i = 0; i < 200; ++i)
      jobs.push_back({i, 1 + int(rng() % (rng() % 2 ? 20 : 4000)), int64_t(i) * int64_t(rng() % 900)});
    check(jobs, "seed " + std::to_string(seed));
  }
  // Each a little shorter than the one before, together or one after the other: all of them could go before the first.
  for (const int apart : {0, 1, 100}) {
    jobs = {{0, 500, 0}};
    for (int i = 1; i < 120; ++i) jobs.push_back({i, 500 - 4 * i, int64_t(i) * apart});
    check(jobs, "apart " + std::to_string(apart));
  }
}

// Whether a token of a prompt is granted in a block depends on the prompt alone: on no neighbour, and on no time that a
// step took.
bool blocks_are_of_the_prompt(int block) {
  constexpr int kBlock = 256;
  std::mt19937 rng(3);
  for (int round = 0; round < 60; ++round) {
    Scheduler s(512 + int(rng() % 2000), .05, block);
    struct Prompt {
      int length, at = 0;
    };
    std::vector<Prompt> prompts;
    for (int i = 0; i < 4; ++i) prompts.push_back({int(rng() % (rng() % 2 ? 300 : 5000)) + 1});
    const int readers = int(rng() % 30);
    for (bool any = true; any;) {
      std::vector<SeqDemand> demands;
      for (int i = 0; i < readers; ++i) demands.push_back({.id = 100 + i, .pending = 1, .decoding = true});
      any = false;
      for (int i = 0; i < int(prompts.size()); ++i) {
        const Prompt& p = prompts[size_t(i)];
        if (p.at < p.length)
          demands.push_back({.id = i, .pending = p.length - p.at, .arrival = uint64_t(i)}), any = true;
      }
      int n_prompt = 0, size = 0;
      for (const SeqGrant& g : s.schedule(demands)) {
        if (g.n < size) return false;  // those of blocks are the last
        size = g.n >= kBlock ? kBlock : size;
        if (g.id >= 100) continue;
        Prompt& p = prompts[size_t(g.id)];
        const int whole = p.length / kBlock * kBlock;
        if (p.at < whole ? g.n % kBlock != 0 || p.at + g.n > whole : g.n >= kBlock) return false;
        p.at += g.n, n_prompt += g.n;
      }
      if (any && n_prompt == 0) return false;
      s.observe(n_prompt, .001 * double(rng() % 200));
    }
  }
  return true;
}
TEST(Scheduler, BlocksAreOfThePromptAlone) {
  EXPECT_TRUE(blocks_are_of_the_prompt(256));
  EXPECT_FALSE(blocks_are_of_the_prompt(0)) << "prompts that are cut anywhere";
  EXPECT_FALSE(blocks_are_of_the_prompt(128));
}

// 64 clients that ask, read an answer and ask again, with prompts of 10 to 20,000 tokens. A step takes 5 ms, 0.1 ms a
// prompt token and 0.05 ms a reader.
struct Client {
  int left = 0, answer = 0;  // tokens
  uint64_t arrival = 0;
  int prompt = 0;
  int64_t bound = 0, waited = 0;  // prompt tokens that are computed until the prompt is
  double asked = 0, last = 0;     // seconds
};
struct Crowd {
  int asked = 0, late = 0;
  double longest_gap = 0;          // between tokens of an answer
  double shorts = 0, n_short = 0;  // seconds to the first token after 10 to 100, together
};
template <class Schedule>
Crowd crowd(unsigned seed, Schedule schedule, Scheduler& s) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> uniform;
  std::vector<Client> all(64);
  Crowd told;
  double now = 0;
  uint64_t arrivals = 0;
  auto ask = [&](Client& c) {
    c = {.left = int(10 * std::pow(2000, uniform(rng))), .answer = 20 + int(rng() % 200), .asked = now};
    c.prompt = c.left, c.arrival = ++arrivals;
    for (const Client& k : all)
      if (&k != &c) c.bound += k.left;
    c.bound += 2 * c.prompt + 2 * 512;
    ++told.asked;
  };
  for (Client& c : all) ask(c);
  while (told.asked < 700) {
    std::vector<SeqDemand> d;
    for (int i = 0; i < 64; ++i) {
      const Client& c = all[size_t(i)];
      d.push_back({.id = i, .pending = c.left > 0 ? c.left : 1, .decoding = c.left == 0, .arrival = c.arrival});
    }
    int prompts = 0, readers = 0;
    const auto grants = schedule(d);
    for (const SeqGrant& g : grants) (all[size_t(g.id)].left > 0 ? prompts += g.n : ++readers);
    const double took = .005 + 1e-4 * prompts + 5e-5 * readers;
    now += took;
    s.observe(prompts, took);
    for (Client& c : all)
      if (c.left > 0) c.waited += prompts;
    for (const SeqGrant& g : grants) {
      Client& c = all[size_t(g.id)];
      if (c.left > 0 && (c.left -= g.n) > 0) continue;
      if (c.last > 0 && told.asked > 100) told.longest_gap = std::max(told.longest_gap, now - c.last);
      if (c.last == 0 && c.prompt <= 100) told.shorts += now - c.asked, ++told.n_short;
      told.late += c.last == 0 && c.waited > c.bound;
      c.last = now;
      if (--c.answer == 0) ask(c);
    }
  }
  return told;
}
TEST(Scheduler, SixtyFourClientsWaitNoLongerThanStated) {
  for (unsigned seed = 0; seed < 2; ++seed) {
    Scheduler s(512, .05);
    const Crowd c = crowd(
        seed, [&](const std::vector<SeqDemand>& d) { return s.schedule(d); }, s);
    EXPECT_EQ(c.late, 0) << "of " << c.asked;
    EXPECT_LE(c.longest_gap, .05 * 1.1) << "each reader is in every step";
    // Planted: the longest first.
    Scheduler t(512, .05);
    const Crowd wrong = crowd(
        seed,
        [&](std::vector<SeqDemand> d) {
          for (SeqDemand& x : d)
            if (!x.decoding) x.priority = -x.pending;
          return t.schedule(d);
        },
        t);
    EXPECT_GT(wrong.late, 0);
    EXPECT_GT(wrong.shorts / wrong.n_short, 2 * c.shorts / c.n_short);
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
