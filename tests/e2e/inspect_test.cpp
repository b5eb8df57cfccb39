// `facet inspect` as a user runs it: output and exit codes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/gguf.h"
#include "support/bytes.h"
#include "support/run_program.h"

namespace facet {
namespace {

using test::has;
using test::Ran;
Ran run(const std::string& args) { return test::run_program(args, test::Streams::kBoth); }

class Inspect : public testing::Test {
 protected:
  void SetUp() override {
    GgufWriter w;
    w.add("general.architecture", "gemma4");
    w.add("some.array", std::vector<int64_t>(100, 7));
    w.add_tensor("a.weight", DType::kQ8_0, {64, 4});
    w.add_tensor("b.weight", DType::kF32, {8});
    ASSERT_TRUE(w.begin(path_));
    ASSERT_TRUE(w.write(std::vector<std::byte>(272)));
    ASSERT_TRUE(w.write(std::vector<std::byte>(32)));
    ASSERT_TRUE(w.finish());
  }
  test::TempDir dir_;
  std::string path_ = dir_.file("m.gguf");
};

TEST_F(Inspect, ShowsACompleteFile) {
  const Ran r = run("inspect --tensors " + path_);
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "complete")) << r.out;
  EXPECT_TRUE(has(r.out, "[100] 7, 7, 7, 7, 7, 7, 7, 7, ...")) << r.out;
  EXPECT_TRUE(has(r.out, "a.weight")) << r.out;
  EXPECT_TRUE(has(r.out, "[64 x 4]")) << r.out;
}

TEST_F(Inspect, PrintsJson) {
  const Ran r = run("inspect --json --tensors " + path_);
  EXPECT_EQ(r.rc, 0);
  const auto j = nlohmann::json::parse(r.out, nullptr, false);
  ASSERT_FALSE(j.is_discarded()) << r.out;
  EXPECT_EQ(j["complete"], true);
  EXPECT_EQ(j["types"]["Q8_0"]["bytes"], 272);
  EXPECT_EQ(j["metadata"]["some.array"]["count"], 100);
  EXPECT_EQ(j["tensors"][0]["name"], "a.weight");
}

TEST_F(Inspect, SaysByHowMuchAFileIsShort) {
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 5);
  const Ran r = run("inspect " + path_);
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "truncated: 5 bytes short of")) << r.out;
}

TEST_F(Inspect, Failures) {
  EXPECT_EQ(run("inspect").rc, 2);
  const Ran r = run("inspect " + dir_.file("none.gguf"));
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "none.gguf: unreadable: cannot open")) << r.out;
}

TEST_F(Inspect, SynthRejectsAnUnknownPreset) {
  const Ran r = run("synth --preset 7b --quant Q8_0 " + dir_.file("x.gguf"));
  EXPECT_EQ(r.rc, 2);
  EXPECT_TRUE(has(r.out, "26b-a4b-mtp")) << r.out;
}

}  // namespace
}  // namespace facet
