#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace facet {

// What one verb cost over the steps that were traced (backend/traced.h). Bytes are those that must move: weights once,
// activations read and written once, cache rows once.
struct VerbCost {
  int64_t calls = 0;
  double ms = 0, bytes = 0, flops = 0;
};
using VerbCosts = std::map<std::string, VerbCost>;

}  // namespace facet
