// Encoders of pictures and sound against the official implementation, stage by stage (tests/data/README.md).
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "backend/cpu/cpu_fast.h"
#include "backend/lockstep.h"
#include "support/encoder_bench.h"
#include "support/rewrite_gguf.h"

namespace facet::test {
namespace {

// Of the largest value of a stage. The official ones differ by up to 1.5e-6 among themselves.
constexpr double kBound = 5e-5;

void check(const Stages& got, const RawTensors& want, const std::string& prefix, double bound = kBound) {
  for (const auto& [stage, values] : got) {
    if (!want.has(prefix + stage)) continue;
    const double d = relative_difference(values, want.values<float>(prefix + stage));
    std::printf("| %s%s | %.1e |\n", prefix.c_str(), stage.c_str(), d);
    EXPECT_LE(d, bound) << prefix << stage;
  }
  EXPECT_TRUE(got.contains("soft") && want.has(prefix + "soft"));
}

class Encoders : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Cases, Encoders, testing::Values("large", "edge", "unified"));

TEST_P(Encoders, StagesOfPicturesAreTheOfficialOnes) {
  const MediaCase m = media_case(GetParam());
  VisionBench<CpuRef> v(m.file(), 64);
  for (const char* name : {"grid", "flat"}) {
    const Picture p[] = {golden_picture(name)};
    check(v.stages(p), m.goldens(), name + std::string("."));
  }
}

TEST_P(Encoders, StagesOfSoundAreTheOfficialOnes) {
  const MediaCase m = media_case(GetParam());
  if (!m.file().audio()) return;
  AudioBench<CpuRef> a(m.file(), 128);
  const auto rows = m.goldens().values<float>(a.c.is_unified ? "sound.frames" : "sound.mel");
  check(a.stages(rows), m.goldens(), "sound.");
}

// Every picture of a batch has the bits that it has alone.
TEST_P(Encoders, ABatchOfPicturesIsEachOfThem) {
  const Picture all[] = {golden_picture("grid"), golden_picture("flat"), golden_picture("grid")};
  auto law = [&](auto backend) {
    VisionBench<typename decltype(backend)::type> v(media_case(GetParam()).file(), 256, 2);
    std::vector<float> each;
    for (const Picture& p : all) {
      const auto one = v.soft({&p, 1});
      each.insert(each.end(), one.begin(), one.end());
    }
    EXPECT_TRUE(bitwise_equal(v.soft(all), each));
  };
  law(std::type_identity<CpuRef>{});
  law(std::type_identity<CpuFast>{});
}

TEST_P(Encoders, TheCpuBackendAgrees) {
  const MediaCase m = media_case(GetParam());
  VisionBench<CpuFast> v(m.file(), 64, 2);
  for (const char* name : {"grid", "flat"}) {
    const Picture p[] = {golden_picture(name)};
    const auto want = m.goldens().values<float>(name + std::string(".soft"));
    EXPECT_GE(least_cosine(v.soft(p), want, v.c.d_out), .9995) << name;
  }
  if (!v.file.audio()) return;
  AudioBench<CpuFast> a(m.file(), 128, 2);
  const auto rows = m.goldens().values<float>(a.c.is_unified ? "sound.frames" : "sound.mel");
  EXPECT_GE(least_cosine(a.soft(rows), m.goldens().values<float>("sound.soft"), a.c.d_out), .9995);
}

// The tensor's values times 2^17, which bf16 and f32 have and 16-bit halves have not.
std::vector<std::byte> enlarged(const TensorView& t) {
  std::vector<std::byte> out(t.data.begin(), t.data.end());
  constexpr int kMore = 17;
  if (t.type == DType::kF32)
    for (size_t i = 0; i < out.size(); i += 4) {
      float x;
      std::memcpy(&x, out.data() + i, 4);
      x = std::ldexp(x, kMore);
      std::memcpy(out.data() + i, &x, 4);
    }
  else
    for (size_t i = 0; i < out.size(); i += 2) {
      uint16_t x;
      std::memcpy(&x, out.data() + i, 2);
      if (x & 0x7F80) x = uint16_t(x + (kMore << 7));  // its exponent
      std::memcpy(out.data() + i, &x, 2);
    }
  return out;
}
// Planted: what leaves the patches or the tower in half precision.
struct HalfTail : CpuRef {
  void shift_scale(Rows x, Vec shift, Vec scale) {
    CpuRef::shift_scale(x, shift, scale);
    std::vector<float> v = to_host(x);
    for (float& f : v) f = std::abs(f) > 65504 ? std::copysign(INFINITY, f) : f;
    from_host(x, v);
  }
};

// What a norm follows may be of any size: 26B's tower and 12B's patches leave the range of half precision.
TEST(EncoderRange, ValuesBeyondHalfPrecisionChangeNothing) {
  const std::map<std::string, std::vector<std::string>> cases{
      {"large", {"v.std_scale"}}, {"unified", {"v.patch_embd.weight", "v.patch_embd.bias"}}};
  for (const auto& c : cases) {
    const std::string& name = c.first;
    const std::vector<std::string>& grown = c.second;
    const MediaCase m = media_case(name);
    const std::string path = testing::TempDir() + "enlarged-" + std::to_string(::getpid()) + ".gguf";
    Rewrite r;
    r.bytes = [&](const TensorView& t) {
      const bool grows = std::find(grown.begin(), grown.end(), t.name) != grown.end();
      return grows ? enlarged(t) : std::vector<std::byte>(t.data.begin(), t.data.end());
    };
    rewrite_gguf(m.folder + "/mmproj-BF16.gguf", path, r);
    const auto want = m.goldens().values<float>("grid.soft");
    const Picture p[] = {golden_picture("grid")};
    VisionBench<CpuRef> ref(must(MmprojFile::open(path)), 64);
    EXPECT_LE(relative_difference(ref.soft(p), want), kBound) << name;
    VisionBench<CpuFast> fast(must(MmprojFile::open(path)), 64, 2);
    EXPECT_GE(least_cosine(fast.soft(p), want, fast.c.d_out), .9995) << name;
    VisionBench<HalfTail> half(must(MmprojFile::open(path)), 64);
    EXPECT_FALSE(relative_difference(half.soft(p), want) <= .1) << name;
    std::filesystem::remove(path);
  }
}

TEST_P(Encoders, EveryVerbIsInLockstep) {
  const MediaCase m = media_case(GetParam());
  VisionBench<Lockstep<CpuFast, CpuRef>> v(m.file(), 64, 2);
  const Picture p[] = {golden_picture("grid")};
  v.soft(p);
  EXPECT_GT(v.b.compared(), 5);
  for (const VerbDifference& d : v.b.differences()) ADD_FAILURE() << d.message();
  if (!v.file.audio()) return;
  AudioBench<Lockstep<CpuFast, CpuRef>> a(m.file(), 128, 2);
  a.soft(m.goldens().values<float>(a.c.is_unified ? "sound.frames" : "sound.mel"));
  for (const VerbDifference& d : a.b.differences()) ADD_FAILURE() << d.message();
}

// The larger goldens of scripts/test.sh --fixtures, whose files llama.cpp's converter wrote: media/<case>.
class LargeEncoders : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("FACET_TEST_FIXTURES");
    if (folder) all_ = std::string(folder) + "/media", folder_ = all_ + "/" + GetParam();
    if (!folder || !std::filesystem::exists(folder_)) GTEST_SKIP() << "no larger fixtures";
  }
  RawTensors goldens(const char* name) const { return RawTensors(folder_ + "/" + name); }
  Picture grid() const { return {9, 6, patches_of(all_ + "/grid.safetensors")}; }
  std::vector<float> mel(const std::string& sound, bool is_unified) const {
    const RawTensors f(all_ + "/mel.safetensors");
    if (!is_unified) return f.values<float>(sound + ".mel");
    auto samples = f.values<float>(sound + ".samples");
    samples.resize((samples.size() + 639) / 640 * 640);
    return samples;
  }
  std::string all_, folder_;
};
INSTANTIATE_TEST_SUITE_P(Cases, LargeEncoders, testing::Values("large", "edge", "unified"));

