// Input: a safetensors file, or the text of an index.
#include "formats/safetensors.h"
#include "fuzz_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  check_model_file(bytes, [](auto... a) { return facet::parse_safetensors(a...); });
  const auto index = facet::parse_safetensors_index(bytes, "fuzz");
  if (!index && index.error().what.empty()) std::abort();
  return 0;
}
