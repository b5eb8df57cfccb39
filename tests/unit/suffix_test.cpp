// Suffix decoding: the index against a plain search, what is drafted from its matches, memories of answers, and when
// what is foretold is chosen.
#include "spec/suffix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "spec/answer_memory.h"
#include "spec/length.h"
#include "spec/suffix_drafter.h"

namespace facet::test {
namespace {

using Match = SuffixIndex::Match;
using Tokens = std::vector<int32_t>;

Tokens text(size_t n, int letters, unsigned seed) {
  std::mt19937 rng(seed);
  Tokens h(n);
  for (int32_t& id : h) id = int32_t(rng() % unsigned(letters));
  return h;
}

// Every earlier place with as many equal tokens as count, looked for in the plainest way. `end`: of the text that goes
// on behind h.
std::vector<Match> plainly_found(std::span<const int32_t> h, std::span<const int32_t> end) {
  std::vector<Match> all;
  for (size_t at = 0; at + 1 < h.size(); ++at) {
    int n = 0;
    while (n < SuffixIndex::kMostLength && size_t(n) <= at && size_t(n) < end.size() &&
           h[at - size_t(n)] == end[end.size() - 1 - size_t(n)])
      ++n;
    if (n >= SuffixIndex::kOrders[0]) all.push_back({int32_t(at + 1), n});
  }
  sort_matches(all);
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
    const int letters = 2 + int(run % 9);
    const auto h = text(1 + run * 2, letters, run);
    // Token by token and in pieces, with a step back to before the end now and then.
    for (size_t n = 1; n <= h.size(); n += 1 + run % 3) {
      const auto part = std::span(h).first(n);
      if (n % 17 == 0) index.truncate(n - std::min<size_t>(n, 5));
      ASSERT_TRUE(index.extend(part));
      const auto want = plainly_found(part, part);
      if (want.size() > size_t(SuffixIndex::kMostPlaces)) continue;  // it looks at the newest ones alone
      index.matches(part, got);
      ASSERT_TRUE(same(got, want)) << "run " << run << ", " << n << " tokens: " << got.size() << " of " << want.size();
      found += int(got.size());
      // Behind a draft of three tokens.
      Tokens tail(part.begin(), part.end());
      for (const int32_t t : text(3, letters, run + unsigned(n))) tail.push_back(t);
      const auto behind = plainly_found(part, tail);
      if (behind.size() > size_t(SuffixIndex::kMostPlaces) / 2) continue;
      index.matches_of(part, tail, got);
      ASSERT_TRUE(same(got, behind)) << "run " << run << ", behind " << n << " tokens";
    }
  }
  EXPECT_GT(found, 10000);
}

// A long match behind hundreds of short ones, which alone would fill the places that are looked at.
TEST(SuffixIndex, FindsALongMatchBehindManyShortOnes) {
  Tokens h = text(20, 1000, 1);
  const Tokens phrase(h.begin(), h.end());
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

// --- what is drafted

// Guesses of one text as it goes on.
struct Reader {
  CopyGuesser guesser;
  SuffixIndex index;
  CopyCursors cursors;
  CopyRecord record;
  CopyTree tree;
  const AnswerMemory* memory = nullptr;
  const CopyTree& read(std::span<const int32_t> h, CopyGuesser::Limits limits = {.nodes = 15, .depth = 15}) {
    guesser.learn(h, record, cursors);
    index.extend(h);
    guesser.guess(h, index, memory, cursors, limits, record, tree);
    return tree;
  }
};
Tokens chain_of(const Tokens& h, int most) {
  Reader r;
  const CopyTree& t = r.read(h, {.nodes = most, .depth = most, .branches = false});
  return {t.token.begin() + 1, t.token.end()};
}

TEST(CopyGuesser, TakesWhatFollowedMostOften) {
  EXPECT_EQ(chain_of({1, 2, 3, 4, 9, 1, 2, 3}, 3), (Tokens{4, 9, 1}));
  EXPECT_EQ(chain_of({4, 2, 7, 0, 5, 2, 8, 0, 4, 2, 7, 6, 4, 2}, 1), (Tokens{7})) << "twice";
  EXPECT_EQ(chain_of({5, 6, 5, 6, 5, 6, 5, 6}, 7), (Tokens{5, 6, 5, 6, 5, 6, 5})) << "a loop goes on behind the end";
  EXPECT_EQ(chain_of({1, 2, 3, 4, 2, 3}, 1), (Tokens{4})) << "two tokens are a match";
  EXPECT_TRUE(chain_of({1, 2, 3, 4, 9, 3}, 3).empty()) << "one is none";
  EXPECT_TRUE(chain_of({1}, 3).empty());
  EXPECT_TRUE(chain_of({1, 2, 3, -7, -7, 1, 2, 3}, 3).empty()) << "into a picture";
  EXPECT_EQ(chain_of({1, 2, 3, 4, -7, 1, 2, 3}, 3), (Tokens{4})) << "up to a picture";
  EXPECT_TRUE(chain_of({5, 6, 5, 6, 5, 6}, 0).empty());
}

// Nodes in the order of their chances, parents before them, no path deeper than it may be, no two siblings alike; the
// chances of what may follow a node are together at most its own.
TEST(CopyGuesser, MakesTreesOfFallingChances) {
  int branches = 0, nodes = 0;
  for (unsigned run = 0; run < 60; ++run) {
    Reader r;
    Tokens h = text(40, 3 + int(run % 5), run);
    for (int i = 0; i < 40; ++i) {
      h.push_back(h[h.size() - 20 - run % 7]);
      const int depth = 1 + int(run % 9);
      const CopyTree& t = r.read(h, {.nodes = 31, .depth = depth});
      ASSERT_LE(t.n_draft(), 31);
      std::vector<float> below(t.token.size());
      std::vector<int> deep(t.token.size());
      for (size_t k = 1; k < t.token.size(); ++k) {
        const size_t p = size_t(t.parent[k]);
        ASSERT_LT(p, k);
        ASSERT_LE(t.chance[k], t.chance[k - 1]);
        ASSERT_LE(t.chance[k], t.chance[p]);
        ASSERT_LE(deep[k] = deep[p] + 1, depth);
        below[p] += t.chance[k];
        branches += p != k - 1;
        for (size_t j = 1; j < k; ++j) ASSERT_FALSE(t.parent[j] == t.parent[k] && t.token[j] == t.token[k]);
      }
      for (size_t k = 0; k < below.size(); ++k) ASSERT_LE(below[k], t.chance[k] * 1.0001f);
      nodes += t.n_draft();
    }
  }
  EXPECT_GT(branches, 500);
  EXPECT_GT(nodes, 5000);
}

// A table of rows that are all alike but for a value, which stands in a list before: what comes next in the list is
// drafted in the next row, though all the rows so far had something else there. That it is so is learned from a few
// texts.
// blind: cursors are forgotten. Of 30 rows, those whose value was drafted.
int drafted_rows(bool blind) {
  Reader r;
  int drafted = 0, rows = 0;
  for (unsigned run = 0; run < 8; ++run) {
    r.index.clear(), r.cursors.clear(), r.record.clear();
    const Tokens values = text(16 * 12, 1 << 20, run);
    const auto item = [&](size_t i) {
      Tokens t{4, 5, 6, 7};
      t.insert(t.end(), values.begin() + ptrdiff_t(16 * i), values.begin() + ptrdiff_t(16 * (i + 1)));
      return t;
    };
    Tokens h;
    for (size_t i = 0; i < 12; ++i)
      for (const int32_t t : item(i)) h.push_back(t);
    for (size_t i = 0; i < 12; ++i) {
      Tokens row{1, 2, 3};
      for (const int32_t t : item(i)) row.push_back(t);
      for (const int32_t t : row) {
        h.push_back(t);
        if (blind) r.record.n_history = 0, r.cursors.clear();
        const CopyTree& tree = r.read(h);
        if (t != 7 || i < 2 || run < 5) continue;
        ++rows;
        int at = 0;  // the node on the way to the value's fourth token
        for (size_t v = 4, k = 1; v < 8 && k < tree.token.size(); ++k)
          if (tree.parent[k] == at && tree.token[k] == item(i)[v]) at = int(k), ++v;
        drafted += at > 0 && tree.token[size_t(at)] == item(i)[7];
      }
    }
  }
  EXPECT_EQ(rows, 30);
  return drafted;
}
TEST(CopyGuesser, GoesOnInAListThatATableIsMadeOf) {
  EXPECT_GE(drafted_rows(/*blind=*/false), 22);
  EXPECT_LE(drafted_rows(/*blind=*/true), 6) << "without cursors";
}

// Where a copy leaves something out, it is found again behind one equal token, which is no match elsewhere.
TEST(CopyGuesser, FindsACopyAgainThatLeftSomethingOut) {
  const Tokens source = text(200, 5000, 9);
  Reader r;
  Tokens h = source;
  h.insert(h.end(), source.begin(), source.begin() + 100);
  for (size_t n = source.size() + 80; n <= h.size(); ++n) r.read(std::span(h).first(n));
  h.push_back(source[110]);
  const CopyTree& t = r.read(h);
  ASSERT_GT(t.n_draft(), 0);
  EXPECT_EQ(t.token[1], source[111]);
  Tokens far(h.begin(), h.end() - 1);
  far.push_back(source[10]);
  EXPECT_EQ(Reader().read(far).n_draft(), 0);
}

TEST(CopyTrust, LearnsFromEveryText) {
  CopyTrust t;
  const int c = CopyTrust::class_of(CopySource::kFar, CopyTrust::length_class(3), 0),
            d = CopyTrust::class_of(CopySource::kFar, CopyTrust::length_class(30), 0);
  for (int n = 2; n < 64; ++n)
    EXPECT_GE(t.value(CopyTrust::class_of(CopySource::kFar, CopyTrust::length_class(n), 0)),
              t.value(CopyTrust::class_of(CopySource::kFar, CopyTrust::length_class(n - 1), 0)));
  for (int i = 0; i < 400; ++i) t.observe(c, false), t.observe(d, true);
  EXPECT_LT(t.value(c), .1);
  EXPECT_GT(t.value(d), .95);
  // Texts in which matches of two tokens mean nothing: they are hardly drafted in the end.
  Reader r;
  Tokens h = text(3000, 12, 4);
  double expected = 0;
  for (size_t n = 2000; n <= h.size(); ++n) {
    const CopyTree& tree = r.read(std::span(h).first(n), {.nodes = 3, .depth = 3, .branches = false});
    for (int k = 1; n > 2900 && k <= tree.n_draft(); ++k) expected += double(tree.chance[size_t(k)]);
  }
  EXPECT_LT(expected / 100, .35) << "right tokens a round";
}

// --- memories of answers

// What a place of a match is followed by, up to the end of its answer.
Tokens follows(const AnswerMemory& m, int32_t place) {
  Tokens t;
  for (; m.token(place) != AnswerMemory::kEnd && t.size() < 100; place = m.next(place)) t.push_back(m.token(place));
  return t;
}

TEST(AnswerMemory, FindsWhatWasSaidAndForgetsTheOldest) {
  for (const size_t limit : {size_t(40), size_t(100), size_t(3000)}) {
    AnswerMemory m(limit);
    std::vector<Tokens> answers;
    for (int i = 0; i < 300; ++i) {
      answers.push_back(text(3 + size_t(i) % 20, 1 << 20, unsigned(i)));
      m.add(answers.back());
      ASSERT_LE(m.n_token(), limit);
      ASSERT_LE(m.bytes(), std::max<size_t>(limit, 1) * AnswerMemory::kBytesPerToken + 256);
      // Every answer that fits into the limit is there, and none that does not.
      size_t behind = 0;
      for (size_t k = answers.size(); k-- > 0;) {
        const Tokens& a = answers[k];
        std::vector<Match> found;
        m.matches(std::span(a).first(2), found);
        const bool whole = behind + a.size() + 1 <= limit;
        behind += a.size() + 1;
        if (whole) {
          ASSERT_EQ(found.size(), 1u) << "limit " << limit << ", answer " << k << " of " << answers.size();
          ASSERT_EQ(follows(m, found[0].next), Tokens(a.begin() + 2, a.end()));
        } else if (behind > limit + a.size()) {
          ASSERT_TRUE(found.empty());
          if (k + 8 < answers.size()) break;
        }
      }
    }
  }
}

TEST(AnswerMemory, AgreesWithAPlainSearchOverItsAnswers) {
  std::vector<Match> got;
  int found = 0;
  for (unsigned run = 0; run < 60; ++run) {
    const size_t limit = 20 + run * 3;
    AnswerMemory m(limit);
    Tokens ring;  // all that was said, in order
    for (unsigned i = 0; i < 12; ++i) {
      const Tokens a = text(1 + (run + i) % 17, 9, run * 100 + i);
      m.add(a);
      ring.insert(ring.end(), a.end() - ptrdiff_t(std::min(a.size(), limit - 1)), a.end());
      ring.push_back(AnswerMemory::kEnd);
      const auto kept = std::span(ring).last(std::min(ring.size(), limit));
      const Tokens h = text(12, 9, run + i);
      std::vector<std::pair<Tokens, int>> want, have;
      for (size_t at = 0; at + 1 < kept.size(); ++at) {
        int n = 0;
        while (size_t(n) <= at && size_t(n) < h.size() && kept[at - size_t(n)] == h[h.size() - 1 - size_t(n)]) ++n;
        if (n < SuffixIndex::kOrders[0]) continue;
        Tokens rest;
        for (size_t k = at + 1; kept[k] != AnswerMemory::kEnd; ++k) rest.push_back(kept[k]);
        want.emplace_back(rest, n);
      }
      m.matches(h, got);
      for (const Match& x : got) have.emplace_back(follows(m, x.next), x.length);
      std::sort(want.begin(), want.end());
      std::sort(have.begin(), have.end());
      ASSERT_EQ(have, want) << "run " << run << ", answer " << i;
      found += int(have.size());
    }
  }
  EXPECT_GT(found, 100);
}

TEST(AnswerStore, OwnersDoNotSeeEachOther) {
  AnswerStore store(10'000);
  const Tokens a = text(50, 1 << 20, 1), b = text(50, 1 << 20, 2);
  EXPECT_EQ(store.find("a"), nullptr);
  store.add("a", a);
  store.add("b", b);
  const auto knows = [&](const std::string& owner, const Tokens& t) {
    const AnswerMemory* m = store.find(owner);
    std::vector<Match> found;
    if (m) m->matches(std::span(t).first(4), found);
    return !found.empty();
  };
  EXPECT_TRUE(knows("a", a));
  EXPECT_TRUE(knows("b", b));
  EXPECT_FALSE(knows("a", b));
  EXPECT_FALSE(knows("b", a));
  EXPECT_FALSE(knows("", a));
  // All together hold no more than the limit; one that says much drives nobody else's out, but many owners do.
  for (unsigned i = 0; i < 400; ++i) store.add("a", text(50, 1 << 20, 100 + i));
  EXPECT_LE(store.n_token(), 10'000u);
  EXPECT_TRUE(knows("b", b));
  for (int i = 0; i < 40; ++i) {
    store.add("owner " + std::to_string(i), text(2000, 1 << 20, 600 + unsigned(i)));
    ASSERT_LE(store.n_token(), 10'000u);
  }
  EXPECT_FALSE(knows("b", b));
  AnswerStore off;
  off.add("a", a);
  EXPECT_EQ(off.find("a"), nullptr);
}

// The drafter takes answers of the same owner alone, and neither keeps nor uses any of a request that has none.
TEST(SuffixDraft, DraftsFromAnswersOfItsOwner) {
  const Tokens answer = text(30, 1 << 20, 5);
  const auto drafted = [&](SuffixDraft& d, const char* owner, SlotId slot) {
    if (owner) d.begin(slot, owner);
    Draft q{.slot = slot, .max_draft = 15, .max_depth = 15, .branches = true};
    const Tokens h(answer.begin(), answer.begin() + 5);
    q.history = h, q.token = {h.back()};
    d.propose(q);
    d.end(slot, {});
    return Tokens(q.token.begin() + 1, q.token.end());
  };
  SuffixDraft d(4, 1000);
  d.end(0, answer);  // of a request that leaves nothing
  EXPECT_TRUE(drafted(d, "mine", 1).empty());
  d.begin(0, "mine");
  d.end(0, answer);
  EXPECT_EQ(drafted(d, "mine", 1), Tokens(answer.begin() + 5, answer.begin() + 20));
  EXPECT_TRUE(drafted(d, "other", 1).empty());
  EXPECT_TRUE(drafted(d, nullptr, 2).empty());
  SuffixDraft off(4, 0);
  off.begin(0, "mine");
  off.end(0, answer);
  EXPECT_TRUE(drafted(off, "mine", 1).empty());
}

TEST(SuffixDraft, GoesOnBehindAnotherDraft) {
  const Tokens source = text(60, 1 << 20, 6);
  Tokens h = source;
  h.insert(h.end(), source.begin(), source.begin() + 10);
  SuffixDraft d(1, 0);
  Draft q{.slot = 0, .max_draft = 15, .max_depth = 15, .branches = true};
  q.history = h, q.token = {h.back()};
  d.propose(q);
  Draft model{.slot = 0, .max_draft = 9};
  model.history = h;
  model.token = {h.back(), source[10], source[11], source[12], source[13]};
  model.top_log_prob = {-.1f, -.1f, -.1f, -.1f};
  d.extend(model);
  EXPECT_EQ(Tokens(model.token.begin() + 1, model.token.end()), Tokens(source.begin() + 10, source.begin() + 19));
  EXPECT_EQ(model.top_log_prob.size(), 9u);
  Draft wrong{.slot = 0, .max_draft = 9};
  wrong.history = h;
  wrong.token = {h.back(), 1, 2};
  wrong.top_log_prob = {-.1f, -.1f};
  d.extend(wrong);
  EXPECT_EQ(wrong.token.size(), 3u);
}

// --- when it is chosen

std::vector<float> falling(int n, float each) {
  std::vector<float> c;
  for (float p = each; n > 0; --n, p *= each) c.push_back(p);
  return c;
}

// It is chosen by what it says of this round, not by what it was worth before, and never tried for the sake of it.
TEST(DraftChooser, TakesWhatIsForetoldAtItsWord) {
  StepTimes step(64);
  for (int n = 1; n <= 64; ++n) step.observe(n, 1 + .1 * n);
  const std::vector<DraftTimes> none(1);
  DraftChooser c({63}, {.max = 15, .foretold = 40}, /*foretold=*/0);
  const auto sure = falling(8, .95f), unsure = falling(8, .05f);
  const std::vector<float> mixed{.95f, .9f, .02f, .0004f};
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
  EXPECT_EQ(c.choose(step, none, 15, 1, falling(60, .999f)).n, 40)
      << "nodes, which may be more than there is room in depth";
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
  EXPECT_EQ(c.choose(step, times, 15, 1, falling(15, .99f)).method, 1);
  EXPECT_EQ(c.choose(step, times, 15, 1, falling(2, .37f)).method, 0);
}

// Sequences that decode together try what they gave up, and plain steps, in the same step of the engine.
TEST(DraftChooser, TogetherTheyTryInTheSameStep) {
  StepTimes step(64);
  for (int n = 1; n <= 64; ++n) step.observe(n, 1 + .02 * n);
  std::vector<DraftTimes> times(1);
  for (int i = 0; i < 3; ++i) times[0].observe(4, .05);
  for (const double right : {0., .9}) {
    std::vector<DraftChooser> all(4, DraftChooser({7}, {.max = 7}));
    int steps_that_try = 0;
    for (int64_t round = 0; round < 600; ++round) {
      int other = 0, n = 0;
      for (size_t i = 0; i < all.size(); ++i) {
        if (round < int64_t(7 * i)) continue;  // they begin one after the other
        const DraftChoice made = all[i].choose(step, times, 15, 4, {}, round);
        const int kept = made.method < 0 ? 0 : right > 0 ? std::min(made.n, 5) : 0;
        all[i].observe(made, made.n, kept);
        other += (made.method < 0) == (right > 0);
        ++n;
      }
      if (round < 100) continue;
      steps_that_try += other > 0;
      ASSERT_TRUE(right == 0 || other == 0 || other == n) << "round " << round;
    }
    EXPECT_LE(steps_that_try, 40);
  }
}

}  // namespace
}  // namespace facet::test
