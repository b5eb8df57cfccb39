#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

// A model file through its parser, whole and with the data cut off allowed: an error says what and what to do, and
// every byte that the result points at can be read.
template <class Parse>
void check_model_file(std::span<const std::byte> bytes, Parse parse) {
  for (bool allow_truncated : {false, true}) {
    const auto r = parse(bytes, "fuzz", allow_truncated);
    if (!r) {
      if (r.error().what.empty() || r.error().hint.empty()) std::abort();
      continue;
    }
    volatile unsigned sum = 0;
    for (const auto& t : r->tensors)
      for (std::byte b : t.data) sum = sum + unsigned(b);
  }
}
