// CUDA's verbs of encoders against CpuRef.
#include "backend/cuda/cuda.h"
#include "support/encoder_verbs.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

TEST(CudaEncoder, EveryVerbAgrees) {
  NEEDS_GPU();
  for (const EncoderShape& shape : encoder_shapes()) {
    SCOPED_TRACE("heads of " + std::to_string(shape.head_dim));
    EncoderVerbs<Cuda> v(std::tuple<>{}, std::tuple<int>{2});
    v.pictures(shape);
    v.expect_none();
  }
  for (const int frames : {1, 2, 7, 53}) {
    SCOPED_TRACE(std::to_string(frames) + " frames");
    EncoderVerbs<Cuda> v(std::tuple<>{}, std::tuple<int>{2});
    v.sound(frames, 128, 128, 8, 2, 16, 12);
    v.sound(frames, 32, 16, 4, 1, 128, 12);
    v.expect_none();
  }
}

// Memory behind a picture's rows is not read: NaN there changes nothing.
TEST(CudaEncoder, NothingBehindAPictureIsRead) {
  NEEDS_GPU();
  Cuda b(0);
  const EncoderStep e = EncoderStep::pictures(std::vector<EncoderStep::Grid>{{9, 6}});
  const Step s = e.step();
  const int T = e.n_tok(), E = 72;
  b.reserve({.max_tok = 128,
             .max_rows = 128,
             .max_cols = E,
             .n_q_head = 1,
             .head_dim = 64,
             .n_kv_head = 1,
             .encoder_head = E});
  auto with = [&](float behind) {
    std::vector<Cuda::Rows> x;
    for (int i = 0; i < 3; ++i) {
      x.push_back(b.new_rows(128, E));
      std::vector<float> v(size_t(128) * E, behind);
      for (int j = 0; j < T * E; ++j) v[size_t(j)] = std::sin(float(j * (i + 1)));
      b.from_host(x.back(), v);
    }
    auto o = b.new_rows(128, E);
    run_pass(b, s, nullptr, [&] {
      b.encoder_attend(o.view(T, E), x[0].view(T, E), x[1].view(T, E), x[2].view(T, E), s, E, 1.f);
      return o;
    });
    return b.to_host(o.view(T, E));
  };
  EXPECT_EQ(with(0), with(NAN));
}

}  // namespace
}  // namespace facet::test
