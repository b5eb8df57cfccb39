#pragma once
#include <memory>
#include <span>
#include <string_view>

#include "backend/cpu/isa.h"
#include "backend/expert_usage.h"

namespace facet {

// Weights that stay in RAM, in the blocks of the file, where a GPU's memory has no room for them: routed experts
// (--experts-on-cpu), or the feed-forward weights of dense models (--ffn-on-cpu). Everything else of their layers is on
// the GPU. Rows go to where the weights lie, but for those of long prompts, to which weights are brought: pieces of at least
// kStreamBlock tokens (step.h).
struct WeightsInRam {
  int expert_layers = 0;  // the first so many layers' of the model; 0: none
  int ffn_layers = 0;
  // Instead, as many experts of all layers (place_experts). Layers that have some in either place are in both: rows of
  // a few tokens go to where each expert lies, and the whole layer is brought for long prompts. Null: whole layers.
  std::shared_ptr<const ExpertPlacement> placement = {};
  bool tables = false;  // per-layer tables of embeddings, of which a step reads a row for each token
  int threads = 1;      // of the CPU that multiply by them
  CpuIsa isa = CpuIsa::kAuto;
  bool any() const { return expert_layers > 0 || ffn_layers > 0 || tables; }
  // Whether the tensor is one of those matrices, or holds some of them.
  bool holds(std::string_view tensor) const;
  // Of a tensor that holds some of them, ExpertPlacement::slot; empty: it is in one place.
  std::span<const int16_t> slots(std::string_view tensor) const;
  // How many of the n matrices of a tensor are on the GPU.
  int64_t resident(std::string_view tensor, int64_t n) const;
};

inline constexpr std::string_view kPerLayerTable = "per_layer_token_embd.weight";

// The layer of a tensor "blk.<layer>.<name>", and -1 of one without a layer.
int layer_of_tensor(std::string_view tensor);

}  // namespace facet
