// Weights that stay in RAM beside a GPU: verb by verb against the reference, and laws of their bits. Skips without a
// device.
#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <tuple>
#include <type_traits>

#include "backend/lockstep.h"
#include "cache/cuda_kv_cache.h"
#include "engine/runner.h"
#include "support/harness.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

#define NEEDS_GPU() \
  if (const Status ok = Cuda::usable(0); !ok) GTEST_SKIP() << ok.error().message()

constexpr int kAll = 1000;  // layers
std::vector<std::string> models() {
  const std::string shipped = std::string(FACET_SOURCE_DIR) + "/models/";
  return {data_path("fixtures/moe/model.gguf"), shipped + "facet-nano-moe-Q4_K_M.gguf",
          data_path("fixtures/edge/model.gguf"), shipped + "facet-nano-Q8_0.gguf"};
}
std::vector<TinyModel> tiny_models() {
  return {{.moe = true, .type = DType::kQ8_0, .width = 1280, .experts = 16, .used = 4, .d_expert = 64},
          {.moe = true, .split_experts = true, .type = DType::kQ8_0, .experts = 16, .used = 4, .d_expert = 64}};
}

KvPlan plan() {
  return {.k = KvType::kF16, .v = KvType::kF16, .max_seq = 4, .max_ctx = 1024, .max_step = 512, .margin = 16};
}

