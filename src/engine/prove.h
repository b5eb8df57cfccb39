#pragma once
#include <cstdint>

#include "engine/engine.h"

namespace facet {

// What a plan promised and what it came to.
struct MemoryProof {
  int64_t planned = 0;   // bytes; on a GPU with what kernels and graphs take beside the plan
  int64_t measured = 0;  // taken by this process since before anything was allocated; weights that are mapped from
                         // files count whole
  int sequences = 0;     // filled as deep as was promised
  int kept = 0;          // sequences kept beside them
  bool holds() const {
    return sequences > 0 && measured <= planned + planned / 50 && measured >= planned - planned / 50;
  }
};

// Opens what `decided` plans, fills every sequence to its depth with random rows, as many as the pool has room for,
// and runs a step of all of them, drafts included, with as long a piece of a prompt as a step may have.
Result<MemoryProof> prove_plan(const EngineConfig& decided);

}  // namespace facet
