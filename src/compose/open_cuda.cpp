#include "compose/open_cuda.h"

#include <utility>

#include "cache/cuda_kv_cache.h"
#include "compose/cuda_memory.h"
#include "compose/open_drafters.h"

namespace facet {

Result<std::unique_ptr<Engine>> open_cuda_engine(LoadedModel model, const EngineConfig& c) {
  if (!c.split.empty()) return open_staged_engine(std::move(model), c);
  if (!c.gpus.empty()) return open_sharded_engine(std::move(model), c);
  return create_engine<Cuda>(std::move(model), c, c.gpu, weights_in_ram(c));
}

}  // namespace facet
