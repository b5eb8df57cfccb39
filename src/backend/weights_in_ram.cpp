#include "backend/weights_in_ram.h"

#include <algorithm>
#include <charconv>

namespace facet {

int layer_of_tensor(std::string_view tensor) {
  constexpr std::string_view kLayer = "blk.";
  if (!tensor.starts_with(kLayer)) return -1;
  tensor.remove_prefix(kLayer.size());
  int layer = -1;
  const auto [end, error] = std::from_chars(tensor.data(), tensor.data() + tensor.size(), layer);
  return error == std::errc() && end < tensor.data() + tensor.size() && *end == '.' ? layer : -1;
}

bool WeightsInRam::holds(std::string_view tensor) const {
  if (tensor == kPerLayerTable) return tables;
  int layers = 0;
  if (tensor.ends_with("_exps.weight")) {
    if (placement) {
      const int layer = layer_of_tensor(tensor), n = placement->experts(layer);
      return n > 0 && placement->resident(layer) < n;
    }
    layers = expert_layers;
  }
  for (const std::string_view dense : {".ffn_gate.weight", ".ffn_up.weight", ".ffn_down.weight"})
    if (tensor.ends_with(dense)) layers = ffn_layers;
  const int layer = layers > 0 ? layer_of_tensor(tensor) : -1;
  return layer >= 0 && layer < layers;
}

std::span<const int16_t> WeightsInRam::slots(std::string_view tensor) const {
  if (!placement || !tensor.ends_with("_exps.weight") || !holds(tensor)) return {};
  const int layer = layer_of_tensor(tensor);
  if (placement->resident(layer) == 0) return {};
  return placement->slot[size_t(layer)];
}
int64_t WeightsInRam::resident(std::string_view tensor, int64_t n) const {
  const auto s = slots(tensor);
  return !s.empty() ? std::count_if(s.begin(), s.end(), [](int16_t v) { return v >= 0; }) : holds(tensor) ? 0 : n;
}

}  // namespace facet
