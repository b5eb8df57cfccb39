#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "media/resample.h"
#include "media/sound.h"

// Within src/media: one reader for each kind of file, each of which gives its frames to a SoundFrames. A frame is one
// sample of each channel.
namespace facet::media {

struct SoundSource {
  std::span<const uint8_t> bytes;
  const std::string& where;
  const SoundLimits& limits;
  Error error(std::string what, std::string hint = "check the file; other programs may repair it") const {
    return {where, std::move(what), std::move(hint)};
  }
};

// Mixes and resamples, and refuses what is more than the limits allow.
class SoundFrames {
 public:
  explicit SoundFrames(const SoundSource& source) : source_(source) {}
  // n_frames: as the header says, or -1.
  Status begin(const char* kind, int64_t rate, int64_t channels, int64_t n_frames);
  Status add(std::span<const float> interleaved);
  bool begun() const { return resampler_.has_value(); }
  Result<Sound> finish();

 private:
  Status check_length(int64_t frames) const;
  const SoundSource& source_;
  Sound sound_;
  int64_t frames_ = 0;
  std::optional<Resampler> resampler_;
  std::vector<float> mono_;
};

Status read_wav(const SoundSource& source, SoundFrames& frames);
Status read_flac(const SoundSource& source, SoundFrames& frames);
Status read_mp3(const SoundSource& source, SoundFrames& frames);

}  // namespace facet::media
