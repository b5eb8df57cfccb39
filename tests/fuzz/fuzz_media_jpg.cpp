// Input: a JPEG.
#include "fuzz_media.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  facet_fuzz::check_picture(facet_fuzz::with_magic(data, size, "\xff\xd8\xff"));
  return 0;
}
