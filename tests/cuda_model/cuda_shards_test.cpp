// One model over several GPUs, or over shards that share one: verb by verb against the reference, laws of its bits,
// drafts, states. Skips without a device.
#include <algorithm>
#include <span>

#include "backend/cuda/cuda_link.h"
#include "backend/lockstep.h"
#include "cache/cache_of_shards.h"
#include "cache/cuda_kv_cache.h"
#include "compose/plan.h"
#include "support/gpu_lists.h"
#include "support/harness.h"
#include "support/open_parts.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

#define NEEDS_GPUS(n) \
  if (n_gpu() < n) GTEST_SKIP() << n << " GPUs are needed, " << n_gpu() << " are there"

using Shards = TensorParallel<Cuda, CudaLink>;
constexpr int kPrompt = 120;  // tokens whose logits are compared
std::vector<std::string> models() {
  return {shipped_path("facet-nano-Q8_0.gguf"), shipped_path("facet-nano-moe-Q4_K_M.gguf")};
}
KvPlan plan(KvType t = KvType::kQ8_0) {
  return {.k = t, .v = t, .share = kCudaSharedHead, .max_seq = 4, .max_ctx = 512, .max_step = 192, .margin = 16};
}

TEST(CudaShards, EveryVerbAsReference) {
  NEEDS_GPUS(2);
  // K/V heads that are divided and others that all have; columns of which some shards have few or none; experts that
  // are looked for while they are chosen.
  const TinyFile dense(TinyModel{.type = DType::kQ8_0}), moe(TinyModel{.moe = true, .type = DType::kQ8_0}),
      wide(TinyModel{.moe = true, .type = DType::kQ8_0, .width = 1280, .experts = 16, .used = 4, .d_expert = 128}),
      edge(TinyModel{.ple = true, .type = DType::kQ8_0});
  std::vector<std::string> all = models();
  for (const TinyFile* f : {&dense, &moe, &wide, &edge}) all.push_back(f->path());
  {
    Harness<Lockstep<Cuda, CpuRef>> m(edge.path(), plan(), 0, std::tuple(0), std::tuple(1));
    m.logits(random_ids(150, m.cfg.n_vocab, 3), {100, 50});
    for (const auto& d : m.backend().differences()) ADD_FAILURE() << "one GPU: " << d.message();
  }
  on_each(gpu_lists({2}), [&](const GpuList& list) {
    for (const std::string& path : all) {
      Harness<Lockstep<Shards, CpuRef>> m(path, plan(), 0, std::tuple(list.gpus), std::tuple(1));
      const auto ids = random_ids(150, m.cfg.n_vocab, 3);
      m.logits(std::span(ids).first(20), {1, 9});
      m.logits(std::span(ids).first(40), {20});
      m.logits(ids, {100, 50});  // the kernels of long chunks, sums in place
      EXPECT_GT(m.backend().compared(), 100);
      const auto& over = m.backend().differences();
      EXPECT_TRUE(over.empty()) << path << " on " << list.name() << ": " << over.size();
      for (size_t i = 0; i < std::min<size_t>(over.size(), 8); ++i) ADD_FAILURE() << over[i].message();
    }
  });
}

