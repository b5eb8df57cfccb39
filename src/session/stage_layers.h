#pragma once
#include <vector>

#include "api/config.h"
#include "model/types.h"

namespace facet {

// How many layers each GPU has, where these are divided among several (c.split, which fits the model); else nothing.
std::vector<int> stage_layers(const ModelCfg& m, const EngineConfig& c);

}  // namespace facet
