// Suffix decoding: the index against a plain search, what is drafted from its matches, and when it is chosen.
#include "spec/suffix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "spec/length.h"

namespace facet::test {
namespace {

using Match = SuffixIndex::Match;

std::vector<int32_t> text(size_t n, int letters, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> h(n);
  for (int32_t& id : h) id = int32_t(rng() % unsigned(letters));
  return h;
}

// Every earlier place with as many equal tokens as count, looked for in the plainest way.
std::vector<Match> plainly_found(std::span<const int32_t> h) {
  std::vector<Match> all;
  for (size_t at = 0; at + 1 < h.size(); ++at) {
    int n = 0;
    while (n < SuffixIndex::kMostLength && size_t(n) <= at && h[at - size_t(n)] == h[h.size() - 1 - size_t(n)]) ++n;
    if (n >= SuffixIndex::kOrders[0]) all.push_back({int32_t(at + 1), n});
  }
  std::sort(all.begin(), all.end(), [](const Match& a, const Match& b) {
    return a.length != b.length ? a.length > b.length : a.next > b.next;
  });
  return all;
}
bool same(std::span<const Match> a, std::span<const Match> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Match& x, const Match& y) { return x.next == y.next && x.length == y.length; });
}

TEST(SuffixIndex, FindsWhatAPlainSearchFinds) {
  std::vector<Match> got;
  int found = 0;
  for (unsigned run = 0; run < 200; ++run) {
    SuffixIndex index;
    const int letters = 2 + int(run % 5);
    const auto h = text(1 + run * 2, letters, run);
    // Token by token and in pieces, with a step back to before the end now and then.
    for (size_t n = 1; n <= h.size(); n += 1 + run % 3) {
      const auto part = std::span(h).first(n);
      if (n % 17 == 0) index.truncate(n - std::min<size_t>(n, 5));
      ASSERT_TRUE(index.extend(part));
      const auto want = plainly_found(part);
      if (want.size() > size_t(SuffixIndex::kMostPlaces)) continue;  // it looks at the newest ones alone
      index.matches(part, got);
      ASSERT_TRUE(same(got, want)) << "run " << run << ", " << n << " tokens: " << got.size() << " of " << want.size();
      found += int(got.size());
    }
  }
  EXPECT_GT(found, 10000);
}

// A long match behind hundreds of short ones, which alone would fill the places that are looked at.
TEST(SuffixIndex, FindsALongMatchBehindManyShortOnes) {
  std::vector<int32_t> h = text(20, 1000, 1);
  const std::vector<int32_t> phrase(h.begin(), h.end());
  for (int i = 0; i < 300; ++i)
    for (size_t k = 17; k < 20; ++k) h.push_back(phrase[k]), h.push_back(k == 19 ? 5000 + i : phrase[k]);
  for (int i = 0; i < 300; ++i) h.insert(h.end(), {6000 + i, phrase[17], phrase[18], phrase[19]});
  h.insert(h.end(), phrase.begin(), phrase.end());
  SuffixIndex index;
  ASSERT_TRUE(index.extend(h));
  std::vector<Match> got;
  index.matches(h, got);
  ASSERT_FALSE(got.empty());
  EXPECT_EQ(got[0].length, 20);
  EXPECT_EQ(got[0].next, 20);
}