// Of the rms of the reference's logits: of all, and of each row.
double distance(std::span<const float> got, std::span<const float> want) {
  double d = 0, n = 0;
  for (size_t i = 0; i < want.size(); ++i)
    d += (double(got[i]) - want[i]) * (double(got[i]) - want[i]), n += double(want[i]) * want[i];
  return std::sqrt(d / n);
}
std::vector<double> row_distances(const std::vector<float>& got, const std::vector<float>& want) {
  const size_t cols = want.size() / kPrompt;
  std::vector<double> rows;
  for (size_t at = 0; at < want.size(); at += cols)
    rows.push_back(distance(std::span(got).subspan(at, cols), std::span(want).subspan(at, cols)));
  std::sort(rows.begin(), rows.end());
  return rows;
}
template <class B, class... Args>
std::vector<float> logits_of(const std::string& path, const std::vector<int>& chunks, const Args&... args) {
  Harness<B> m(path, plan(), 0, args...);
  return m.logits(random_ids(kPrompt, m.cfg.n_vocab, 3), chunks);
}
struct LeavesAShardOut : CudaLink {
  void sum(std::span<const Rows> rows, unsigned has) { CudaLink::sum(rows, has & ~(has > 1 ? 2u : 0u)); }
};
struct GathersInTurn : CudaLink {  // columns of another shard
  void gather(std::span<const Rows> to, std::span<const Rows> from, ShardRanges at) {
    std::swap(at[0], at[1]);
    CudaLink::gather(to, from, at);
  }
  void embed(Cuda& b, Rows x, Weight table, const Step& s, float scale, Range own) {
    CudaLink::embed(b, x, table, s, scale, {own.begin - 1, own.end - 1});
  }
};
// Where two experts are nearly alike rounding chooses, on one GPU as on two, and such a row is as far away as they are
// from each other. With experts the rows in the middle are compared, and no more than two rows may have chosen others.
TEST(CudaShards, AsNearToTheReferenceAsOneGpu) {
  NEEDS_GPUS(2);
  for (const std::string& path : models())
    for (const int chunk : {5, kPrompt}) {
      const bool experts = path.find("moe") != std::string::npos;
      const auto want = logits_of<CpuRef>(path, {chunk}, 1), alone = logits_of<Cuda>(path, {chunk}, 0);
      const double one = distance(alone, want), middle = row_distances(alone, want)[kPrompt / 2];
      on_each(gpu_lists({2}), [&](const GpuList& list) {
        const auto got = logits_of<Shards>(path, {chunk}, list.gpus);
        const auto rows = row_distances(got, want);
        if (experts) {
          EXPECT_LE(rows[kPrompt / 2], 1.1 * middle) << path << list.name() << " by " << chunk;
          EXPECT_LE(rows[kPrompt - 3], 10 * middle) << path << list.name() << " by " << chunk;
        } else {
          EXPECT_LE(distance(got, want), 1.1 * one) << path << list.name() << " by " << chunk;
        }
      });
      const std::vector<int> two{0, 1};
      EXPECT_GT((distance(logits_of<TensorParallel<Cuda, LeavesAShardOut>>(path, {chunk}, two), want)), 10 * one);
      EXPECT_GT((distance(logits_of<TensorParallel<Cuda, GathersInTurn>>(path, {chunk}, two), want)), 10 * one);
    }
}

// A row alone, in chunks, beside others, in graphs or launched one by one, and in another run.
TEST(CudaShards, RowsKeepTheirBits) {
  NEEDS_GPUS(2);
  const TinyFile edge(TinyModel{.ple = true, .type = DType::kQ8_0});
  std::vector<std::string> all = models();
  all.push_back(edge.path());
  on_each(gpu_lists({2}), [&](const GpuList& list) {
    for (const std::string& path : all) {
      Harness<Shards> m(path, plan(), 0, list.gpus);
      const auto ids = random_ids(48, m.cfg.n_vocab, 5), other = random_ids(288, m.cfg.n_vocab, 6);
      m.backend().use_graphs(false);
      const auto alone = m.logits(ids, {1});
      m.backend().use_graphs(true);
      for (const int chunk : {1, 1, 2, 7, 16})
        EXPECT_TRUE(bitwise_equal(m.logits(ids, {chunk}), alone)) << path << " " << list.name() << " by " << chunk;
      EXPECT_GT(m.backend().shard(1).counters().graph_launches, 20);
      for (int s = 0; s < 4; ++s) m.cache().clear(s);
      std::vector<float> beside;
      for (size_t at = 0; at < ids.size(); at += 12) {
        m.begin();
        m.add({.slot = 1, .token = std::span(other).subspan(at, 3), .out = Out::kNone});
        m.add({.slot = 0, .token = std::span(ids).subspan(at, 12), .out = Out::kAll});
        m.add({.slot = 3, .token = std::span(other).subspan(at * 6, 72), .out = Out::kNone});
        const auto v = m.forward();
        beside.insert(beside.end(), v.begin(), v.begin() + ptrdiff_t(12) * m.cfg.n_vocab);
        m.cache().commit(1, 3), m.cache().commit(0, 12), m.cache().commit(3, 72);
      }
      EXPECT_TRUE(bitwise_equal(beside, alone)) << path << " " << list.name();
      Harness<Shards> again(path, plan(), 0, list.gpus);
      EXPECT_TRUE(bitwise_equal(again.logits(ids, {16}), alone)) << path << " " << list.name();
    }
  });
}

