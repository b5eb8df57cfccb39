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

Status cuda_accepts_kv(const ModelCfg& m, KvType k, KvType v) {
  const bool wide = std::any_of(m.layer.begin(), m.layer.end(), [](const LayerCfg& l) { return l.head_dim >= 256; });
  if (!wide || cuda::attend_takes(k, v)) return Ok{};
  return Error{"--kv-k, --kv-v",
               fmt::format("expected equal types, or q8_0 with q4_0 or tq3_0 on a GPU, found {} with {}",
                           kv_type_name(k), kv_type_name(v)),
               "set both options, or use --backend cpu"};
}

bool cuda_shares_rows(int gpu) {
  const auto d = cuda::device_info(gpu);
  return d && d->wgmma;
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
  std::map<std::pair<DType, DType>, Sum> converted;
  for (const TensorView& t : tensors) {
    if (Cuda::keeps(t)) continue;
    Sum& s = converted[{t.type, Cuda::kept(t)}];
    ++s.n, s.from += int64_t(t.data.size()), s.to += Cuda::weight_bytes(t);
  }
  std::vector<std::string> notes;
  for (const auto& [types, s] : converted)
    notes.push_back(
        fmt::format("{}: {} tensor{} of {} ({}) become{} {} on the GPU ({}), which keeps Q4_K, Q5_K, Q6_K, Q4_0, Q5_0, "
                    "Q8_0, F16 and BF16 as they are",
                    path, s.n, s.n == 1 ? "" : "s", dtype_name(types.first), human_bytes(s.from), s.n == 1 ? "s" : "",
                    dtype_name(types.second), human_bytes(s.to)));
  return notes;
}

Result<std::unique_ptr<Engine>> open_cuda_engine(LoadedModel model, const EngineConfig& c) {
  return create_engine<Cuda>(std::move(model), c, c.gpu);
}

BackendMemory cuda_memory(const GgufFile& file, const EngineConfig& c) {
  const auto d = cuda::device_info(c.gpu);
  CHECK(bool(d), "{}", d.error().message());  // resolve_backend() has asked
  BackendMemory m;
  m.weights = fmt::format("on GPU {}", c.gpu);
  m.weight_bytes = cuda_weight_bytes;
  m.rows_bytes = Cuda::rows_bytes;
  m.scratch = "partial sums, panels of weights for long prompts";
  m.scratch_bytes = [info = *d, partials = Cuda::partial_bytes(*d, file.tensors())](const BackendLimits& limits) {
    return Cuda::reserve_bytes(info, limits) + partials;
  };
  m.unpacks = [info = *d](std::span<const TensorView> tensors) { return Cuda::unpacks(info, tensors); };
  m.page_bytes = CudaPagePool::kPage, m.read_beyond = CudaPagePool::kReadBeyond;
  if (c.memory > 0)
    m.available = c.memory;
  else if (auto free = Cuda::free_memory(c.gpu); free)
    m.available = std::max<int64_t>(*free - kDriverBytes, 1);
  return m;
}

}  // namespace facet
