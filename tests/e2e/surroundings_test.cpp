// The program in bad surroundings: full disks, closed streams, odd files, signals, values that mean nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "app/option_checks.h"
#include "support/bytes.h"
#include "support/run_program.h"
#include "support/terminal.h"
#include "support/tiny_model.h"

namespace facet::test {
namespace {

namespace fs = std::filesystem;

const std::string kProgram = std::string("'") + FACET_PROGRAM + "' ";
const std::string kModel = FACET_SOURCE_DIR "/models/facet-nano-Q8_0.gguf";
const std::string kShort = "run -p Hello --temp 0 -c 512 -n 4 --draft none";

// The exit code and stderr of the program with a shell's redirections, which come last.
Ran with(const std::string& args, const std::string& redirections) {
  return run_command("{ timeout 60 " + kProgram + args + " " + redirections + "; } 2>&1");
}
std::string contents(const std::string& path) {
  std::ifstream f(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(f), {}};
}
int lines(const std::string& s) { return int(std::count(s.begin(), s.end(), '\n')); }

TEST(Surroundings, AFullDiskBehindStdoutIsAFailure) {
  for (const std::string& args :
       {kShort, std::string("--help"), std::string("plan -c 512"), "inspect " + kModel,
        "compare " + kModel + " " + kModel, std::string("chat --draft none -c 512 </dev/null")}) {
    const Ran r = with(args, ">/dev/full");
    EXPECT_EQ(r.rc, 1) << args << ": " << r.out;
    EXPECT_TRUE(has(r.out, "stdout: cannot write")) << args << ": " << r.out;
    EXPECT_EQ(with(args, ">&-").rc, 1) << args;
  }
  EXPECT_EQ(run_command("echo '[500]' | " + kProgram + "detokenize >/dev/full 2>&1").rc, 1);
}

TEST(Surroundings, AStderrThatTakesNothingStopsNothing) {
  const fs::path tokens = fs::temp_directory_path() / ("facet_ids_" + std::to_string(::getpid()));
  const int32_t ids[] = {2, 3};
  std::ofstream(tokens, std::ios::binary).write(reinterpret_cast<const char*>(ids), sizeof ids);
  for (const char* to : {"2>/dev/full", "2>&-"}) {
    EXPECT_EQ(with(kShort, to).rc, 0) << to;
    EXPECT_EQ(with("logits --tokens " + tokens.string() + " --out " + tokens.string() + ".f32", to).rc, 0) << to;
    EXPECT_EQ(with("eval --kind arithmetic --set /nonexistent", to).rc, 1) << to;
    EXPECT_EQ(
        run_command("timeout --preserve-status -s TERM 3 " + kProgram + "serve --port 0 -c 512 --draft none " + to).rc,
        0)
        << to;
  }
  // What is said must not land in the file that took the free number.
  EXPECT_EQ(fs::file_size(tokens.string() + ".f32"), 2u * 3072 * 4);
  fs::remove(tokens), fs::remove(tokens.string() + ".f32");
}

TEST(Surroundings, OutputsAreNewNamesOrRegularFiles) {
  const TempDir dir;
  const std::string model = dir.path() + "/m.gguf", ids = dir.path() + "/ids.i32", pipe = dir.path() + "/pipe";
  fs::copy_file(kModel, model);
  const int32_t two[] = {2, 3};
  std::ofstream(ids, std::ios::binary).write(reinterpret_cast<const char*>(two), sizeof two);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  // A device of its own where one may be made: a program that replaces it must not take the machine's.
  std::string device = dir.path() + "/null";
  if (::mknod(device.c_str(), S_IFCHR | 0600, ::makedev(1, 3)) != 0) device = "/dev/null";
  fs::create_hard_link(model, dir.path() + "/hard.gguf");
  fs::create_symlink(model, dir.path() + "/soft.gguf");
  const std::string before = contents(model);
  for (const std::string& to :
       {dir.path() + "/m.gguf", dir.path() + "/hard.gguf", dir.path() + "/soft.gguf", ids, dir.path(), pipe, device})
    for (const std::string& args :
         {"logits -m " + model + " --tokens " + ids + " --out " + to,
          "run -m " + model + " --draft none --tokens " + ids + " -n 2 --out-tokens " + to,
          to == ids ? "" : "quantize --allow-requantize " + model + " " + to + " Q4_0",
          to == device || fs::is_directory(to) || to == pipe ? "synth --preset e2b --quant Q4_0 " + to : ""}) {
      if (args.empty()) continue;
      const Ran r = with(args, "");
      EXPECT_EQ(r.rc, 1) << args << ": " << r.out;
      EXPECT_TRUE(has(r.out, "expected a new")) << args << ": " << r.out;
    }
  EXPECT_EQ(contents(model), before);
  EXPECT_EQ(fs::file_size(ids), sizeof two);
  struct stat st {};
  ASSERT_EQ(::stat(device.c_str(), &st), 0);
  EXPECT_TRUE(S_ISCHR(st.st_mode));
}

TEST(Surroundings, InputsAreRegularFilesOfABoundedSize) {
  const TempDir dir;
  const std::string pipe = dir.path() + "/pipe", large = dir.path() + "/large";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::ofstream(large) << std::string(2 << 20, 'k');
  for (const std::string& odd : {pipe, std::string("/dev/zero"), dir.path()})
    for (const char* args : {"run -p x -m ", "run --tokens ", "eval --text ", "eval --set ",
                             "serve --port 0 --api-key-file ", "run -p x --draft "}) {
      if (odd == dir.path() && has(args, "--draft")) continue;  // a folder may hold one
      const Ran r = run_command("timeout 20 " + kProgram + args + odd + " 2>&1");
      EXPECT_EQ(r.rc, 1) << args << odd << ": " << r.out;
      EXPECT_TRUE(has(r.out, "expected a regular file")) << args << odd << ": " << r.out;
    }
  const Ran r = run_command("timeout 20 " + kProgram + "serve --port 0 --api-key-file " + large + " 2>&1");
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "expected at most")) << r.out;
}

