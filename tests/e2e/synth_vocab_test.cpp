// facet synth --vocab: a random model that text can be given to.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "formats/synth.h"
#include "support/bytes.h"
#include "support/must.h"
#include "support/run_program.h"
#include "tokenizer/tokenizer.h"

namespace facet::test {
namespace {

GgufFile shipped() { return must(GgufFile::open(FACET_SOURCE_DIR "/models/facet-nano-Q8_0.gguf")); }

// The smallest preset with fewer layers, narrower FFNs and 5,000 tokens.
SynthPlan small_plan() {
  SynthPlan p = must(synth_plan("tiny", "Q8_0"));
  std::erase_if(p.tensors,
                [](const SynthTensor& t) { return t.name.starts_with("blk.") && std::stoi(t.name.substr(4)) >= 6; });
  for (SynthTensor& t : p.tensors)
    for (int64_t& n : t.ne) n = n == 6144 ? 256 : n == 262144 ? 5000 : n;
  for (SynthMeta& m : p.meta) {
    if (m.key == "gemma4.block_count") m.v = int64_t(6);
    if (m.key == "gemma4.feed_forward_length") m.v = int64_t(256);
    if (auto* v = std::get_if<std::vector<int64_t>>(&m.v)) v->resize(6);
    if (auto* v = std::get_if<std::vector<bool>>(&m.v)) v->resize(6);
  }
  return p;
}

TEST(SynthVocab, IsTheOtherModelsFilledUp) {
  SynthPlan p = small_plan();
  const GgufFile from = shipped();
  must(synth_add_vocab(p, from));
  const TempDir dir;
  must(synth_write(p, dir.file("m.gguf"), 1, {}));
  const GgufFile file = must(GgufFile::open(dir.file("m.gguf")));
  EXPECT_FALSE(file.find_meta("gemma4.vocab_size"));
  const Tokenizer own = must(Tokenizer::create(must(vocab_from_gguf(file)))),
                  want = must(Tokenizer::create(must(vocab_from_gguf(from))));
  EXPECT_EQ(own.size(), 5000);
  EXPECT_EQ(own.vocab().chat_template, want.vocab().chat_template);
  EXPECT_EQ(own.special().bos, want.special().bos);
  std::set<std::string> texts;
  for (int id = 0; id < own.size(); ++id) {
    EXPECT_TRUE(texts.insert(own.text(id)).second) << own.text(id);
    if (id < want.size()) {
      EXPECT_EQ(own.text(id), want.text(id));
    } else {
      EXPECT_FALSE(own.is_special(id));
      EXPECT_FALSE(own.piece(id).empty()) << "what is drawn can be read";
    }
  }
  for (const char* text : {"Hello, world", "<unused0> <unused17>", "<|turn>user\nunused\n", "\xF0\x9F\x98\x80 \x01"})
    for (const bool special : {false, true})
      EXPECT_EQ(own.encode(text, true, special), want.encode(text, true, special)) << text;
}

TEST(SynthVocab, ModelsWithItAnswer) {
  SynthPlan p = small_plan();
  must(synth_add_vocab(p, shipped()));
  const TempDir dir;
  must(synth_write(p, dir.file("m.gguf"), 1, {}));
  const Ran r = run_program(
      "run --backend cpu -c 256 -p 'What is 17 + 25?' -n 12 --temp 1 --top-k 0 --top-p 1 --seed 1 "
      "--ignore-eos -m " +
          dir.file("m.gguf"),
      Streams::kOut);
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "<unused")) << r.out;
}

TEST(SynthVocab, DraftersAndLargerVocabulariesAreRefused) {
  SynthPlan drafter = must(synth_plan("31b-mtp", "Q8_0"));
  EXPECT_FALSE(synth_add_vocab(drafter, shipped()));
  SynthPlan small = small_plan();
  for (SynthTensor& t : small.tensors)
    if (t.name == "token_embd.weight") t.ne[1] = 1000;
  const Status s = synth_add_vocab(small, shipped());
  ASSERT_FALSE(s);
  EXPECT_TRUE(has(s.error().message(), "expected at most 1000 entries, found 3072")) << s.error().message();
  const TempDir dir;
  const Ran r = run_program("synth --vocab --preset 31b-dflash --quant Q8_0 " + dir.file("d.gguf"), Streams::kBoth);
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "--vocab: expected a model's preset")) << r.out;
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace facet::test
