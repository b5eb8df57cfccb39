#include "backend/cuda/p2p_copy.h"
#include "cache/cache_of_stages.h"
#include "cache/cuda_kv_cache.h"
#include "compose/open_cuda.h"
#include "compose/open_drafters.h"

namespace facet {

Result<std::unique_ptr<Engine>> open_staged_engine(LoadedModel model, const EngineConfig& c) {
  const auto layers = split_layers(model.cfg, c.split);
  if (!layers) return layers.error();
  return create_engine<PipelineParallel<Cuda, P2pCopy>>(std::move(model), c, *layers, c.gpus);
}

}  // namespace facet
