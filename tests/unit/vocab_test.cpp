#include "tokenizer/vocab.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "formats/gguf.h"
#include "support/tokenizer_vocab.h"
#include "tokenizer/tokenizer.h"

namespace facet {
namespace {

// A GGUF file with the tiny vocabulary, written with one change.
struct File {
  Vocab vocab = test::tiny_vocab();
  std::string model = "gemma4";
  std::vector<int64_t> types{vocab.types.begin(), vocab.types.end()};
  std::function<void(GgufWriter&)> extra = [](GgufWriter&) {};
  bool add_bos = true, with_tokens = true;

  Result<Vocab> read() const {
    const std::string path =
        (std::filesystem::temp_directory_path() /
         ("facet_vocab_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()) + ".gguf"))
            .string();
    GgufWriter w;
    w.add("general.architecture", "gemma4");
    w.add("tokenizer.ggml.model", model);
    if (with_tokens) {
      w.add("tokenizer.ggml.tokens", vocab.tokens);
      w.add("tokenizer.ggml.merges", vocab.merges);
      w.add("tokenizer.ggml.token_type", types);
    }
    if (add_bos) w.add("tokenizer.ggml.add_bos_token", true);
    extra(w);
    if (Status s = w.begin(path); !s) return s.error();
    if (Status s = w.finish(); !s) return s.error();
    Result<GgufFile> file = GgufFile::open(path);
    if (!file) return file.error();
    Result<Vocab> v = vocab_from_gguf(*file);
    std::filesystem::remove(path);
    return v;
  }
};

std::string error_of(const File& f) {
  const Result<Vocab> v = f.read();
  return v ? "" : v.error().message();
}

TEST(Vocab, ReadsAFile) {
  File f;
  f.extra = [](GgufWriter& w) {
    w.add("tokenizer.ggml.eos_token_id", int64_t(106));  // some uploads: must not become the only end
    w.add("tokenizer.ggml.eos_token_ids", std::vector<int64_t>{1, 106, 50});
    w.add("tokenizer.ggml.suppress_tokens", std::vector<int64_t>{4});
    w.add("tokenizer.ggml.pre", "gemma4");
    w.add("tokenizer.chat_template", "{{ '<|turn>' }}");
  };
  Result<Vocab> v = f.read();
  ASSERT_TRUE(v) << v.error().message();
  EXPECT_EQ(v->tokens, f.vocab.tokens);
  EXPECT_EQ(v->types, f.vocab.types);
  EXPECT_EQ(v->merges, f.vocab.merges);
  EXPECT_EQ(v->suppress, std::vector<int32_t>{4});
  EXPECT_EQ(v->eos_ids, (std::vector<int32_t>{1, 106, 50, 106}));
  EXPECT_EQ(v->chat_template, "{{ '<|turn>' }}");
  EXPECT_TRUE(v->notes.empty());
  Result<Tokenizer> t = Tokenizer::create(std::move(*v));
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_TRUE(t->is_eog(t->find("<eos>")));
  EXPECT_FALSE(t->is_eog(106));
  EXPECT_EQ(t->suppressed(), std::vector<int32_t>{4});
}

TEST(Vocab, NoVocabIsNotAnError) {
  File f;
  f.model = "no_vocab";
  f.with_tokens = false;
  const Result<Vocab> v = f.read();
  ASSERT_TRUE(v) << v.error().message();
  EXPECT_TRUE(v->empty());
  const Result<Tokenizer> t = Tokenizer::create(*v);
  ASSERT_FALSE(t);
  EXPECT_NE(t.error().message().find("no vocabulary"), std::string::npos);
}

TEST(Vocab, MissingAddBosIsNoted) {
  File f;
  f.add_bos = false;
  const Result<Vocab> v = f.read();
  ASSERT_TRUE(v);
  ASSERT_EQ(v->notes.size(), 1u);
  f.extra = [](GgufWriter& w) { w.add("tokenizer.ggml.add_bos_token", false); };
  EXPECT_TRUE(f.read());
}

// Files of Ollama's converter: another name for the same tokenizer.
TEST(Vocab, ReadsOllamasFiles) {
  File f;
  f.model = "llama";
  f.extra = [](GgufWriter& w) { w.add("tokenizer.ggml.pre", "gemma4"); };
  const Result<Vocab> v = f.read();
  ASSERT_TRUE(v) << v.error().message();
  EXPECT_EQ(v->merges, f.vocab.merges);
  EXPECT_TRUE(v->notes.empty());
}

TEST(Vocab, ATemplateOfAnotherFormatIsNoted) {
  for (const char* source : {"{{ '<|im_start|>' }}", "{{ '<start_of_turn>' }}"}) {
    File f;
    f.extra = [&](GgufWriter& w) { w.add("tokenizer.chat_template", source); };
    const Result<Vocab> v = f.read();
    ASSERT_TRUE(v) << v.error().message();
    ASSERT_EQ(v->notes.size(), 1u);
    EXPECT_NE(v->notes[0].find("<|turn>"), std::string::npos);
  }
}

TEST(Vocab, Errors) {
  File f;
  f.model = "llama";
  EXPECT_NE(error_of(f).find("expected gemma4, found llama"), std::string::npos);
  f = {};
  f.extra = [](GgufWriter& w) { w.add("tokenizer.ggml.eos_token_id", int64_t(1024)); };
  EXPECT_NE(error_of(f).find("eos_token_id"), std::string::npos);
  f = {};
  f.model = "llama";
  f = {};
  f.with_tokens = false;
  EXPECT_NE(error_of(f).find("tokenizer.ggml.tokens"), std::string::npos);
  f = {};
  f.types.pop_back();
  EXPECT_NE(error_of(f).find("tokenizer.ggml.token_type"), std::string::npos);
  f = {};
  f.types[7] = 9;
  EXPECT_NE(error_of(f).find("token_type[7]"), std::string::npos);
  f = {};
  f.extra = [](GgufWriter& w) { w.add("tokenizer.ggml.pre", "llama-bpe"); };
  EXPECT_NE(error_of(f).find("tokenizer.ggml.pre"), std::string::npos);
  f = {};
  f.extra = [](GgufWriter& w) { w.add("tokenizer.ggml.suppress_tokens", std::vector<int64_t>{1024}); };
  EXPECT_NE(error_of(f).find("suppress_tokens"), std::string::npos);
  f = {};
  f.extra = [](GgufWriter& w) { w.add("tokenizer.ggml.suppress_tokens", "x"); };
  EXPECT_NE(error_of(f).find("suppress_tokens"), std::string::npos);
}

}  // namespace
}  // namespace facet
