// How matrices are cut for shards, and which numbers of shards a model takes.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <numeric>

#include "model/shards.h"
#include "model/stages.h"

namespace facet::test {
namespace {

std::vector<int64_t> sizes(int64_t n, const ShardSpec& c, int shards) {
  std::vector<int64_t> v;
  int64_t at = 0;
  for (const Range& r : shard_ranges(n, c, shards)) {
    EXPECT_TRUE(c.repeat || c.side == ShardSpec::Side::kWhole || r.begin == at) << "a gap";
    at = r.end, v.push_back(r.size());
  }
  EXPECT_TRUE(c.repeat || at == n) << "something is left over";
  return v;
}

TEST(ShardSpec, RangesAreEvenInUnits) {
  using V = std::vector<int64_t>;
  const ShardSpec by64{.side = ShardSpec::Side::kOut, .unit = 64}, by256{.side = ShardSpec::Side::kOut, .unit = 256};
  EXPECT_EQ(sizes(704, by64, 2), (V{320, 384}));
  EXPECT_EQ(sizes(704, by64, 4), (V{128, 192, 192, 192}));
  EXPECT_EQ(sizes(2112, by64, 8), (V{256, 256, 256, 256, 256, 256, 256, 320}));
  EXPECT_EQ(sizes(21504, by256, 4), (V{5376, 5376, 5376, 5376}));
  EXPECT_EQ(sizes(96, by64, 2), (V{64, 32})) << "the last unit is shorter";
  EXPECT_EQ(sizes(512, by256, 4), (V{0, 256, 0, 256})) << "fewer units than shards";
  const ShardSpec heads{.side = ShardSpec::Side::kOut, .unit = 512, .repeat = true};
  EXPECT_EQ(shard_ranges(1024, heads, 4), (ShardRanges{{0, 512}, {0, 512}, {512, 1024}, {512, 1024}}));
  EXPECT_EQ(sizes(4096, heads, 4), (V{1024, 1024, 1024, 1024}));
  EXPECT_EQ(sizes(100, {}, 2), (V{100, 100})) << "whole";
}
TEST(ShardSpec, BlocksStayWhole) {
  EXPECT_TRUE(ranges_hold_whole_blocks({{0, 256}, {256, 512}}, DType::kQ4_K));
  EXPECT_FALSE(ranges_hold_whole_blocks({{0, 128}, {128, 512}}, DType::kQ4_K));
  EXPECT_TRUE(ranges_hold_whole_blocks({{0, 32}, {32, 512}}, DType::kQ8_0));
}

// The parts of all shards are the tensor, element by element.
TEST(ShardSpec, PartsMakeTheWhole) {
  const int64_t in = 6, out = 8, stack = 3;
  std::vector<float> v(size_t(in * out * stack));
  std::iota(v.begin(), v.end(), 0.f);
  TensorView t{.name = "t",
               .type = DType::kF32,
               .n_dims = 3,
               .ne = {in, out, stack, 1},
               .data = std::as_bytes(std::span<const float>(v))};
  const auto at = [](const TensorView& x, int64_t s, int64_t o, int64_t i) {
    float f;
    std::memcpy(&f, x.data.data() + size_t((s * x.ne[1] + o) * x.ne[0] + i) * sizeof f, sizeof f);
    return f;
  };
  for (const int folds : {1, 2})
    for (const ShardSpec::Side side : {ShardSpec::Side::kOut, ShardSpec::Side::kIn}) {
      const ShardSpec c{.side = side, .unit = 1, .folds = folds};
      const bool is_in = side == ShardSpec::Side::kIn;
      if (is_in && folds > 1) continue;
      for (const Range& r : shard_ranges(is_in ? in : out / folds, c, 3)) {
        const ShardedTensor part = shard_tensor(t, c, r);
        ASSERT_EQ(int64_t(part.view.data.size()), part.view.n_elements() * 4);
        for (int64_t s = 0; s < stack; ++s)
          for (int64_t o = 0; o < part.view.ne[1]; ++o)
            for (int64_t i = 0; i < part.view.ne[0]; ++i) {
              const int64_t n = r.size();
              const int64_t whole_o = is_in ? o : o / n * (out / folds) + r.begin + o % n;
              EXPECT_EQ(at(part.view, s, o, i), at(t, s, whole_o, is_in ? r.begin + i : i));
            }
      }
    }
  t.ne[2] = 1, t.data = t.data.first(size_t(in * out) * 4);
  const ShardedTensor rows = shard_tensor(t, {.side = ShardSpec::Side::kOut}, {2, 5});
  EXPECT_TRUE(rows.bytes.empty()) << "rows in one piece are not copied";
  EXPECT_EQ(rows.view.data.data(), t.data.data() + 2 * in * 4);
}

ModelCfg model(int q, std::vector<int> kv) {
  ModelCfg m;
  m.n_q_head = q;
  for (const int n : kv) m.layer.push_back({.n_kv_head = n});
  return m;
}
TEST(Shards, NumbersThatDivideTheHeads) {
  using V = std::vector<int>;
  EXPECT_EQ(shard_counts(model(32, {16, 4})), (V{2, 4, 8}));  // 31B
  EXPECT_EQ(shard_counts(model(16, {8, 2})), (V{2, 4, 8}));   // 26B-A4B
  EXPECT_EQ(shard_counts(model(8, {2})), (V{2, 4, 8}));       // E4B
  EXPECT_EQ(shard_counts(model(12, {6, 3})), (V{3, 6}));      // two shards would share heads of three
  EXPECT_EQ(shard_counts(model(5, {1})), (V{5}));
  EXPECT_EQ(shard_config(model(32, {16, 4}), 8).layer[0].n_kv_head, 2);
  EXPECT_EQ(shard_config(model(32, {16, 4}), 8).layer[1].n_kv_head, 1);
  EXPECT_EQ(shard_config(model(32, {16, 4}), 8).n_q_head, 4);
  EXPECT_EQ(shard_config(model(32, {16, 4}), 3).n_q_head, 32) << "whole";
}

TEST(Shards, LayersInTheProportionOfShares) {
  using V = std::vector<int>;
  ModelCfg m;
  m.layer.resize(60);
  const auto layers = [&](std::vector<double> shares) {
    const auto v = split_layers(m, shares);
    return v ? *v : V{};
  };
  EXPECT_EQ(layers({3, 2}), (V{36, 24}));
  EXPECT_EQ(layers({1, 1, 1}), (V{20, 20, 20}));
  EXPECT_EQ(layers({24, 16}), (V{36, 24}));
  EXPECT_EQ(layers({1}), (V{60}));
  EXPECT_EQ(layers({1000, 1}), (V{59, 1}));
  EXPECT_EQ(layers({1, 1000, 1}), (V{1, 58, 1}));
  m.layer.resize(3);
  EXPECT_EQ(layers({1, 1000, 1}), (V{1, 1, 1}));
  EXPECT_EQ(split_layers(m, std::vector<double>{1, 1, 1, 1}).error().message(),
            "--split: expected up to 3 shares above 0, found 1,1,1,1 (give one for each GPU, such as 3,2)");
  for (const std::vector<double>& bad :
       {std::vector<double>{}, {1, 0}, {1, -1}, {1, std::numeric_limits<double>::infinity()}})
    EXPECT_FALSE(split_layers(m, bad));
}

}  // namespace
}  // namespace facet::test