TEST(Surroundings, ValuesThatMeanNothingAreUsageErrors) {
  for (const char* args : {"--temp nan",
                           "--top-p nan",
                           "--min-p nan",
                           "--repeat-penalty nan",
                           "--presence-penalty nan",
                           "--frequency-penalty inf",
                           "--memory 0",
                           "--memory -1",
                           "--memory 99999999999999999999",
                           "--seed 123456789012345678901234",
                           "-m ''",
                           "--draft ''",
                           "--out-tokens ''",
                           "-n -2",
                           "--gpus ''",
                           "--gpus 0",
                           "--gpus 1,1",
                           "--gpus 0,",
                           "--gpus 0,64",
                           "--gpus -2",
                           "--gpus 2 --gpu 0",
                           "--split 3,2",
                           "--gpus 2 --split ''",
                           "--gpus 2 --split 3,0",
                           "--gpus 2 --split 3,nan",
                           "--gpus 2 --split 3:2"}) {
    const Ran r = run_command("timeout 20 " + kProgram + "run -p x " + args + " 2>&1");
    EXPECT_EQ(r.rc, 2) << args << ": " << r.out;
  }
  for (const char* args : {"run --tokens ''", "serve --api-key-file ''", "serve --api-key ''", "eval --text ''",
                           "eval --set ''", "logits --tokens '' --out x", "logits --tokens x --out ''",
                           "quantize x '' Q4_0", "inspect ''", "frobnicate", "frobnicate --help"})
    EXPECT_EQ(run_command("timeout 20 " + kProgram + args + " 2>&1").rc, 2) << args;
}

TEST(Surroundings, NamesThatAreUnknownAreAnsweredWithTheKnownOnes) {
  for (const auto& [args, part] : {std::pair{"run -p x --cpu-isa sse", "auto, avx2, avx512, scalar, found 'sse'"},
                                   {"run -p x --kv-k foo", "f16, f32, q4_0, q8_0, tq3_0, found 'foo'"},
                                   {"run -p x --gpus all", "a number of GPUs, or several unlike ones"},
                                   {"plan --gpus 2 --split 3:2", "a share above 0 for each GPU, such as 3,2"},
                                   {"plan --split 3,2", "--gpus"},
                                   {"run -p x --kv foo", "q8_0/q4_0, or auto, found 'foo'"},
                                   {"run -p x --kv q8_0 --kv-k f16", "--kv"},
                                   {"run -p x --kv-layers 5", "such as 5=q8_0 or 0-3=q8_0/q4_0, found '5'"},
                                   {"run -p x --kv-layers 5-3=q8_0", "found '5-3=q8_0'"},
                                   {"run -p x --kv-layers=-1=q8_0", "found '-1=q8_0'"},
                                   {"run -p x --kv-layers 1=q8_0,0-2=f16", "expected each layer once, found 1 twice"},
                                   {"eval --text x --against-kv foo", "tq3_0, found 'foo'"},
                                   {"bench spec --kv foo", "tq3_0, found 'foo'"},
                                   {"frobnicate", "'frobnicate', expected one of chat, run, serve"}}) {
    const Ran r = run_command(kProgram + args + " 2>&1");
    EXPECT_EQ(r.rc, 2) << args;
    EXPECT_TRUE(has(r.out, part)) << args << ": " << r.out;
    EXPECT_TRUE(std::none_of(r.out.begin(), r.out.end(), [](char c) { return c != '\n' && (c < ' ' || c > '~'); }))
        << args;
  }
}

