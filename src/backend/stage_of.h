#pragma once
#include <cstddef>
#include <span>
#include <string_view>

namespace facet {

// Where things of a model are in a pipeline whose stages have so many layers each, in order.

// Layers beyond those that were given are the last stage's.
size_t stage_of(std::span<const int> layers, int layer);
// Of a weight: a layer's stage; the head's is the last one, everything else comes before the layers.
size_t stage_of(std::span<const int> layers, std::string_view tensor);

}  // namespace facet
