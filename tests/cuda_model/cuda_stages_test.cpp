// One model in stages over GPUs, some layers on each: every bit is that of one GPU. One GPU is enough, which two stages
// share; with two of a kind, stages are on GPUs of their own too. Skips without a device.
#include "backend/cuda/p2p_copy.h"
#include "cache/cache_of_stages.h"
#include "cache/cuda_kv_cache.h"
#include "compose/plan.h"
#include "support/gpu_lists.h"
#include "support/harness.h"
#include "support/open_parts.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

#define NEEDS_A_GPU() \
  if (n_gpu() < 1) GTEST_SKIP() << "no GPU is there"

using Stages = PipelineParallel<Cuda, P2pCopy>;
using Layers = std::vector<int>;

// Two stages on one GPU, and on two of a kind; directly and through the host's memory.
std::vector<GpuList> places() {
  std::vector<GpuList> all;
  const auto add = [&](std::vector<int> gpus) {
    for (const bool peers : {true, false}) all.push_back({gpus, peers});
  };
  add({0, 0});
  const auto name = [](int gpu) { return must(cuda::device_info(gpu)).name; };
  if (n_gpu() > 1 && name(0) == name(1)) add({0, 1}), add({1, 0});
  return all;
}
KvPlan plan() {
  return {.k = KvType::kQ8_0,
          .v = KvType::kQ8_0,
          .share = kCudaSharedHead,
          .max_seq = 3,
          .max_ctx = 1024,
          .max_step = 192,
          .margin = 16};
}

// Logits of one sequence in steps of several sizes, of two in one step, and at the end of a prompt whose chunks the
// host does not wait for.
template <class B, class... Args>
std::vector<float> bits(const std::string& path, Args... args) {
  Harness<B> m(path, plan(), 0, args...);
  const auto ids = random_ids(720, m.cfg.n_vocab, 7);
  std::vector<float> all;
  const auto add = [&](const std::vector<float>& v) { all.insert(all.end(), v.begin(), v.end()); };
  for (const int chunk : {1, 1, 1, 7, 16}) add(m.logits(std::span(ids).first(40), {chunk}));
  add(m.logits(std::span(ids).first(170), {100, 70}));
  for (int s = 0; s < 2; ++s) m.cache().clear(s);
  for (size_t at = 0; at < 40; at += 20) {
    m.begin();
    m.add({.slot = 1, .token = std::span(ids).subspan(at, 7), .out = Out::kLast});
    m.add({.slot = 0, .token = std::span(ids).subspan(at, 20), .out = Out::kButFirst});
    add(m.forward());
    m.cache().commit(0, 20), m.cache().commit(1, 7);
  }
  m.cache().clear(2);
  for (size_t at = 0; at < ids.size(); at += 180) {
    m.begin();
    const bool last = at + 180 == ids.size();
    m.add({.slot = 2, .token = std::span(ids).subspan(at, 180), .out = last ? Out::kLast : Out::kNone});
    if (last)
      add(m.forward());
    else
      m.runner().forward();
    m.cache().commit(2, 180);
  }
  return all;
}

TEST(CudaStages, EqualsOneGpuBitForBit) {
  NEEDS_A_GPU();
  const TinyFile dense(TinyModel{.type = DType::kQ8_0}), moe(TinyModel{.moe = true, .type = DType::kQ8_0}),
      edge(TinyModel{.ple = true, .type = DType::kQ8_0});  // later layers read rows of earlier ones
  const std::pair<std::string, std::vector<Layers>> models[] = {
      {shipped_path("facet-nano-Q8_0.gguf"), {{3, 3}, {5, 1}}},
      {shipped_path("facet-nano-moe-Q4_K_M.gguf"), {{2, 4}}},
      {dense.path(), {{1, 5}}},
      {moe.path(), {{4, 2}}},
      {edge.path(), {{5, 5}, {1, 9}}}};
  for (const auto& [path, splits] : models) {
    const auto want = bits<Cuda>(path, 0);
    on_each(places(), [&](const GpuList& list) {
      for (const Layers& layers : splits)
        EXPECT_TRUE(bitwise_equal(bits<Stages>(path, layers, list.gpus), want))
            << path << " " << layers[0] << "+" << layers[1] << " on " << list.name();
    });
  }
}
TEST(CudaStages, ThreeOnOneGpu) {
  NEEDS_A_GPU();
  const std::string path = shipped_path("facet-nano-Q8_0.gguf");
  EXPECT_TRUE(bitwise_equal(bits<Stages>(path, Layers{2, 1, 3}, std::vector<int>{0, 0, 0}), bits<Cuda>(path, 0)));
}

