// Input: a FLAC.
#include "fuzz_media.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  facet_fuzz::check_sound(facet_fuzz::with_magic(data, size, "fLaC"));
  return 0;
}