TEST(Surroundings, NoTokensAreNone) {
  const Ran r = run_program("run -p Hello --temp 0 -c 512 -n 0", Streams::kOut);
  EXPECT_EQ(r.rc, 0);
  EXPECT_EQ(r.out, "\n");
}

TEST(Surroundings, SetsWithoutQuestionsAreFailures) {
  const TempDir dir;
  std::ofstream(dir.path() + "/empty.jsonl");
  EXPECT_EQ(run_program("eval -c 512 --set " + dir.path() + "/empty.jsonl", Streams::kOut).rc, 1);
  const Ran r = run_program("eval --kind zzz", Streams::kBoth);
  EXPECT_EQ(r.rc, 1);
  EXPECT_TRUE(has(r.out, "arithmetic")) << r.out;
}

TEST(Surroundings, WhatNoOneForesawIsOneLine) {
  const Ran few = run_command("exec 2>&1 >/dev/null; ulimit -n 6; exec timeout 20 " + kProgram +
                              "serve --port 0 -c 512 --draft none");
  EXPECT_EQ(few.rc, 1) << few.out;
  EXPECT_TRUE(has(few.out, "facet: ")) << few.out;
  const Ran little = run_command("ulimit -v 30000; timeout 20 " + kProgram + kShort + " 2>&1 >/dev/null");
  EXPECT_EQ(little.rc, 1) << little.out;
}

TEST(Surroundings, MemoryThatRunsOutIsOneLine) {
  for (const std::string args : {kShort.c_str(), "plan -c 512", "plan -c 512 --prove", "chat -c 512 </dev/null",
                                 "bench -c 512 --prefill 16 --depths 0 --widths 1 --runs 1"})
    for (int mb = 20; mb <= 340; mb += args.starts_with("run") ? 4 : 24) {
      const Ran r = run_command(fmt::format("exec 2>&1 >/dev/null; ulimit -v {}; {}{}", mb << 10, kProgram, args));
      if (r.rc == 0) continue;
      const size_t at = ("\n" + r.out).find("\nfacet: ");
      ASSERT_TRUE(r.rc == 1 && at != std::string::npos)
          << args << " within " << mb << " MiB: " << r.rc << ", " << r.out;
      const std::string line = r.out.substr(at, r.out.find('\n', at) - at);
      EXPECT_TRUE(has(line, "MiB") || has(line, "memory")) << args << " within " << mb << " MiB: " << r.out;
      EXPECT_EQ(r.out.find("\nfacet: ", at + 1), std::string::npos) << args << " within " << mb << " MiB: " << r.out;
    }
  // No page can be locked: only what a GPU reads needs that.
  EXPECT_EQ(run_command("ulimit -l 0; " + kProgram + kShort + " >/dev/null 2>&1").rc, 0);
}