struct LeavesTheLastRow : P2pCopy {  // where it was
  void move(size_t to, Rows y, size_t from, Rows x) {
    if (x.rows > 1) P2pCopy::move(to, y.rows_at(0, y.rows - 1), from, x.rows_at(0, x.rows - 1));
  }
};
TEST(CudaStages, RowsLeftBehindAreFound) {
  NEEDS_A_GPU();
  const std::string path = shipped_path("facet-nano-Q8_0.gguf");
  using Broken = PipelineParallel<Cuda, LeavesTheLastRow>;
  EXPECT_FALSE(bitwise_equal(bits<Broken>(path, Layers{3, 3}, std::vector<int>{0, 0}), bits<Cuda>(path, 0)));
}

// --- The engine

EngineConfig config(const std::vector<int>& gpus, const std::string& model) {
  EngineConfig c;
  c.model = model;
  c.backend = "cuda";
  if (gpus.size() > 1) c.gpus = gpus, c.split = {2, 1};
  c.n_ctx = 1024, c.max_seq = 3, c.chunk = 128;
  c.kv_k = c.kv_v = KvType::kQ8_0;
  return c;
}
TEST(CudaStages, DraftsChangeNothing) {
  NEEDS_A_GPU();
  const std::pair<const char*, const char*> cases[] = {
      {"facet-nano-Q8_0.gguf", "mtp"}, {"facet-nano-Q8_0.gguf", "dflash"}, {"facet-nano-moe-Q4_K_M.gguf", "mtp"}};
  for (const auto& [name, kind] : cases) {
    const auto one = must(Engine::open(config({}, shipped_path(name))));
    const Request r = question(*one);
    const Answer want = answers(*one, {r})[0];
    on_each(places(), [&](const GpuList& list) {
      const std::string what = fmt::format("{} {} {}", name, kind, list.name());
      EngineConfig c = config(list.gpus, shipped_path(name));
      EXPECT_EQ(answers(*must(Engine::open(c)), {r})[0].tokens, want.tokens) << what;
      c.draft.max = c.draft.min = 4;
      c.draft.files = {find_drafter_beside(c.model, kind).path};
      const Answer got = answers(*must(Engine::open(c)), {r})[0];
      EXPECT_EQ(got.tokens, want.tokens) << what;
      EXPECT_GT(2 * got.usage.accepted, got.usage.drafted) << what;
      if (kind != std::string("dflash")) return;
      c.draft = {.files = c.draft.files, .max = 6, .min = 1, .tree = 15};  // a tree moves rows in all stages
      const Answer tree = answers(*must(Engine::open(c)), {r})[0];
      EXPECT_EQ(tree.tokens, want.tokens) << what;
      EXPECT_GT(tree.usage.accepted, 10) << what;
    });
  }
}
TEST(CudaStages, StatesAreOfAllGpus) {
  NEEDS_A_GPU();
  const TinyFile file(TinyModel{.type = DType::kQ8_0});
  on_each(places(), [&](const GpuList& list) {
    EngineConfig c = config(list.gpus, file.path());
    c.n_ctx = 256, c.chunk = 40, c.margin = 16;
    c.kv_k = c.kv_v = KvType::kF16;
    states_are_whole(
        file, [&] { return must(Engine::open(c)); },
        [&] {
          EngineConfig other = c;
          other.split = {1, 2};
          return must(Engine::open(other));
        });
  });
}
TEST(CudaStages, SharesAndGpusThatAreNotThere) {
  NEEDS_A_GPU();
  const auto error_of = [](std::vector<int> gpus, std::vector<double> split) {
    EngineConfig c = config(gpus, shipped_path("facet-nano-Q8_0.gguf"));
    c.split = std::move(split);
    const auto e = Engine::open(c);
    return e ? std::string() : e.error().message();
  };
  EXPECT_NE(error_of({0, 0}, {1, 1, 1}).find("--split: expected 2 shares"), std::string::npos);
  EXPECT_NE(error_of({0, 63}, {1, 1}).find("found 63"), std::string::npos);
  const std::vector<int> many(7, 0);
  EXPECT_NE(error_of(many, std::vector<double>(7, 1)).find("--split: expected up to 6 shares"), std::string::npos);
  EXPECT_EQ(error_of({0, 0, 0}, {1, 1, 1}), "") << "a number that heads cannot be divided among";
}

}  // namespace
}  // namespace facet::test
