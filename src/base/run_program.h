#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

// Another program, run to its end for what it writes, without a shell. Its time, memory and output have bounds; whatever
// happens, it and all that it has started in its process group have ended when run_program() returns.
namespace facet {

struct ProgramLimits {
  double seconds = 60;
  uint64_t memory = uint64_t(1) << 30;  // bytes of its address space
  uint64_t output = uint64_t(1) << 28;  // bytes of its standard output
};
struct ProgramOutput {
  std::string out, err;  // err: the last bytes of it
  bool ok = false;       // it ended by itself, with exit code 0
  std::string end;       // "exit code 1", "killed by signal 9"
};

// The path of a program that PATH names; "": there is none.
std::string find_program(std::string_view name);
// args[0]: its path. stop: asked a few times a second, true ends it. Errors: it could not be started, was stopped, took
// longer, or wrote more. It has no standard input, writes no files, and ends with the thread that has called this.
Result<ProgramOutput> run_program(const std::vector<std::string>& args, const ProgramLimits& limits,
                                  const std::function<bool()>& stop = {});

}  // namespace facet
