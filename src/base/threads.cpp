#include "base/threads.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace facet {
namespace {

// Idle threads of the pool spin for some 20 microseconds (a round is a pause instruction, some 40 ns), which mostly outlasts
// the work of one thread between two parallel loops of a step, and then sleep: to wake one costs as much as a small
// matrix. The library's own limit is milliseconds: beside any other program a step then waits for threads that burn the
// cores it needs. Runs before the library reads its settings; a user's own setting wins.
__attribute__((constructor(101))) void limit_spinning() { ::setenv("GOMP_SPINCOUNT", "500", /*overwrite=*/0); }

}  // namespace

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
