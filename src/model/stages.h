#pragma once
#include <span>
#include <vector>

#include "base/result.h"
#include "model/types.h"

namespace facet {

// Layers of each stage of a pipeline, in the proportion of the shares; at least one each.
Result<std::vector<int>> split_layers(const ModelCfg& m, std::span<const double> shares);

// The model as far as a stage has K/V rows: those of layers that it owns, and views of them for those that read them.
template <class Owns>
ModelCfg rows_of_stage(const ModelCfg& m, Owns&& owns) {
  ModelCfg own = m;
  for (size_t l = 0; l < m.layer.size(); ++l) {
    const int source = m.layer[l].query_only ? m.layer[l].kv_source : int(l);
    if (!owns(source)) own.layer[l].query_only = true, own.layer[l].kv_source = int(l);
  }
  return own;
}

}  // namespace facet
