// Input: a GGUF file. Reads every byte that the parser points at.
#include <cstdlib>

#include "formats/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  for (bool allow_truncated : {false, true}) {
    const auto r = facet::parse_gguf(bytes, "fuzz", allow_truncated);
    if (!r) {
      if (r.error().what.empty() || r.error().hint.empty()) std::abort();
      continue;
    }
    volatile unsigned sum = 0;
    for (const auto& t : r->tensors)
      for (std::byte b : t.data) sum = sum + unsigned(b);
  }
  return 0;
}
