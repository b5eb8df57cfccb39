// Input: a WebP.
#include "fuzz_media.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file = facet_fuzz::with_magic(data, size, "RIFF");
  facet_fuzz::check_picture(
      facet_fuzz::with_magic(reinterpret_cast<const uint8_t*>(file.data()), file.size(), "WEBP", 8));
  return 0;
}
