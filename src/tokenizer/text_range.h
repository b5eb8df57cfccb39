#pragma once
#include <cstddef>

namespace facet {

struct TextRange {
  size_t begin = 0, end = 0;  // bytes
  bool operator==(const TextRange&) const = default;
};

}  // namespace facet
