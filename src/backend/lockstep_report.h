#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace facet {

// How far a backend was from the reference, verb by verb (backend/lockstep.h).
struct LockstepReport {
  struct Verb {
    std::string name;
    int64_t compared = 0, over = 0;  // results (none: verbs that read them are judged); of them, beyond their bound
    double error = 0, bound = 0;     // relative rms error of the worst one, against its bound
  };
  std::vector<Verb> verbs;  // in the order in which they first ran
  std::string first_over;   // what the first verb beyond its bound did, and where; empty: none was
};

}  // namespace facet