// One GPU forgets its graphs, as the one that draws tokens does when it needs more room: all capture again.
TEST(CudaShards, AGpuThatForgotItsGraphs) {
  NEEDS_GPUS(2);
  on_each(gpu_lists({2}), [&](const GpuList& list) {
    Harness<Shards> m(models()[0], plan(), 0, list.gpus);
    const auto ids = random_ids(24, m.cfg.n_vocab, 5);
    const auto want = m.logits(ids, {1});
    for (const int forgets : {0, 1}) {
      m.backend().shard(forgets).reserve({});
      const int64_t captures = m.backend().shard(0).counters().captures;
      EXPECT_TRUE(bitwise_equal(m.logits(ids, {1}), want)) << forgets << " " << list.name();
      EXPECT_EQ(m.backend().shard(0).counters().captures, captures + 1);
    }
  });
}

// --- The engine

EngineConfig config(const std::vector<int>& gpus, const std::string& model) {
  EngineConfig c;
  c.model = shipped_path(model);
  c.backend = "cuda", c.gpus = gpus;
  c.n_ctx = 1024, c.max_seq = 3, c.chunk = 128;
  c.kv_k = c.kv_v = KvType::kQ8_0;
  return c;
}
TEST(CudaShards, DraftsChangeNothing) {
  NEEDS_GPUS(2);
  const std::pair<const char*, const char*> cases[] = {
      {"facet-nano-Q8_0.gguf", "mtp"}, {"facet-nano-Q8_0.gguf", "dflash"}, {"facet-nano-moe-Q4_K_M.gguf", "mtp"}};
  on_each(gpu_lists({2}), [&](const GpuList& list) {
    for (const auto& [name, kind] : cases) {
      EngineConfig c = config(list.gpus, name);
      auto plain = must(Engine::open(c));
      const Request r = question(*plain);
      const Answer want = answers(*plain, {r})[0];
      c.draft.max = c.draft.min = 4;
      c.draft.files = {find_drafter_beside(c.model, kind).path};
      const Answer got = answers(*must(Engine::open(c)), {r})[0];
      EXPECT_EQ(got.tokens, want.tokens) << name << " " << kind << " " << list.name();
      EXPECT_GT(2 * got.usage.accepted, got.usage.drafted) << name << " " << kind << " " << list.name();
      if (kind != std::string("dflash")) continue;
      c.draft = {.files = c.draft.files, .max = 6, .min = 1, .tree = 15};
      const Answer tree = answers(*must(Engine::open(c)), {r})[0];
      EXPECT_EQ(tree.tokens, want.tokens) << list.name();
      EXPECT_GT(tree.usage.accepted, 10) << list.name();
    }
  });
}
TEST(CudaShards, StatesAreOfAllGpus) {
  NEEDS_GPUS(2);
  const TinyFile file(TinyModel{.type = DType::kQ8_0});
  on_each(gpu_lists({2}), [&](const GpuList& list) {
    EngineConfig c = config(list.gpus, "");
    c.model = file.path();
    c.n_ctx = 256, c.chunk = 40, c.margin = 16;
    c.kv_k = c.kv_v = KvType::kF16;
    states_are_whole(
        file, [&] { return must(Engine::open(c)); },
        [&] {
          EngineConfig one = c;
          one.gpus = {};
          return must(Engine::open(one));
        });
  });
}
TEST(CudaShards, GpusThatAreNotThereOrDoNotDivide) {
  NEEDS_GPUS(2);
  const auto error_of = [](const std::vector<int>& gpus) {
    const auto e = Engine::open(config(gpus, "facet-nano-Q8_0.gguf"));
    return e ? std::string() : e.error().message();
  };
  const std::string missing = error_of({0, 63}), number = error_of({0, 0, 0});
  EXPECT_NE(missing.find("found 63"), std::string::npos) << missing;
  EXPECT_NE(number.find("--gpus: expected a number of GPUs that divides the model's"), std::string::npos) << number;
  EXPECT_NE(number.find("found 3"), std::string::npos) << number;
}

}  // namespace
}  // namespace facet::test
