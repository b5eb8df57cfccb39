#include "base/core_use.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/files.h"

namespace facet {
namespace {

double seconds(const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); }
double clock_now(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

}  // namespace

CoreUse::Sample CoreUse::sample() {
  Sample s;
  s.at = clock_now(CLOCK_MONOTONIC);
  rusage own{};
  if (::getrusage(RUSAGE_SELF, &own) == 0) s.own = seconds(own.ru_utime) + seconds(own.ru_stime);
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return s;
  // The CPUs' lines come first. Between steps memory is not taken, and this is called there.
  char buffer[1 << 16];
  const std::span<const char> text = read_start("/proc/stat", std::span(buffer).first(sizeof buffer - 1));
  buffer[text.size()] = 0;
  static const double tick = 1. / double(std::max(1L, ::sysconf(_SC_CLK_TCK)));
  for (const char* line = buffer; std::strncmp(line, "cpu", 3) == 0;) {
    const char* next = std::strchr(line, '\n');
    if (!next) break;
    char* at = nullptr;
    const long cpu = line[3] == ' ' ? -1 : std::strtol(line + 3, &at, 10);
    if (cpu >= 0 && cpu < CPU_SETSIZE && CPU_ISSET(int(cpu), &usable)) {
      // user, nice, system, idle, iowait, irq, softirq, steal; what follows is part of the first two
      for (int i = 0; i < 8; ++i) {
        const double t = tick * double(std::strtoull(at, &at, 10));
        s.total += t;
        if (i == 3 || i == 4) s.idle += t;
      }
      ++s.cpus;
    }
    line = next + 1;
  }
  return s;
}

void CoreUse::restart() { start_ = sample(); }

CoreUse::Since CoreUse::since() const {
  const Sample now = sample();
  Since r;
  r.seconds = now.at - start_.at;
  if (now.cpus == 0 || now.cpus != start_.cpus || r.seconds <= 0) return r;
  r.cpus = now.cpus;
  const double total = now.total - start_.total, idle = now.idle - start_.idle, own = now.own - start_.own;
  r.idle = std::clamp(idle / r.seconds, 0., double(r.cpus));
  r.others = std::clamp((total - idle - own) / r.seconds, 0., double(r.cpus));
  return r;
}

std::string other_programs(const CoreUse::Since& use) {
  if (use.cpus == 0 || use.others < 0.25) return {};
  return fmt::format("other programs use these cores: {:.1f} of {}", use.others, use.cpus);
}

}  // namespace facet
