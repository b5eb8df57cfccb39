#pragma once
#include <memory>

#include "api/config.h"
#include "api/media.h"
#include "backend/cpu/isa.h"
#include "engine/loaded_model.h"
#include "model/mmproj.h"

namespace facet {

// Encoders of an mmproj file on a CPU, and on a GPU. budget: most soft tokens of a picture.
Result<std::unique_ptr<MediaEncoder>> open_media_cpu(MmprojFile file, int budget, int n_threads, CpuIsa isa);
Result<std::unique_ptr<MediaEncoder>> open_media_cuda(MmprojFile file, int budget, int gpu);

// The encoders that the configuration names; null: none.
Result<std::unique_ptr<MediaEncoder>> open_media(const LoadedModel& model, const EngineConfig& c);

}  // namespace facet
