#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace facet {

// How often the routing chose each expert, while a model read texts.
struct ExpertUsage {
  std::vector<std::vector<int64_t>> chosen;  // [layer][expert]; a layer without experts has none
  template <class T>
  void add(int layer, const std::vector<T>& times) {
    add(layer, std::span<const T>(times));
  }
  template <class T>
  void add(int layer, std::span<T> times) {
    std::vector<int64_t>& of = of_layer(layer, times.size());
    for (size_t e = 0; e < times.size(); ++e) of[e] += int64_t(times[e]);
  }

 private:
  std::vector<int64_t>& of_layer(int layer, size_t experts);
};

// Which experts are on a GPU; the others are in RAM.
struct ExpertPlacement {
  // [layer][expert]: which of the layer's experts on the GPU it is, in the order of their numbers; -1: it is in RAM.
  std::vector<std::vector<int16_t>> slot;
  int resident(int layer) const;                // of the layer's experts
  int experts(int layer) const;                 // of the layer; 0: there are none
  double hits(const ExpertUsage& usage) const;  // the share of its choices that find their expert on the GPU
};

// As many experts in RAM as the first layers_in_ram layers with experts have: those that were chosen least, of all layers
// together; of equals those of earlier layers, then those of higher numbers. What is in RAM for a number of layers is so
// for every higher one.
ExpertPlacement place_experts(const ExpertUsage& usage, int layers_in_ram);

}  // namespace facet
