#pragma once
#include "api/config.h"
#include "compose/memory_proof.h"

namespace facet {

// Opens what `decided` plans, fills every sequence to its depth with random rows, as many as the pool has room for,
// and runs a step of all of them, drafts included, with as long a piece of a prompt as a step may have. Encoders take
// the largest picture and sound.
Result<MemoryProof> prove_plan(const EngineConfig& decided);

}  // namespace facet
