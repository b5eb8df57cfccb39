#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "formats/gguf.h"
#include "support/tokenizer_vocab.h"

// tokenize, detokenize, render and parse as processes: what they print, and their exit codes.
namespace facet {
namespace {

namespace fs = std::filesystem;

struct Output {
  int code = -1;
  std::string out, err;
};

class TextCommands : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("facet_text_" + std::string(test_info()->name()));
    fs::create_directories(dir_);
    model_ = (dir_ / "model.gguf").string();
    const Vocab v = test::tiny_vocab();
    GgufWriter w;
    w.add("general.architecture", "gemma4");
    w.add("tokenizer.ggml.model", "gemma4");
    w.add("tokenizer.ggml.tokens", v.tokens);
    w.add("tokenizer.ggml.merges", v.merges);
    w.add("tokenizer.ggml.token_type", std::vector<int64_t>(v.types.begin(), v.types.end()));
    w.add("tokenizer.ggml.add_bos_token", true);
    ASSERT_TRUE(w.begin(model_));
    ASSERT_TRUE(w.finish());
  }
  void TearDown() override { fs::remove_all(dir_); }

  static const testing::TestInfo* test_info() { return testing::UnitTest::GetInstance()->current_test_info(); }

  Output run(const std::string& args, const std::string& input) const {
    std::ofstream(dir_ / "in", std::ios::binary) << input;
    const std::string d = dir_.string();
    const int status = std::system(
        (std::string(FACET_PROGRAM) + " " + args + " <" + d + "/in >" + d + "/out 2>" + d + "/err").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read("out"), read("err")};
  }

  std::string read(const char* name) const {
    std::ifstream in(dir_ / name, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }

  fs::path dir_;
  std::string model_;
};

int lines(const std::string& s) { return int(std::count(s.begin(), s.end(), '\n')); }

TEST_F(TextCommands, TokenizeAndBack) {
  const std::string text = "Hello <turn|>wörld\n\n  \xFF";
  const Output ids = run("tokenize -m " + model_, text);
  ASSERT_EQ(ids.code, 0) << ids.err;
  const nlohmann::json j = nlohmann::json::parse(ids.out);
  EXPECT_EQ(j["tokens"][0], "<bos>");
  EXPECT_EQ(j["ids"].size(), j["tokens"].size());
  EXPECT_EQ(run("detokenize -m " + model_, ids.out).out, "Hello wörld\n\n  \xEF\xBF\xBD");
  EXPECT_EQ(run("detokenize --show-special -m " + model_, j["ids"].dump()).out,
            "<bos>Hello <turn|>wörld\n\n  \xEF\xBF\xBD");
  const nlohmann::json plain = nlohmann::json::parse(run("tokenize --no-bos --no-special -m " + model_, "<turn|>").out);
  EXPECT_GT(plain["ids"].size(), 1u);
}

TEST_F(TextCommands, ErrorsAreOneLine) {
  for (const std::string bad : {"[1,99999]", "[-1]", "[\"a\"]", "{\"idz\":[1]}", "[1", "[1.5]", ""}) {
    const Output o = run("detokenize -m " + model_, bad);
    EXPECT_EQ(o.code, 1) << bad;
    EXPECT_EQ(lines(o.err), 1) << o.err;
    EXPECT_EQ(o.out, "");
  }
  const Output missing = run("tokenize -m /nonexistent.gguf", "x");
  EXPECT_EQ(missing.code, 1);
  EXPECT_NE(missing.err.find("/nonexistent.gguf"), std::string::npos);
  EXPECT_EQ(run("tokenize --nonsense", "").code, 2);
  EXPECT_EQ(run("", "").code, 2);
}

TEST_F(TextCommands, CheckSaysThatTheVocabularyIsAnother) {
  const Output o = run("tokenize --check -m " + model_, "");
  EXPECT_EQ(o.code, 1);
  EXPECT_NE(o.err.find("another one (1024 tokens"), std::string::npos) << o.err;
}

TEST_F(TextCommands, Render) {
  const Output o = run("render", R"({"messages":[{"role":"user","content":"Hi"}],"add_generation_prompt":true,
      "enable_thinking":true,"variant":"small"})");
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\nHi<turn|>\n<|turn>model\n");
  for (const std::string bad : {R"({"messages":[{"role":"user"}],"max_tokens":5})", R"({"tools":[]})", R"([])",
                                R"({"messages":[{"role":"x"}]})", R"({"messages":[],"variant":"medium"})",
                                R"({"messages":[],"enable_thinking":1})", "{"}) {
    const Output e = run("render", bad);
    EXPECT_EQ(e.code, 1) << bad;
    EXPECT_EQ(lines(e.err), 1) << e.err;
  }
}

TEST_F(TextCommands, Parse) {
  const Output o = run("parse",
                       "<|channel>thought\nR\n<channel|>Hi "
                       "\xFF<|tool_call>call:f{s:<|\"|>x<|\"|>}<tool_call|><|tool_response>");
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out,
            "{\"role\":\"assistant\",\"content\":\"Hi \xEF\xBF\xBD\",\"reasoning_content\":\"R\",\"tool_calls\":"
            "[{\"id\":\"call_0\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"s\\\":"
            "\\\"x\\\"}\"}}]}\n");
  EXPECT_EQ(run("parse", "Hello<turn|>\n").out, "{\"role\":\"assistant\",\"content\":\"Hello\"}\n");
  EXPECT_EQ(run("parse --in-thought", "R<channel|>C").out,
            "{\"role\":\"assistant\",\"content\":\"C\",\"reasoning_content\":\"R\"}\n");
  EXPECT_TRUE(nlohmann::json::parse(run("parse", "<|tool_call>call:f{}<tool_call|>").out)["content"].is_null());
}

}  // namespace
}  // namespace facet
