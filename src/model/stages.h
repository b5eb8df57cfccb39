#pragma once
#include <span>
#include <vector>

#include "base/result.h"
#include "model/types.h"

namespace facet {

// Layers of each stage of a pipeline, in the proportion of the shares; at least one each.
Result<std::vector<int>> split_layers(const ModelCfg& m, std::span<const double> shares);

}  // namespace facet
