#pragma once
#include <memory>

#include "api/engine.h"

// Engines on GPUs; only programs built with the CUDA backend have them.
namespace facet {

struct LoadedModel;
Result<std::unique_ptr<Engine>> open_cuda_engine(LoadedModel model, const EngineConfig& decided);
// On several GPUs: with a part of every layer each, or with some layers each (split).
Result<std::unique_ptr<Engine>> open_sharded_engine(LoadedModel model, const EngineConfig& decided);
Result<std::unique_ptr<Engine>> open_staged_engine(LoadedModel model, const EngineConfig& decided);

}  // namespace facet
