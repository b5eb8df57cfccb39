#include "engine/engine_cuda.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/cuda_kv_cache.h"
#include "engine/open_drafters.h"
#include "model/gemma4_bind.h"

namespace facet {

constexpr int64_t kDriverBytes = int64_t(256) << 20;  // that kernels and graphs take when they are first used

Result<std::unique_ptr<Engine>> open_cuda_engine(LoadedModel model, const EngineConfig& c) {
  return create_engine<Cuda>(std::move(model), c, c.gpu);
}

MemoryPlan plan_cuda_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c, const KvPlan& kv, const KvBytes& b, const BackendLimits& limits) {
  MemoryPlan p;
  const std::string types = fmt::format("{}/{}", kv_type_name(*c.kv_k), kv_type_name(*c.kv_v));
  p.lines.push_back({"weights", fmt::format("{} tensors on GPU {}", file.tensors().size(), c.gpu), int64_t(file.file_bytes())});
  p.lines.push_back({"kv full", fmt::format("{}, {} rows x {} slots", types, c.n_ctx, c.max_seq), b.full});
  p.lines.push_back({"kv rings", fmt::format("{} x {} slots", types, c.max_seq), b.rings});
  p.lines.push_back({"kv staging", fmt::format("a chunk of {} tokens of one sliding layer", kv.max_step), b.staging});
  p.lines.push_back({"checkpoints", fmt::format("{} copies of the rings a slot", c.checkpoints), b.checkpoints});
  p.lines.push_back({"activations", fmt::format("{} tokens a step", kv.max_step), Cuda::rows_bytes(1, work_elements(m, kv.max_step, 0))});
  p.lines.push_back({"logits", fmt::format("{} rows of {}", c.max_out, m.n_vocab), Cuda::rows_bytes(c.max_out, m.d_model + int64_t(m.n_vocab))});
  p.lines.push_back({"scratch", "partial sums, panels of weights for long prompts", Cuda::reserve_bytes(limits, 0)});
  if (c.memory > 0)
    p.available = c.memory;
  else if (auto free = Cuda::free_memory(c.gpu); free)
    p.available = std::max<int64_t>(*free - kDriverBytes, 1);
  return p;
}

}  // namespace facet
