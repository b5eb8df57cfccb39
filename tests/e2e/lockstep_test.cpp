// `facet run --lockstep` and `facet logits --lockstep`: every verb of a backend beside the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "support/bytes.h"
#include "support/run_program.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

Ran facet(const std::string& args) { return run_program(args, Streams::kBoth); }

TEST(LockstepCommand, NamesTheWorstOfEveryVerb) {
  const Ran r = facet("run -p 'What is 17 + 25?' --temp 0 -n 12 -c 512 --backend cpu --lockstep --draft none -v");
  EXPECT_EQ(r.rc, 0) << r.out;
  EXPECT_TRUE(has(r.out, "17 + 25 = 42")) << r.out;
  for (const char* verb : {"embed ", "qkv.q ", "head_norm_rope ", "attend ", "matmul ", "gate_up ", "residual_norm.x "})
    EXPECT_TRUE(has(r.out, verb)) << verb << r.out;
  EXPECT_TRUE(has(r.out, "reference ")) << "its memory is in the plan: " << r.out;
  const Ran experts =
      facet("run -m " FACET_SOURCE_DIR
            "/models/facet-nano-moe-Q4_K_M.gguf -p Hello --temp 0 -n 4 -c 512 --backend cpu --lockstep");
  EXPECT_EQ(experts.rc, 0) << experts.out;
  EXPECT_TRUE(has(experts.out, "moe ")) << experts.out;
}

// Every verb of the table comes up in a run of a model that has use for it: the verbs of drafters beside those of their
// target, on a step of a long prompt as on one of few tokens. At least two tokens are drafted, also where plain steps
// are faster.
TEST(LockstepCommand, NamesEveryVerbOfADraftingRun) {
  std::set<std::string> missing;
#define VERB(name, ...) missing.insert(#name);
#include "backend/verbs.def"
  for (const char* other : {"act_mul", "ple_combine", "clustered_head",  // of E2B and E4B, and their drafters
                            "select_blocks",                             // of --sparse-prefill, which is refused here
                            "block_conv", "head_rope",                   // of DFlash 2 and EAGLE-3
                            "embed_soft"})  // of pictures and sound, for which the shipped models have no encoder
    EXPECT_EQ(missing.erase(other), 1u);
  std::string prompt;
  for (int i = 0; i < 12; ++i) prompt += "What is 17 + 25? ";
  const std::string models = FACET_SOURCE_DIR "/models/facet-nano-moe";
  for (const char* kind : {"mtp", "dflash"}) {
    const Ran r = facet("run -m " + models + "-Q4_K_M.gguf --draft " + models + "-" + kind +
                        "-Q8_0.gguf --draft-min 2 --backend cpu --lockstep --temp 0 -n 8 -c 512 -p '" + prompt + "'");
    EXPECT_EQ(r.rc, 0) << r.out;
    EXPECT_TRUE(has(r.out, "drafts accepted")) << r.out;
    std::istringstream lines(r.out);
    for (std::string line; std::getline(lines, line);) missing.erase(line.substr(0, line.find_first_of(" .")));
    // A drafter's tokens and their log-probabilities are judged too.
    EXPECT_TRUE(has(r.out, "top_k.ids ") && has(r.out, "top_k.log_probs ")) << r.out;
  }
  for (const std::string& verb : missing) ADD_FAILURE() << verb << " was not judged";
}

// `facet run --explain`: the verbs of the target and of its drafter, as they ran.
TEST(ExplainCommand, PricesTheVerbsOfADraftingRun) {
  const std::string models = FACET_SOURCE_DIR "/models/facet-nano-moe";
  const Ran r =
      facet("run -m " + models + "-Q4_K_M.gguf --draft " + models +
            "-mtp-Q8_0.gguf --draft-min 2 --backend cpu --explain --temp 0 -n 8 -c 512 -p 'What is 17 + 25?'");
  EXPECT_EQ(r.rc, 0) << r.out;
  for (const char* verb : {"moe ", "attend ", "sample ", "top_k ", "all verbs "})
    EXPECT_TRUE(has(r.out, std::string("\n") + verb)) << verb << r.out;
}

// A weight that is no number: the verb that reads it is the first over its bound.
TEST(LockstepCommand, NamesTheFirstVerbOverItsBound) {
  const TinyFile file;
  const TempDir dir;
  std::ifstream in(file.path(), std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  const GgufFile gguf = must(GgufFile::open(file.path()));
  const auto weight = gguf.find("blk.1.attn_output.weight")->data;
  const size_t at = bytes.find(std::string_view(reinterpret_cast<const char*>(weight.data()), 64));
  ASSERT_NE(at, bytes.npos);
  const float nan = NAN;
  std::memcpy(bytes.data() + at, &nan, sizeof nan);
  const std::string broken = dir.file("broken.gguf"), ids = dir.file("ids.i32"), out = dir.file("l.f32");
  std::ofstream(broken, std::ios::binary) << bytes;
  const auto tokens = random_ids(20, 96, 3);
  std::ofstream(ids, std::ios::binary).write(reinterpret_cast<const char*>(tokens.data()), 80);
  EXPECT_EQ(facet("logits -m " + file.path() + " --tokens " + ids + " --out " + out + " --backend cpu --lockstep").rc,
            0);
  const Ran r = facet("logits -m " + broken + " --tokens " + ids + " --out " + out + " --backend cpu --lockstep");
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, " matmul [20 x 64], by blk.1.attn_output.weight: relative rms error nan over its bound"))
      << r.out;
}

TEST(LockstepCommand, TheReferenceIsNotComparedWithItself) {
  const Ran r = facet("run -p x --backend ref --lockstep -c 256");
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "use --backend cpu or cuda")) << r.out;
}

}  // namespace
}  // namespace facet::test
