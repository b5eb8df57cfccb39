// Logits of the official implementation (see tests/data/README.md), on the reference backend.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>

#include "support/harness.h"

namespace facet::test {
namespace {

namespace fs = std::filesystem;

// --fixtures DIR of scripts/test.sh arrives as this variable; without it, the files of tests/data.
std::string fixtures_dir() {
  const char* dir = std::getenv("FACET_TEST_FIXTURES");
  return dir && *dir ? dir : data_path("fixtures");
}

struct Case {
  std::string folder, type, model;
};
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* folder : {"dense", "moe", "edge"}) {
    const fs::path dir = fs::path(fixtures_dir()) / folder;
    if (!fs::exists(dir)) continue;
    for (const auto& e : fs::directory_iterator(dir)) {
      std::smatch m;
      const std::string name = e.path().filename();
      if (std::regex_match(name, m, std::regex("model-(.*)\\.gguf"))) all.push_back({folder, m[1], e.path()});
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
  const fs::path dir = fs::path(c.model).parent_path();
  const auto golden = must(SafetensorsFile::open((dir / "golden.safetensors").string()));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  Harness<CpuRef> h(c.model);
  const auto got = h.logits(ids, {int(ids.size())});

  const bool exact = c.type == "BF16";
  const auto want = exact ? tensor_values<float>(golden, "logits") : read_f32(dir / ("logits-" + c.type + ".f32"));
  ASSERT_EQ(got.size(), want.size());
  const Difference d = compare(got, want, h.cfg.n_vocab);
  std::printf("| %s | %s | max %.2e | rms %.2e | top-1 %d/%d |\n", c.folder.c_str(), c.type.c_str(), d.max, d.rms, d.same_top, d.rows);
  if (exact) {
    EXPECT_LE(d.max, 2e-3);
    EXPECT_LE(d.rms, 2e-4);
  } else {  // the stored reference carries the noise of a 16-bit GELU table; an expert that flips moves a whole row
    EXPECT_LE(d.rms, c.folder == "moe" ? 6e-2 : 1.5e-2);
    EXPECT_GE(d.same_top, d.rows - 3);
  }
}

TEST_P(Fixture, GreedyTokensAreTheOfficialOnes) {
  const Case& c = GetParam();
  if (c.type != "BF16") return;  // the others have no official continuation
  const auto golden = must(SafetensorsFile::open((fs::path(c.model).parent_path() / "golden.safetensors").string()));
  const auto want = tensor_values<int32_t>(golden, "greedy");
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
  const auto golden = must(SafetensorsFile::open((fs::path(c.model).parent_path() / "golden.safetensors").string()));
  const auto ids = tensor_values<int32_t>(golden, "ids");
  for (const KvType kv : {KvType::kF16, KvType::kQ8_0, KvType::kQ4_0, KvType::kTQ3_0}) {
    Harness<CpuRef> h(c.model, {.k = kv, .v = kv, .max_ctx = 128, .max_step = 96, .margin = 8});
    const auto one = h.logits(ids, {1});
    for (const int chunk : {7, 13, 96}) EXPECT_TRUE(bitwise_equal(h.logits(ids, {chunk}), one)) << kv_type_name(kv) << " chunk " << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fixture, testing::ValuesIn(cases()), [](const auto& p) { return p.param.folder + "_" + p.param.type; });

}  // namespace
}  // namespace facet::test
