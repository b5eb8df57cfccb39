#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "media/picture.h"

// A picture at its target size as the towers take it.
namespace facet {

inline constexpr int kTowerPatch = 16;    // gemma4v: 9 patches for each soft token
inline constexpr int kUnifiedPatch = 48;  // gemma4uv: one for each

struct Patches {
  int size = 0;                    // pixels of a side
  int columns = 0, rows = 0;       // of patches
  std::vector<uint8_t> values;     // [rows * columns][size * size * 3]; a patch in the order row, column, channel
  std::vector<int32_t> positions;  // [rows * columns][2]: x and y, in patches
  int count() const { return columns * rows; }
};

// Both sides of the picture are multiples of `size`, as target_size() makes them.
Patches make_patches(const Picture& picture, int size);

// v / 255 in float32: what gemma4uv takes. gemma4v takes 2 * (v / 255 - 0.5), which its tower does itself.
void unit_values(std::span<const uint8_t> values, std::span<float> out);

// What was encoded, for caches: 128 bits of a SHA-256, since a stranger's picture must not be made to look like another
// one's. `projector` tells apart files and settings of the tower.
Hash128::Digest picture_hash(const Picture& resized, int budget, std::string_view projector);
// Of a file as it came, with what it is decoded to.
Hash128::Digest media_file_hash(std::span<const std::byte> file, int budget, std::string_view projector);
Hash128::Digest sound_hash(std::span<const float> samples, std::string_view projector);

}  // namespace facet
