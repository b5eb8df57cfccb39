// Input: a WAV.
#include "fuzz_media.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file = facet_fuzz::with_magic(data, size, size > 0 && data[0] == 1 ? "RF64" : "RIFF");
  facet_fuzz::check_sound(
      facet_fuzz::with_magic(reinterpret_cast<const uint8_t*>(file.data()), file.size(), "WAVE", 8));
  return 0;
}
