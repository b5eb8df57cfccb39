#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "api/config.h"
#include "backend/backend.h"
#include "backend/weights_in_ram.h"
#include "compose/backend_memory.h"
#include "formats/gguf.h"
#include "model/types.h"

// What the engine does differently on a GPU; only programs built with the CUDA backend have it.
namespace facet {

constexpr int64_t kDriverBytes = int64_t(384) << 20;  // that kernels and graphs take when they are first used

// An error of the model or drafter file that the kernels cannot take on this GPU.
Status cuda_accepts(int gpu, const std::string& path, std::span<const TensorView> tensors, int n_expert_used);
// An error of a pair of K and V types that attention has no kernels for on a GPU.
Status cuda_accepts_kv(const ModelCfg& m, KvType k, KvType v);
// Of weights on the device: types that a GPU does not keep are larger there.
int64_t cuda_weight_bytes(std::span<const TensorView> tensors);
// What a user should know of a file whose types a GPU does not keep.
std::vector<std::string> conversion_notes(const std::string& path, std::span<const TensorView> tensors);

// What a user should know of NVIDIA's libraries that are not there, on a GPU that wants them; or empty.
std::string library_note(int gpu);

// Of a decided configuration.
inline WeightsInRam weights_in_ram(const EngineConfig& c) {
  WeightsInRam w{.expert_layers = c.experts_on_cpu,
                 .ffn_layers = c.ffn_on_cpu,
                 .tables = c.gpus.empty(),
                 .threads = c.n_threads,
                 .isa = c.cpu_isa};
  if (c.expert_usage && w.expert_layers > 0)
    w.placement = std::make_shared<const ExpertPlacement>(place_experts(*c.expert_usage, w.expert_layers));
  return w;
}
// Bytes of the file that stay in RAM.
int64_t bytes_in_ram(std::span<const TensorView> tensors, const WeightsInRam& in_ram);

// What a user should know of weights that stay in RAM; or empty.
std::string ram_note(const GgufFile& file, const EngineConfig& decided);

// Of one GPU; of the one that holds most and has least, where every layer is divided among several.
BackendMemory cuda_memory(const GgufFile& file, const ModelCfg& m, const EngineConfig& c);

}  // namespace facet
