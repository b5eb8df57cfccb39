#include "base/threads.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <thread>

namespace facet {

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

int usable_cpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof usable, &usable) == 0) return std::max(1, CPU_COUNT(&usable));
  return int(std::max(1u, std::thread::hardware_concurrency()));
}

}  // namespace facet
