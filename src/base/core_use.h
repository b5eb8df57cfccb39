#pragma once
#include <string>

namespace facet {

// CPU time of the CPUs that this process may run on, from /proc/stat, between two moments. The kernel counts in
// hundredths of a second: an interval under 0.1 s tells little.
class CoreUse {
 public:
  CoreUse() { restart(); }
  void restart();
  struct Since {
    double seconds = 0, idle = 0, others = 0;  // wall time; cores, in the mean: without work, and at work for others
    int cpus = 0;                              // 0: the system does not tell
  };
  Since since() const;  // the last restart

 private:
  struct Sample {
    double at = 0, total = 0, idle = 0, own = 0;  // seconds
    int cpus = 0;
  };
  static Sample sample();
  Sample start_;
};

// "other programs use these cores: 1.3 of 2", or nothing if they use less than a quarter of one.
std::string other_programs(const CoreUse::Since& use);

}  // namespace facet
