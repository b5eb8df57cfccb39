#include "base/threads.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace facet {
namespace {

constexpr std::chrono::microseconds kSpin{200};

// Idle threads of the pool spin for kSpin and then sleep. The library counts rounds, of a pause instruction each, whose
// length differs between processors by four times. Its own limit is milliseconds: beside any other program a step then
// waits for threads that burn the cores it needs. Far less than the work of one thread between two parallel loops is as
// bad: to wake a thread costs as much as a small matrix, and on a virtual machine up to a millisecond. Runs before the
// library reads its settings; a user's own setting wins.
__attribute__((constructor(101))) void limit_spinning() {
  int rounds = 5000;
#if defined(__x86_64__)
  constexpr int kTrial = 256;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kTrial; ++i) __builtin_ia32_pause();
  const std::chrono::duration<double> each = (std::chrono::steady_clock::now() - start) / double(kTrial);
  rounds = int(std::clamp(kSpin / each, 1000., 50000.));
#endif
  ::setenv("GOMP_SPINCOUNT", std::to_string(rounds).c_str(), /*overwrite=*/0);
}

}  // namespace

// Linux has a niceness for each thread, under its number. One that may not be set stays as it is.
void lower_priority() { ::setpriority(PRIO_PROCESS, id_t(::syscall(SYS_gettid)), 10); }

int physical_cores() {
  std::set<std::string> cores;
  const unsigned n = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned i = 0; i < n; ++i) {
    std::ifstream f("/sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list");
    if (std::string s; std::getline(f, s)) cores.insert(s);
  }
  return cores.empty() ? int(n) : int(cores.size());
}

}  // namespace facet
