// Talking with the program: what is typed, what is said, and to whom.
#include <gtest/gtest.h>

#include <string>

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
    return Terminal({"chat", "--temp", "0", "-c", "8192", "--draft", "none"}, env);
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
#endif

}  // namespace
}  // namespace facet::test