// The program, to be ended by a signal.
struct Child {
  pid_t pid = -1;
  explicit Child(const std::string& args) {
    pid = ::fork();
    if (pid != 0) return;
    ::signal(SIGINT, SIG_DFL);
    const std::string command = "exec " + kProgram + args + " >/dev/null 2>&1";
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  // As a shell tells it.
  int end(int signal) {
    ::kill(pid, signal);
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
};

TEST(Surroundings, CtrlCIsToldByTheExitCode) {
  Terminal t(
      {"run", "-p", "Count from 1 to 900.", "--temp", "0", "-c", "8192", "--ignore-eos", "-t", "1", "--draft", "none"});
  ASSERT_TRUE(t.wait_for("1, 2, 3")) << t.seen();
  t.type("\x03");
  ASSERT_TRUE(t.wait_for("; stopped")) << t.seen();
  EXPECT_EQ(t.exit_code(), 130);
}

TEST(Surroundings, SignalsLeaveNoPart) {
  const TempDir dir;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string out = dir.path() + "/s.gguf", part = out + ".part";
    Child c("synth --preset e2b --quant Q4_0 " + out);
    for (int i = 0; i < 500 && !fs::exists(part); ++i) ::usleep(20000);
    ASSERT_TRUE(fs::exists(part)) << "the work never began";
    EXPECT_EQ(c.end(signal), 128 + signal);
    EXPECT_FALSE(fs::exists(part));
    EXPECT_FALSE(fs::exists(out));
  }
}

TEST(Surroundings, AWriteThatFailsLeavesNothing) {
  const TempDir dir;
  const std::string out = dir.path() + "/q.gguf";
  const Ran r =
      run_command("ulimit -f 100; " + kProgram + "quantize --allow-requantize " + kModel + " " + out + " Q8_0 2>&1");
  EXPECT_EQ(r.rc, 1) << r.out;
  EXPECT_TRUE(has(r.out, "cannot write")) << r.out;
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Surroundings, PlansThatDoNotFitAreTables) {
  const Ran r = run_program("plan -c 16000000 --memory 1GB", Streams::kBoth);
  EXPECT_EQ(r.rc, 1);
  EXPECT_GT(lines(r.out), 8) << r.out;
  EXPECT_LT(r.out.find('\n'), 250u) << r.out;
  // What is suggested is what -c 0 comes to.
  const Ran chosen = run_program("plan -c 0 --memory 60MB", Streams::kBoth),
            asked = run_program("plan -c 65536 --memory 60MB", Streams::kBoth);
  ASSERT_EQ(chosen.rc, 0) << chosen.out;
  const std::string n = chosen.out.substr(chosen.out.find("context ") + 8);
  EXPECT_TRUE(has(asked.out, "(-c " + n.substr(0, n.find(' ')) + " would fit)")) << asked.out;
}

TEST(Surroundings, MessagesNameWhatIsThere) {
  const Ran r = run_program("compare /nonexistent.gguf " + kModel, Streams::kBoth);
  EXPECT_EQ(r.rc, 1);
  EXPECT_FALSE(has(r.out, "--draft")) << r.out;
}

// The shape fits, the model it was trained for is another.
TEST(Surroundings, ADrafterThatIsNeverRightIsTold) {
  const std::string args =
      "run -p 'Tell me a long story about a fox' --temp 0 -c 512 -n 40 --draft-min 2 --draft " FACET_SOURCE_DIR
      "/models/facet-nano-";
  const Ran other = run_program(args + "moe-mtp-Q8_0.gguf", Streams::kBoth);
  EXPECT_EQ(other.rc, 0);
  EXPECT_TRUE(has(other.out, "drafted tokens was right")) << other.out;
  EXPECT_FALSE(has(run_program(args + "mtp-Q8_0.gguf", Streams::kBoth).out, "drafted tokens was right"));
}

TEST(Surroundings, AChatEndsWithItsInput) {
  EXPECT_EQ(run_command("timeout 30 " + kProgram + "chat -c 512 --draft none <&- >/dev/null 2>&1").rc, 0);
}

TEST(Surroundings, AFullContextNamesTheWayOut) {
  const Ran r = run_command("{ echo Hello; yes 'word ' | head -n 400 | tr -d '\\n'; echo; echo Hello; } | timeout 60 " +
                            kProgram + "chat --temp 0 -c 128 --draft none 2>&1");
  EXPECT_TRUE(has(r.out, "/undo forgets the last exchange")) << r.out;
  EXPECT_TRUE(has(r.out, "/clear")) << r.out;
}

TEST(Surroundings, SharesAsTheyAreWritten) {
  using V = std::vector<double>;
  EXPECT_EQ(shares_from("3,2"), V({3, 2}));
  EXPECT_EQ(shares_from("24,16,0.5"), V({24, 16, .5}));
  EXPECT_EQ(shares_from("1"), V{1});
  for (const char* bad : {"", ",", "3,", ",2", "3,,2", "3,0", "3,-1", "3 2", "3:2", "a,b", "nan,1", "1,inf", "1e999,1"})
    EXPECT_FALSE(shares_from(bad)) << bad;
}

}  // namespace
}  // namespace facet::test
