// What facet bench measures with which cache.
#include <gtest/gtest.h>

#include <algorithm>

#include "tools/bench.h"

namespace facet {
namespace {

// Rows of all sequences that fit, at a byte for each of f16's two, q8_0's one and q4_0's half.
struct Memory {
  double room;
  mutable std::vector<EngineConfig> asked = {};
  Result<EngineConfig> operator()(const EngineConfig& c) const {
    asked.push_back(c);
    EngineConfig d = c;
    d.kv_k = c.kv_k.value_or(KvType::kF16), d.kv_v = c.kv_v.value_or(KvType::kF16);
    const double bytes = *d.kv_k == KvType::kF16 ? 2 : *d.kv_k == KvType::kQ8_0 ? 1 : 0.5;
    if (double(c.n_ctx) * c.max_seq * bytes + c.chunk <= room) return d;
    return Error{"m.gguf", "the memory plan needs more", "-c 1024 would fit"};
  }
};
BenchOptions options(std::vector<int> batches) {
  BenchOptions o;
  o.prefill = {512, 4096}, o.depths = {0, 1000}, o.widths = {1, 16}, o.batches = std::move(batches);
  return o;
}
EngineConfig config(const std::string& backend = "cuda") {
  EngineConfig c;
  c.backend = backend;
  return c;
}

TEST(BenchGroups, OneWhereAllFits) {
  const auto g = bench_groups(config(), options({16, 4, 16}), Memory{1e9});
  ASSERT_TRUE(g);
  ASSERT_EQ(g->size(), 1u);
  const BenchGroup& all = g->front();
  EXPECT_EQ(all.options.batches, (std::vector<int>{4, 16}));
  EXPECT_EQ(all.config.max_seq, 16);
  EXPECT_EQ(all.config.chunk, 4096);
  EXPECT_EQ(all.config.n_ctx, 1000 + 4096);
  EXPECT_EQ(all.config.max_out, 16);
}

// A prompt as long as the context is read in chunks.
TEST(BenchGroups, LongPromptsAreReadInChunks) {
  BenchOptions o = options({});
  o.prefill = {262144}, o.depths = {0};
  for (const auto& [backend, chunk] : {std::pair("cuda", 4096), {"cpu", 512}}) {
    const auto g = bench_groups(config(backend), o, Memory{1e9});
    ASSERT_TRUE(g);
    EXPECT_EQ(g->front().config.chunk, chunk) << backend;
    EXPECT_EQ(g->front().config.n_ctx, 262144) << backend;
  }
  EngineConfig asked = config();
  asked.chunk = 1024;
  EXPECT_EQ(bench_groups(asked, o, Memory{1e9})->front().config.chunk, 1024);
  o.prefill = {64};
  EXPECT_EQ(bench_groups(config(), o, Memory{1e9})->front().config.chunk, 512);
}

// 256 sequences of 1,064 rows: 545 KB of f16, 272 KB of q8_0, 136 KB of q4_0.
TEST(BenchGroups, LargeBatchesTakeTheTypeThatFits) {
  struct {
    double room;
    KvType type;
  } const cases[] = {{600e3, KvType::kF16}, {400e3, KvType::kQ8_0}, {200e3, KvType::kQ4_0}};
  for (const auto& c : cases) {
    const auto g = bench_groups(config(), options({4, 256}), Memory{c.room});
    ASSERT_TRUE(g) << g.error().message();
    ASSERT_EQ(g->size(), 2u) << c.room;
    EXPECT_EQ(g->front().options.batches, std::vector<int>{4});
    EXPECT_EQ(g->front().config.kv_k, KvType::kF16);
    const BenchGroup& large = g->back();
    EXPECT_EQ(large.options.batches, std::vector<int>{256});
    EXPECT_FALSE(large.options.alone);
    EXPECT_TRUE(large.options.widths.empty() && large.options.prefill.empty());
    EXPECT_EQ(large.config.kv_k, c.type) << c.room;
    EXPECT_EQ(large.config.kv_v, c.type) << c.room;
    EXPECT_EQ(large.config.max_out, 256);
  }
  EXPECT_FALSE(bench_groups(config(), options({4, 256}), Memory{100e3}));
}

TEST(BenchGroups, ATypeThatWasAskedForStays) {
  EngineConfig c = config();
  c.kv_k = c.kv_v = KvType::kQ8_0;
  const Memory memory{200e3};
  EXPECT_FALSE(bench_groups(c, options({256}), memory));
  for (const EngineConfig& x : memory.asked) EXPECT_EQ(x.kv_k, KvType::kQ8_0);
}

TEST(BenchGroups, AContextThatIsTooSmallIsSaid) {
  EngineConfig c = config();
  c.n_ctx = 4096;
  const auto g = bench_groups(c, options({}), Memory{1e9});
  ASSERT_FALSE(g);
  EXPECT_NE(g.error().message().find("-c: expected at least 5096 rows"), std::string::npos) << g.error().message();
}

}  // namespace
}  // namespace facet
