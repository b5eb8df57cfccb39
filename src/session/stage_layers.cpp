#include "session/stage_layers.h"

#include "base/check.h"
#include "model/stages.h"

namespace facet {

std::vector<int> stage_layers(const ModelCfg& m, const EngineConfig& c) {
  if (c.split.empty()) return {};
  auto layers = split_layers(m, c.split);
  CHECK(bool(layers), "{}", layers.error().message());  // resolve_config() has asked
  return std::move(*layers);
}

}  // namespace facet
