// The program as a user runs it, on the shipped model.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/bytes.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

struct Result {
  int code = -1;
  std::string out;
};
// stdout, or with `both` stderr too.
Result shell(const std::string& args, bool both = false) {
  const std::string command = std::string("'") + FACET_PROGRAM + "' " + args + (both ? " 2>&1" : " 2>/dev/null");
  FILE* p = ::popen(command.c_str(), "r");
  Result r;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, p)) > 0;) r.out.append(buffer, n);
  const int status = ::pclose(p);
  r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }
int lines(const std::string& s) { return int(std::count(s.begin(), s.end(), '\n')); }

TEST(Program, AnswersAPrompt) {
  const Result r = shell("run -p 'What is 17 + 25?' --temp 0 -c 1024");
  EXPECT_EQ(r.code, 0);
  EXPECT_TRUE(has(r.out, "42")) << r.out;
  EXPECT_EQ(lines(r.out), 1) << "only the answer: " << r.out;
}

TEST(Program, TheSameSeedGivesTheSameText) {
  const std::string args = "run -p 'Tell me a story' -c 1024 -n 40 --temp 1.5 --seed ";
  EXPECT_EQ(shell(args + "1").out, shell(args + "1 --chunk 3").out) << "steps were cut otherwise";
  EXPECT_NE(shell(args + "1").out, shell(args + "2").out);
}

TEST(Program, HoldsAConversation) {
  const Result r = shell("chat --temp 0 -c 2048 --think <<'E'\nMy name is Mira.\nWhat is my name?\n/think off\nWhat is my name?\n/undo\n/stats\n/nonsense\n/exit\nE", true);
  EXPECT_EQ(r.code, 0);
  EXPECT_TRUE(has(r.out, "Mira")) << r.out;
  EXPECT_TRUE(has(r.out, "unknown command"));
  // The second turn computes only what is new, though the first answer's thought is gone from the prompt.
  EXPECT_FALSE(has(r.out.substr(r.out.find("What is my name?")), "(0 cached)")) << r.out;
}

TEST(Program, TokensInTokensOut) {
  const TinyFile file;
  const TempDir dir;
  const auto ids = random_ids(50, 96, 3);
  const std::string in = dir.path() + "/in.i32", out = dir.path() + "/out.i32", logits = dir.path() + "/l.f32";
  std::ofstream(in, std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), 200);
  EXPECT_EQ(shell("run -m " + file.path() + " --tokens " + in + " --temp 0 -n 12 --ignore-eos --out-tokens " + out).code, 0);
  EXPECT_EQ(std::filesystem::file_size(out), 48u);
  for (const char* chunk : {"1", "7", "50"}) {
    EXPECT_EQ(shell("logits -m " + file.path() + " --tokens " + in + " --out " + logits + chunk + " --backend ref --chunk " + chunk).code, 0);
    EXPECT_EQ(std::filesystem::file_size(logits + chunk), 50u * 96 * 4);
  }
  EXPECT_EQ(system(("cmp -s " + logits + "1 " + logits + "7 && cmp -s " + logits + "1 " + logits + "50").c_str()), 0);
  const Result text = shell("run -m " + file.path() + " -p hello", true);
  EXPECT_EQ(text.code, 1);
  EXPECT_TRUE(has(text.out, "no_vocab")) << text.out;
}

TEST(Program, FailuresAreOneLineThatSaysWhatToDo) {
  const TempDir dir;
  const std::string junk = dir.path() + "/junk.gguf", odd = dir.path() + "/odd.i32";
  std::ofstream(junk) << "this is not a model";
  std::ofstream(odd) << "12345";
  struct {
    std::string args;
    int code;
    std::string part;
  } cases[] = {{"run -m /nonexistent.gguf -p x", 1, "/nonexistent.gguf"},
               {"run -m " + junk + " -p x", 1, "GGUF"},
               {"run --tokens " + odd, 1, "int32"},
               {"run", 2, "-p or --tokens"},
               {"run -p x --temp banana", 2, "--temp"},
               {"run -p x --kv-k q9_9", 2, "q9_9"},
               {"frobnicate", 2, ""},
               {"plan -c 16000000 --memory 1GB", 1, "would fit"},
               {"run -p x -c 4", 1, "larger -c"}};
  for (const auto& c : cases) {
    const Result r = shell(c.args, true);
    EXPECT_EQ(r.code, c.code) << c.args << ": " << r.out;
    EXPECT_TRUE(has(r.out, c.part)) << c.args << ": " << r.out;
  }
  EXPECT_EQ(shell("--version").code, 0);
  for (const char* sub : {"chat", "run", "logits", "plan", "inspect", "synth", "tokenize", "detokenize", "render", "parse"})
    EXPECT_EQ(shell(std::string(sub) + " --help").code, 0) << sub;
}

}  // namespace
}  // namespace facet::test