template <class B>
struct Model {
  GgufFile file;
  ModelCfg cfg;
  std::unique_ptr<Runner<B>> r;
  template <class... Args>
  explicit Model(const std::string& path, Args... args)
      : file(must(GgufFile::open(path))), cfg(must(gemma4_config(file))) {
    r = must(Runner<B>::open(file, cfg, {.kv = plan(), .max_out = plan().max_step}, args...));
  }
  std::vector<int32_t> ids(int n) const { return random_ids(n, cfg.n_vocab, 7); }
  struct Piece {
    int slot = 0;
    std::span<const int32_t> tokens;
  };
  // Logits of every token of a step.
  std::vector<float> step(std::span<const Piece> pieces) {
    make_current(r->b);  // several models take turns
    r->steps.begin();
    for (const Piece& p : pieces) {
      must(r->cache->prepare(p.slot, int(p.tokens.size())));
      r->add({.slot = p.slot, .token = p.tokens, .out = Out::kAll});
    }
    const auto v = r->b.to_host(r->forward());
    for (const Piece& p : pieces) r->cache->commit(p.slot, int(p.tokens.size()));
    return v;
  }
  std::vector<float> logits(std::span<const int32_t> tokens, int chunk, int slot = 0) {
    make_current(r->b);
    r->cache->clear(slot);
    std::vector<float> all;
    for (size_t at = 0; at < tokens.size(); at += size_t(chunk)) {
      const Piece p{slot, tokens.subspan(at, std::min(size_t(chunk), tokens.size() - at))};
      const auto v = step({&p, 1});
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  }
};
// Of a model of either kind.
WeightsInRam in_ram(const std::string& path, int layers, int threads = 2) {
  const bool dense = must(gemma4_config(must(GgufFile::open(path)))).n_expert == 0;
  return {.expert_layers = dense ? 0 : layers, .ffn_layers = dense ? layers : 0, .threads = threads};
}

// Experts of every layer in both places.
bool has_experts(const std::string& path) { return must(gemma4_config(must(GgufFile::open(path)))).n_expert > 0; }
WeightsInRam split_experts(const std::string& path, int layers, unsigned seed, int threads = 2) {
  const ModelCfg m = must(gemma4_config(must(GgufFile::open(path))));
  std::mt19937 rng(seed);
  ExpertUsage usage;
  for (int l = 0; l < m.n_layer(); ++l)
    for (auto& of = usage.chosen.emplace_back(); int(of.size()) < m.n_expert;) of.push_back(int64_t(rng() % 1000));
  WeightsInRam w{.expert_layers = std::min(layers, m.n_layer()), .threads = threads};
  w.placement = std::make_shared<const ExpertPlacement>(place_experts(usage, w.expert_layers));
  return w;
}

void as_reference(const std::string& path) {
  for (const int layers : {1, 2, kAll, -1, -2, -3}) {  // below 0: experts in both places
    if (layers < 0 && !has_experts(path)) continue;
    Model<Lockstep<Cuda, CpuRef>> m(
        path, std::tuple(0, layers < 0 ? split_experts(path, -layers, unsigned(-layers)) : in_ram(path, layers)),
        std::tuple(4));
    const auto ids = m.ids(500);
    m.logits(std::span(ids).first(30), 10);
    m.logits(std::span(ids).first(40), 20);
    m.logits(std::span(ids).first(90), 90);  // a long chunk, on the CPU
    m.logits(ids, 500);                      // brought to the GPU
    EXPECT_GT(m.r->b.compared(), 0);
    const auto& over = m.r->b.differences();
    EXPECT_TRUE(over.empty()) << path << ", " << layers << " layers: " << over.size() << " of " << m.r->b.compared()
                              << ", first: " << over.front().message();
  }
}
TEST(CudaRam, EveryVerbAsReference) {
  NEEDS_GPU();
  for (const std::string& path : models()) as_reference(path);
  for (const TinyModel& tiny : tiny_models()) as_reference(TinyFile(tiny).path());
}

// The same placement, the same bits: alone, in chunks, beside others, with any number of threads, as a graph.
TEST(CudaRam, OneRowIsARowOfMany) {
  NEEDS_GPU();
  for (const std::string& path : models())
    for (const int layers : {1, kAll, -2}) {
      if (layers < 0 && !has_experts(path)) continue;
      const auto placed = [&](int threads) {
        return layers < 0 ? split_experts(path, -layers, 5, threads) : in_ram(path, layers, threads);
      };
      Model<Cuda> m(path, 0, placed(2));
      const auto ids = m.ids(48);
      m.r->b.use_graphs(false);
      const auto one = m.logits(ids, 1);
      for (const int chunk : {2, 5, 16}) EXPECT_TRUE(bitwise_equal(m.logits(ids, chunk), one)) << path << chunk;
      m.r->b.use_graphs(true);
      for (const int chunk : {1, 4}) EXPECT_TRUE(bitwise_equal(m.logits(ids, chunk), one)) << path << chunk;
      EXPECT_GT(m.r->b.counters().graph_launches, 5);
      Model<Cuda> other(path, 0, placed(5));
      EXPECT_TRUE(bitwise_equal(other.logits(ids, 1), one)) << path << ": threads";
    }
}
TEST(CudaRam, ARowBesideALongChunk) {
  NEEDS_GPU();
  for (const std::string& path : models()) {
    Model<Cuda> m(path, 0, has_experts(path) ? split_experts(path, 2, 3) : in_ram(path, kAll));
    const auto ids = m.ids(400);
    const auto alone = m.logits(std::span(ids).first(20), 1);
    m.r->cache->clear(0);
    const auto tokens = std::span<const int32_t>(ids);
    for (int t = 0; t < 20; ++t) {
      m.r->cache->clear(1);
      const typename Model<Cuda>::Piece both[] = {{0, tokens.subspan(size_t(t), 1)}, {1, tokens.first(400)}};
      const auto v = m.step(both);
      const size_t n = size_t(m.cfg.n_vocab);
      ASSERT_TRUE(bitwise_equal(std::span(v).first(n), std::span(alone).subspan(size_t(t) * n, n))) << path << t;
    }
  }
}

// Rows whose experts are brought to the GPU have the bits they have where these are always there.
TEST(CudaRam, StreamedIsResident) {
  NEEDS_GPU();
  for (const std::string& path : models()) {
    Model<Cuda> resident(path, 0);
    const auto ids = resident.ids(500);
    for (const int n : {256, 300, 400, 500}) {
      const auto want = resident.logits(std::span(ids).first(size_t(n)), n);
      for (const int layers : {1, 2, 3, kAll, -2}) {
        if (layers < 0 && !has_experts(path)) continue;
        Model<Cuda> m(path, 0, layers < 0 ? split_experts(path, -layers, 7) : in_ram(path, layers));
        for (int i = 0; i < 3; ++i)  // what was brought before is not taken for what is wanted
          EXPECT_TRUE(bitwise_equal(m.logits(std::span(ids).first(size_t(n)), n), want))
              << path << ", " << n << " rows, " << layers << " layers";
        m.logits(std::span(ids).first(9), 3);
        EXPECT_TRUE(bitwise_equal(m.logits(std::span(ids).first(size_t(n)), n), want)) << path << " after answers";
      }
    }
  }
}

// What is counted is what the CPU's routing chooses, one row at a time and in long chunks.
TEST(CudaRam, ChosenExpertsAreCounted) {
  NEEDS_GPU();
  const std::string path = models()[0];
  const auto counted = [&]<class B>(std::type_identity<B>, auto... args) {
    auto usage = std::make_shared<ExpertUsage>();
    {
      Model<B> m(path, args...);
      m.r->b.count_experts(usage);
      const auto ids = m.ids(500);
      m.logits(std::span(ids).first(30), 1);
      m.logits(std::span(ids).first(40), 20);
      m.logits(ids, 500);
    }
    return usage->chosen;
  };
  const auto want = counted(std::type_identity<CpuFast>{}, 2);
  ASSERT_FALSE(want.empty());
  const ModelCfg cfg = must(gemma4_config(must(GgufFile::open(path))));
  for (const int kind : {0, 1, 2}) {
    const auto got = counted(std::type_identity<Cuda>{}, 0,
                             kind == 0   ? WeightsInRam{}
                             : kind == 1 ? in_ram(path, 2)
                                         : split_experts(path, 2, 9));
    ASSERT_EQ(got.size(), want.size()) << kind;
    for (size_t l = 0; l < want.size(); ++l) {
      int64_t apart = 0, all = 0;
      for (size_t e = 0; e < want[l].size(); ++e) apart += std::abs(got[l][e] - want[l][e]), all += got[l][e];
      EXPECT_EQ(all, 570 * cfg.n_expert_used) << kind << " layer " << l;
      EXPECT_LE(apart, all / 10) << kind << " layer " << l;  // rounding decides a few
    }
  }
}

// Rows of a table that come with each step are those of the table on the GPU.
TEST(CudaRam, ATableInRamGivesTheSameBits) {
  NEEDS_GPU();
  const std::string path = data_path("fixtures/edge/model.gguf");
  Model<Cuda> resident(path, 0), m(path, 0, WeightsInRam{.tables = true});
  const auto ids = resident.ids(300);
  for (const int chunk : {1, 3, 16, 17, 300})
    EXPECT_TRUE(bitwise_equal(m.logits(ids, chunk), resident.logits(ids, chunk))) << chunk;
  Model<Lockstep<Cuda, CpuRef>> judged(path, std::tuple(0, WeightsInRam{.tables = true}), std::tuple(4));
  judged.logits(std::span(ids).first(40), 20);
  EXPECT_TRUE(judged.r->b.differences().empty()) << judged.r->b.differences().front().message();
}

// What fails on the GPU is known only when a later piece is brought, by a thread of its own in a running model.
TEST(CudaRam, ACopyThatFailsIsOneLine) {
  NEEDS_GPU();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto fail = [] {
    const GgufFile file = must(GgufFile::open(models()[3]));
    const TensorView& t = *file.find("blk.0.ffn_up.weight");
    cuda::Device device(0);
    cuda::Loader loader(device);
    const cuda::TiledMatrix nowhere{.p = reinterpret_cast<const uint8_t*>(uintptr_t(1) << 60),
                                    .tile = cuda::Tile::kQ8_0,
                                    .n_out = int(t.ne[1]),
                                    .n_in = int(t.ne[0])};
    std::thread([&] {
      device.make_current();
      loader.reserve();  // as a running model has: a GPU that failed gives no more memory
      loader.load(nowhere, t, t.type);
      cudaStreamSynchronize(device.stream());
      loader.load(nowhere, t, t.type);
    }).join();
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(1),
              "^facet: GPU 0: blk.0.ffn_up.weight cannot be brought to it: .*illegal.*\n$");
}

TEST(CudaRam, OutOfMemoryIsAnError) {
  NEEDS_GPU();
  const GgufFile file = must(GgufFile::open(models()[0]));
  const ModelCfg cfg = must(gemma4_config(file));
  const RunnerOptions options{.kv = plan(), .max_out = 8};
  int failed = 0;
  for (int64_t n = 0;; ++n) {
    auto r = Runner<Cuda>::open(file, cfg, options, 0, in_ram(models()[0], kAll), n);
    if (r) break;
    ++failed;
    EXPECT_NE(r.error().what.find("MiB of free memory, found"), std::string::npos) << n << ": " << r.error().message();
  }
  EXPECT_GT(failed, 30);
}

}  // namespace
}  // namespace facet::test
