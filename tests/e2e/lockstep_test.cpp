// `facet run --lockstep` and `facet logits --lockstep`: every verb of a backend beside the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

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