TEST_P(LargeEncoders, StagesAreTheOfficialOnes) {
  const MediaCase m{folder_};
  VisionBench<CpuRef> v(m.file(), 576, 2);
  const Picture p[] = {grid()};
  check(v.stages(p), goldens("pictures.safetensors"), "grid.");
  if (!v.file.audio()) return;
  AudioBench<CpuRef> a(m.file(), 128, 2);
  for (const std::string sound : {"mono16k", "stereo44k", "eight8k"}) {
    if (a.c.is_unified && sound == "mono16k") continue;  // its samples are in a WAV file
    Stages got = a.stages(mel(sound, a.c.is_unified));
    if (got.contains("conv1")) {  // theirs: [channel][time][mel]
      const std::vector<float> mine = got["conv1"];
      const int C = a.c.conv[1], M = a.c.n_mel / 4, T = int(mine.size()) / (C * M);
      for (int t = 0; t < T; ++t)
        for (int i = 0; i < M; ++i)
          for (int c = 0; c < C; ++c) got["conv1"][size_t((c * T + t) * M + i)] = mine[size_t((t * M + i) * C + c)];
    }
    check(got, goldens("sounds.safetensors"), sound + ".");
  }
}

TEST_P(LargeEncoders, TheCpuBackendAgrees) {
  for (const auto& [type, bound] : {std::pair{"BF16", .9995}, {"F16", .9995}, {"Q8_0", .999}}) {
    if (!std::filesystem::exists(folder_ + "/mmproj-" + type + ".gguf")) continue;
    const MediaCase m{folder_};
    VisionBench<CpuFast> v(m.file(type), 576, 2);
    const Picture p[] = {grid()};
    const double c = least_cosine(v.soft(p), goldens("pictures.safetensors").values<float>("grid.soft"), v.c.d_out);
    std::printf("| %s | %s | pictures | %.6f |\n", GetParam(), type, c);
    EXPECT_GE(c, bound) << type;
    if (!v.file.audio()) continue;
    AudioBench<CpuFast> a(m.file(type), 128, 2);
    const auto want = goldens("sounds.safetensors").values<float>("stereo44k.soft");
    const double d = least_cosine(a.soft(mel("stereo44k", a.c.is_unified)), want, a.c.d_out);
    std::printf("| %s | %s | sound | %.6f |\n", GetParam(), type, d);
    EXPECT_GE(d, bound) << type;
  }
}

}  // namespace
}  // namespace facet::test
