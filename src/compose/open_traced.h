#pragma once
#include <memory>

#include "api/engine.h"

namespace facet {

struct LoadedModel;

// An engine on the backend of `decided` that prices every verb (backend/traced.h): Engine::verb_costs().
Result<std::unique_ptr<Engine>> open_traced_engine(LoadedModel model, const EngineConfig& decided);

}  // namespace facet
