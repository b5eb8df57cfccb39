#include "compose/cuda_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "backend/cuda/cublas_lt.h"
#include "backend/cuda/cuda_link.h"
#include "base/reserve.h"
#include "cache/cuda_kv_cache.h"
#include "formats/widen.h"
#include "model/gemma4_bind.h"
#include "model/shards.h"

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

int64_t bytes_in_ram(std::span<const TensorView> tensors, const WeightsInRam& in_ram) {
  int64_t n = 0;
  for (const TensorView& t : tensors)
    if (in_ram.holds(t.name)) n += int64_t(t.data.size()) / t.ne[2] * (t.ne[2] - in_ram.resident(t.name, t.ne[2]));
  return n;
}

namespace {
// "experts of the first 20 layers", "2,560 of 3,840 experts, which 31 % of the choices were"
std::string text_of(const WeightsInRam& w, const GgufFile& file, const EngineConfig& c) {
  std::vector<std::string> v;
  if (w.placement) {
    int all = 0, here = 0;
    for (size_t l = 0; l < w.placement->slot.size(); ++l)
      all += w.placement->experts(int(l)), here += w.placement->resident(int(l));
    v.push_back(fmt::format("{} of {} experts, which {:.0f} % of the counted choices were", all - here, all,
                            100 - 100 * w.placement->hits(*c.expert_usage)));
  } else if (w.expert_layers > 0)
    v.push_back(fmt::format("experts of the first {} layers", w.expert_layers));
  if (w.ffn_layers > 0) v.push_back(fmt::format("feed-forward weights of the first {} layers", w.ffn_layers));
  if (w.tables && file.find(kPerLayerTable)) v.emplace_back("embeddings for each layer");
  return fmt::format("{}", fmt::join(v, ", "));
}
}  // namespace

std::string ram_note(const GgufFile& file, const EngineConfig& c) {
  WeightsInRam in_ram = weights_in_ram(c);
  in_ram.tables = false;  // nothing is multiplied by them
  if (!in_ram.any()) return "";
  const int64_t bytes = bytes_in_ram(file.tensors(), in_ram), room = int64_t(available_memory());
  std::string note = fmt::format("{} ({}) stay in RAM, and {} threads of the CPU multiply by them",
                                 text_of(in_ram, file, c), human_bytes(bytes), in_ram.threads);
  if (bytes > room)
    note += fmt::format("; {} of RAM are free, so they will be read from the disk again and again", human_bytes(room));
  return note;
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

std::string library_note(int gpu) {
  const auto d = cuda::device_info(gpu);
  if (!d || d->gemm || d->cublaslt) return "";
  return fmt::format(
      "{} was not found: long prompts take kernels in 8 bits for quantised tensors and slow ones for F16 "
      "and BF16; it comes with NVIDIA's package libcublas or PyPI's nvidia-cublas (LD_LIBRARY_PATH)",
      cuda::cublas_lt_name());
}

namespace {

// Of the GPU that holds most of a model that is divided among n.
int64_t divided_weight_bytes(const ModelCfg& m, int n, std::span<const TensorView> tensors) {
  std::vector<int64_t> bytes(static_cast<size_t>(n));
  for (const TensorView& t : tensors) {
    const std::vector<TensorView> parts = shard_views(m, n, t, tensors);
    for (size_t i = 0; i < parts.size(); ++i) bytes[i] += Cuda::weight_bytes(parts[i]);
  }
  return *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace

BackendMemory cuda_memory(const GgufFile& file, const ModelCfg& model, const EngineConfig& c) {
  const std::vector<int> gpus = gpus_of(c);
  const int n = int(gpus.size());
  std::vector<cuda::DeviceInfo> devices;
  BackendMemory m;
  for (const int gpu : gpus) {
    const auto d = cuda::device_info(gpu);
    CHECK(bool(d), "{}", d.error().message());  // resolve_gpus() has asked
    devices.push_back(*d);
    if (const auto free = Cuda::free_memory(gpu); free) {
      const int64_t room = std::max<int64_t>(*free - kDriverBytes, 1);
      m.available = m.available > 0 ? std::min(m.available, room) : room;
    }
  }
  if (c.memory > 0) m.available = c.memory;
  m.weights = n == 1 ? fmt::format("on GPU {}", c.gpu)
                     : fmt::format("on each of GPUs {} their part, at most", fmt::join(gpus, ", "));
  m.weight_bytes = cuda_weight_bytes;
  const WeightsInRam in_ram = weights_in_ram(c);
  if (const int64_t in_file = bytes_in_ram(file.tensors(), in_ram); in_file > 0) {
    m.weights += fmt::format("; in RAM ({}): {}", human_bytes(in_file), text_of(in_ram, file, c));
    m.weight_bytes = [in_ram, own = file.tensors().data()](std::span<const TensorView> t) {
      int64_t bytes = cuda_weight_bytes(t);
      for (const TensorView& x : t)
        if (t.data() == own && in_ram.holds(x.name))
          bytes -= Cuda::weight_bytes(x) / x.ne[2] * (x.ne[2] - in_ram.resident(x.name, x.ne[2]));
      return bytes;
    };
  }
  if (n > 1)
    m.weight_bytes = [model, n, own = file.tensors().data()](std::span<const TensorView> t) {
      return t.data() == own ? divided_weight_bytes(model, n, t) : cuda_weight_bytes(t);  // drafters: whole
    };
  m.rows_bytes = Cuda::rows_bytes;
  const char* const prompts =
      devices.front().int8_prompts ? "rounded rows of long prompts" : "panels of weights for long prompts";
  m.scratch = fmt::format("partial sums, {}{}", prompts, n == 1 ? "" : ", sums of all GPUs");
  m.scratch_bytes = [devices, n, partials = Cuda::partial_bytes(devices.front(), file.tensors()),
                     layer = Cuda::streamed_layer_bytes(in_ram, file.tensors()), in_ram,
                     &file](const BackendLimits& limits) {
    int64_t most = 0;
    for (const cuda::DeviceInfo& d : devices) most = std::max(most, Cuda::reserve_bytes(d, limits));
    return most + partials + CudaLink::memory_bytes(n) + Cuda::stream_bytes(layer, limits.max_tok) +
           Cuda::host_table_bytes(in_ram, file.tensors(), limits.max_tok);
  };
  m.most_unpacked = [devices](std::span<const TensorView> t) {
    int64_t most = 0;
    for (const cuda::DeviceInfo& d : devices) most = std::max(most, Cuda::most_unpacked(d, t));
    return most;
  };
  m.page_bytes = CudaPagePool::kPage, m.read_beyond = CudaPagePool::kReadBeyond;
  return m;
}

}  // namespace facet
