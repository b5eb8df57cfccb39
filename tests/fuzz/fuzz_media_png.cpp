// Input: a PNG. Check sums of its chunks are made right, or no change would come further than libpng's look at them.
#include "fuzz_media.h"

namespace {
uint32_t crc32(const uint8_t* p, size_t n) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; ++i) {
    crc ^= p[i];
    for (int k = 0; k < 8; ++k) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file = facet_fuzz::with_magic(data, size, "\x89PNG\r\n\x1a\n");
  auto* b = reinterpret_cast<uint8_t*>(file.data());
  for (size_t at = 8; at + 12 <= file.size();) {
    const size_t n = size_t(b[at]) << 24 | size_t(b[at + 1]) << 16 | size_t(b[at + 2]) << 8 | b[at + 3];
    if (n > file.size() - at - 12) break;
    const uint32_t crc = crc32(b + at + 4, n + 4);
    for (size_t k = 0; k < 4; ++k) b[at + 8 + n + k] = uint8_t(crc >> (24 - 8 * k));
    at += 12 + n;
  }
  facet_fuzz::check_picture(file);
  return 0;
}
