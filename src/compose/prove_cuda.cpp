#include "cache/cuda_kv_cache.h"
#include "compose/cuda_memory.h"
#include "compose/prove_impl.h"

namespace facet {

Result<MemoryProof> prove_cuda_plan(LoadedModel model, const EngineConfig& c) {
  if (!c.gpus.empty()) return Error{"--prove", "expected one GPU, found several (--gpus)", "use --gpu"};
  const auto first = Cuda::free_memory(c.gpu);  // makes the context, which is in no plan
  if (!first) return first.error();
  const auto use = [gpu = c.gpu] {
    const auto free = Cuda::free_memory(gpu);
    return free ? -*free : int64_t(0);
  };
  auto proof = prove_on<Cuda>(std::move(model), c, 0, use, c.gpu, weights_in_ram(c));
  if (proof) proof->beside = kDriverBytes;
  return proof;
}

}  // namespace facet
