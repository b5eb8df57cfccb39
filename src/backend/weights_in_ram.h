#pragma once
#include <string_view>

#include "backend/cpu/isa.h"

namespace facet {

// Weights that stay in RAM, in the blocks of the file, where a GPU's memory has no room for them: routed experts
// (--experts-on-cpu), or the feed-forward weights of dense models (--ffn-on-cpu). Everything else of their layers is on
// the GPU. Rows go to where the weights lie, but for those of long prompts, to which weights are brought: pieces of at least
// kStreamBlock tokens (step.h).
struct WeightsInRam {
  int expert_layers = 0;  // the first so many layers' of the model; 0: none
  int ffn_layers = 0;
  bool tables = false;  // per-layer tables of embeddings, of which a step reads a row for each token
  int threads = 1;      // of the CPU that multiply by them
  CpuIsa isa = CpuIsa::kAuto;
  bool any() const { return expert_layers > 0 || ffn_layers > 0 || tables; }
  // Whether the tensor is one of those matrices.
  bool holds(std::string_view tensor) const;
};

inline constexpr std::string_view kPerLayerTable = "per_layer_token_embd.weight";

// The layer of a tensor "blk.<layer>.<name>", and -1 of one without a layer.
int layer_of_tensor(std::string_view tensor);

}  // namespace facet
