#include "engine/engine_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "cache/cuda_kv_cache.h"
#include "engine/open_drafters.h"
#include "formats/widen.h"
#include "model/gemma4_bind.h"

namespace facet {

Status cuda_accepts(int gpu, const std::string& path, std::span<const TensorView> tensors, int n_expert_used) {
  const auto d = cuda::device_info(gpu);
  if (!d) return d.error();
  return Cuda::accepts(path, tensors, n_expert_used, Cuda::most_cols(*d, false), Cuda::most_cols(*d, true));
}

int64_t cuda_weight_bytes(std::span<const TensorView> tensors) {
  int64_t n = 0;
  for (const TensorView& t : tensors) n += Cuda::weight_bytes(t);
  return n;
}

std::vector<std::string> conversion_notes(const std::string& path, std::span<const TensorView> tensors) {
  struct Sum {
    int n = 0;
    int64_t from = 0, to = 0;
  };
  std::map<DType, Sum> converted;
  for (const TensorView& t : tensors) {
    if (Cuda::keeps(t)) continue;
    Sum& s = converted[t.type];
    ++s.n, s.from += int64_t(t.data.size()), s.to += Cuda::weight_bytes(t);
  }
  std::vector<std::string> notes;
  for (const auto& [type, s] : converted)
    notes.push_back(
        fmt::format("{}: {} tensor{} of {} ({}) become{} {} on the GPU ({}), which keeps Q4_K, Q5_K, Q6_K, Q4_0, Q5_0, "
                    "Q8_0, F16 and BF16 as they are",
                    path, s.n, s.n == 1 ? "" : "s", dtype_name(type), human_bytes(s.from), s.n == 1 ? "s" : "",
                    dtype_name(wider_type(type)), human_bytes(s.to)));
  return notes;
}

Result<std::unique_ptr<Engine>> open_cuda_engine(LoadedModel model, const EngineConfig& c) {
  return create_engine<Cuda>(std::move(model), c, c.gpu);
}

MemoryPlan plan_cuda_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c, const KvPlan& kv,
                            const KvBytes& b, const BackendLimits& limits) {
  const auto d = cuda::device_info(c.gpu);
  CHECK(bool(d), "{}", d.error().message());  // resolve_backend() has asked
  MemoryPlan p;
  const std::string types = fmt::format("{}/{}", kv_type_name(*c.kv_k), kv_type_name(*c.kv_v));
  p.lines.push_back({"weights", fmt::format("{} tensors on GPU {}", file.tensors().size(), c.gpu),
                     cuda_weight_bytes(file.tensors())});
  p.lines.push_back({"kv full", fmt::format("{}, {} rows x {} slots", types, c.n_ctx, c.max_seq), b.full});
  p.lines.push_back({"kv rings", fmt::format("{} x {} slots", types, c.max_seq), b.rings});
  p.lines.push_back({"kv staging", fmt::format("a chunk of {} tokens of one sliding layer", kv.max_step), b.staging});
  p.lines.push_back({"kv snapshots", fmt::format("rings of {} sequences to go on from", kv.snapshots), b.snapshots});
  const int64_t pages = pool_bytes(m, kv, CudaPagePool::kPage, CudaPagePool::kReadBeyond);
  p.lines.push_back(
      {"kv pages", "what whole pages of 2 MiB take beyond that", std::max<int64_t>(0, pages - b.total())});
  p.lines.push_back({"activations", fmt::format("{} tokens a step", kv.max_step),
                     Cuda::rows_bytes(1, work_elements(m, kv.max_step, 0))});
  p.lines.push_back({"logits", fmt::format("{} rows of {}", c.max_out, m.n_vocab),
                     Cuda::rows_bytes(c.max_out, m.d_model + int64_t(m.n_vocab))});
  p.lines.push_back({"scratch", "partial sums, panels of weights for long prompts",
                     Cuda::reserve_bytes(*d, limits) + Cuda::partial_bytes(*d, file.tensors())});
  if (c.memory > 0)
    p.available = c.memory;
  else if (auto free = Cuda::free_memory(c.gpu); free)
    p.available = std::max<int64_t>(*free - kDriverBytes, 1);
  return p;
}

}  // namespace facet
