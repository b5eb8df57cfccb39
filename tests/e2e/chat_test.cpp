// Talking with the program: what is typed, what is said, and to whom.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/bytes.h"
#include "support/run_program.h"
#include "support/terminal.h"

namespace facet::test {
namespace {

const std::string kProgram = std::string("'") + FACET_PROGRAM + "' ";

Ran chat(const std::string& input, const std::string& options = "") {
  return run_command("printf '" + input + "' | timeout 60 " + kProgram + "chat --temp 0 -c 1024 --draft none " +
                     options + " 2>&1");
}

TEST(Chat, CommandsSayWhatTheyDid) {
  const Ran r =
      chat("/clear\\n/undo\\n/system Be brief.\\n/system\\n/think on\\n/think\\n/stats\\n/nonsense\\nHello\\n/undo\\n");
  EXPECT_EQ(r.rc, 0);
  for (const char* part : {"The conversation is forgotten.", "There is nothing to forget.",
                           "The system message is set.", "There is no system message now.", "Thinking is on.",
                           "There is no answer yet.", "unknown command: /nonsense", "The last exchange is forgotten."})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
}

TEST(Chat, WhatItSaysFitsATerminal) {
  const Ran r = chat("/help\\n/regn\\n/help me\\n");
  EXPECT_EQ(r.rc, 0);
  EXPECT_TRUE(has(r.out, "unknown command: /regn (did you mean '/regen'?)")) << r.out;
  std::istringstream lines(r.out);
  int n = 0;
  for (std::string line; std::getline(lines, line); ++n) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_GT(n, 15);
}

TEST(Chat, TextsMayBeginWithASlashAndHaveSeveralLines) {
  const Ran r = chat("//clear\\n\"\"\"\\nWhat is\\n17 + 25?\\n\"\"\"\\n");
  EXPECT_EQ(r.rc, 0);
  EXPECT_FALSE(has(r.out, "forgotten")) << r.out;
  EXPECT_TRUE(has(r.out, "= 42")) << r.out;
}

TEST(Chat, StatisticsAreForPeopleUnlessAskedFor) {
  const Ran brief = chat("Hello\\n");
  EXPECT_TRUE(has(brief.out, "[14 tokens in ")) << brief.out;
  EXPECT_FALSE(has(brief.out, "stop: eos")) << brief.out;
  const Ran all = chat("Hello\\n", "-v");
  EXPECT_TRUE(has(all.out, "stop: eos")) << all.out;
  EXPECT_TRUE(has(all.out, "kv full")) << all.out;
  EXPECT_FALSE(has(chat("Hello\\n", "--quiet").out, "tok/s"));
}

TEST(Chat, FilesArePartOfTheNextMessage) {
  const TempDir dir;
  std::ofstream(dir.file("q.txt")) << "What is 17 + 25?";
  std::ofstream(dir.file("nul"), std::ios::binary) << std::string("a\0b", 3);
  std::ofstream(dir.file("latin"), std::ios::binary) << "gr\xFC\xDF";
  std::ofstream(dir.file("large")) << std::string((1 << 20) + 1, 'x');
  const Ran r = chat("/read " + dir.file("q.txt") + "\\nAnswer.\\n/save " + dir.file("saved.json") + "\\n/read " +
                     dir.file("nul") + "\\n/read " + dir.file("latin") + "\\n/read " + dir.file("large") +
                     "\\n/read\\n/read /nonexistent\\n");
  EXPECT_EQ(r.rc, 0);
  for (const char* part : {"q.txt: 16 bytes, for what you write next", "found byte 0x00 at 1", "found byte 0xFC at 2",
                           "large: expected at most", "expected /read FILE", "/nonexistent"})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
  std::ifstream in(dir.file("saved.json"));
  const std::string saved(std::istreambuf_iterator<char>(in), {});
  EXPECT_TRUE(has(saved, "q.txt:\\nWhat is 17 + 25?\\n\\nAnswer.")) << saved;
  // A file spells no control tokens: the name of one is a text of several.
  const auto prompt = [&](int names) {
    std::ofstream control(dir.file("control"));
    for (int i = 0; i < names; ++i) control << "<|turn>";
    control.close();
    const std::string out = chat("/read " + dir.file("control") + "\\nx\\n", "-n 1").out;
    const size_t at = out.find("; prompt ");
    return at == std::string::npos ? -1000 : std::atoi(out.c_str() + at + 9);
  };
  EXPECT_GT(prompt(21) - prompt(1), 40);
}

TEST(Chat, ConversationsAreSavedAndLoaded) {
  const TempDir dir;
  const std::string file = dir.file("c.json");
  std::ofstream(dir.file("other")) << "precious";
  std::ofstream(dir.file("wrong.json")) << R"({"messages": [{"role": "tool", "content": "x"}]})";
  const Ran first =
      chat("My name is Mira.\\n/save " + file + "\\n/save " + file + "\\n/save " + dir.file("other") + "\\n");
  EXPECT_TRUE(has(first.out, "2 messages saved")) << first.out;
  EXPECT_TRUE(has(first.out, "expected a new name or a saved conversation")) << first.out;
  EXPECT_EQ(std::filesystem::file_size(dir.file("other")), 8);
  struct stat s {};
  ASSERT_EQ(::stat(file.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600);
  const Ran second = chat("/load " + dir.file("wrong.json") + "\\n/load " + file + "\\nWhat is my name?\\n");
  EXPECT_TRUE(has(second.out, "messages[0].role: expected user, assistant")) << second.out;
  EXPECT_TRUE(has(second.out, "2 messages loaded")) << second.out;
  EXPECT_TRUE(has(second.out.substr(second.out.find("What is my name?")), "Mira")) << second.out;
}

TEST(Chat, SettingsAndTheModel) {
  const Ran r = chat(
      "/set temp 0.5\\n/set seed 7\\n/set n-predict 3\\n/set top-k -1\\n/set temp x\\n/set heat 1\\n/set tempratur "
      "1\\n/set top_k 32\\n/set\\n/model\\n"
      "/regen\\nHello\\n/regen\\n/stats\\n");
  EXPECT_EQ(r.rc, 0);
  for (const char* part :
       {"temp 0.5, top-p 0.95, top-k 32, min-p 0, seed 7, n-predict 3", "/set top-k: expected a whole number from 0",
        "/set temp: expected a number from 0 to 100, found \"x\"", "expected one of temp, top-p",
        "found \"tempratur\" (did you mean 'temperature'?)", "facet-nano-Q8_0.gguf", "context 1024 of ",
        "There is no message to answer again.", "[3 tokens in ", "; seed 8"})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
}

TEST(Chat, StartsQuietly) {
  const std::string ask = "echo Hello | " + kProgram + "chat --temp 0 -c 1024 ";
  const Ran quiet = run_command(ask + "2>&1"), all = run_command(ask + "-v 2>&1");
  for (const char* part : {"drafter: ", "memory: "}) {
    EXPECT_FALSE(has(quiet.out, part)) << quiet.out;
    EXPECT_TRUE(has(all.out, part)) << all.out;
  }
}

TEST(Run, ReadsThePromptFromStandardInput) {
  const Ran r = run_command("echo 'What is 17 + 25?' | " + kProgram + "run -p - --temp 0 -c 512 --quiet 2>&1");
  EXPECT_EQ(r.rc, 0);
  EXPECT_EQ(r.out, "17 + 25 = 42\n");
}

TEST(Run, ThoughtsAreNotTheAnswer) {
  const std::string args = "run -p 'What is 17 + 25?' --think --temp 0 -c 512 --draft none";
  const Ran out = run_program(args, Streams::kOut), both = run_program(args, Streams::kBoth);
  EXPECT_EQ(out.rc, 0);
  EXPECT_FALSE(has(out.out, "thought")) << out.out;
  EXPECT_TRUE(has(both.out, "(thinking) ")) << both.out;
  EXPECT_FALSE(has(out.out, "(thinking) ")) << out.out;
}

#if FACET_LINE_EDITING
class Typing : public testing::Test {
 protected:
  static Terminal open(const std::vector<std::pair<const char*, const char*>>& env = {}) {
    return Terminal({"chat", "--temp", "0", "-c", "8192", "--draft", "none", "--no-history"}, env);
  }
};

TEST_F(Typing, LinesCanBeEditedAndFetchedAgain) {
  Terminal t = open();
  ASSERT_TRUE(t.wait_for("> ")) << t.seen();
  t.type(
      "What is 17 + 26?\x7f\x7f"
      "5?\n");
  ASSERT_TRUE(t.wait_for("= 42")) << t.seen();
  ASSERT_TRUE(t.wait_for("> "));
  t.type("/clear\n");
  ASSERT_TRUE(t.wait_for("forgotten")) << t.seen();
  ASSERT_TRUE(t.wait_for("> "));
  t.type("\033[A\033[A\n");
  ASSERT_TRUE(t.wait_for("= 42")) << t.seen();
}

TEST_F(Typing, ALineMayBeLong) {
  Terminal t = open();
  ASSERT_TRUE(t.wait_for("> ")) << t.seen();
  const std::string name = "/" + std::string(6000, 'x') + "end";
  t.type(name + "\n");
  ASSERT_TRUE(t.wait_for("unknown command: " + name)) << t.seen().substr(0, 500);
}

TEST_F(Typing, AltEnterAndPastesPutLineBreaksIntoALine) {
  Terminal t = open();
  ASSERT_TRUE(t.wait_for("> ")) << t.seen();
  t.type("What is\033\r17 + 25?\n");
  ASSERT_TRUE(t.wait_for("= 42")) << t.seen();
  ASSERT_TRUE(t.wait_for("> "));
  t.type("\033[200~What is\r18 + 25?\033[201~\n");
  ASSERT_TRUE(t.wait_for("= 43")) << t.seen();
}

TEST_F(Typing, NoEscapesWhereNobodyWantsThem) {
  for (const auto& env : {std::pair{"NO_COLOR", "1"}, {"TERM", "dumb"}}) {
    Terminal t = open({env});
    ASSERT_TRUE(t.wait_for("> ")) << t.seen();
    t.type("/think on\n");
    ASSERT_TRUE(t.wait_for("Thinking is on.")) << t.seen();
    t.type("What is 17 + 25x\x7f?\n");
    ASSERT_TRUE(t.wait_for(" tok/s")) << t.seen();
    EXPECT_EQ(t.seen().find('\033'), std::string::npos) << t.seen();
  }
}

TEST_F(Typing, WhatIsTypedMeanwhileIsTheNextLineAndNotInTheAnswer) {
  Terminal t({"chat", "--temp", "0", "-c", "8192", "-t", "1", "-n", "900", "--draft", "none", "--no-history"});
  ASSERT_TRUE(t.wait_for("> ")) << t.seen();
  t.type("Count from 1 to 300.\n");
  ASSERT_TRUE(t.wait_for("1, 2, 3")) << t.seen();
  const size_t from = t.seen().size();
  t.type("/think on\n");
  ASSERT_TRUE(t.wait_for("Thinking is on.")) << t.seen();
  const std::string answer = t.seen().substr(from, t.seen().find(" tok/s", from) - from);
  EXPECT_FALSE(has(answer, "/think")) << answer;
}

TEST_F(Typing, HistoryGoesOverSessionsAndIsItsOwnersAlone) {
  const TempDir dir;
  const std::string cache = dir.file("cache"), file = cache + "/chat_history";
  const auto session = [&](const std::string& keys, const std::string& expected, bool keep = true) {
    std::vector<const char*> args = {"chat", "--temp", "0", "-c", "1024", "--draft", "none"};
    if (!keep) args.push_back("--no-history");
    Terminal t(args, {{"FACET_CACHE", cache.c_str()}});
    ASSERT_TRUE(t.wait_for("> ")) << t.seen();
    t.type(keys);
    ASSERT_TRUE(t.wait_for(expected)) << t.seen();
    ASSERT_TRUE(t.wait_for("> ")) << t.seen();
  };
  session("/think on\n", "Thinking is on.", /*keep=*/false);
  EXPECT_FALSE(std::filesystem::exists(file));
  session("/think on\n", "Thinking is on.");
  session(" Hello\n", " tok/s");
  struct stat s {};
  ASSERT_EQ(::stat(file.c_str(), &s), 0);
  EXPECT_EQ(s.st_mode & 0777, 0600);
  session("\033[A\n", "Thinking is on.");
  std::ifstream in(file);
  const std::string kept(std::istreambuf_iterator<char>(in), {});
  EXPECT_EQ(kept, "\"/think on\"\n");
}

TEST_F(Typing, TabCompletesCommandsAndFiles) {
  const TempDir dir;
  std::ofstream(dir.file("question.txt")) << "What is 17 + 25?";
  std::ofstream(dir.file("quiet.txt")) << "x";
  Terminal t = open();
  ASSERT_TRUE(t.wait_for("> ")) << t.seen();
  t.type("/thi\ton\n");
  ASSERT_TRUE(t.wait_for("Thinking is on.")) << t.seen();
  ASSERT_TRUE(t.wait_for("> "));
  t.type("/rea\t" + dir.file("qu") + "\t");
  ASSERT_TRUE(t.wait_for("question.txt  quiet.txt")) << t.seen();
  t.type("e\t\n");
  ASSERT_TRUE(t.wait_for("question.txt: 16 bytes")) << t.seen();
}

TEST_F(Typing, ThePromptHasAColour) {
  Terminal t = open();
  ASSERT_TRUE(t.wait_for("\033[1;32m> ")) << t.seen();
  t.type("/think on\n");
  ASSERT_TRUE(t.wait_for("\033[0m")) << t.seen();
  ASSERT_TRUE(t.wait_for("Thinking is on.")) << t.seen();
}
#endif

}  // namespace
}  // namespace facet::test
