#include "media/sound.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "media/sound_reader.h"

namespace facet {
namespace media {

Status SoundFrames::check_length(int64_t frames) const {
  const SoundLimits& limits = source_.limits;
  if (double(frames) <= limits.seconds * sound_.rate) return Ok{};
  return source_.error(fmt::format("a {} of {:.1f} s or more; expected at most {:g} s", sound_.kind,
                                   double(frames) / sound_.rate, limits.seconds),
                       "cut the recording into shorter ones");
}

Status SoundFrames::begin(const char* kind, int64_t rate, int64_t channels, int64_t n_frames) {
  const SoundLimits& limits = source_.limits;
  if (rate < limits.min_rate || rate > limits.max_rate) {
    return source_.error(fmt::format("a {} of {} Hz; expected {} to {}", kind, rate, limits.min_rate, limits.max_rate),
                         "resample it to 16,000 Hz");
  }
  if (channels < 1 || channels > limits.channels) {
    return source_.error(fmt::format("a {} of {} channels; expected 1 to {}", kind, channels, limits.channels),
                         "mix it to one channel");
  }
  sound_.kind = kind;
  sound_.rate = int(rate);
  sound_.channels = int(channels);
  if (auto ok = check_length(n_frames); !ok) return ok;
  resampler_.emplace(sound_.rate, kSampleRate);
  return Ok{};
}

Status SoundFrames::add(std::span<const float> interleaved) {
  const size_t channels = size_t(sound_.channels), n = interleaved.size() / channels;
  frames_ += int64_t(n);
  if (auto ok = check_length(frames_); !ok) return ok;
  mono_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (size_t c = 0; c < channels; ++c) sum += interleaved[i * channels + c];
    mono_[i] = sum / float(channels);
    // Float files may go over 1; what goes far over is no sound, and neither is what is no number.
    if (!(std::abs(mono_[i]) <= 1e4f)) {
      return source_.error(
          fmt::format("a {} whose sample {} is {}; expected -1 to 1", sound_.kind, frames_ - int64_t(n - i), mono_[i]),
          "check the program that wrote it");
    }
  }
  resampler_->add(mono_, sound_.samples);
  return Ok{};
}

Result<Sound> SoundFrames::finish() {
  if (frames_ == 0) return source_.error(fmt::format("a {} without samples", sound_.kind), "send another recording");
  resampler_->finish(sound_.samples);
  return std::move(sound_);
}

}  // namespace media

std::string sound_kind(std::span<const std::byte> bytes) {
  const auto* b = reinterpret_cast<const uint8_t*>(bytes.data());
  const size_t n = bytes.size();
  auto is = [&](size_t at, std::string_view text) {
    return n >= at + text.size() && std::memcmp(b + at, text.data(), text.size()) == 0;
  };
  if ((is(0, "RIFF") || is(0, "RF64")) && is(8, "WAVE")) return "WAV";
  if (is(0, "fLaC")) return "FLAC";
  // A tag, or the head of an MPEG frame: 11 bits of sync, no reserved version, layer 3.
  if (is(0, "ID3") ||
      (n >= 2 && b[0] == 0xff && (b[1] & 0xe0) == 0xe0 && (b[1] & 0x18) != 0x08 && (b[1] & 0x06) == 0x02))
    return "MP3";
  return "";
}

Result<Sound> decode_sound(std::span<const std::byte> bytes, const std::string& where, const SoundLimits& limits) {
  const media::SoundSource source{{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, where, limits};
  if (bytes.size() > limits.bytes) {
    return source.error(fmt::format("a sound of {} bytes; expected at most {}", bytes.size(), limits.bytes),
                        "cut it into shorter ones");
  }
  media::SoundFrames frames(source);
  const std::string kind = sound_kind(bytes);
  if (kind.empty()) {
    std::string found = bytes.empty() ? "no bytes" : "bytes that begin";
    for (size_t i = 0; i < std::min<size_t>(8, bytes.size()); ++i) found += fmt::format(" {:02x}", source.bytes[i]);
    return source.error("a sound; expected WAV, FLAC or MP3, found " + found, "save it as WAV");
  }
  const Status read = kind == "WAV"    ? media::read_wav(source, frames)
                      : kind == "FLAC" ? media::read_flac(source, frames)
                                       : media::read_mp3(source, frames);
  if (!read) return read.error();
  return frames.finish();
}

std::vector<std::span<const float>> sound_pieces(std::span<const float> samples, int64_t least) {
  std::vector<std::span<const float>> pieces;
  while (!samples.empty()) {
    const auto piece = samples.first(std::min<size_t>(kPieceSamples, samples.size()));
    samples = samples.subspan(piece.size());
    if (int64_t(piece.size()) >= least) pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace facet
