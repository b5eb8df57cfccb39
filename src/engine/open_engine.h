#pragma once
#include <memory>
#include <utility>

#include "api/engine.h"
#include "engine/device_ops.h"
#include "engine/loaded_model.h"

namespace facet {

// Of a runner that an engine has.
RunnerOptions runner_options(const LoadedModel& model, const EngineConfig& c);
// An engine of a model that is on its device. model: what ops was made from.
Result<std::unique_ptr<Engine>> make_engine(std::unique_ptr<LoadedModel> model, const EngineConfig& c,
                                            std::unique_ptr<DeviceOps> ops);

// An engine on B. open_drafters: null for plain decoding. The arguments are the backend's.
template <Backend B, class... BackendArgs>
Result<std::unique_ptr<Engine>> open_engine(LoadedModel loaded, const EngineConfig& c,
                                            const DrafterFactory<B>& open_drafters, BackendArgs... args) {
  auto model = std::make_unique<LoadedModel>(std::move(loaded));
  auto ops = DeviceOpsOn<B>::open(*model, runner_options(*model, c), open_drafters, args...);
  if (!ops) return ops.error();
  return make_engine(std::move(model), c, std::move(*ops));
}

}  // namespace facet
