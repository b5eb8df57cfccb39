// `facet quantize` as a user runs it, and its files against those of llama-quantize.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>

#include "formats/quantize.h"
#include "formats/requantize.h"
#include "formats/synth.h"
#include "support/bytes.h"
#include "support/must.h"
#include "support/run_program.h"
#include "support/tiny_model.h"

namespace facet {
namespace {

using test::must;

using test::has;
using test::Ran;
Ran shell(const std::string& command) { return test::run_command(command + " 2>&1"); }
Ran quantize(const std::string& args) { return test::run_program("quantize " + args, test::Streams::kBoth); }

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::vector<float> values(const TensorView& t) {
  std::vector<float> v(size_t(t.n_elements()));
  dequantize_row(t.type, t.data.data(), v.data(), t.n_elements());
  return v;
}

DType type_of(const GgufFile& f, std::string_view name) {
  const TensorView* t = f.find(name);
  EXPECT_NE(t, nullptr) << name;
  return t ? t->type : DType::kCount;
}

// A BF16 model with a tensor of each kind that the rules distinguish, 16 layers, experts of 64-wide rows.
SynthPlan small_model(DType matrices) {
  SynthPlan p;
  p.meta = {{"general.architecture", std::string("gemma4")},
            {"gemma4.block_count", int64_t(16)},
            {"gemma4.attention.head_count", int64_t(4)},
            {"gemma4.attention.head_count_kv", std::vector<int64_t>(16, 2)},
            {"gemma4.final_logit_softcapping", 30.0},
            {"general.file_type", int64_t(32)},
            {"some.flags", std::vector<bool>{true, false, true}},
            {"some.words", std::string("\xE2\x96\x81 and control \x01")}};
  const auto matrix = [&](std::string name, std::vector<int64_t> ne) {
    p.tensors.push_back({std::move(name), std::move(ne), SynthFill::kNormal, matrices});
  };
  matrix("token_embd.weight", {256, 96});
  p.tensors.push_back({"output_norm.weight", {256}, SynthFill::kUnit, DType::kF32});
  for (int l = 0; l < 16; ++l) {
    const std::string b = "blk." + std::to_string(l) + ".";
    p.tensors.push_back({b + "attn_norm.weight", {256}, SynthFill::kUnit, DType::kF32});
    matrix(b + "attn_q.weight", {256, 8});
    if (l % 4 != 3) matrix(b + "attn_v.weight", {256, 4});
    matrix(b + "attn_output.weight", {256, 8});
    matrix(b + "ffn_down.weight", {512, 4});
    matrix(b + "ffn_down_exps.weight", {64, 4, 3});
    p.tensors.push_back({b + "ffn_gate_inp.weight", {256, 3}, SynthFill::kRouter, DType::kF32});
  }
  return p;
}

class Quantize : public testing::Test {
 protected:
  void SetUp() override { must(synth_write(small_model(DType::kBF16), in_, 1, {})); }
  GgufFile quantised(const std::string& type, const std::string& more = "") {
    const Ran r = quantize(in_ + " " + out_ + " " + type + " " + more);
    EXPECT_EQ(r.rc, 0) << r.out;
    return must(GgufFile::open(out_));
  }
  void expect_refused(const std::string& args, std::string_view message) {
    const Ran r = quantize(args);
    EXPECT_EQ(r.rc, 1) << r.out;
    EXPECT_TRUE(has(r.out, message)) << r.out;
    EXPECT_FALSE(std::filesystem::exists(out_));
    EXPECT_FALSE(std::filesystem::exists(out_ + ".part"));
  }
  test::TempDir dir_;
  std::string in_ = dir_.file("in.gguf"), out_ = dir_.file("out.gguf");
};

TEST_F(Quantize, EveryMixtureHasItsTypes) {
  for (const Mixture& m : mixtures()) {
    const GgufFile f = quantised(std::string(m.name));
    EXPECT_EQ(type_of(f, "token_embd.weight"), m.embedding) << m.name;
    EXPECT_EQ(type_of(f, "blk.5.attn_q.weight"), m.base) << m.name;
    EXPECT_EQ(type_of(f, "blk.5.attn_output.weight"), m.attn_output) << m.name;
    EXPECT_EQ(type_of(f, "blk.0.attn_norm.weight"), DType::kF32) << m.name;
    EXPECT_EQ(type_of(f, "blk.0.ffn_gate_inp.weight"), DType::kF32) << m.name;
    EXPECT_EQ(must(f.get_int("general.file_type")), m.file_type);
    EXPECT_EQ(must(f.get_int("general.quantization_version")), 2);
  }
  const GgufFile f = quantised("q4_k_m");
  EXPECT_EQ(type_of(f, "blk.0.attn_v.weight"), DType::kQ6_K);
  EXPECT_EQ(type_of(f, "blk.1.attn_v.weight"), DType::kQ4_K);
  EXPECT_EQ(type_of(f, "blk.1.ffn_down.weight"), DType::kQ6_K);
  EXPECT_EQ(type_of(f, "blk.1.ffn_down_exps.weight"), DType::kQ8_0);  // 64-wide rows
  EXPECT_EQ(type_of(f, "blk.2.ffn_down_exps.weight"), DType::kQ5_0);
}

TEST_F(Quantize, WeightsAreTheEncodersAndTheRestIsCopied) {
  const GgufFile source = must(GgufFile::open(in_)), f = quantised("Q4_K_M");
  ASSERT_EQ(f.tensors().size(), source.tensors().size());
  for (size_t i = 0; i < f.tensors().size(); ++i) {
    const TensorView &from = source.tensors()[i], &to = f.tensors()[i];
    EXPECT_EQ(from.name, to.name);
    EXPECT_EQ(from.ne, to.ne) << to.name;
    const auto x = values(from);
    std::vector<std::byte> want(to.data.size());
    for (int64_t row = 0; row < to.n_elements() / to.ne[0]; ++row)
      quantize_row(to.type, x.data() + row * to.ne[0], want.data() + size_t(row) * row_bytes(to.type, to.ne[0]),
                   to.ne[0]);
    EXPECT_TRUE(std::equal(want.begin(), want.end(), to.data.begin(), to.data.end())) << to.name;
  }
  EXPECT_EQ(f.meta().size(), source.meta().size() + 1);  // general.quantization_version
  for (const auto& [key, value] : source.meta()) {
    if (key == "general.file_type") continue;
    const GgufValue* copy = f.find_meta(key);
    ASSERT_NE(copy, nullptr) << key;
    EXPECT_EQ(copy->gguf_type, value.gguf_type) << key;
    EXPECT_TRUE(copy->v == value.v) << key;
  }
}

TEST_F(Quantize, ThreadsDoNotChangeTheFile) {
  quantised("Q3_K_M", "-t 1");
  const std::string one = bytes_of(out_);
  quantised("Q3_K_M", "-t 5");
  EXPECT_EQ(one, bytes_of(out_));
}

// BF16 to F32 is exact, so both sources hold the same weights.
TEST_F(Quantize, SourcesInF32AndF16) {
  const test::TinyFile tiny({.moe = true});  // F32, rows of 64 and 96: every block of 256 falls back
  const Ran r = quantize(tiny.path() + " " + out_ + " Q4_K_M");
  ASSERT_EQ(r.rc, 0) << r.out;
  const GgufFile q4 = must(GgufFile::open(out_));
  EXPECT_EQ(type_of(q4, "blk.2.attn_q.weight"), DType::kQ5_0);
  EXPECT_EQ(type_of(q4, "token_embd.weight"), DType::kQ8_0);

  quantised("Q5_K_M");
  const std::string from_bf16 = bytes_of(out_);
  const std::string f32 = dir_.file("f32.gguf");
  const GgufFile source = must(GgufFile::open(in_));
  GgufWriter w;
  for (const auto& [k, v] : source.meta()) w.add_raw(k, v);
  for (const TensorView& t : source.tensors())
    w.add_tensor(t.name, DType::kF32, {t.ne.begin(), t.ne.begin() + t.n_dims});
  must(w.begin(f32));
  for (const TensorView& t : source.tensors()) {
    const auto x = values(t);
    must(w.write(std::as_bytes(std::span(x))));
  }
  must(w.finish());
  ASSERT_EQ(quantize(f32 + " " + out_ + " Q5_K_M").rc, 0);
  EXPECT_EQ(from_bf16, bytes_of(out_));

  const std::string f16 = dir_.file("f16.gguf");
  ASSERT_EQ(quantize(in_ + " " + f16 + " F16").rc, 0);
  EXPECT_EQ(quantize(f16 + " " + out_ + " Q4_0").rc, 0);
}

TEST_F(Quantize, PartsBecomeOneFile) {
  quantised("Q4_K_M");
  const std::string whole = bytes_of(out_);
  const GgufFile source = must(GgufFile::open(in_));
  const size_t n = source.tensors().size();
  for (int part = 0; part < 2; ++part) {
    GgufWriter w;
    if (part == 0)
      for (const auto& [k, v] : source.meta()) w.add_raw(k, v);
    w.add("split.no", part, gguf_type::kU16);
    w.add("split.count", 2, gguf_type::kU16);
    w.add("split.tensors.count", int(n), gguf_type::kI32);
    const size_t begin = part ? n / 2 : 0, end = part ? n : n / 2;
    for (size_t i = begin; i < end; ++i) {
      const TensorView& t = source.tensors()[i];
      w.add_tensor(t.name, t.type, {t.ne.begin(), t.ne.begin() + t.n_dims});
    }
    must(w.begin(dir_.file("s-0000" + std::to_string(part + 1) + "-of-00002.gguf")));
    for (size_t i = begin; i < end; ++i) must(w.write(source.tensors()[i].data));
    must(w.finish());
  }
  ASSERT_EQ(quantize(dir_.file("s-00002-of-00002.gguf") + " " + out_ + " Q4_K_M").rc, 0);
  EXPECT_EQ(whole, bytes_of(out_));
  // A part is as much the source as the whole.
  const std::string part = dir_.file("s-00001-of-00002.gguf");
  const Ran r = quantize(dir_.file("s-00002-of-00002.gguf") + " " + part + " Q4_K_M");
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "which is read")) << r.out;
}

