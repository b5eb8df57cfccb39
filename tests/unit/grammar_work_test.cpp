// Following a grammar is bounded in counted work, whatever the grammar; and a bound that is reached is said.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "grammar/likely.h"
#include "grammar/masks.h"
#include "grammar/stepper.h"
#include "support/grammar_walk.h"

namespace facet::test {
namespace {

using grammar::Stacks;

// --- united pairs are remembered

// A set of 2^n stacks whose deepest entries have this number, of n + 1 sets.
Stacks::Set many_stacks(Stacks& s, int n, uint32_t deepest) {
  Stacks::Set at = s.push(deepest, Stacks::kEmptyStack);
  for (int i = 0; i < n; ++i) {
    const Stacks::Entry entries[] = {{1, at}, {2, at}};
    at = s.make(false, entries);
  }
  return at;
}
using Unite = std::function<Stacks::Set(Stacks&, Stacks::Set, Stacks::Set)>;
uint64_t units_of(int n, const Unite& unite) {
  GrammarWork work(100'000'000);
  Stacks s;
  s.clear(&work);
  const Stacks::Set a = many_stacks(s, n, 3), b = many_stacks(s, n, 4);
  const uint64_t before = work.spent();
  const Stacks::Set both = unite(s, a, b);
  EXPECT_EQ(s.entries(both).size(), 2u);
  EXPECT_EQ(s.depth(both), uint32_t(n + 1));
  return work.spent() - before;
}
// Without a memory of pairs.
Stacks::Set forgetful(Stacks& s, Stacks::Set a, Stacks::Set b) {
  if (a == b) return a;
  std::vector<Stacks::Entry> x(s.entries(a).begin(), s.entries(a).end()), y(s.entries(b).begin(), s.entries(b).end());
  std::vector<Stacks::Entry> both;
  for (size_t i = 0, k = 0; i < x.size() || k < y.size();) {
    if (k == y.size() || (i < x.size() && x[i].node < y[k].node))
      both.push_back(x[i++]);
    else if (i == x.size() || y[k].node < x[i].node)
      both.push_back(y[k++]);
    else
      both.push_back({x[i].node, forgetful(s, x[i].below, y[k].below)}), ++i, ++k;
  }
  return s.make(s.has_empty(a) || s.has_empty(b), both);
}
bool is_linear(const Unite& unite) { return units_of(16, unite) <= 2 * units_of(8, unite) + 64; }

TEST(GrammarWork, UnionsAreLinearInTheSetsBelow) {
  const Unite unite = [](Stacks& s, Stacks::Set a, Stacks::Set b) { return s.unite(a, b); };
  EXPECT_TRUE(is_linear(unite));
  EXPECT_LT(units_of(200, unite), 5000u);
}
TEST(GrammarWork, TheLawCatchesUnionsWithoutMemory) { EXPECT_FALSE(is_linear(forgetful)); }

// --- stacks that are too deep go one by one

std::vector<std::vector<uint32_t>> stacks_of(Stacks& s, Stacks::Set set) {
  std::vector<std::vector<uint32_t>> out;
  if (set == Stacks::kNone) return out;
  if (s.has_empty(set)) out.push_back({});
  const std::vector<Stacks::Entry> entries(s.entries(set).begin(), s.entries(set).end());
  for (const Stacks::Entry& e : entries)
    for (std::vector<uint32_t> below : stacks_of(s, e.below)) {
      below.push_back(e.node);
      out.push_back(std::move(below));
    }
  std::sort(out.begin(), out.end());
  return out;
}
TEST(GrammarWork, CuttingKeepsExactlyTheShallowStacks) {
  std::mt19937 rng(5);
  int cut = 0;
  for (int round = 0; round < 300; ++round) {
    GrammarWork work;
    Stacks s;
    s.clear(&work);
    std::vector<Stacks::Set> sets{Stacks::kEmptyStack};
    for (int i = 0; i < 12; ++i) {
      const auto any = [&] { return sets[rng() % sets.size()]; };
      sets.push_back(rng() % 3 ? s.push(uint32_t(1 + rng() % 4), any()) : s.unite(any(), any()));
    }
    const Stacks::Set set = sets.back();
    const uint32_t most = uint32_t(rng() % 6);
    std::vector<std::vector<uint32_t>> want = stacks_of(s, set);
    const size_t all = want.size();
    std::erase_if(want, [&](const auto& stack) { return stack.size() > most; });
    cut += want.size() < all;
    EXPECT_EQ(stacks_of(s, s.within(set, most)), want);
  }
  EXPECT_GT(cut, 50);
}

// --- grammars that once stood still

struct Bad {
  const char* name;
  std::string gbnf;
};
std::vector<Bad> bad_grammars() {
  std::vector<Bad> all{
      {"repeats in a row", "root ::= s\ns ::= [a-z ] s s s | [a-z ] s s | [a-z ] s | [a-z ]"},
      {"any character", "root ::= s\ns ::= . s s | . s | ."},
      {"rules of each other",
       "root ::= a\na ::= [a-z ] b c a | [a-z ]\nb ::= [a-z ] a c | [a-z ] b | [a-z ]\nc ::= [a-z ] b a b | [a-z ] c c "
       "| "
       "[a-z ]"},
      {"rules that may be empty", "root ::= s\ns ::= [a-z ] t t t t | [a-z ]\nt ::= s? u?\nu ::= [a-z ] s? t?"},
      {"loops of what may be empty",
       "root ::= (a* b* a*)*\na ::= [a-z ] (b a)* | [a-z ]\nb ::= [a-z ] (a? b?)? | \"x\""},
      {"brackets", "root ::= s\ns ::= \"(\" s \")\" s | \"(\" s | \"(\" | [a-z ] s?"},
  };
  for (const int n : {20, 300}) {
    std::string text = "root ::= r0\n";
    for (int i = 0; i < n; ++i) {
      const auto r = [&](int a, int b) { return "r" + std::to_string((i * a + b) % n); };
      text += fmt::format("r{} ::= [a-z ] {} {} {} | [a-z ] {} {} | [a-z ]\n", i, r(7, 1), r(11, 3), r(13, 5), r(17, 2),
                          r(3, 1));
    }
    all.push_back({n < 100 ? "twenty rules" : "three hundred rules", text});
  }
  std::string wide = "root ::= (";
  for (int i = 0; i < 1500; ++i) wide += fmt::format("{}r{}", i ? " | " : "", i);
  wide += ")+\n";
  for (int i = 0; i < 1500; ++i) wide += fmt::format("r{} ::= [a-z ]* \"{}\" r{}?\n", i, i, (i * 7 + 1) % 1500);
  all.push_back({"alternatives", wide});
  std::string calls = "root ::= s\nt ::= s\ns ::= [ab] s";
  for (int i = 0; i < 80; ++i) calls += " t";
  all.push_back({"eighty calls", calls + " \"a\" [a-z] t+ | [ab]"});
  return all;
}
SmallVocab words() {
  std::vector<std::string> more;
  std::mt19937 rng(3);
  for (int i = 0; i < 3000; ++i) {
    std::string t;
    for (int k = 0, n = 1 + int(rng() % 8); k < n; ++k) t += "abcdefghijklmnopqrstuvwxyz ()"[rng() % 29];
    more.push_back(t);
  }
  return small_vocab(std::move(more));
}

// A hundred tokens of an answer. Returns whether the bound ended it; nothing takes more than it and a little.
bool ends_early(const Bad& bad, const SmallVocab& v, uint64_t units, int* tokens = nullptr) {
  const Result<GrammarPtr> made = compile_gbnf(bad.gbnf);
  if (!made) ADD_FAILURE() << bad.name << ": " << made.error().message();
  if (!made) return false;
  GrammarMasks masks(v.vocab);
  GrammarState state(*made);
  std::vector<uint32_t> mask(v.vocab->mask_words());
  std::mt19937 rng(1);
  const auto within = [&](const char* what, const std::function<void()>& f) {
    GrammarWork work(units);
    const GrammarWorkScope scope(work);
    f();
    EXPECT_LE(work.spent(), units + 100'000) << bad.name << ": " << what;
    return !work.over();
  };
  for (int n = 0; n < 100; ++n) {
    bool made_mask = false;
    if (!within("mask", [&] { made_mask = masks.mask(state, mask); })) {
      EXPECT_FALSE(made_mask);
      return true;
    }
    std::vector<int32_t> may = allowed(mask);
    std::erase_if(may, [&](int32_t id) { return v.vocab->is_eog(id); });
    if (may.empty()) {
      ADD_FAILURE() << bad.name << ": no way on behind " << n << " tokens";
      return false;
    }
    const int32_t id = may[rng() % may.size()];
    const std::vector<uint32_t> before = state.words();
    bool advanced = false;
    if (!within("step", [&] { advanced = state.advance(*v.vocab, id); })) {
      EXPECT_FALSE(advanced);
      EXPECT_EQ(state.words(), before) << bad.name;
      return true;
    }
    EXPECT_TRUE(advanced) << bad.name << ": the mask allows a token that may not come";
    within("likely text", [&] { (void)likely_text(state, "{"); });
    within("forced text", [&] { (void)state.forced_text(64); });
    if (tokens) *tokens = n + 1;
  }
  return false;
}

TEST(GrammarWork, AmbiguousGrammarsAreFollowed) {
  const SmallVocab v = words();
  for (const Bad& bad : bad_grammars()) {
    int tokens = 0;
    const bool early = ends_early(bad, v, GrammarWork::kMost, &tokens);
    // With one rule that repeats any text is followed; those that call each other in every way end some time.
    const std::string_view name = bad.name;
    if (name == "repeats in a row" || name == "any character" || name == "brackets" || name == "alternatives")
      EXPECT_FALSE(early) << bad.name << ": " << tokens << " tokens";
    else
      EXPECT_TRUE(!early || tokens > 0) << bad.name;
  }
}
TEST(GrammarWork, ASmallBoundIsKept) {
  const SmallVocab v = words();
  int ended = 0;
  for (const Bad& bad : bad_grammars()) ended += ends_early(bad, v, 2000);
  EXPECT_GT(ended, 4);
}

// What a step or a mask takes is cut off anywhere in it; then nothing goes on for longer than one set or item needs.
// Returns what it took.
uint64_t cut_off_anywhere(const std::string& what, uint64_t more, const std::function<bool()>& f) {
  GrammarWork all;
  {
    const GrammarWorkScope scope(all);
    if (!f()) return 0;
  }
  for (uint64_t k = 0; k < 16; ++k) {
    const uint64_t units = all.spent() * k * k / 256;  // more of them early
    GrammarWork work(units);
    const GrammarWorkScope scope(work);
    EXPECT_FALSE(f()) << what;
    EXPECT_LE(work.spent(), units + more) << what << ", of " << all.spent();
  }
  return all.spent();
}
TEST(GrammarWork, EndsWhereItIsOver) {
  const SmallVocab v = words();
  std::vector<uint32_t> mask(v.vocab->mask_words());
  for (const Bad& bad : bad_grammars()) {
    const GrammarPtr g = *compile_gbnf(bad.gbnf);
    GrammarState state(g);
    std::minstd_rand rng(2);
    int steps = 0, masks = 0;
    for (int n = 0; n < 40; ++n) {
      // A set has at most an entry for each node, a frame an item; of words eight are a unit. A mask counts the ends
      // that it has found, at most the trie's nodes, at once.
      const uint64_t more = 64 + 8 * g->automaton().nodes.size() + state.words().size() / 8;
      const std::string where = fmt::format("{} behind {} bytes", bad.name, n);
      masks += n % 8 == 0 && cut_off_anywhere("mask of " + where, more + v.vocab->trie().byte.size(),
                                              [&] { return GrammarMasks(v.vocab).mask(state, mask); });
      std::string bytes = "ab()x";
      std::shuffle(bytes.begin(), bytes.end(), rng);
      const GrammarState before = state;
      const auto follows = [&](char c) { return state.advance_bytes({&c, 1}); };
      const auto may = std::find_if(bytes.begin(), bytes.end(), follows);
      if (may == bytes.end()) break;
      steps += cut_off_anywhere("step from " + where, more, [&] {
                 GrammarState s = before;
                 const bool followed = s.advance_bytes({&*may, 1});
                 EXPECT_EQ(s.words(), followed ? state.words() : before.words());
                 return followed;
               }) > 0;
    }
    EXPECT_GT(steps, 5) << bad.name;
    EXPECT_GT(masks, 0) << bad.name;
  }
}

TEST(GrammarWork, WorkEndsWhenNobodyWaits) {
  const SmallVocab v = words();
  std::atomic<bool> left = true;
  GrammarWork work(GrammarWork::kMost, &left);
  const GrammarWorkScope scope(work);
  GrammarMasks masks(v.vocab);
  std::vector<uint32_t> mask(v.vocab->mask_words());
  const auto made = compile_gbnf(bad_grammars()[0].gbnf);
  ASSERT_FALSE(made && masks.mask(GrammarState(*made), mask) && work.spent() > 200'000);
}

// --- deep texts: masks and steps agree where stacks are at their limit

TEST(GrammarWork, MasksAndStepsAgreeAtTheDeepest) {
  const SmallVocab v = small_vocab({"aa", "ab", "ba", "((", "))", "(a", "a)", "aaaa", "((((", "))))", "()()"});
  for (const char* gbnf : {
           "root ::= s\ns ::= [ab] s s | [ab] s | [ab]",
           "root ::= s\ns ::= \"(\" s \")\" s | \"(\" s \")\" | [ab] s?",
           "root ::= s\ns ::= \"(\" (s | t)? \")\" t | [ab]\nt ::= \"(\" s t \")\" | \"a\" | s",
       }) {
    const GrammarPtr g = *compile_gbnf(gbnf);
    GrammarMasks masks(v.vocab);
    std::vector<uint32_t> mask(v.vocab->mask_words());
    std::mt19937 rng(2);
    GrammarState state(g);
    for (int n = 0; n < 200; ++n) {
      ASSERT_TRUE(masks.mask(state, mask)) << gbnf;
      std::vector<int32_t> may, deeper;
      for (int32_t id = 0; id < v.vocab->size(); ++id) {
        const bool bit = mask[size_t(id) / 32] >> (id % 32) & 1;
        if (v.vocab->is_eog(id)) continue;
        ASSERT_EQ(GrammarState(state).advance(*v.vocab, id), bit) << gbnf << " behind " << n << ", token " << id;
        if (bit) may.push_back(id);
        if (bit && (v.vocab->text(id).starts_with('(') || v.vocab->text(id).starts_with("aa"))) deeper.push_back(id);
      }
      if (may.empty()) break;
      // Down to the limit, and about there.
      const std::vector<int32_t>& from = deeper.empty() || (n > 150 && rng() % 2) ? may : deeper;
      ASSERT_TRUE(state.advance(*v.vocab, from[rng() % from.size()]));
    }
  }
}

}  // namespace
}  // namespace facet::test
