// Encoders of pictures and sound on a GPU: the official soft tokens, verbs one by one, and how long a tower takes.
#include <chrono>
#include <cstdlib>

#include "backend/cuda/cuda.h"
#include "backend/lockstep.h"
#include "backend/traced.h"
#include "formats/synth.h"
#include "support/encoder_bench.h"
#include "support/on_device.h"

namespace facet::test {
namespace {

class CudaEncoders : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Cases, CudaEncoders, testing::Values("large", "edge", "unified"));

TEST_P(CudaEncoders, SoftTokensAreTheOfficialOnes) {
  NEEDS_GPU();
  const MediaCase m = media_case(GetParam());
  VisionBench<Cuda> v(m.file(), 64);
  for (const char* name : {"grid", "flat"}) {
    const Picture p[] = {golden_picture(name)};
    const double c = least_cosine(v.soft(p), m.goldens().values<float>(name + std::string(".soft")), v.c.d_out);
    std::printf("| %s | %s | %.6f |\n", GetParam(), name, c);
    EXPECT_GE(c, .9995) << name;
  }
  if (!v.file.audio()) return;
  AudioBench<Cuda> a(m.file(), 128);
  const auto rows = m.goldens().values<float>(a.c.is_unified ? "sound.frames" : "sound.mel");
  EXPECT_GE(least_cosine(a.soft(rows), m.goldens().values<float>("sound.soft"), a.c.d_out), .9995);
}

TEST_P(CudaEncoders, EveryVerbIsInLockstep) {
  NEEDS_GPU();
  const MediaCase m = media_case(GetParam());
  VisionBench<Lockstep<Cuda, CpuRef>> v(m.file(), 64, std::tuple<>{}, std::tuple<int>{2});
  const Picture p[] = {golden_picture("grid")};
  v.soft(p);
  for (const VerbDifference& d : v.b.differences()) ADD_FAILURE() << d.message();
  if (!v.file.audio()) return;
  AudioBench<Lockstep<Cuda, CpuRef>> a(m.file(), 128, std::tuple<>{}, std::tuple<int>{2});
  a.soft(m.goldens().values<float>(a.c.is_unified ? "sound.frames" : "sound.mel"));
  for (const VerbDifference& d : a.b.differences()) ADD_FAILURE() << d.message();
}

TEST_P(CudaEncoders, ABatchOfPicturesIsEachOfThem) {
  NEEDS_GPU();
  VisionBench<Cuda> v(media_case(GetParam()).file(), 256);
  const Picture all[] = {golden_picture("grid"), golden_picture("flat"), golden_picture("grid")};
  std::vector<float> each;
  for (const Picture& p : all) {
    const auto one = v.soft({&p, 1});
    each.insert(each.end(), one.begin(), one.end());
  }
  EXPECT_GE(least_cosine(v.soft(all), each, v.c.d_out), .99999);
}

// 26B's tower from a file of random weights, pixels on the device already. FACET_TEST_ENCODER_FILE names the file, or
// where it is to be written (1.2 GB).
TEST(CudaTower, TimeOfATower) {
  NEEDS_GPU();
  const char* path = std::getenv("FACET_TEST_ENCODER_FILE");
  if (!path) GTEST_SKIP() << "FACET_TEST_ENCODER_FILE is not set";
  if (!std::filesystem::exists(path)) must(synth_write(must(synth_mmproj_plan("26b", "BF16")), path, 1, {}));
  VisionBench<Cuda> v(must(MmprojFile::open(path)), 10080);
  for (const auto& [w, h] : {std::pair{60, 42}, {120, 84}}) {
    const Picture p[] = {flat_picture(w, h, 120, 30, 200)};
    const EncoderStep e = v.load(p);
    const Step s = e.step();
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      v.b.finish();
      const auto start = std::chrono::steady_clock::now();
      run_pass(v.b, s, &v, [&] { return vision_forward(v.b, v.c, v.W, s, v.w); });
      v.b.finish();
      best =
          std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("| 26B tower | %d soft tokens | %.1f ms |\n", e.n_tok() / 9, best);
  }
  // What its verbs cost one by one, where none overlaps another.
  VisionBench<Traced<Cuda>> t(must(MmprojFile::open(path)), 10080);
  for (const auto& [w, h] : {std::pair{60, 42}, {120, 84}}) {
    const Picture p[] = {flat_picture(w, h, 120, 30, 200)};
    t.soft(p);
    t.b.reset();
    t.b.trace(true);
    t.soft(p);
    t.b.take_laps();
    t.b.trace(false);
    for (const auto& [name, cost] : t.b.costs())
      std::printf("| %d | %s | %d | %.2f ms |\n", w * h / 9, name.c_str(), int(cost.calls), cost.ms);
  }
}

}  // namespace
}  // namespace facet::test
