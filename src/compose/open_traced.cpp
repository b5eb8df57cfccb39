#include "compose/open_traced.h"

#include "backend/cpu/cpu_fast.h"
#include "backend/traced.h"
#include "compose/open_drafters.h"
#if FACET_CUDA
#include "cache/cuda_kv_cache.h"
#include "compose/cuda_memory.h"
#endif

namespace facet {

Result<std::unique_ptr<Engine>> open_traced_engine(LoadedModel model, const EngineConfig& c) {
#if FACET_CUDA
  if (c.backend == "cuda") return create_engine<Traced<Cuda>>(std::move(model), c, c.gpu, weights_in_ram(c));
#endif
  if (c.backend == "cpu") return create_engine<Traced<CpuFast>>(std::move(model), c, c.n_threads, c.cpu_isa);
  return create_engine<Traced<CpuRef>>(std::move(model), c, c.n_threads);
}

}  // namespace facet
