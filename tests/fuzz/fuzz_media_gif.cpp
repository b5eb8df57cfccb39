// Input: a GIF.
#include "fuzz_media.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  facet_fuzz::check_picture(facet_fuzz::with_magic(data, size, "GIF89a"));
  return 0;
}