TEST_F(Quantize, RefusesToWriteOverItsSource) {
  const std::string before = bytes_of(in_), message = "which is read";
  std::filesystem::create_symlink(in_, dir_.file("link.gguf"));
  for (const std::string& out : {in_, dir_.path() + "/./in.gguf", dir_.file("link.gguf")}) {
    expect_refused(in_ + " " + out + " Q8_0", message);
    EXPECT_EQ(bytes_of(in_), before);
  }
}

TEST_F(Quantize, RefusesToWriteOverItsSourceOnTheWay) {
  const std::string source = dir_.file("x.gguf.part");
  std::filesystem::rename(in_, source);
  expect_refused(source + " " + dir_.file("x.gguf") + " Q8_0", "which is read");
  EXPECT_TRUE(std::filesystem::exists(source));
}

TEST_F(Quantize, RefusesAQuantisedSourceUnlessAllowed) {
  const std::string q8 = dir_.file("q8.gguf");
  ASSERT_EQ(quantize(in_ + " " + q8 + " Q8_0").rc, 0);
  expect_refused(q8 + " " + out_ + " Q4_K_M", "expected F32, F16 or BF16, found Q8_0");
  const Ran r = quantize("--allow-requantize " + q8 + " " + out_ + " Q4_K_M");
  EXPECT_EQ(r.rc, 0) << r.out;
  EXPECT_EQ(type_of(must(GgufFile::open(out_)), "blk.5.attn_q.weight"), DType::kQ4_K);
}

