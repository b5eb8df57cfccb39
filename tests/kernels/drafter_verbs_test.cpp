// The verbs of DFlash 2 and EAGLE-3 on the CPU against the same in double precision.
#include "support/drafter_verbs.h"

#include "backend/cpu/cpu_fast.h"

namespace facet::test {
namespace {

template <class B>
class DrafterVerbs : public testing::Test {};
using Backends = testing::Types<CpuRef, CpuFast>;
TYPED_TEST_SUITE(DrafterVerbs, Backends);

CpuRef::Rows rows_of(std::vector<float>& v, int cols, int stride) {
  return {v.data(), int(v.size()) / stride, cols, stride};
}

// A cosine of the angle in double, rounded once: a quarter of the distance of the numbers below 2.
TYPED_TEST(DrafterVerbs, HeadRope) {
  check_head_rope({2, 6, 32, 34, 64, 128, 256, 512}, 3, 0x1p-25, [](const RopeCase& c) {
    std::vector<float> first;
    for (const int threads : {1, 3}) {
      TypeParam b(threads);
      std::vector<float> x = c.x;
      b.head_rope(rows_of(x, c.cols(), c.stride()), b.upload(std::span<const double>(c.freqs)), c.s.host());
      if (threads == 1) first = x;
      EXPECT_EQ(x, first) << threads << " threads";
    }
    return first;
  });
}
TYPED_TEST(DrafterVerbs, BlockConv) {
  check_block_conv({{15, 5}, {9, 1}, {64, 16}, {60, 12}, {96, 96}, {2816, 16}, {5376, 16}}, 2, [](const ConvCase& c) {
    TypeParam b(1);
    std::vector<float> x = c.x, y(x.size(), NAN), delta = c.delta;
    const auto part = rows_of(delta, 2 * c.width(), 2 * c.width()).cols_at(c.width(), c.width());
    b.block_conv(rows_of(y, c.cols, c.cols), rows_of(x, c.cols, c.cols), part, {c.base.data(), int(c.base.size())},
                 c.s.host());
    EXPECT_EQ(x, c.x);
    return y;
  });
}

}  // namespace
}  // namespace facet::test
