#include "backend/stage_of.h"

#include "backend/weights_in_ram.h"

namespace facet {

size_t stage_of(std::span<const int> layers, int layer) {
  size_t i = 0;
  for (int end = layers[0]; layer >= end && i + 1 < layers.size(); end += layers[i]) ++i;
  return i;
}

size_t stage_of(std::span<const int> layers, std::string_view tensor) {
  if (const int layer = layer_of_tensor(tensor); layer >= 0) return stage_of(layers, layer);
  return tensor.starts_with("output.") ? layers.size() - 1 : 0;
}

}  // namespace facet
