#pragma once
#include <memory>

#include "api/engine.h"

namespace facet {

struct LoadedModel;

// An engine on the backend of `decided` whose verbs are compared with the reference's, one by one (backend/lockstep.h).
Result<std::unique_ptr<Engine>> open_lockstep_engine(LoadedModel model, const EngineConfig& decided);

}  // namespace facet
