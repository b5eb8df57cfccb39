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
  EXPECT_EQ(r.out.find(path_ + " (gemma4): 0.0 million weights, mostly Q8_0, 0.00 GiB\n"), 0u) << r.out;
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

TEST_F(Inspect, PrintsTheChecksumThatOthersDo) {
  const std::string want = test::run_command("sha256sum " + path_).out;
  ASSERT_EQ(want.size(), 64 + 2 + path_.size() + 1) << want;
  EXPECT_TRUE(has(run("inspect --sha256 " + path_).out, want));
  const auto j = nlohmann::json::parse(run("inspect --json --sha256 " + path_).out, nullptr, false);
  EXPECT_EQ(j["files"][0]["sha256"], want.substr(0, 64));
  EXPECT_FALSE(has(run("inspect " + path_).out, want));
}

// A vocabulary without a template of turns is a base model's.
TEST_F(Inspect, TellsABaseModel) {
  EXPECT_FALSE(has(run("inspect " + path_).out, "a base model")) << "no vocabulary, no opinion";
  const std::string nano = FACET_SOURCE_DIR "/models/facet-nano-Q8_0.gguf";
  EXPECT_FALSE(has(run("inspect " + nano).out, "a base model"));
  GgufWriter w;
  w.add("general.architecture", "gemma4");
  w.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
  ASSERT_TRUE(w.begin(path_) && w.finish());
  EXPECT_TRUE(has(run("inspect " + path_).out, "no tokenizer.chat_template: a base model"));
  EXPECT_EQ(nlohmann::json::parse(run("inspect --json " + path_).out, nullptr, false)["base_model"], true);
}

TEST_F(Inspect, SaysByHowMuchAFileIsShort) {
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 5);
  const Ran r = run("inspect " + path_);
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "truncated: 5 bytes short of")) << r.out;
}

// Types that cannot be run do not keep a file from being looked at: one that is known, one that is not.
TEST_F(Inspect, ReadsTypesThatCannotBeRun) {
  const auto file = [&](uint64_t data) {
    test::Bytes b;
    b.text("GGUF").u32(3).u64(3).u64(1);
    b.str("general.architecture").u32(8).str("gemma4");
    b.str("a.weight").u32(1).u64(32).u32(8).u64(0);            // Q8_0
    b.str("b.weight").u32(2).u64(256).u64(3).u32(35).u64(64);  // TQ2_0
    b.str("c.weight").u32(1).u64(7).u32(4711).u64(288);        // nobody knows
    b.align(32);
    return dir_.write("foreign.gguf", b.fill(data));
  };
  const std::string path = file(289);
  const Ran r = run("inspect --tensors " + path);
  EXPECT_EQ(r.rc, 0) << r.out;
  for (const char* part : {"complete", "cannot run this file", "TQ2_0, type 4711", "[256 x 3]", "a.weight"})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
  const auto j = nlohmann::json::parse(run("inspect --json --tensors " + path).out, nullptr, false);
  ASSERT_FALSE(j.is_discarded());
  EXPECT_EQ(j["cannot_run"], (std::vector<std::string>{"TQ2_0", "type 4711"}));
  EXPECT_EQ(j["types"]["TQ2_0"]["bytes"], 198);
  EXPECT_EQ(j["tensors"][2]["name"], "c.weight");
  const Ran run_it = run("run -p x -m " + path);
  EXPECT_EQ(run_it.rc, 1);
  EXPECT_TRUE(has(run_it.out, "expected a supported block type, found type id 35 (TQ2_0)")) << run_it.out;
  const Ran cut = run("inspect " + file(230));
  EXPECT_EQ(cut.rc, 1);
  EXPECT_TRUE(has(cut.out, "truncated: 59 bytes short of")) << cut.out;
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
