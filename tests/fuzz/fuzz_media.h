#pragma once
#include <cstdlib>
#include <cstring>
#include <string>

#include "media/picture.h"
#include "media/sound.h"

// Files of one kind through its reader: what is taken has the size that its header says, what is not is one line with a
// hint. The first bytes are those of the kind, so that nothing is spent on others.
namespace facet_fuzz {

inline void check_error(const facet::Error& e) {
  if (e.what.empty() || e.hint.empty() || e.message().find('\n') != std::string::npos) std::abort();
}

inline std::string with_magic(const uint8_t* data, size_t size, std::string_view magic, size_t at = 0) {
  std::string file(reinterpret_cast<const char*>(data), size);
  if (file.size() < at + magic.size()) file.resize(at + magic.size());
  std::memcpy(&file[at], magic.data(), magic.size());
  return file;
}

inline void check_picture(const std::string& file) {
  facet::PictureLimits limits;
  limits.pixels = 1 << 16;
  limits.memory = 16 << 20;
  const auto bytes = std::as_bytes(std::span(file));
  const auto info = facet::picture_info(bytes, "fuzz", limits);
  const auto whole = facet::decode_picture(bytes, "fuzz", limits);
  if (!info) {
    check_error(info.error());
    if (whole) std::abort();
    return;
  }
  if (!whole) return check_error(whole.error());
  if (whole->width != info->width || whole->height != info->height ||
      whole->rgb.size() != size_t(info->width) * size_t(info->height) * 3)
    std::abort();
  if (whole->rgb.size() > 600) return;  // the rest is ours and depends on the size alone
  const auto size = facet::target_size(whole->width, whole->height, 70, "fuzz");
  const auto small = facet::decode_resized(bytes, 70, "fuzz", limits);
  if (!size || !small || small->rgb != facet::resize_bicubic(*whole, size->width, size->height).rgb) std::abort();
}

inline void check_sound(const std::string& file) {
  facet::SoundLimits limits;
  limits.seconds = 2;
  const auto sound = facet::decode_sound(std::as_bytes(std::span(file)), "fuzz", limits);
  if (!sound) return check_error(sound.error());
  if (sound->samples.empty() || sound->samples.size() > 2 * facet::kSampleRate) std::abort();
  if (facet::log_mel(std::span(sound->samples).first(std::min<size_t>(1000, sound->samples.size()))).size() %
          facet::kMelBins !=
      0)
    std::abort();
}

}  // namespace facet_fuzz
