#include <cstring>

#include "media/picture_reader.h"

namespace facet::media {

int exif_orientation(std::span<const uint8_t> tiff) {
  if (tiff.size() < 8) return 1;
  const bool little = tiff[0] == 'I' && tiff[1] == 'I', big = tiff[0] == 'M' && tiff[1] == 'M';
  if (!little && !big) return 1;
  auto u16 = [&](size_t at) -> uint32_t {
    return little ? tiff[at] | tiff[at + 1] << 8 : tiff[at] << 8 | tiff[at + 1];
  };
  auto u32 = [&](size_t at) { return little ? u16(at) | u16(at + 2) << 16 : u16(at) << 16 | u16(at + 2); };
  if (u16(2) != 42) return 1;
  const size_t directory = u32(4);
  if (directory > tiff.size() - 2 || directory < 8) return 1;
  const size_t entries = u16(directory);
  for (size_t i = 0; i < entries; ++i) {
    const size_t at = directory + 2 + 12 * i;
    if (at + 12 > tiff.size()) return 1;
    if (u16(at) != 0x0112) continue;
    // One SHORT as the standard says, or one LONG as some cameras write.
    const uint32_t type = u16(at + 2), value = type == 3 ? u16(at + 8) : type == 4 ? u32(at + 8) : 0;
    return value >= 1 && value <= 8 ? int(value) : 1;
  }
  return 1;
}

}  // namespace facet::media
