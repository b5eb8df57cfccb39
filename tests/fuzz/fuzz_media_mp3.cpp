// Input: an MP3.
#include "fuzz_media.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  facet_fuzz::check_sound(facet_fuzz::with_magic(data, size, size > 0 && data[0] == 0xff ? "\xff\xfb" : "ID3"));
  return 0;
}
