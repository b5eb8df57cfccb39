#include "compose/open_lockstep.h"

#include <tuple>

#include "backend/cpu/cpu_fast.h"
#include "backend/lockstep.h"
#include "compose/open_drafters.h"
#if FACET_CUDA
#include "cache/cuda_kv_cache.h"
#include "compose/cuda_memory.h"
#endif

namespace facet {

static_assert(Backend<Lockstep<CpuFast, CpuRef>>);

Result<std::unique_ptr<Engine>> open_lockstep_engine(LoadedModel model, const EngineConfig& c) {
  const std::tuple reference(c.n_threads);
#if FACET_CUDA
  if (c.backend == "cuda")
    return create_engine<Lockstep<Cuda, CpuRef>>(std::move(model), c, std::tuple(c.gpu, weights_in_ram(c)), reference);
#endif
  if (c.backend == "cpu")
    return create_engine<Lockstep<CpuFast, CpuRef>>(std::move(model), c, std::tuple(c.n_threads, c.cpu_isa), reference);
  return Error{"--lockstep", fmt::format("expected a backend to compare with the reference, found {}", c.backend),
               "use --backend cpu or cuda"};
}

}  // namespace facet
