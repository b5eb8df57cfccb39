// Input: a GGUF file.
#include "formats/gguf.h"
#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  check_model_file(std::span(reinterpret_cast<const std::byte*>(data), size),
                   [](auto... a) { return facet::parse_gguf(a...); });
  return 0;
}