TEST(SuffixIndex, ReadsALongHistoryInParts) {
  const auto h = text(100'000, 5000, 3);
  SuffixIndex index;
  int rounds = 1;
  for (; !index.extend(h); ++rounds) ASSERT_LE(index.n_token(), rounds * SuffixIndex::kMostAtOnce);
  EXPECT_EQ(rounds, 7);
  for (const size_t n : {size_t(1000), size_t(4097), h.size()}) {
    SuffixIndex other;
    for (size_t at = 1; at <= n; ++at) other.extend(std::span(h).first(at));
    EXPECT_LE(other.bytes(), 1024 + n * SuffixIndex::kBytesPerToken) << n << " tokens";
  }
}

Continuation of(std::span<const int32_t> h, int most, int n_top = 1) {
  SuffixIndex index;
  index.extend(h);
  std::vector<Match> found;
  index.matches(h, found);
  return continue_matches(h, found, {}, most, n_top);
}
std::vector<int32_t> tokens(const Continuation& c) {
  std::vector<int32_t> t;
  for (const auto& p : c.chain) t.push_back(p.token);
  return t;
}
using Tokens = std::vector<int32_t>;

TEST(Continuation, IsWhatFollowedMostOften) {
  EXPECT_EQ(tokens(of(Tokens{1, 2, 3, 4, 9, 1, 2, 3}, 3)), (Tokens{4, 9, 1}));
  EXPECT_EQ(tokens(of(Tokens{1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3, 7, 5, 1, 2, 3}, 1)), (Tokens{7})) << "twice";
  EXPECT_EQ(tokens(of(Tokens{1, 2, 3, 7, 10, 1, 2, 3, 8, 11, 1, 2, 3}, 1)), (Tokens{8})) << "as often: the newest";
  const Tokens loop{5, 6, 5, 6, 5, 6, 5, 6};
  EXPECT_EQ(tokens(of(loop, 7)), (Tokens{5, 6, 5, 6, 5, 6, 5})) << "a loop goes on behind the end";
  EXPECT_TRUE(of(Tokens{1, 2, 3, 4, 2, 3}, 3).chain.empty()) << "two tokens are no match";
  EXPECT_TRUE(of(Tokens{1}, 3).chain.empty());
  EXPECT_TRUE(of(Tokens{}, 3).chain.empty());
  EXPECT_TRUE(of(Tokens{1, 2, 3, -7, -7, 1, 2, 3}, 3).chain.empty()) << "into a picture";
  EXPECT_EQ(tokens(of(Tokens{1, 2, 3, 4, -7, 1, 2, 3}, 3)), (Tokens{4})) << "up to a picture";
  EXPECT_TRUE(of(loop, 0).chain.empty());
}

TEST(Continuation, SaysHowSureItIs) {
  const Continuation short_one = of(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}, 4);
  ASSERT_EQ(short_one.chain.size(), 4u);
  for (size_t k = 1; k < 4; ++k) {
    EXPECT_GE(short_one.chain[k].probability, short_one.chain[k - 1].probability) << "a match grows as it goes on";
    EXPECT_EQ(short_one.chain[k].length, short_one.chain[k - 1].length + 1);
  }
  const Continuation split = of(Tokens{1, 2, 3, 7, 10, 1, 2, 3, 8, 11, 1, 2, 3}, 1);
  EXPECT_FLOAT_EQ(split.chain[0].probability, short_one.chain[0].probability / 2) << "one of two";
  const Continuation tops = of(Tokens{1, 2, 3, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3, 7, 4, 1, 2, 3}, 1, 3);
  EXPECT_EQ(tops.top, (Tokens{7, 8, -1}));
  EXPECT_GT(tops.top_probability[0], tops.top_probability[1]);
}

TEST(MatchTrust, LearnsByLength) {
  MatchTrust t;
  for (int n = 4; n < 64; ++n) EXPECT_GE(t.value(n), t.value(n - 1));
  for (int i = 0; i < 200; ++i) t.observe(3, false), t.observe(30, true);
  EXPECT_LT(t.value(3), .05);
  EXPECT_GT(t.value(30), .95);
  EXPECT_EQ(t.value(8), MatchTrust().value(8));
}

// It is chosen by what it says of this round, not by what it was worth before, and never tried for the sake of it.
TEST(DraftChooser, TakesWhatIsForetoldAtItsWord) {
  StepTimes step(16);
  for (int n = 1; n <= 16; ++n) step.observe(n, 1 + .1 * n);
  const std::vector<DraftTimes> none(1);
  DraftChooser c({15}, {.max = 15}, /*foretold=*/0);
  const std::vector<float> sure(8, std::log(.95f)), unsure(8, std::log(.05f)), mixed{-.05f, -.05f, -4.f, -4.f};
  for (int round = 0; round < 100; ++round) {
    EXPECT_EQ(c.choose(step, none, 15, 1, {}).method, -1);
    EXPECT_EQ(c.choose(step, none, 15, 1, unsure).method, -1);
  }
  int taken = 0;
  for (int round = 0; round < 40; ++round) {
    const DraftChoice made = c.choose(step, none, 15, 1, sure);
    taken += made.method == 0;
    if (made.method == 0) {
      EXPECT_EQ(made.n, 8);
    }
    c.observe(made, 8, 0);
  }
  EXPECT_GE(taken, 36) << "a plain step now and then tells its time";
  EXPECT_EQ(c.choose(step, none, 15, 1, mixed).n, 2);
  EXPECT_EQ(c.choose(step, none, 3, 1, sure).n, 3);
}

// Beside a drafter: whichever is expected to bring more.
TEST(DraftChooser, TakesWhatIsForetoldWhereItBringsMore) {
  StepTimes step(16);
  for (int n = 1; n <= 16; ++n) step.observe(n, 1 + .05 * n);
  std::vector<DraftTimes> times(2);
  for (int i = 0; i < 3; ++i) times[0].observe(4, .2), times[1].observe(1, 1e-5);
  DraftChooser c({7, 15}, {.max = 15}, /*foretold=*/1);
  for (int round = 0; round < 60; ++round) {
    const DraftChoice made = c.choose(step, times, 15, 1, {});
    EXPECT_NE(made.method, 1);
    if (made.method == 0) c.observe(made, made.n, made.n / 2);
  }
  EXPECT_EQ(c.choose(step, times, 15, 1, {}).method, 0);
  EXPECT_EQ(c.choose(step, times, 15, 1, std::vector<float>(15, -.01f)).method, 1);
  EXPECT_EQ(c.choose(step, times, 15, 1, std::vector<float>(2, -1.f)).method, 0);
}

}  // namespace
}  // namespace facet::test
