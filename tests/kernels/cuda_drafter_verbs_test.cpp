// The verbs of DFlash 2 and EAGLE-3 on the device against the same in double precision. What they write is poisoned with
// NaN first.
#include <cuda_runtime.h>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/ops.h"
#include "base/half.h"
#include "support/drafter_verbs.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

struct StepOnDevice {
  OnDevice<int32_t> pos, seq, q_begin;
  Step step;
  explicit StepOnDevice(const StepOfBlocks& s) : pos(s.pos), seq(s.seq), q_begin(s.q_begin) {
    step = s.step(pos.p(), seq.p(), q_begin.p());
  }
};

TEST(CudaDrafterVerbs, HeadRope) {
  NEEDS_GPU();
  // Cephes' polynomials on an angle reduced in double: three roundings of numbers below 1, as many halves of 2^-24, and
  // less than one more of what they were rounded from.
  check_head_rope({64, 128, 256, 512}, 2, 4 * 0x1p-25, [](const RopeCase& c) {
    StepOnDevice s(c.s);
    OnDevice<float> x(c.x);
    OnDevice<double> freqs(c.freqs);
    const size_t n = size_t(c.s.rows()) * size_t(c.cols());
    OnDevice<uint16_t> bf(n);
    cuda::head_rope(nullptr,
                    {.p = x.p(),
                     .rows = c.s.rows(),
                     .cols = c.cols(),
                     .stride = c.stride(),
                     .bf = reinterpret_cast<__nv_bfloat16*>(bf.p()),
                     .bf_stride = c.cols()},
                    {freqs.p(), c.width / 2}, s.step);
    const auto got = x.get();
    const auto rounded = bf.get();
    for (size_t i = 0; i < n; ++i) {
      const size_t row = i / size_t(c.cols()), col = i % size_t(c.cols());
      EXPECT_EQ(rounded[i], f32_to_bf16(got[row * size_t(c.stride()) + col]));
      if (testing::Test::HasFailure()) break;
    }
    return got;
  });
}
TEST(CudaDrafterVerbs, BlockConv) {
  NEEDS_GPU();
  check_block_conv({{64, 16}, {60, 12}, {96, 96}, {36, 4}, {2816, 16}, {5376, 16}}, 2, [](const ConvCase& c) {
    StepOnDevice s(c.s);
    OnDevice<float> x(c.x), delta(c.delta), base(c.base), y(c.x.size());
    const auto mat = [&](float* p, int cols, int stride) {
      return cuda::Mat{.p = p, .rows = c.s.rows(), .cols = cols, .stride = stride};
    };
    cuda::block_conv(nullptr, mat(y.p(), c.cols, c.cols), mat(x.p(), c.cols, c.cols),
                     mat(delta.p() + c.width(), c.width(), 2 * c.width()), base.p(), c.taps, s.step);
    EXPECT_EQ(x.get(), c.x);
    return y.get();
  });
}

}  // namespace
}  // namespace facet::test
