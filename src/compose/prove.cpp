#include "compose/prove.h"

#include "backend/cpu/cpu_fast.h"
#include "compose/load_model.h"
#include "compose/prove_impl.h"

namespace facet {

Result<MemoryProof> prove_plan(const EngineConfig& c) {
  auto loaded = load_model(c.model);
  if (!loaded) return loaded.error();
  LoadedModel& model = *loaded;
  for (const std::string& path : c.draft.files) {
    auto drafter = DrafterFile::open(path);
    if (!drafter) return drafter.error();
    if (c.draft.embed_scale > 0) drafter->set_embedding_scale(c.draft.embed_scale);
    model.drafters.push_back(std::move(*drafter));
  }
#if FACET_CUDA
  if (c.backend == "cuda") return prove_cuda_plan(std::move(model), c);
#endif
  int64_t mapped = int64_t(model.file.file_bytes());
  for (const DrafterFile& d : model.drafters) mapped += int64_t(d.file_bytes());
  if (c.backend == "ref") return prove_on<CpuRef>(std::move(model), c, mapped, own_memory, c.n_threads);
  return prove_on<CpuFast>(std::move(model), c, mapped, own_memory, c.n_threads, c.cpu_isa);
}

}  // namespace facet
