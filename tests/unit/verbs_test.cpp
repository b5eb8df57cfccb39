// The table of verbs: a backend has all of them, a decorator those of its backend.
#include <gtest/gtest.h>

#include "backend/cpu/cpu_fast.h"
#include "backend/lockstep.h"
#include "backend/traced.h"

namespace facet::test {
namespace {

// CpuRef with a merged and a chained verb.
struct Merging : CpuRef {
  using CpuRef::CpuRef;
  void matmul_beside(Rows y, Weight w, Rows z, Weight u, Rows x) { matmul(y, x, w), matmul(z, x, u); }
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k) { top_k(ids, log_probs, logits, k); }
  void next_step(const Step&) {}
};
static_assert(Has<Merging>::matmul_beside && Has<Merging>::next_tokens && !Has<CpuRef>::matmul_beside);
static_assert(ChainsPasses<Merging> && !ChainsPasses<CpuRef>);

// Decorators have what the backend has, and nothing more.
static_assert(Decorates<Traced<CpuRef>, CpuRef> && Decorates<Traced<Merging>, Merging>);
static_assert(Decorates<Lockstep<CpuFast, CpuRef>, CpuFast> && Decorates<Lockstep<Merging, CpuRef>, Merging>);
static_assert(ChainsPasses<Traced<Merging>> && ChainsPasses<Lockstep<Merging, CpuRef>>);
static_assert(!Decorates<Merging, CpuRef>);

// A decorator that misses a verb.
struct Misses : Merging {
  using Merging::Merging;
  template <class... T>
  void matmul_beside(T...) = delete;
};
static_assert(Backend<Misses> && !Decorates<Misses, Merging>);
struct MissesMore : CpuRef {
  using CpuRef::CpuRef;
  template <class... T>
  void matmul(T...) = delete;
};
static_assert(!Backend<MissesMore>);

// A drafter's passes under lockstep: R goes on with A's tokens, and another choice is named.
template <class A>
std::vector<VerbDifference> chained(float best = 1) {
  Lockstep<A, CpuRef> b(1);
  auto logits = b.new_rows(2, 8), x = b.new_rows(2, 4);
  std::vector<float> l(16, 0.f), rows(32);
  l[5] = best, l[8 + 3] = best;
  b.from_host(logits, l);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = float(i);
  const TensorView table{
      .name = "t", .type = DType::kF32, .ne = {4, 8, 1, 1}, .data = std::as_bytes(std::span<const float>(rows))};
  const auto w = b.upload(table);
  auto ids = b.new_ids(2);
  auto scores = b.new_scores(2);
  const int32_t stale[2] = {0, 0};
  Step s;
  s.shape.n_tok = 2, s.token = stale;
  b.begin_step(s);
  b.next_tokens(ids, scores, logits, 1);
  EXPECT_EQ(ids[0], 5);
  b.next_step(s);
  b.embed(x, w, s, 1.f);
  return b.differences();
}
// Embeds the tokens that it chose.
struct Chains : Merging {
  using Merging::Merging;
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k) {
    top_k(ids, log_probs, logits, k);
    for (size_t i = 0; i < 2; ++i) token[i] = ids[i];
  }
  void embed(Rows x, Weight w, const Step& s, float scale) {
    Step t = s;
    t.token = token;
    CpuRef::embed(x, w, t, scale);
  }
  int32_t token[2] = {};
};
struct ChoosesWrong : Chains {
  using Chains::Chains;
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k) {
    Chains::next_tokens(ids, log_probs, logits, k);
    ids[1] = 0;
  }
};
template <int kTenMillionths>
struct MovesScores : Chains {
  using Chains::Chains;
  void next_tokens(Ids ids, Scores log_probs, Rows logits, int k) {
    Chains::next_tokens(ids, log_probs, logits, k);
    log_probs[1] -= float(kTenMillionths) * 1e-7f;
  }
};
struct EmbedsStale : Merging {
  using Merging::Merging;
};
TEST(Verbs, LockstepFollowsChainedPasses) {
  EXPECT_TRUE(chained<Chains>().empty());
  ASSERT_EQ(chained<ChoosesWrong>().size(), 1u);
  EXPECT_EQ(chained<ChoosesWrong>()[0].name, "next_tokens.ids");
  ASSERT_EQ(chained<EmbedsStale>().size(), 1u);
  EXPECT_EQ(chained<EmbedsStale>()[0].name, "embed");
}

// A probability of nearly one: its logarithm is all rounding, and says how far the probability is off.
TEST(Verbs, LockstepJudgesProbabilities) {
  const float sure = 14;
  EXPECT_TRUE(chained<MovesScores<2>>(sure).empty());
  ASSERT_EQ(chained<MovesScores<3'000'000>>(sure).size(), 1u);
  EXPECT_EQ(chained<MovesScores<3'000'000>>(sure)[0].name, "next_tokens.log_probs");
  EXPECT_EQ(chained<MovesScores<3'000'000>>(1).size(), 1u);
}

TEST(Verbs, MergedAndChainedOnesArePriced) {
  Traced<Merging> b(1);
  b.reserve({.max_tok = 4, .max_cols = 8});
  auto x = b.new_rows(3, 4), y = b.new_rows(3, 4), z = b.new_rows(3, 4);
  const std::vector<float> v(16, 1.f);
  const TensorView m{
      .name = "m", .type = DType::kF32, .ne = {4, 4, 1, 1}, .data = std::as_bytes(std::span<const float>(v))};
  const auto w = b.upload(m);
  b.matmul_beside(y, w, z, w, x);
  b.next_tokens(b.new_ids(3), b.new_scores(3), y, 1);
  EXPECT_EQ(b.costs().at("matmul_beside").flops, 2 * 2.0 * 3 * 4 * 4);
  EXPECT_EQ(b.costs().at("matmul_beside").bytes, 3 * double(CpuRef::rows_bytes(3, 4)) + 2 * 64);
  EXPECT_EQ(b.costs().at("next_tokens").calls, 1);
}

}  // namespace
}  // namespace facet::test
