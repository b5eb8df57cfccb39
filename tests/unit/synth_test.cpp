// Plans against the published files: tensor counts, type histograms, sizes and parameter counts.
#include "formats/synth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "base/files.h"
#include "support/bytes.h"

namespace facet {
namespace {

SynthPlan plan(std::string_view preset, std::string_view quant) {
  auto p = synth_plan(preset, quant);
  EXPECT_TRUE(p) << p.error().message();
  return *p;
}

std::map<std::string, int> histogram(const SynthPlan& p) {
  std::map<std::string, int> h;
  for (const SynthTensor& t : p.tensors) ++h[dtype_name(t.type)];
  return h;
}

int64_t elements(const SynthPlan& p) {
  int64_t sum = 0;
  for (const SynthTensor& t : p.tensors) {
    int64_t n = 1;
    for (int64_t d : t.ne) n *= d;
    sum += n;
  }
  return sum;
}

const SynthTensor& tensor(const SynthPlan& p, std::string_view name) {
  for (const SynthTensor& t : p.tensors)
    if (t.name == name) return t;
  ADD_FAILURE() << "no tensor " << name;
  return p.tensors[0];
}

TEST(SynthPlan, CountsOfThePublishedModels) {
  const struct {
    const char* preset;
    size_t tensors;
    int f32;
    int64_t elements;
  } table[] = {{"31b", 833, 422, 30697345596},
               {"26b-a4b", 658, 392, 25233142046},
               {"12b", 667, 338, 11907350576},
               {"e4b", 720, 339, 7518069290},
               {"e2b", 601, 283, 4647450147}};
  for (const auto& row : table)
    for (std::string_view quant : synth_quants()) {
      const SynthPlan p = plan(row.preset, quant);
      EXPECT_EQ(p.tensors.size(), row.tensors) << row.preset;
      EXPECT_EQ(histogram(p)["F32"], row.f32) << row.preset;
      EXPECT_EQ(elements(p), row.elements) << row.preset;
    }
}

TEST(SynthPlan, HistogramsAndSizesOfThePublishedFiles) {
  const struct {
    const char *preset, *quant;
    std::map<std::string, int> types;  // without F32
    double gib;                        // of the tensors
  } table[] = {
      {"31b", "Q8_0", {{"Q8_0", 411}}, 30.38},
      {"31b", "Q4_K_M", {{"Q4_K", 355}, {"Q6_K", 56}}, 17.39},
      {"31b", "Q5_K_M", {{"Q5_K", 355}, {"Q6_K", 56}}, 20.33},
      {"31b", "Q6_K", {{"Q6_K", 411}}, 23.46},
      {"26b-a4b", "Q4_K_M", {{"Q4_K", 192}, {"Q6_K", 14}, {"Q5_0", 32}, {"Q8_0", 28}}, 15.63},
      {"26b-a4b", "Q5_K_M", {{"Q5_K", 192}, {"Q6_K", 14}, {"Q5_1", 32}, {"Q8_0", 28}}, 17.80},
      {"26b-a4b", "Q6_K", {{"Q6_K", 206}, {"Q8_0", 60}}, 21.07},
      {"26b-a4b", "Q8_0", {{"Q8_0", 266}}, 25.00},
      {"12b", "Q4_K_M", {{"Q4_K", 284}, {"Q6_K", 45}}, 6.86},
      {"12b", "Q8_0", {{"Q8_0", 329}}, 11.78},
      {"e4b", "Q4_K_M", {{"Q4_K", 336}, {"Q6_K", 44}, {"BF16", 1}}, 4.95},
      {"e4b", "Q8_0", {{"Q8_0", 380}, {"BF16", 1}}, 7.46},
      {"e4b", "BF16", {{"BF16", 381}}, 14.00},
      {"e2b", "Q4_K_M", {{"Q4_K", 281}, {"Q6_K", 36}, {"BF16", 1}}, 3.18},
      {"31b", "Q4_0", {{"Q4_0", 410}, {"Q6_K", 1}}, 16.42},
  };
  for (const auto& row : table) {
    const SynthPlan p = plan(row.preset, row.quant);
    auto h = histogram(p);
    h.erase("F32");
    EXPECT_EQ(h, row.types) << row.preset << " " << row.quant;
    EXPECT_NEAR(double(synth_bytes(p)) / double(1 << 30), row.gib, 0.0051) << row.preset << " " << row.quant;
  }
}

TEST(SynthPlan, ShapesOfBothLayerKinds) {
  const SynthPlan p = plan("31b", "Q4_K_M");
  EXPECT_EQ(tensor(p, "blk.0.attn_q.weight").ne, (std::vector<int64_t>{5376, 8192}));
  EXPECT_EQ(tensor(p, "blk.0.attn_v.weight").ne, (std::vector<int64_t>{5376, 4096}));
  EXPECT_EQ(tensor(p, "blk.5.attn_q.weight").ne, (std::vector<int64_t>{5376, 16384}));
  EXPECT_EQ(tensor(p, "blk.5.attn_k.weight").ne, (std::vector<int64_t>{5376, 2048}));
  EXPECT_EQ(tensor(p, "blk.5.attn_output.weight").ne, (std::vector<int64_t>{16384, 5376}));
  for (const SynthTensor& t : p.tensors) EXPECT_NE(t.name, "blk.5.attn_v.weight");
  EXPECT_EQ(tensor(p, "rope_freqs.weight").ne, (std::vector<int64_t>{256}));
  const SynthPlan e = plan("e2b", "Q8_0");
  EXPECT_EQ(tensor(e, "blk.14.ffn_up.weight").ne, (std::vector<int64_t>{1536, 6144}));
  EXPECT_EQ(tensor(e, "blk.15.ffn_up.weight").ne, (std::vector<int64_t>{1536, 12288}));
  EXPECT_EQ(tensor(e, "per_layer_token_embd.weight").ne, (std::vector<int64_t>{8960, 262144}));
  EXPECT_EQ(tensor(e, "blk.4.attn_v.weight").ne, (std::vector<int64_t>{1536, 512}));
  const SynthPlan m = plan("26b-a4b", "Q4_K_M");
  EXPECT_EQ(tensor(m, "blk.0.ffn_gate_up_exps.weight").ne, (std::vector<int64_t>{2816, 1408, 128}));
  EXPECT_EQ(tensor(m, "blk.0.ffn_down_exps.weight").ne, (std::vector<int64_t>{704, 2816, 128}));
}

TEST(SynthPlan, Drafters) {
  const SynthPlan d = plan("31b-dflash", "Q8_0");
  EXPECT_EQ(d.tensors.size(), 58u);
  EXPECT_NEAR(double(elements(d)), 1.536e9, 1e6);
  EXPECT_EQ(tensor(d, "fc.weight").ne, (std::vector<int64_t>{32256, 5376}));
  EXPECT_NEAR(double(synth_bytes(d)), 1.632e9, 1e6);
  const SynthPlan d26 = plan("26b-a4b-dflash", "BF16");
  EXPECT_EQ(d26.tensors.size(), 58u);
  EXPECT_NEAR(double(synth_bytes(d26)), 0.859e9, 1e6);
  const SynthPlan m = plan("31b-mtp", "Q4_K_M");
  EXPECT_EQ(m.tensors.size(), 49u);
  EXPECT_NEAR(double(elements(m)), 469.5e6, 1e5);
  EXPECT_EQ(tensor(m, "nextn.pre_projection.weight").ne, (std::vector<int64_t>{10752, 1024}));
  EXPECT_EQ(tensor(m, "blk.3.attn_q.weight").ne, (std::vector<int64_t>{1024, 16384}));
  EXPECT_NEAR(double(elements(plan("26b-a4b-mtp", "Q8_0"))), 419.7e6, 1e5);
}

TEST(SynthPlan, TinyIsTiny) { EXPECT_NEAR(double(synth_bytes(plan("tiny", "Q4_K_M"))), 400e6, 20e6); }

TEST(SynthPlan, UnknownNamesAreErrors) {
  EXPECT_NE(synth_plan("7b", "Q8_0").error().message().find("preset; expected one of 31b"), std::string::npos);
  EXPECT_NE(synth_plan("31b", "Q9").error().message().find("quant; expected one of Q4_K_M"), std::string::npos);
}

// A small plan with every fill and every type that can be generated.
SynthPlan small() {
  SynthPlan p;
  p.meta = {{"general.architecture", std::string("gemma4")}, {"x.flags", std::vector<bool>{true, false}}};
  for (DType t : {DType::kF32, DType::kBF16, DType::kQ4_0, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ4_K,
                  DType::kQ5_K, DType::kQ6_K, DType::kIQ1_S, DType::kIQ1_M, DType::kIQ2_XXS, DType::kIQ2_XS,
                  DType::kIQ2_S, DType::kIQ3_XXS, DType::kIQ3_S, DType::kMXFP4, DType::kNVFP4})
    p.tensors.push_back({std::string("w.") + dtype_name(t), {1024, 64}, SynthFill::kNormal, t});
  p.tensors.push_back({"norm", {300}, SynthFill::kUnit, DType::kF32});
  p.tensors.push_back({"router", {64, 16}, SynthFill::kRouter, DType::kF32});
  p.tensors.push_back({"rope", {256}, SynthFill::kRopeFreqs, DType::kF32});
  return p;
}

std::vector<float> values(const GgufFile& f, std::string_view name) {
  const TensorView* t = f.find(name);
  EXPECT_NE(t, nullptr) << name;
  std::vector<float> v(size_t(t->n_elements()));
  dequantize_row(t->type, t->data.data(), v.data(), t->n_elements());
  return v;
}

TEST(SynthWrite, WeightsHaveTheirDeviation) {
  test::TempDir dir;
  uint64_t last = 0;
  const Status s = synth_write(small(), dir.file("s.gguf"), 1, [&](uint64_t done, uint64_t total) {
    EXPECT_LE(done, total);
    last = done;
  });
  ASSERT_TRUE(s) << s.error().message();
  EXPECT_GT(last, 0u);
  auto f = GgufFile::open(dir.file("s.gguf"));
  ASSERT_TRUE(f) << f.error().message();
  EXPECT_EQ(f->file_bytes(), synth_bytes(small()));
  for (const TensorView& t : f->tensors()) {
    if (!t.name.starts_with("w.")) continue;
    double sum = 0, square = 0;
    for (float v : values(*f, t.name)) {
      sum += double(v);
      square += double(v) * double(v);
    }
    const double n = double(t.n_elements());
    EXPECT_NEAR(std::sqrt(square / n) * 32, 1.0, 0.1) << t.name;
    EXPECT_NEAR(sum / n * 32, 0.0, 0.02) << t.name;
  }
  for (float v : values(*f, "norm")) EXPECT_NEAR(v, 1.0, 0.051);
  const auto rope = values(*f, "rope");
  EXPECT_EQ(rope[63], 1.0f);
  EXPECT_EQ(rope[64], 1e30f);
}

// Rows that the block of a mixture's type does not divide take another type: there is a generator for those too.
TEST(SynthWrite, EveryTypeOfEveryPreset) {
  std::map<DType, std::string> types;
  for (std::string_view preset : synth_presets())
    for (std::string_view quant : synth_quants())
      for (const SynthTensor& t : plan(preset, quant).tensors)
        types.emplace(t.type, std::string(preset) + " in " + std::string(quant));
  EXPECT_TRUE(types.contains(DType::kIQ4_NL));
  for (const auto& [type, whose] : types) {
    SynthPlan p = small();
    std::erase_if(p.tensors, [](const SynthTensor& t) { return !t.name.starts_with("w."); });
    p.tensors.resize(1);
    p.tensors[0].type = type, p.tensors[0].fill = SynthFill::kNormal;
    test::TempDir dir;
    ASSERT_TRUE(synth_write(p, dir.file("s.gguf"), 1, {})) << whose;
    auto f = GgufFile::open(dir.file("s.gguf"));
    ASSERT_TRUE(f) << f.error().message();
    double square = 0;
    const auto v = values(*f, p.tensors[0].name);
    for (float x : v) square += double(x) * double(x);
    EXPECT_NEAR(std::sqrt(square / double(v.size())) * 32, 1.0, 0.1) << dtype_name(type) << " of " << whose;
  }
}

TEST(SynthWrite, TheSeedDecidesTheBytes) {
  test::TempDir dir;
  const auto bytes = [&](uint64_t seed) {
    EXPECT_TRUE(synth_write(small(), dir.file("s.gguf"), seed, {}));
    std::ifstream in(dir.file("s.gguf"), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string one = bytes(1);
  EXPECT_EQ(one, bytes(1));
  EXPECT_NE(one, bytes(2));
}

TEST(SynthWrite, AFullDiskIsRefusedBeforeWriting) {
  test::TempDir dir;
  SynthPlan p;
  p.tensors.push_back({"w", {int64_t(1) << 30, int64_t(1) << 14}, SynthFill::kNormal, DType::kF32});
  const Status s = synth_write(p, dir.file("s.gguf"), 1, {});
  ASSERT_FALSE(s);
  EXPECT_NE(s.error().message().find("disk space; needed 70368.74 GB, free "), std::string::npos)
      << s.error().message();
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace facet