TEST_F(Quantize, RefusesWeightsThatTheTypeCannotHold) {
  const auto with = [&](float bad) {
    SynthPlan p = small_model(DType::kF32);
    must(synth_write(p, in_, 1, {}));
    const GgufFile f = must(GgufFile::open(in_));
    const TensorView& t = *f.find("blk.7.ffn_down.weight");
    const auto at = uint64_t(t.data.data() - f.find("token_embd.weight")->data.data());
    const uint64_t data = std::filesystem::file_size(in_) - [&] {
      uint64_t n = 0;
      for (const TensorView& x : f.tensors()) n += (x.data.size() + 31) / 32 * 32;
      return n;
    }();
    std::fstream out(in_, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(std::streamoff(data + at + 40));
    out.write(reinterpret_cast<const char*>(&bad), sizeof bad);
  };
  with(std::nanf(""));
  expect_refused(in_ + " " + out_ + " Q4_K_M",
                 "tensor 'blk.7.ffn_down.weight'; expected finite weights within the range of Q6_K");
  with(1e5f);
  expect_refused(in_ + " " + out_ + " F16", "within the range of F16");
  EXPECT_EQ(quantize(in_ + " " + out_ + " BF16").rc, 0);
}

TEST_F(Quantize, Failures) {
  EXPECT_EQ(quantize("").rc, 2);
  const Ran unknown = quantize(in_ + " " + out_ + " Q9_K");
  EXPECT_EQ(unknown.rc, 2);
  EXPECT_TRUE(has(unknown.out, "Q4_K_M")) << unknown.out;
  expect_refused(dir_.file("none.gguf") + " " + out_ + " Q8_0", "none.gguf: cannot open");
  EXPECT_EQ(quantize(in_ + " " + dir_.file("none/out.gguf") + " Q8_0").rc, 1);
  GgufWriter w;
  w.add("general.architecture", "gemma4");
  w.add_tensor("a.weight", DType::kF32, {32, 2});
  must(w.begin(in_));
  must(w.write(std::vector<std::byte>(256)));
  must(w.finish());
  expect_refused(in_ + " " + out_ + " Q8_0", "key 'gemma4.block_count'; expected integer, found no such key");
}

TEST_F(Quantize, ThePythonPackageReadsTheFile) {
  if (shell("python3 -c 'import gguf'").rc != 0) GTEST_SKIP() << "python3 has no package gguf";
  const std::string script = dir_.file("read.py");
  std::ofstream(script) << "import sys, gguf\n"
                           "from gguf.quants import dequantize\n"
                           "r = gguf.GGUFReader(sys.argv[1])\n"
                           "for t in r.tensors:\n"
                           "    v = dequantize(t.data, t.tensor_type)\n"
                           "    print(t.name, t.tensor_type.name, '%.9e' % (v.astype('float64') ** 2).sum())\n";
  for (const char* type : {"Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "IQ4_XS"}) {
    const GgufFile f = quantised(type);
    const Ran r = shell("python3 " + script + " " + out_);
    ASSERT_EQ(r.rc, 0) << r.out;
    std::istringstream lines(r.out);
    for (const TensorView& t : f.tensors()) {
      std::string name, dtype;
      double sum = 0, want = 0;
      ASSERT_TRUE(lines >> name >> dtype >> sum) << r.out;
      for (float v : values(t)) want += double(v) * double(v);
      EXPECT_EQ(name, t.name);
      EXPECT_EQ(dtype, dtype_name(t.type));
      EXPECT_NEAR(sum / want, 1.0, 1e-6) << t.name;
    }
  }
}

// ---- against llama-quantize, without an importance matrix, from the same BF16 files

struct Fixture {
  std::string folder, type;
};

std::string fixtures_dir() {
  const char* dir = std::getenv("FACET_TEST_FIXTURES");
  return dir ? dir : "";
}

class LlamaQuantize : public testing::TestWithParam<Fixture> {};

double squared_error(const std::vector<float>& a, const std::vector<float>& b) {
  double e = 0;
  for (size_t i = 0; i < a.size(); ++i) e += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
  return e;
}

TEST_P(LlamaQuantize, TypesBytesAndErrors) {
  const auto& [folder, type] = GetParam();
  if (fixtures_dir().empty()) GTEST_SKIP() << "FACET_TEST_FIXTURES names no folder of fixtures";
  const std::string base = fixtures_dir() + "/" + folder + "/model-";
  for (const std::string& t : {std::string("BF16"), type})
    if (!std::filesystem::exists(base + t + ".gguf")) GTEST_SKIP() << "no " << base << t << ".gguf";
  test::TempDir dir;
  const GgufFile source = must(GgufFile::open(base + "BF16.gguf")),
                 theirs = must(GgufFile::open(base + type + ".gguf"));
  must(requantize(source, dir.file("ours.gguf"), *find_mixture(type), {.n_threads = 2}, {}));
  const GgufFile ours = must(GgufFile::open(dir.file("ours.gguf")));

  ASSERT_EQ(ours.tensors().size(), theirs.tensors().size());
  std::map<DType, double> worst;
  for (const TensorView& t : theirs.tensors()) {
    const TensorView* o = ours.find(t.name);
    ASSERT_NE(o, nullptr) << t.name;
    ASSERT_EQ(dtype_name(o->type), std::string(dtype_name(t.type))) << t.name;
    ASSERT_EQ(o->ne, t.ne) << t.name;
    if (dtype_info(t.type).block < 256 && t.type != DType::kIQ4_NL) {
      EXPECT_TRUE(std::equal(o->data.begin(), o->data.end(), t.data.begin(), t.data.end())) << t.name;
      continue;
    }
    const auto x = values(*source.find(t.name));
    const double ratio = squared_error(x, values(*o)) / squared_error(x, values(t));
    EXPECT_LE(ratio, 1.02) << t.name << " " << dtype_name(t.type);
    worst[t.type] = std::max(worst[t.type], ratio);
  }
  for (const auto& [dtype, ratio] : worst)
    std::printf("| %s | %s | %s | worst squared error ratio %.4f |\n", folder.c_str(), type.c_str(), dtype_name(dtype),
                ratio);
  for (const char* key : {"general.file_type", "general.quantization_version"})
    EXPECT_EQ(must(ours.get_int(key)), must(theirs.get_int(key))) << key;
  for (const auto& [key, value] : theirs.meta()) {
    const GgufValue* o = ours.find_meta(key);
    ASSERT_NE(o, nullptr) << key;
    EXPECT_EQ(o->gguf_type, value.gguf_type) << key;
    EXPECT_TRUE(o->v == value.v) << key;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, LlamaQuantize,
                         testing::Values(Fixture{"dense", "Q8_0"}, Fixture{"dense", "Q6_K"}, Fixture{"dense", "Q5_K_M"},
                                         Fixture{"dense", "Q4_K_M"}, Fixture{"dense", "Q5_0"}, Fixture{"dense", "Q4_0"},
                                         Fixture{"dense", "Q3_K_M"}, Fixture{"dense", "Q2_K"},
                                         Fixture{"dense", "IQ4_XS"}, Fixture{"moe", "Q8_0"}, Fixture{"moe", "Q4_K_M"},
                                         Fixture{"edge", "Q8_0"}, Fixture{"edge", "Q4_K_M"}),
                         [](const auto& p) { return p.param.folder + "_" + p.param.type; });

}  // namespace
}  // namespace facet
