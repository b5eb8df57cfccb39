#pragma once
#include <cstdint>

namespace facet {

// What a plan promised and what it came to.
struct MemoryProof {
  int64_t planned = 0;  // bytes
  int64_t beside =
      0;  // that kernels and graphs of a GPU may take beside it; how many of them are used shows only later
  int64_t measured = 0;  // taken by this process since before anything was allocated; weights that are mapped from
                         // files count whole
  int sequences = 0;     // filled as deep as was promised
  int kept = 0;          // sequences kept beside them
  bool holds() const {
    return sequences > 0 && measured <= (planned + beside) / 50 * 51 && measured >= planned / 50 * 49;
  }
};

}  // namespace facet
