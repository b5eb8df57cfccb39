#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

// Sound as people send it, to what the audio towers take. Bytes are untrusted: a file is mixed and resampled while it
// is decoded, so that what it holds in memory is bounded by SoundLimits::seconds at 16 kHz.
namespace facet {

inline constexpr int kSampleRate = 16'000;     // Hz, of everything behind the readers
inline constexpr int kPieceSamples = 480'000;  // 30 s, the most that a tower takes at a time
inline constexpr int kLeastMelSamples = 161;   // for one frame of log_mel()
inline constexpr int kMelBins = 128;           // of E2B and E4B
inline constexpr int kRawFrameSamples = 640;   // 40 ms, a soft token of 12B

struct SoundLimits {
  size_t bytes = 64'000'000;  // of the file
  double seconds = 600;
  int channels = 8;
  int min_rate = 4'000, max_rate = 192'000;  // Hz
};

struct Sound {
  std::vector<float> samples;  // one channel at kSampleRate, in -1..1 where the file keeps to it
  std::string kind;            // "WAV", "FLAC" or "MP3"
  int rate = 0, channels = 0;  // of the file
};

// The first bytes say which kind it is; "" if none of those that Sound names.
std::string sound_kind(std::span<const std::byte> bytes);

// WAV: PCM of 8, 16, 24 and 32 bits, float of 32 and 64, also as WAVE_FORMAT_EXTENSIBLE and in RF64. FLAC. MP3 where
// libmpg123 is installed. The mean of all channels, resampled to 16 kHz.
Result<Sound> decode_sound(std::span<const std::byte> bytes, const std::string& where, const SoundLimits& limits = {});

// Pieces of at most 30 s. A rest of less than `least` samples is left out: kLeastMelSamples for a conformer, 1 for 12B.
// No pieces: the sound is too short for a soft token.
std::vector<std::span<const float>> sound_pieces(std::span<const float> samples, int64_t least);

// Soft tokens of one piece. Conformer (E2B, E4B): two convolutions of stride 2 over the frames of log_mel().
int64_t mel_frames(int64_t samples);
int64_t conformer_tokens(int64_t samples);
int64_t raw_frame_tokens(int64_t samples);  // 12B

// The features of E2B and E4B: [mel_frames(n)][kMelBins], natural logarithm, those of transformers 5.17's
// Gemma4AudioFeatureExtractor with the published settings. Computed in float64.
std::vector<float> log_mel(std::span<const float> samples);

// The input of 12B: [raw_frame_tokens(n)][kRawFrameSamples], zeros behind the end.
std::vector<float> raw_frames(std::span<const float> samples);

}  // namespace facet
