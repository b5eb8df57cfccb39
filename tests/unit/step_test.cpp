#include <gtest/gtest.h>

#include "backend/step_builder.h"

namespace facet::test {
namespace {

TEST(StepBuilder, LaysOutAMixedStep) {
  StepBuilder b(32, 4, 8);
  const std::vector<int32_t> chunk{7, 8, 9}, tree{1, 2, 3, 4};
  const std::vector<int16_t> parent{-1, 0, 0, 2};
  b.begin();
  b.add({.slot = 2, .kv_len = 10, .token = chunk, .out = Out::kLast});
  b.add({.slot = 0, .kv_len = 5, .token = tree, .out = Out::kAll, .mask = Mask::kTree, .parent = parent});
  b.pad_to(8);
  const Step& s = b.finish();
  EXPECT_EQ(s.shape,
            (StepShape{.n_tok = 8, .n_seq = 2, .n_out = 5, .n_small = 7, .longest = 13, .n_path = 2, .staged = false}));
  auto list = [](const int32_t* p, int n) { return std::vector<int32_t>(p, p + n); };
  EXPECT_EQ(list(s.pos, 7), (std::vector<int32_t>{10, 11, 12, 5, 6, 6, 7}));
  EXPECT_EQ(list(s.seq, 8), (std::vector<int32_t>{0, 0, 0, 1, 1, 1, 1, -1}));
  EXPECT_EQ(list(s.q_begin, 3), (std::vector<int32_t>{0, 3, 7}));
  EXPECT_EQ(list(s.out_row, 5), (std::vector<int32_t>{2, 3, 4, 5, 6}));
  EXPECT_EQ(s.ancestor[6], 0b1101u);
  EXPECT_EQ(s.ancestor[5], 0b101u);
}

TEST(StepBuilder, KnowsWhenAChunkIsStaged) {
  StepBuilder b(32, 4, 8);
  const std::vector<int32_t> t(9, 1);
  b.begin();
  b.add({.slot = 0, .token = std::span(t).first(8)});
  EXPECT_FALSE(b.finish().shape.staged);
  b.begin();
  b.add({.slot = 0, .token = t});
  EXPECT_TRUE(b.finish().shape.staged);
}

TEST(Visibility, TruthTable) {
  for (int j = 0; j < 5; ++j)
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(sees_in_step(Mask::kCausal, 0, j, i, false), i <= j);
      EXPECT_EQ(sees_in_step(Mask::kTree, 0b01011, j, i, false), i == 0 || i == 1 || i == 3);
      EXPECT_TRUE(sees_in_step(Mask::kBlock, 0, j, i, false));
      EXPECT_EQ(sees_in_step(Mask::kBlock, 0, j, i, true), i <= j);
      EXPECT_FALSE(sees_in_step(Mask::kPast, 0, j, i, false));
    }
}

}  // namespace
}  // namespace facet::test
