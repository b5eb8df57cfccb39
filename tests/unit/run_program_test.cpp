// Other programs: what they give, and that none of them can stay, fill memory or write without end.
#include "base/run_program.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace facet {
namespace {

Result<ProgramOutput> shell(const std::string& script, const ProgramLimits& limits = {},
                            const std::function<bool()>& stop = {}) {
  return run_program({"/bin/sh", "-c", script}, limits, stop);
}

double seconds(const std::function<void()>& f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Whether a process is gone within a few seconds: whoever inherits it has to wait for it first.
bool is_gone(pid_t pid) {
  for (int i = 0; i < 300; ++i) {
    if (::kill(pid, 0) != 0) return true;
    char state[256] = {};
    const std::string path = "/proc/" + std::to_string(pid) + "/stat";
    if (FILE* f = std::fopen(path.c_str(), "r")) {
      const size_t n = std::fread(state, 1, sizeof state - 1, f);
      std::fclose(f);
      if (std::string(state, n).find(") Z ") != std::string::npos) return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

TEST(RunProgram, GivesWhatIsWrittenAndHowItEnded) {
  auto r = shell("cat; echo out; echo err >&2");
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_EQ(r->out, "out\n");
  EXPECT_EQ(r->err, "err\n");
  EXPECT_TRUE(r->ok);
  r = shell("exit 3");
  ASSERT_TRUE(r);
  EXPECT_FALSE(r->ok);
  EXPECT_EQ(r->end, "exit code 3");
  r = shell("kill -9 $$");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->end, "killed by signal 9");
  r = run_program({"/nonexistent/program"}, {});
  ASSERT_TRUE(r);
  EXPECT_FALSE(r->ok);
  EXPECT_EQ(r->err, "cannot be executed\n");
  constexpr size_t kLong = 3'000'000;  // more than a pipe holds, on both
  r = shell("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; echo end >&2");
  ASSERT_TRUE(r);
  EXPECT_EQ(r->out.size(), kLong);
  EXPECT_LT(r->err.size(), 10'000u);
  EXPECT_TRUE(r->err.ends_with("end\n"));
}

TEST(RunProgram, NoShellReadsItsArguments) {
  const auto r = run_program({find_program("printf"), "%s", "$(echo a); b"}, {});
  ASSERT_TRUE(r);
  EXPECT_EQ(r->out, "$(echo a); b");
}

TEST(RunProgram, OneThatHangsIsEndedWithItsChildren) {
  // What it wrote is lost with the error: its child's number is found by the name that it has.
  const std::string name = "facet_" + std::to_string(::getpid());
  Result<ProgramOutput> r = Error{};
  const double s = seconds([&] { r = shell("sh -c 'sleep 1000; true' " + name + " & sleep 1000", {.seconds = 0.3}); });
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().what.find("within 0.3 s"), std::string::npos) << r.error().message();
  EXPECT_LT(s, 5);
  const auto left = shell("pgrep -f 'sleep 1000; true [f]" + name.substr(1) + "'");
  ASSERT_TRUE(left);
  EXPECT_EQ(left->out, "");
}

TEST(RunProgram, WhatItLeftBehindIsEndedToo) {
  Result<ProgramOutput> r = Error{};
  const double s = seconds([&] { r = shell("sleep 1000 & echo $!"); });
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_TRUE(r->ok);
  EXPECT_LT(s, 5);  // although the child holds the pipe open
  const pid_t child = std::stoi(r->out);
  ASSERT_GT(child, 1);
  EXPECT_TRUE(is_gone(child));
}

TEST(RunProgram, OutputWithoutEndIsAnError) {
  for (const char* script : {"yes", "yes; sleep 1000"}) {
    const auto r = shell(script, {.output = 1'000'000});
    ASSERT_FALSE(r);
    EXPECT_NE(r.error().what.find("1000000 bytes"), std::string::npos) << r.error().message();
  }
  // On the other pipe it is thrown away, until time is up.
  const auto r = shell("yes >&2", {.seconds = 0.3});
  ASSERT_FALSE(r);
  EXPECT_NE(r.error().what.find("0.3 s"), std::string::npos);
}

TEST(RunProgram, MemoryHasABound) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer's own address space is larger";
#endif
  // A line without end, which sort keeps as a whole.
  const auto r = shell("exec sort -S 1M /dev/zero", {.seconds = 30, .memory = uint64_t(200) << 20});
  ASSERT_TRUE(r) << r.error().message();
  EXPECT_FALSE(r->ok) << r->end;
}

TEST(RunProgram, WritesNoFiles) {
  const std::string file = testing::TempDir() + "run_program_" + std::to_string(::getpid());
  const auto r = shell("echo text > " + file);
  ::unlink(file.c_str());
  ASSERT_TRUE(r);
  EXPECT_FALSE(r->ok);
}

TEST(RunProgram, MayBeStopped) {
  int asked = 0;
  Result<ProgramOutput> r = Error{};
  const double s = seconds([&] { r = shell("sleep 1000", {}, [&] { return ++asked > 2; }); });
  ASSERT_FALSE(r);
  EXPECT_EQ(r.error().what, "stopped");
  EXPECT_LT(s, 5);
}

}  // namespace
}  // namespace facet
