// Input: a safetensors file, or the text of an index.
#include <cstdlib>

#include "formats/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  for (bool allow_truncated : {false, true}) {
    const auto r = facet::parse_safetensors(bytes, "fuzz", allow_truncated);
    if (!r) {
      if (r.error().what.empty() || r.error().hint.empty()) std::abort();
      continue;
    }
    volatile unsigned sum = 0;
    for (const auto& t : r->tensors)
      for (std::byte b : t.data) sum = sum + unsigned(b);
  }
  const auto index = facet::parse_safetensors_index(bytes, "fuzz");
  if (!index && index.error().what.empty()) std::abort();
  return 0;
}
