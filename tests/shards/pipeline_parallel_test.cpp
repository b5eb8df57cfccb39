// One model in stages, some layers in each: every bit is that of one backend.
#include "backend/pipeline_parallel.h"

#include <cstdio>

#include "backend/cpu/cpu_fast.h"
#include "cache/cache_of_stages.h"
#include "compose/load_model.h"
#include "support/broken.h"
#include "support/harness.h"
#include "support/merges.h"
#include "support/open_parts.h"
#include "support/sanitized.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

using Stages = PipelineParallel<CpuRef>;
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

TEST(PipelineParallel, EqualsOneBitForBit) {
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
TEST(PipelineParallel, ShippedModels) {
  for (const char* name : {"facet-nano-Q8_0.gguf", "facet-nano-moe-Q4_K_M.gguf"})
    EXPECT_TRUE(equals_one(shipped_path(name), {4, 2}, 512)) << name;
}

// Memory that nothing was written to is never read; merged verbs in stages, and stages in lockstep with one, differ in
// nothing.
TEST(PipelineParallel, OtherBackendsInStages) {
  for (const TinyModel& m : {TinyModel{.moe = true}, TinyModel{.ple = true}}) {
    const TinyFile file(m);
    const Layers layers = m.moe ? Layers{2, 2, 2} : Layers{4, 6};
    EXPECT_TRUE(equals_one<PipelineParallel<NewMemoryIsNaN<CpuRef>>>(file.path(), layers));
    EXPECT_TRUE(equals_one<PipelineParallel<Merges>>(file.path(), layers));
    Harness<Lockstep<Stages, CpuRef>> h(file.path(), plan(), 0, std::tuple(layers, 1), std::tuple(1));
    h.logits(random_ids(kTokens, h.cfg.n_vocab, 7), {20, 1, 10});
    EXPECT_GT(h.backend().compared(), 100);
    for (const VerbDifference& d : h.backend().differences()) ADD_FAILURE() << d.message();
  }
}

// Stages of two kinds of backend: the layers of the CPU kernels are judged by the reference verb by verb, and stages of
// two types that are one kind have its bits.
template <class Move>
using Mixed = PipelineParallel<StageTypes<CpuRef, CpuFast>, Move>;
template <class Move>
size_t differences(const TinyFile& file, const Layers& layers) {
  Harness<Lockstep<Mixed<Move>, CpuRef>> h(file.path(), plan(), 0, std::tuple(layers, 1), std::tuple(1));
  h.logits(random_ids(kTokens, h.cfg.n_vocab, 7), {20, 1, 10});
  EXPECT_GT(h.backend().compared(), 100);
  const auto& found = h.backend().differences();
  if (!found.empty()) std::printf("%s\n", found[0].message().c_str());
  return found.size();
}
struct Named : CpuFast {  // a type of its own
  using CpuFast::CpuFast;
};
TEST(PipelineParallel, StagesOfTwoKinds) {
  for (const TinyModel& m :
       {TinyModel{}, TinyModel{.moe = true}, TinyModel{.ple = true}, TinyModel{.type = DType::kQ8_0}}) {
    const TinyFile file(m);
    const Layers layers = m.ple ? Layers{4, 6} : Layers{2, 4};
    EXPECT_EQ(differences<HostMove<CpuRef>>(file, layers), 0u);
    // The arithmetic of each stage is that of its kind alone: none of a type is none of another.
    const auto fast = bits<CpuFast>(file.path(), 1, 1), ref = bits<CpuRef>(file.path(), 1, 1);
    using Two = PipelineParallel<StageTypes<CpuFast, Named>>;
    EXPECT_TRUE(bitwise_equal(bits<Two>(file.path(), 1, layers, std::tuple(1), std::tuple(1)), fast));
    using Merged = PipelineParallel<StageTypes<CpuRef, Merges>>;  // one has the merged verbs, the other composes them
    EXPECT_TRUE(bitwise_equal(bits<Merged>(file.path(), 1, layers, 1), ref));
    const auto mixed = bits<Mixed<HostMove<CpuRef>>>(file.path(), 1, layers, 1);
    EXPECT_FALSE(bitwise_equal(mixed, ref) || bitwise_equal(mixed, fast)) << "one kind does all";
  }
}

// --- Planted bugs

struct LeavesTheLastRow : HostMove<CpuRef> {  // where it was
  void move(size_t to, CpuRef::Rows y, size_t from, CpuRef::Rows x) {
    if (x.rows > 1) HostMove::move(to, y.rows_at(0, y.rows - 1), from, x.rows_at(0, x.rows - 1));
  }
};
struct MovesHalfARow : HostMove<CpuRef> {
  void move(size_t to, CpuRef::Rows y, size_t from, CpuRef::Rows x) {
    HostMove::move(to, y.cols_at(0, y.cols / 2), from, x.cols_at(0, x.cols / 2));
  }
};
TEST(PipelineParallel, RowsLeftBehindAreFound) {
  const TinyFile file;
  EXPECT_FALSE((equals_one<PipelineParallel<CpuRef, LeavesTheLastRow>>(file.path(), {3, 3})));
  EXPECT_FALSE((equals_one<PipelineParallel<CpuRef, MovesHalfARow>>(file.path(), {3, 3})));
}
TEST(PipelineParallel, RowsLeftBehindBetweenKindsAreFound) {
  const TinyFile file;
  const auto right = bits<Mixed<HostMove<CpuRef>>>(file.path(), 1, Layers{3, 3}, 1);
  EXPECT_FALSE(bitwise_equal(bits<Mixed<LeavesTheLastRow>>(file.path(), 1, Layers{3, 3}, 1), right));
  EXPECT_FALSE(bitwise_equal(bits<Mixed<MovesHalfARow>>(file.path(), 1, Layers{3, 3}, 1), right));
  EXPECT_GT(differences<MovesHalfARow>(file, {3, 3}), 0u) << "the first verb of the second stage";
}
TEST(PipelineParallel, RowsOfAnotherLayerAreFound) {
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

TEST(PipelineParallel, DraftsAreTheSame) {
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
// What a pool of all stages comes to: all of it, divided as their layers' rows are, drafters' on the last one.
TEST(PipelineParallel, PoolsAreOfTheirLayers) {
  const TinyFile file(TinyModel{.type = DType::kQ8_0});
  const ModelCfg m = must(gemma4_config(must(GgufFile::open(file.path()))));
  Stages b(Layers{2, 4}, 1);
  constexpr int64_t kMore = 1 << 20, kLimit = 64 << 20;
  for (const int64_t limit : {int64_t(0), kLimit}) {
    const auto pool = must(CacheOf<Stages>::pool(b, m, plan(), kMore, limit));
    int64_t all = 0;
    std::vector<ModelCfg> own;
    for (size_t i = 0; i < 2; ++i) own.push_back(rows_of_stage(m, [&](int l) { return b.stage_of(l) == i; }));
    const std::vector<int64_t> limits = stage_limits(limit, own, plan(), kMore);
    for (int i = 0; i < 2; ++i) {
      const PagePool& p = *nth_mirrored(pool.get(), i);
      const int64_t mine = i == 1 ? kMore : 0;
      const int64_t want = limit > 0 ? limits[size_t(i)] : pool_bytes(own[size_t(i)], plan(), p.page_bytes(), 0) + mine;
      EXPECT_NEAR(double(p.budget() * p.page_bytes()), double(want), double(p.page_bytes())) << i;
      all += p.budget() * p.page_bytes();
    }
    EXPECT_NEAR(double(all), double(limit > 0 ? limit : all), double(1 << 19));
  }
}
// Too little memory for all requests at once: they take turns, and say what they say alone.
TEST(PipelineParallel, RowsThatAreShort) {
  EngineConfig c = shipped("facet-nano-Q8_0.gguf");
  c.max_seq = 3, c.snapshots = 0, c.n_ctx = 512;
  auto one = open_parts<CpuRef>(c, 1);
  std::vector<Request> all(3, question(*one));
  for (size_t i = 0; i < all.size(); ++i) all[i].prompt.insert(all[i].prompt.end(), 150 + 60 * i, all[i].prompt[5]);
  std::vector<Answer> want;
  for (const Request& r : all) want.push_back(answers(*one, {r})[0]);
  const LoadedModel model = must(load_model(c.model));
  EngineConfig alone = must(resolve_config(model.file, model.cfg, c));
  alone.max_seq = 1;
  const int64_t least = pool_bytes(model.cfg, kv_plan(alone), host_page_bytes(model.cfg, kv_plan(alone)), 0);
  c.kv_memory = least + least / 3;
  for (const Layers& layers : {Layers{3, 3}, {5, 1}}) {
    auto many = open_parts<Stages>(c, layers, 1);
    const auto got = answers(*many, all);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(got[i].tokens, want[i].tokens) << layers[0] << " " << i;
  }
}
TEST(PipelineParallel, StatesAreOfAllStages) {
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
