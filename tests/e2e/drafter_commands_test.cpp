// `facet draft`, `convert` and `compare` as a user runs them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/run_program.h"

namespace facet {
namespace {

namespace fs = std::filesystem;

using test::has;
using test::Ran;
Ran facet(const std::string& args) { return test::run_program(args, test::Streams::kBoth); }

class DrafterCommands : public testing::Test {
 protected:
  DrafterCommands() : dir_(fs::temp_directory_path() / ("facet-drafter-commands-" + std::to_string(getpid()))) {
    fs::create_directories(dir_);
  }
  ~DrafterCommands() override { fs::remove_all(dir_); }
  std::string at(const std::string& name) const { return (dir_ / name).string(); }
  static std::string data(const std::string& name) { return std::string(FACET_TEST_DATA) + "/drafters/" + name; }

 private:
  fs::path dir_;
};

TEST_F(DrafterCommands, ConvertQuantiseCompare) {
  for (const std::string kind : {"dflash", "mtp"}) {
    const Ran made = facet("convert " + data(kind) + " " + at("full.gguf"));
    EXPECT_EQ(made.rc, 0) << made.out;
    const Ran equal = facet("compare " + data(kind) + "/model.safetensors " + at("full.gguf"));
    EXPECT_EQ(equal.rc, 0) << equal.out;
    EXPECT_TRUE(has(equal.out, " 0 differ")) << equal.out;
    const Ran small = facet("quantize " + at("full.gguf") + " " + at("small.gguf") + " Q8_0");
    EXPECT_EQ(small.rc, 0) << small.out;
    const Ran differ = facet("compare " + at("full.gguf") + " " + at("small.gguf"));
    EXPECT_EQ(differ.rc, 0) << differ.out;
    EXPECT_TRUE(has(differ.out, "BF16, Q8_0")) << differ.out;
    EXPECT_FALSE(has(differ.out, " 0 differ")) << differ.out;
    const std::string both = at("full.gguf") + " " + at("small.gguf");
    EXPECT_EQ(facet("compare --max-rms 0.1 " + both).rc, 0);
    const Ran beyond = facet("compare --max-rms 1e-6 " + both);
    EXPECT_EQ(beyond.rc, 1);
    EXPECT_TRUE(has(beyond.out, "--max-rms: expected at most 1e-06, found ")) << beyond.out;
    EXPECT_EQ(facet("compare --max-rms 0 " + at("full.gguf") + " " + at("full.gguf")).rc, 0);
  }
}

TEST_F(DrafterCommands, AFolderPrefersItsGguf) {
  fs::copy(data("dflash"), at("both"));
  EXPECT_EQ(facet("convert " + data("dflash") + " " + at("both/drafter.gguf")).rc, 0);
  const Ran r = facet("convert " + at("both") + " " + at("again.gguf"));
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "drafter.gguf chosen, not the safetensors beside it")) << r.out;
}

TEST_F(DrafterCommands, DraftOfTheShippedModel) {
  const std::string drafter = std::string(FACET_SOURCE_DIR) + "/models/facet-nano-dflash-Q8_0.gguf";
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(300 + 7 * i);
  std::ofstream(at("ids.i32"), std::ios::binary)
      .write(reinterpret_cast<const char*>(ids.data()), std::streamsize(4 * ids.size()));
  const Ran r = facet("draft --draft " + drafter + " --tokens " + at("ids.i32") + " --at 39 --out " + at("l.f32"));
  EXPECT_EQ(r.rc, 0) << r.out;
  EXPECT_TRUE(has(r.out, "[8, 3072]")) << r.out;
  EXPECT_EQ(fs::file_size(at("l.f32")), 8u * 3072 * 4);
}

// A drafter in BF16 is accepted as often as in Q8_0, within what so many drafts can differ by chance.
TEST_F(DrafterCommands, AcceptanceIsThatOfBf16) {
  const std::string q8 = std::string(FACET_SOURCE_DIR) + "/models/facet-nano-dflash-Q8_0.gguf", bf16 = at("bf16.gguf");
  ASSERT_EQ(facet("quantize --allow-requantize " + q8 + " " + bf16 + " BF16").rc, 0);
  std::vector<double> share;
  double n = 0;
  for (const std::string& drafter : {q8, bf16}) {
    const Ran r = facet(
        "bench spec --backend cpu -t 1 -c 1024 --sets thinking,arithmetic --count 6 --lengths 8 --runs 1 "
        "-n 48 --draft " +
        drafter + " --json " + at("rows.jsonl"));
    ASSERT_EQ(r.rc, 0) << r.out;
    double drafted = 0, accepted = 0;
    std::ifstream rows(at("rows.jsonl"));
    for (std::string line; std::getline(rows, line);) {
      const auto j = nlohmann::json::parse(line, nullptr, false);
      drafted += j["drafted"].get<double>(), accepted += j["accepted"].get<double>();
    }
    ASSERT_GT(drafted, 200);
    share.push_back(accepted / drafted), n = drafted;
  }
  std::printf("accepted: %.3f of %.0f drafts in Q8_0, %.3f in BF16\n", share[0], n, share[1]);
  EXPECT_GT(share[0], .2) << "drafts are to be right and wrong";
  EXPECT_LT(share[0], .95) << "drafts are to be right and wrong";
  EXPECT_NEAR(share[0], share[1], 3 * std::sqrt(2 * share[0] * (1 - share[0]) / n));
}

TEST_F(DrafterCommands, Refusals) {
  std::ofstream(at("ids.i32"), std::ios::binary).write("\x05\0\0\0\x06\0\0\0", 8);
  const std::string common = " --tokens " + at("ids.i32") + " --out " + at("l.f32") + " --at ";
  const Ran other = facet("draft --draft " + data("dflash") + common + "1");
  EXPECT_EQ(other.rc, 1);
  EXPECT_TRUE(has(other.out, "expected 256, as the target has, found 64")) << other.out;
  const Ran beyond = facet("draft --draft " + data("dflash") + common + "2");
  EXPECT_EQ(beyond.rc, 1);
  EXPECT_TRUE(has(beyond.out, "[1, 2)")) << beyond.out;
  EXPECT_EQ(facet("convert " + at("none") + " " + at("x.gguf")).rc, 1);
  EXPECT_EQ(facet("compare " + data("mtp") + " " + data("dflash")).rc, 1);  // norms of another width
  EXPECT_EQ(facet("draft").rc, 2);
  EXPECT_EQ(facet("compare --max-rms nan " + data("mtp") + " " + data("mtp")).rc, 2);
}

}  // namespace
}  // namespace facet
