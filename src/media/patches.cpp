#include "media/patches.h"

#include <cstring>

#include "base/check.h"
#include "base/sha.h"

namespace facet {
namespace {

void add_text(Sha& sha, std::string_view text) {
  const uint64_t n = text.size();
  sha.add(std::as_bytes(std::span(&n, 1)));
  sha.add(std::as_bytes(std::span(text)));
}

// The first 128 bits.
Hash128::Digest first_half(const Sha& sha) {
  const std::string hex = sha.hex();
  Hash128::Digest d;
  auto digit = [&](size_t i) { return hex[i] <= '9' ? hex[i] - '0' : hex[i] - 'a' + 10; };
  for (size_t i = 0; i < d.size(); ++i) d[i] = uint8_t(digit(2 * i) << 4 | digit(2 * i + 1));
  return d;
}

}  // namespace

Patches make_patches(const Picture& picture, int size) {
  CHECK(size > 0 && picture.width % size == 0 && picture.height % size == 0, "{} x {} pixels in patches of {}",
        picture.width, picture.height, size);
  Patches p{size, picture.width / size, picture.height / size, {}, {}};
  p.values.reserve(picture.rgb.size());
  for (int y = 0; y < p.rows; ++y) {
    for (int x = 0; x < p.columns; ++x) {
      for (int line = 0; line < size; ++line) {
        const uint8_t* from = &picture.rgb[(size_t(y * size + line) * size_t(picture.width) + size_t(x * size)) * 3];
        p.values.insert(p.values.end(), from, from + 3 * size);
      }
      p.positions.push_back(x);
      p.positions.push_back(y);
    }
  }
  return p;
}

void unit_values(std::span<const uint8_t> values, std::span<float> out) {
  CHECK(values.size() == out.size(), "{} values, room for {}", values.size(), out.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = float(values[i]) / 255.0f;
}

Hash128::Digest picture_hash(const Picture& resized, int budget, std::string_view projector) {
  Sha sha;
  add_text(sha, "picture 1");
  add_text(sha, projector);
  const int32_t shape[3] = {resized.width, resized.height, budget};
  sha.add(std::as_bytes(std::span(shape)));
  sha.add(std::as_bytes(std::span(resized.rgb)));
  return first_half(sha);
}

Hash128::Digest media_file_hash(std::span<const std::byte> file, int budget, std::string_view projector) {
  Sha sha;
  add_text(sha, "file 1");
  add_text(sha, projector);
  const int32_t shape[1] = {budget};
  sha.add(std::as_bytes(std::span(shape)));
  sha.add(file);
  return first_half(sha);
}

Hash128::Digest sound_hash(std::span<const float> samples, std::string_view projector) {
  Sha sha;
  add_text(sha, "sound 1");
  add_text(sha, projector);
  sha.add(std::as_bytes(samples));
  return first_half(sha);
}

}  // namespace facet
