#pragma once
#include <memory>
#include <span>

#include "backend/cuda/cuda.h"

namespace facet {

// Opens each GPU's memory to the others. False where one does not reach another, or where FACET_CUDA_PEERS is 0 in the
// environment: a test switch, for what goes through the host's memory then.
bool open_peers(std::span<const std::unique_ptr<Cuda>> gpus);

}  // namespace facet
