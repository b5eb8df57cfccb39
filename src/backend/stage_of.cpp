#include "backend/stage_of.h"

#include <charconv>

namespace facet {

size_t stage_of(std::span<const int> layers, int layer) {
  size_t i = 0;
  for (int end = layers[0]; layer >= end && i + 1 < layers.size(); end += layers[i]) ++i;
  return i;
}

size_t stage_of(std::span<const int> layers, std::string_view tensor) {
  constexpr std::string_view kLayer = "blk.";
  if (tensor.starts_with(kLayer)) {
    int layer = 0;
    std::from_chars(tensor.data() + kLayer.size(), tensor.data() + tensor.size(), layer);
    return stage_of(layers, layer);
  }
  return tensor.starts_with("output.") ? layers.size() - 1 : 0;
}

}  // namespace facet
