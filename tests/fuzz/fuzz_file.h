#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "formats/dtype.h"

// A model file through its parser, whole and with the data cut off allowed: an error says what and what to do, and
// every byte that the result points at can be read and decoded.
template <class Parse>
void check_model_file(std::span<const std::byte> bytes, Parse parse) {
  for (bool allow_truncated : {false, true}) {
    const auto r = parse(bytes, "fuzz", allow_truncated);
    if (!r) {
      if (r.error().what.empty() || r.error().hint.empty()) std::abort();
      continue;
    }
    volatile unsigned sum = 0;
    for (const auto& t : r->tensors) {
      for (std::byte b : t.data) sum = sum + unsigned(b);
      const facet::DTypeInfo& info = facet::dtype_info(t.type);
      if (t.data.empty() || !info.matmul || t.n_elements() > (1 << 20)) continue;
      std::vector<float> values(size_t(t.n_elements()));  // whatever the bits are, they decode
      facet::dequantize_row(t.type, t.data.data(), values.data(), t.n_elements());
    }
  }
}
