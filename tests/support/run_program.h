#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <string_view>

// The program as a user runs it.
namespace facet::test {

struct Ran {
  int rc = -1;  // exit code; -1: it did not exit
  std::string out;
};

// A shell's command; what it writes to stdout.
inline Ran run_command(const std::string& command) {
  Ran r;
  FILE* p = ::popen(command.c_str(), "r");
  if (!p) return r;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, p)) > 0;) r.out.append(buffer, n);
  const int status = ::pclose(p);
  r.rc = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return r;
}
enum class Streams { kOut, kBoth };  // kBoth: stderr too
inline Ran run_program(const std::string& args, Streams streams) {
  std::string command = "'" FACET_PROGRAM "' ";  // not one sum: GCC 12 warns of it
  command += args;
  command += streams == Streams::kBoth ? " 2>&1" : " 2>/dev/null";
  return run_command(command);
}

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace facet::test
