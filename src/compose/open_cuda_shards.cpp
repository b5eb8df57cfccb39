#include "backend/cuda/cuda_link.h"
#include "cache/cache_of_shards.h"
#include "cache/cuda_kv_cache.h"
#include "compose/open_cuda.h"
#include "compose/open_drafters.h"

namespace facet {

Result<std::unique_ptr<Engine>> open_sharded_engine(LoadedModel model, const EngineConfig& c) {
  return create_engine<TensorParallel<Cuda, CudaLink>>(std::move(model), c, c.gpus);
}

}  // namespace facet
