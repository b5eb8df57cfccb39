// The command line: what it says, and what it takes from where.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>

#include "support/bytes.h"
#include "support/run_program.h"

namespace facet::test {
namespace {

Ran shell(const std::string& args, bool both = false) {
  return run_program(args, both ? Streams::kBoth : Streams::kOut);
}

// A name that is a slip of the fingers is answered with the one that was meant.
TEST(CommandLine, AsksWhatWasMeant) {
  for (const auto& [args, part] : {std::pair{"serev", "did you mean 'serve'?"},
                                   {"chta", "did you mean 'chat'?"},
                                   {"help rnu", "did you mean 'run'?"},
                                   {"run -p x --tmep 0", "--tmep (did you mean '--temp'?) 0"},
                                   {"run -p x --ctx-sise=512", "did you mean '--ctx-size'?"},
                                   {"run -p x --backend cupu", "did you mean 'cpu'?"},
                                   {"run -p x --kv-k q8_", "did you mean 'q8_0'?"}}) {
    const Ran r = shell(args, true);
    EXPECT_EQ(r.rc, 2) << args;
    EXPECT_TRUE(has(r.out, part)) << args << ": " << r.out;
  }
  EXPECT_FALSE(has(shell("frobnicate", true).out, "did you mean"));
  EXPECT_FALSE(has(shell("run -p x --frobnicate", true).out, "did you mean"));
}

TEST(CommandLine, AloneItSaysHowToBegin) {
  const Ran r = shell("");
  EXPECT_EQ(r.rc, 2) << "to a script it is a mistake";
  for (const char* part :
       {"facet chat", "facet run \"TEXT\"", "facet serve", "facet download", "facet plan", "17 + 25"})
    EXPECT_TRUE(has(r.out, part)) << part << "\n" << r.out;
  std::istringstream lines(r.out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST(CommandLine, HelpIsGroupedAndWrapped) {
  for (const char* sub : {"", "run", "serve", "chat", "bench spec", "plan", "rm"}) {
    const Ran r = shell("help " + std::string(sub)), same = shell(std::string(sub) + " --help");
    EXPECT_EQ(r.rc, 0) << r.out;
    EXPECT_EQ(r.out.substr(r.out.find("\nExamples:\n")), same.out.substr(same.out.find("\nExamples:\n"))) << sub;
    EXPECT_TRUE(has(r.out, "\nExamples:\n  ")) << r.out;
    for (const char* noise : {"not_empty", "INT:INT", "Needs:", "Excludes:", "FLOAT:"})
      EXPECT_FALSE(has(r.out, noise)) << sub << ": " << noise << "\n" << r.out;
    std::istringstream in(r.out);
    for (std::string line; std::getline(in, line);) EXPECT_LE(line.size(), 110u) << sub << ": " << line;
  }
  const std::string run = shell("help run").out;
  for (const char* group : {"\nModel:\n", "\nContext, memory and speed:\n", "\nDrafting:\n", "\nSampling:\n"})
    EXPECT_TRUE(has(run, group)) << group << run;
  for (const char* value : {"--model FILE ", "--mmproj FILE=auto", "--image FILE ...", "--json-schema SCHEMA "})
    EXPECT_TRUE(has(run, value)) << value << run;
  for (const char* group : {"\nUsage: facet [OPTIONS] COMMAND\n", "\nAnswers:\n", "\nModel files:\n", "\nHelp:\n"})
    EXPECT_TRUE(has(shell("help").out, group)) << group;
  const Ran version = shell("version");
  EXPECT_EQ(version.rc, 0);
  for (const char* part : {"facet ", "\ncommit ", "\nbackends cpu, ref", "\ninstruction sets scalar"})
    EXPECT_TRUE(has(version.out, part)) << version.out;
}

TEST(CommandLine, PromptsComeAsWordsAndFromFiles) {
  const TempDir dir;
  std::ofstream(dir.file("q")) << "What is 17 + 25?\n";
  const std::string end = " --temp 0 -c 512 --quiet";
  EXPECT_EQ(shell("run 'What is 17 + 25?'" + end).out, "17 + 25 = 42\n");
  EXPECT_EQ(shell("run -f " + dir.file("q") + end).out, "17 + 25 = 42\n");
  EXPECT_EQ(run_command("'" FACET_PROGRAM "' run -f - < " + dir.file("q") + end).out, "17 + 25 = 42\n");
  EXPECT_EQ(shell("run -f /nonexistent", true).rc, 1);
  EXPECT_EQ(shell("run -p - -f -", true).rc, 1);
}

TEST(CommandLine, AnswersFollowASchemaOrAGrammar) {
  const TempDir dir;
  const std::string ask = "run 'What is 17 + 25?' --temp 0 -c 512 --quiet ";
  const std::string schema =
      R"({"type":"object","properties":{"n":{"const":42}},"required":["n"],"additionalProperties":false})";
  std::ofstream(dir.file("s.json")) << schema;
  for (const std::string& how : {"--json-schema '" + schema + "'", "--json-schema-file " + dir.file("s.json")}) {
    const Ran r = shell(ask + how);
    EXPECT_EQ(r.rc, 0) << r.out;
    const auto j = nlohmann::json::parse(r.out, nullptr, false);
    ASSERT_FALSE(j.is_discarded()) << r.out;
    EXPECT_EQ(j["n"], 42);
  }
  EXPECT_EQ(shell(ask + "--grammar 'root ::= \"yes\" | \"no\"'").out.size(),
            shell(ask + "--draft none --grammar 'root ::= \"yes\" | \"no\"'").out.size());
  EXPECT_EQ(shell(ask + "--grammar 'root ::= \"maybe\"'").out, "maybe\n");
  for (const char* wrong : {"--json-schema '{'", "--grammar 'root ::= ('"}) {
    const Ran r = shell(ask + wrong, true);
    EXPECT_EQ(r.rc, 1) << r.out;
    EXPECT_TRUE(has(r.out, std::string("facet: ") + std::string(wrong).substr(0, std::string(wrong).find(' '))))
        << r.out;
  }
  EXPECT_EQ(shell(ask + "--grammar x --json-schema y", true).rc, 2);
}

// FACET_... for every option; the command line wins.
TEST(CommandLine, OptionsComeFromTheEnvironment) {
  const auto run = [](const std::string& env, const std::string& args) {
    return run_command(env + " '" FACET_PROGRAM "' " + args + " 2>&1");
  };
  EXPECT_TRUE(has(run("FACET_CTX_SIZE=2048", "plan").out, "\ncontext 2048 of"));
  EXPECT_TRUE(has(run("FACET_CTX_SIZE=2048", "plan -c 512").out, "\ncontext 512 of"));
  EXPECT_TRUE(has(run("FACET_CTX_SIZE=2048", "plan --ctx-size=512").out, "\ncontext 512 of"));
  EXPECT_TRUE(has(run("FACET_CTX_SIZE=2048", "plan -c512").out, "\ncontext 512 of"));
  EXPECT_EQ(run("FACET_QUIET=1 FACET_TEMP=0 FACET_CTX_SIZE=512", "run 'What is 17 + 25?'").out, "17 + 25 = 42\n");
  EXPECT_TRUE(has(run("FACET_QUIET=0 FACET_TEMP=0 FACET_CTX_SIZE=512", "run 'What is 17 + 25?'").out, "tok/s"));
  EXPECT_EQ(run("FACET_QUIET=1", "run -v Hello -n 1 -c 512").rc, 0) << "what the command line excludes";
  const Ran wrong = run("FACET_TEMP=warm", "run Hello");
  EXPECT_EQ(wrong.rc, 2);
  EXPECT_TRUE(has(wrong.out, "FACET_TEMP")) << wrong.out;
  EXPECT_EQ(run("FACET_TEMP=warm", "plan -c 512").rc, 0) << "plan has no such option";
  EXPECT_EQ(run("FACET_TEMP=warm", "run --help").rc, 0);
}

// facet.conf for every option; the environment and the command line win.
TEST(CommandLine, OptionsComeFromAConfigurationFile) {
  const TempDir dir;
  const std::string file = dir.file("facet.conf");
  const auto run = [&](const std::string& text, const std::string& args, const std::string& env = "") {
    std::ofstream(file) << text;
    return run_command("FACET_CONFIG='" + file + "' " + env + " '" FACET_PROGRAM "' " + args + " 2>&1");
  };
  const std::string general = "# of every command\nctx-size = 2048\n", both = general + "[plan]\nctx-size = 1024\n";
  EXPECT_TRUE(has(run(general, "plan").out, "\ncontext 2048 of"));
  EXPECT_TRUE(has(run(both, "plan").out, "\ncontext 1024 of"));
  EXPECT_TRUE(has(run("ctx-size = 1024\n[run]\nctx-size = 512", "plan").out, "\ncontext 1024 of"));
  EXPECT_TRUE(has(run(both, "plan", "FACET_CTX_SIZE=512").out, "\ncontext 512 of"));
  EXPECT_TRUE(has(run(both, "plan -c 256", "FACET_CTX_SIZE=512").out, "\ncontext 256 of"));
  const std::string ask = "run 'What is 17 + 25?'", quiet = "ctx-size = 512\n[run]\ntemp = \"0\"\nquiet = on\n";
  EXPECT_EQ(run(quiet, ask).out, "17 + 25 = 42\n");
  EXPECT_TRUE(has(run(quiet, ask, "FACET_QUIET=0").out, "tok/s")) << "a flag that is off in the environment";
  EXPECT_EQ(run(quiet, ask + " -v").rc, 0) << "what the command line excludes";
  EXPECT_EQ(run("temp = warm", "plan -c 512").rc, 0) << "plan has no such option";
  struct Case {
    const char *text, *line, *what;
  };
  for (const Case& c : {Case{"\ntemp = warm\n", " line 2", "temp"}, Case{"temp = 1\nctxsize = 3", " line 2", "ctxsize"},
                        Case{"[plan]\ntemp = 1", " line 2", "temp"}, Case{"temp", " line 1", "KEY = VALUE"},
                        Case{"temp = 1\ntemp = 2", " line 2", "once"}, Case{"[plam]", "", "did you mean 'plan'"},
                        Case{"ctx-sise = 9", " line 1", "did you mean 'ctx-size'"}}) {
    const Ran r = run(c.text, "run Hello");
    EXPECT_EQ(r.rc, 2) << r.out;
    EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 2) << r.out;  // and where to look for more
    EXPECT_TRUE(has(r.out, file + c.line)) << c.text << "\n" << r.out;
    EXPECT_TRUE(has(r.out, c.what)) << c.text << "\n" << r.out;
  }
  EXPECT_EQ(run("nothing", "run --help").rc, 0);
  // Where it is looked for.
  std::filesystem::create_directories(dir.file("xdg/facet"));
  std::filesystem::create_directories(dir.file("home/.config/facet"));
  std::ofstream(dir.file("xdg/facet/facet.conf")) << "ctx-size = 2048\n";
  std::ofstream(dir.file("home/.config/facet/facet.conf")) << "ctx-size = 1024\n";
  const auto found = [&](const std::string& env) {
    return run_command("env -u FACET_CONFIG -u XDG_CONFIG_HOME " + env + " '" FACET_PROGRAM "' plan 2>&1").out;
  };
  EXPECT_TRUE(has(found("XDG_CONFIG_HOME='" + dir.file("xdg") + "'"), "\ncontext 2048 of"));
  EXPECT_TRUE(has(found("HOME='" + dir.file("home") + "'"), "\ncontext 1024 of"));
  EXPECT_FALSE(has(found("FACET_CONFIG=/dev/null HOME='" + dir.file("home") + "'"), "\ncontext 1024 of"));
  const Ran none = run_command("FACET_CONFIG='" + dir.file("no") + "' '" FACET_PROGRAM "' plan 2>&1");
  EXPECT_EQ(none.rc, 2);
  EXPECT_TRUE(has(none.out, dir.file("no"))) << none.out;
}

TEST(CommandLine, DownloadsAreListedAndRemoved) {
  const TempDir dir;
  namespace fs = std::filesystem;
  const std::string cache = dir.file("cache"), outside = dir.file("outside");
  for (const char* folder : {"/u/one", "/u/two/sub"}) fs::create_directories(cache + folder);
  for (const char* file : {"/u/one/a.gguf", "/u/one/a.gguf.sha256", "/u/one/b.gguf.part", "/u/one/b.gguf.part.etag",
                           "/u/one/lock", "/u/two/sub/c.gguf", "/chat_history"})
    std::ofstream(cache + file) << "12345";
  fs::create_directories(outside + "/x");
  fs::create_directory_symlink(outside, cache + "/l");
  const auto run = [&](const std::string& args) {
    return run_command("FACET_CACHE='" + cache + "' '" FACET_PROGRAM "' " + args + " 2>&1");
  };
  const Ran all = run("ls");
  EXPECT_EQ(all.rc, 0) << all.out;
  EXPECT_TRUE(has(all.out, "  u/one/a.gguf\n")) << all.out;
  EXPECT_TRUE(has(all.out, "  u/one/b.gguf.part  (incomplete")) << all.out;
  EXPECT_TRUE(has(all.out, "  3 files in ")) << all.out;
  for (const char* name : {"../outside/x", "u", "/u/one", "u/../u/one", "l/x", "u/none", "u/one/none.gguf", "''"})
    EXPECT_NE(run("rm " + std::string(name)).rc, 0) << name;
  EXPECT_TRUE(fs::exists(outside + "/x"));
  EXPECT_EQ(run("rm u/one/a.gguf").rc, 0);
  EXPECT_FALSE(fs::exists(cache + "/u/one/a.gguf.sha256"));
  EXPECT_TRUE(fs::exists(cache + "/u/one/b.gguf.part"));
  EXPECT_EQ(run("rm u/one u/two").rc, 0);
  EXPECT_FALSE(fs::exists(cache + "/u"));
  EXPECT_TRUE(fs::exists(cache + "/chat_history"));
  EXPECT_TRUE(has(run("ls").out, "  0 files in ")) << run("ls").out;
}

TEST(CommandLine, PlansBeginWithTheVerdict) {
  const Ran fits = shell("plan -c 512");
  EXPECT_EQ(fits.rc, 0);
  EXPECT_EQ(fits.out.find("fits: "), 0u) << fits.out;
  EXPECT_TRUE(has(fits.out, " is the largest that fits")) << fits.out;
  const Ran beyond = shell("plan -c 16000000 --memory 1GB");
  EXPECT_EQ(beyond.rc, 1);
  EXPECT_EQ(beyond.out.find("does not fit: a context of 16000000 needs "), 0u) << beyond.out;
  EXPECT_TRUE(has(beyond.out, " would fit)\n")) << beyond.out;
  const Ran some = shell("plan -c 512 --memory 60MB"), largest = shell("plan -c 0 --memory 60MB");
  const auto first = [](const Ran& r) { return r.out.substr(r.out.find("; "), r.out.find('\n') - r.out.find("; ")); };
  EXPECT_EQ(first(some), first(largest));
}

}  // namespace
}  // namespace facet::test
