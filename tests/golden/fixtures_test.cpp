// Logits of the official implementation (tests/data/README.md), on the reference backend.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/harness.h"
#include "support/llama_rounding.h"

namespace facet::test {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string folder, type, model;
  bool ours = false;  // of tests/data: the golden was computed on this very file's weights
  std::string golden() const { return (fs::path(model).parent_path() / "golden.safetensors").string(); }
};

void PrintTo(const Case& c, std::ostream* os) { *os << c.model; }

// tests/data, and the folder that scripts/test.sh --fixtures names.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* folder : {"dense", "moe", "edge"}) {
    all.push_back({folder, "", data_path(std::string("fixtures/") + folder + "/model.gguf"), true});
    const char* more = std::getenv("FACET_TEST_FIXTURES");
    if (!more || !*more || !fs::exists(fs::path(more) / folder)) continue;
    for (const auto& e : fs::directory_iterator(fs::path(more) / folder)) {
      const std::string name = e.path().filename();
      if (name.starts_with("model-") && name.ends_with(".gguf")) all.push_back({folder, name.substr(6, name.size() - 11), e.path(), false});
    }
  }
  std::sort(all.begin(), all.end(), [](const Case& a, const Case& b) { return std::tie(a.folder, a.type) < std::tie(b.folder, b.type); });
  return all;
}

std::vector<float> read_f32(const fs::path& path) {
  std::ifstream f(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(f)), {});
  std::vector<float> v(bytes.size() / 4);
  std::memcpy(v.data(), bytes.data(), v.size() * 4);
  return v;
}

class Fixture : public testing::TestWithParam<Case> {};

TEST_P(Fixture, LogitsAreTheOfficialOnes) {
  const Case& c = GetParam();
  const auto golden = must(SafetensorsFile::open(c.golden()));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  Harness<CpuRef> h(c.model);
  const auto got = h.logits(ids, {int(ids.size())});
  const int V = h.cfg.n_vocab;
  auto print = [&](const char* against, const Difference& d) {
    std::printf("| %s | %s | %s | max %.2e | rms %.2e | top-1 %d/%d |\n", c.folder.c_str(), c.ours ? "tests/data" : c.type.c_str(), against, d.max, d.rms, d.same_top, d.rows);
  };
  if (c.ours || c.type == "BF16") {
    const Difference d = compare(got, tensor_values<float>(golden, "logits"), V);
    print("transformers", d);
    EXPECT_LE(d.max, 2e-3);
    EXPECT_LE(d.rms, 2e-4);
    EXPECT_EQ(d.same_top, d.rows);
    return;
  }
  // llama.cpp on the dequantised file. Its own roundings are larger than ours, and a router near a tie can turn them
  // into another expert for a whole row; so the bound is for the same roundings, and at most one such row is left out.
  const auto want = read_f32(fs::path(c.model).parent_path() / ("logits-" + c.type + ".f32"));
  ASSERT_EQ(got.size(), want.size());
  const Difference plain = compare(got, want, V);
  print("llama.cpp", plain);
  EXPECT_GE(plain.same_top, plain.rows - 3);
  Harness<LlamaRounding> rounded(c.model);
  const auto like = rounded.logits(ids, {int(ids.size())});
  int flipped = 0;
  double sum = 0;
  for (int r = 0; r < plain.rows; ++r) {
    const Difference d = compare(std::span(like).subspan(size_t(r * V), size_t(V)), std::span(want).subspan(size_t(r * V), size_t(V)), V);
    if (c.folder == "moe" && d.rms > .2) ++flipped;
    else sum += d.rms * d.rms;
  }
  const double rms = std::sqrt(sum / plain.rows);
  std::printf("| %s | %s | llama.cpp, its roundings | | rms %.2e | %d rows with another expert |\n", c.folder.c_str(), c.type.c_str(), rms, flipped);
  EXPECT_LE(rms, 1.5e-2);
  EXPECT_LE(flipped, 1);
}

TEST_P(Fixture, GreedyTokensAreTheOfficialOnes) {
  const Case& c = GetParam();
  if (!c.ours && c.type != "BF16") return;  // those have no official continuation
  const auto want = tensor_values<int32_t>(must(SafetensorsFile::open(c.golden())), "greedy");
  Harness<CpuRef> h(c.model);
  std::vector<int32_t> ids(want.begin(), want.begin() + 32);
  auto logits = h.logits(ids, {32});
  while (ids.size() < want.size()) {
    const auto last = std::span(logits).last(size_t(h.cfg.n_vocab));
    ids.push_back(int32_t(std::max_element(last.begin(), last.end()) - last.begin()));
    logits = h.more_logits(std::span(ids).last(1), {1});
  }
  EXPECT_EQ(ids, want);
}

TEST_P(Fixture, ChunkingChangesNoBit) {
  const Case& c = GetParam();
  const auto ids = tensor_values<int32_t>(must(SafetensorsFile::open(c.golden())), "ids");
  for (const KvType kv : {KvType::kF32, KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0}) {
    Harness<CpuRef> h(c.model, {.k = kv, .v = kv, .max_ctx = 128, .max_step = 96, .margin = 8});
    const auto one = h.logits(ids, {1});
    for (const int chunk : {7, 13, 96}) EXPECT_TRUE(bitwise_equal(h.logits(ids, {chunk}), one)) << kv_type_name(kv) << " chunk " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fixture, testing::ValuesIn(cases()), [](const auto& p) { return p.param.folder + "_" + (p.param.ours ? "data" : p.param.type); });

// The shipped model: transformers' logits on its dequantised weights, windows and contexts crossed.
TEST(Nano, LogitsAreTheOfficialOnes) {
  const auto golden = must(SafetensorsFile::open(data_path("nano/golden.safetensors")));
  const auto ids = tensor_values<int32_t>(golden, "ids"), rows = tensor_values<int32_t>(golden, "rows");
  const auto want = tensor_values<float>(golden, "logits");
  Harness<CpuRef> h(std::string(FACET_SOURCE_DIR) + "/models/facet-nano-Q8_0.gguf", {.k = KvType::kF32, .v = KvType::kF32, .max_ctx = 512, .max_step = 128});
  const auto all = h.logits(ids, {128, 64, 100});
  const size_t V = size_t(h.cfg.n_vocab);
  std::vector<float> got;
  for (int32_t r : rows) got.insert(got.end(), all.begin() + ptrdiff_t(size_t(r) * V), all.begin() + ptrdiff_t(size_t(r + 1) * V));
  const Difference d = compare(got, want, int(V));
  std::printf("| nano | Q8_0 | transformers | max %.2e | rms %.2e | top-1 %d/%d |\n", d.max, d.rms, d.same_top, d.rows);
  EXPECT_LE(d.max, 2e-3);
  EXPECT_LE(d.rms, 2e-4);
}

}  // namespace
}  // namespace facet::test
