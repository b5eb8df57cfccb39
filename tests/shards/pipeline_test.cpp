// One model in stages, some layers in each: every bit is that of one backend.
#include "backend/pipeline.h"
#include "cache/cache_of_stages.h"
#include "support/broken.h"
#include "support/harness.h"
#include "support/merges.h"
#include "support/open_parts.h"
#include "support/sanitized.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

using Stages = Pipeline<CpuRef>;
using Layers = std::vector<int>;
constexpr int kTokens = 40;  // more than a ring of the tiny models

KvPlan plan(int share = 1) {
  return {.k = KvType::kQ8_0,
          .v = KvType::kQ8_0,
          .share = share,
          .max_seq = 3,
          .max_ctx = 256,
          .max_step = 96,
          .margin = 16};
}
// Logits of one sequence in steps of several sizes, then of two in one step.
template <class B, class... Args>
std::vector<float> bits(const std::string& path, int share, Args... args) {
  Harness<B> h(path, plan(share), 0, args...);
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7);
  auto all = h.logits(ids, {20, 1, 10});
  for (int s = 0; s < 2; ++s) h.cache().clear(s);
  for (size_t at = 0; at < size_t(kTokens); at += 20) {
    h.begin();
    h.add({.slot = 1, .token = std::span(ids).subspan(at, 7), .out = Out::kLast});
    h.add({.slot = 0, .token = std::span(ids).subspan(at, 20), .out = Out::kButFirst});
    const auto got = h.forward();
    all.insert(all.end(), got.begin(), got.end());
    h.cache().commit(0, 20), h.cache().commit(1, 7);
  }
  return all;
}
template <class B = Stages>
bool equals_one(const std::string& path, const Layers& layers, int share = 1) {
  return bitwise_equal(bits<B>(path, share, layers, 1), bits<CpuRef>(path, share, 1));
}

TEST(Pipeline, EqualsOneBitForBit) {
  for (const TinyModel& m : {TinyModel{}, TinyModel{.moe = true}, TinyModel{.moe = true, .split_experts = true},
                             TinyModel{.type = DType::kQ8_0}})
    for (const Layers& layers : {Layers{6}, {3, 3}, {1, 5}, {5, 1}, {2, 2, 2}, {2, 1, 1, 1, 1}}) {
      if (kSanitized && layers.size() != 3) continue;
      const TinyFile file(m);
      EXPECT_TRUE(equals_one(file.path(), layers, layers.size() != 2)) << m.moe << " " << layers.size();
    }
  const TinyFile e(TinyModel{.ple = true});  // later layers read rows of earlier ones, which other stages have
  for (const Layers& layers : {Layers{5, 5}, {3, 4, 3}, {9, 1}, {1, 9}}) EXPECT_TRUE(equals_one(e.path(), layers));
}
TEST(Pipeline, ShippedModels) {
  for (const char* name : {"facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"})
    EXPECT_TRUE(equals_one(shipped_path(name), {4, 2}, 512)) << name;
}

// Memory that nothing was written to is never read; merged verbs in stages, and stages in lockstep with one, differ in
// nothing.
TEST(Pipeline, OtherBackendsInStages) {
  for (const TinyModel& m : {TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(m);
    const Layers layers = m.moe ? Layers{2, 2, 2} : Layers{4, 6};
    EXPECT_TRUE(equals_one<Pipeline<NewMemoryIsNaN<CpuRef>>>(file.path(), layers));
    EXPECT_TRUE(equals_one<Pipeline<Merges>>(file.path(), layers));
    Harness<Lockstep<Stages, CpuRef>> h(file.path(), plan(), 0, std::tuple(layers, 1), std::tuple(1));
    h.logits(random_ids(kTokens, h.cfg.n_vocab, 7), {20, 1, 10});
    EXPECT_GT(h.backend().compared(), 100);
    for (const VerbDifference& d : h.backend().differences()) ADD_FAILURE() << d.message();
  }
}

// --- Planted bugs

struct LeavesTheLastRow : HostMove<CpuRef> {  // where it was
  void move(CpuRef::Rows to, CpuRef::Rows from) {
    if (from.rows > 1) HostMove::move(to.rows_at(0, to.rows - 1), from.rows_at(0, from.rows - 1));
  }
};
struct MovesHalfARow : HostMove<CpuRef> {
  void move(CpuRef::Rows to, CpuRef::Rows from) {
    HostMove::move(to.cols_at(0, to.cols / 2), from.cols_at(0, from.cols / 2));
  }
};
TEST(Pipeline, RowsLeftBehindAreFound) {
  const TinyFile file;
  EXPECT_FALSE((equals_one<Pipeline<CpuRef, LeavesTheLastRow>>(file.path(), {3, 3})));
  EXPECT_FALSE((equals_one<Pipeline<CpuRef, MovesHalfARow>>(file.path(), {3, 3})));
}
TEST(Pipeline, RowsOfAnotherLayerAreFound) {
  const TinyFile file;
  const auto want = bits<CpuRef>(file.path(), 1, 1);
  Harness<Stages> h(file.path(), plan(), 0, Layers{3, 3}, 1);
  std::swap(h.runner().kv[0], h.runner().kv[3]);  // of both stages: sliding layers of one shape
  const auto ids = random_ids(kTokens, h.cfg.n_vocab, 7);
  const auto swapped = h.logits(ids, {20, 1, 10});
  EXPECT_TRUE(bitwise_equal(swapped, std::span(want).first(swapped.size()))) << "each is written and read as the other";
  h.cache().clear(0);
  h.more_logits(std::span(ids).first(20), {20});
  std::swap(h.runner().kv[0], h.runner().kv[3]);  // in between: rows of another layer are read
  const auto got = h.more_logits(std::span(ids).subspan(20), {20});
  EXPECT_FALSE(bitwise_equal(got, std::span(want).subspan(20 * size_t(h.cfg.n_vocab), got.size())));
}

// --- The engine

TEST(Pipeline, DraftsAreTheSame) {
  for (const char* kind : {"mtp", "dflash"}) {
    EngineConfig c = shipped("facet-nano-Q8_0.gguf");
    c.draft.max = c.draft.min = 4;
    if (kind == std::string("dflash")) c.draft = {.max = 6, .min = 1, .tree = 15};  // a tree moves rows in all stages
    c.draft.files = {find_drafter_beside(c.model, kind).path};
    auto one = open_parts<CpuRef>(c, 1), many = open_parts<Stages>(c, Layers{2, 4}, 1);
    const Request r = question(*one);
    const Answer want = answers(*one, {r})[0], got = answers(*many, {r})[0];
    EXPECT_EQ(got.tokens, want.tokens) << kind;
    EXPECT_GT(got.usage.accepted, 10) << kind;
    EXPECT_TRUE(c.draft.tree > 0 || got.usage.accepted == want.usage.accepted) << kind;
  }
}
TEST(Pipeline, StatesAreOfAllStages) {
  const TinyFile file(TinyModel{.type = DType::kQ8_0});
  EngineConfig c;
  c.model = file.path();
  c.n_ctx = 256, c.chunk = 40, c.margin = 16, c.n_threads = 1;
  c.kv_k = c.kv_v = KvType::kF16;
  // The first stage has no full layer, or all; other stages have other parts.
  for (const Layers& layers : {Layers{2, 4}, {5, 1}, {3, 3}})
    states_are_whole(
        file, [&] { return open_parts<Stages>(c, layers, 1); },
        [&] {
          return open_parts<Stages>(c, layers == Layers{3, 3} ? Layers{2, 4} : Layers{3, 3}, 1);
        });
}

}  // namespace
}  // namespace facet::test
