// Samples and features against the official extractor's, and every kind of WAV.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>

#include "formats/safetensors.h"
#include "media/files.h"
#include "media/resample.h"

namespace facet::test {
namespace {

Sound must_hear(const std::string& file, const std::string& name) {
  auto s = decode_sound(bytes_of(file), name);
  EXPECT_TRUE(s) << s.error().message();
  return s ? *s : Sound{};
}

std::vector<float> official(const std::string& name) {
  static const auto file = SafetensorsFile::open(media_path("official/sounds.safetensors"));
  EXPECT_TRUE(file);
  const TensorView* t = file ? file->find(name) : nullptr;
  EXPECT_NE(t, nullptr) << name;
  std::vector<float> v(t->data.size() / sizeof(float));
  std::memcpy(v.data(), t->data.data(), t->data.size());
  return v;
}

double largest(std::span<const float> a, std::span<const float> b) {
  double d = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) d = std::max(d, std::abs(double(a[i]) - double(b[i])));
  return d;
}
double rms(std::span<const float> a, std::span<const float> b) {
  double d = 0;
  const size_t n = std::min(a.size(), b.size());
  for (size_t i = 0; i < n; ++i) d += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
  return std::sqrt(d / double(n));
}

TEST(Sounds, TokensOf21LengthsAreTheOfficialOnes) {
  const auto rows = media_table("official/audio_tokens.tsv");
  ASSERT_EQ(rows.size(), 21u);
  for (const auto& r : rows) {
    // The official extractor cuts at 30 s; 12B's does not.
    const int64_t n = std::stoll(r[0]), cut = std::min<int64_t>(n, kPieceSamples);
    EXPECT_EQ(mel_frames(cut), std::stoll(r[1])) << n;
    EXPECT_EQ(conformer_tokens(cut), std::stoll(r[2])) << n;
    EXPECT_EQ(raw_frame_tokens(n), std::stoll(r[3])) << n;
  }
}

// The features as their description has them, with errors that others have made.
struct Bugs {
  int fft = 512, window = 320, need = 321;
  bool max_floor = false, no_left_pad = false, symmetric_window = false, log10 = false, power = false,
       first_filter_skipped = false;
};

std::vector<float> described_mel(std::span<const float> s, const Bugs& bugs) {
  const int pad = bugs.no_left_pad ? 0 : 160, bins = bugs.fft / 2 + 1;
  std::vector<double> x(size_t(pad), 0.0);
  x.insert(x.end(), s.begin(), s.end());
  const int64_t frames = int64_t(x.size()) < bugs.need ? 0 : (int64_t(x.size()) - bugs.need) / 160 + 1;
  auto corner = [](int i) { return 700 * (std::pow(10, i * std::log10(1 + 8000 / 700.0) / 129) - 1); };
  std::vector<float> out;
  for (int64_t f = 0; f < frames; ++f) {
    std::vector<double> magnitude;
    for (int b = 0; b < bins; ++b) {
      std::complex<double> sum = 0;
      for (int k = 0; k < bugs.window; ++k) {
        const double w = 0.5 - 0.5 * std::cos(2 * M_PI * k / (bugs.symmetric_window ? bugs.window - 1 : bugs.window));
        sum += x[size_t(160 * f + k)] * w * std::polar(1.0, -2 * M_PI * b * k / bugs.fft);
      }
      magnitude.push_back(bugs.power ? std::norm(sum) : std::abs(sum));
    }
    for (int m = 0; m < kMelBins; ++m) {
      const int filter = m + bugs.first_filter_skipped;
      double sum = 0;
      for (int b = 0; b < bins; ++b) {
        const double hz = 16000.0 / bugs.fft * b, low = corner(filter), middle = corner(filter + 1),
                     high = corner(filter + 2);
        sum +=
            magnitude[size_t(b)] * std::max(0.0, std::min((hz - low) / (middle - low), (high - hz) / (high - middle)));
      }
      const double value = bugs.max_floor ? std::max(sum, 1e-3) : sum + 1e-3;
      out.push_back(float(bugs.log10 ? std::log10(value) : std::log(value)));
    }
  }
  return out;
}

const std::vector<float>& mono() {
  static const Sound s = must_hear(media_file("official/mono16k.wav"), "mono16k.wav");
  return s.samples;
}
constexpr double kMelBound = 1e-3;  // noise of the official float32 FFT near the floor: 5e-4

TEST(Mel, IsTheOfficialOne) {
  const auto want = official("mono16k.mel");
  const auto got = log_mel(mono());
  ASSERT_EQ(got.size(), want.size());
  EXPECT_LT(largest(got, want), kMelBound);
  // Silence is the floor, and the first filter takes nothing.
  for (const float v : log_mel(std::vector<float>(2000))) EXPECT_FLOAT_EQ(v, std::log(1e-3f));
  for (size_t i = 0; i < got.size(); i += kMelBins) EXPECT_FLOAT_EQ(got[i], std::log(1e-3f));
  EXPECT_TRUE(log_mel(std::vector<float>(160)).empty());
}
TEST(Mel, IsWhatItsDescriptionSays) {
  const auto want = described_mel(mono(), {});
  EXPECT_LT(largest(log_mel(mono()), want), 1e-5);
  ASSERT_EQ(log_mel(mono()).size(), want.size());
}
double off(const Bugs& bugs) { return largest(described_mel(mono(), bugs), official("mono16k.mel")); }
TEST(MelPlantedBug, None) { EXPECT_LT(off({}), kMelBound); }
TEST(MelPlantedBug, FftOf1024) { EXPECT_GT(off({.fft = 1024}), 10 * kMelBound); }
TEST(MelPlantedBug, FloorByMaximum) { EXPECT_GT(off({.max_floor = true}), 10 * kMelBound); }
TEST(MelPlantedBug, NoZerosInFront) { EXPECT_GT(off({.no_left_pad = true}), 10 * kMelBound); }
TEST(MelPlantedBug, SymmetricWindow) { EXPECT_GT(off({.symmetric_window = true}), 2 * kMelBound); }
TEST(MelPlantedBug, LogarithmOfBase10) { EXPECT_GT(off({.log10 = true}), 10 * kMelBound); }
TEST(MelPlantedBug, PowerInsteadOfMagnitude) { EXPECT_GT(off({.power = true}), 10 * kMelBound); }
TEST(MelPlantedBug, FiltersShiftedByOne) { EXPECT_GT(off({.first_filter_skipped = true}), 10 * kMelBound); }
TEST(MelPlantedBug, FramesOf320) {
  EXPECT_EQ(described_mel(std::vector<float>(160), {.need = 320}).size(),
            size_t(kMelBins));  // one frame more than there is
  EXPECT_EQ(mel_frames(160), 0);
  EXPECT_EQ(mel_frames(161), 1);
}

TEST(Sounds, SixteenKhzIsTakenAsItIs) {
  ASSERT_EQ(mono().size(), 3200u);
  const std::string file = media_file("official/mono16k.wav");
  for (size_t i = 0; i < 3200; ++i) {
    EXPECT_EQ(mono()[i], float(int16_t(uint8_t(file[44 + 2 * i]) | uint8_t(file[45 + 2 * i]) << 8)) / 32768.0f);
  }
}

// Against soxr's HQ resampler, whose transition band is a little different. Linear interpolation misses by 3e-3 to 1.5e-2.
TEST(Sounds, OtherRatesAreNearTheOfficialOnes) {
  const Sound eight = must_hear(media_file("official/eight8k.wav"), "eight8k.wav");
  EXPECT_EQ(eight.samples.size(), 4800u);
  EXPECT_LT(rms(eight.samples, official("eight8k.samples")), 2e-3);
  const Sound stereo = must_hear(media_file("official/stereo44k.wav"), "stereo44k.wav");
  EXPECT_EQ(stereo.samples.size(), 400u);
  EXPECT_EQ(stereo.channels, 2);
  EXPECT_LT(rms(stereo.samples, official("stereo44k.samples")), 1e-3);
  // Features of a resampled sound, away from what the resamplers do otherwise at the upper end of 8 kHz.
  const auto mel = log_mel(eight.samples), want = official("eight8k.mel");
  double worst = 0;
  for (size_t f = 0; f < 10; ++f) {
    for (size_t m = 0; m < 70; ++m)
      worst = std::max(worst, double(std::abs(mel[(f + 10) * kMelBins + m] - want[f * kMelBins + m])));
  }
  EXPECT_LT(worst, 0.05);
}
TEST(SoundPlantedBug, NotResampled) {
  std::string file = media_file("official/eight8k.wav");
  file[24] = char(0x80), file[25] = 0x3e;  // it says 16,000 Hz
  EXPECT_GT(rms(must_hear(file, "not resampled").samples, official("eight8k.samples")), 2e-2);
}
TEST(SoundPlantedBug, FirstChannelInsteadOfTheMean) {
  std::string file = media_file("official/stereo44k.wav");
  for (size_t i = 44; i + 4 <= file.size(); i += 4) file[i + 2] = file[i], file[i + 3] = file[i + 1];
  EXPECT_GT(rms(must_hear(file, "left").samples, official("stereo44k.samples")), 1e-2);
}

TEST(Resampler, TonesStayAndAliasesGo) {
  for (const int rate : {8000, 11025, 22050, 24000, 32000, 44100, 48000, 96000, 192000, 44099, 7919}) {
    const double nyquist = std::min(rate, kSampleRate) / 2.0;
    for (const double hz : {200.0, 0.5 * nyquist, 0.9 * nyquist, 1.02 * nyquist, 1.2 * nyquist}) {
      if (hz >= rate / 2.0) continue;
      std::vector<float> in(size_t(rate) / 2), out;
      for (size_t i = 0; i < in.size(); ++i) in[i] = float(std::sin(2 * M_PI * hz * double(i) / rate));
      media::Resampler r(rate, kSampleRate);
      r.add(in, out);
      r.finish(out);
      ASSERT_EQ(int64_t(out.size()), media::Resampler::length(int64_t(in.size()), rate, kSampleRate));
      double worst = 0;
      for (size_t i = 800; i + 800 < out.size(); ++i) {  // away from both ends
        const double want = hz < nyquist ? std::sin(2 * M_PI * hz * double(i) / kSampleRate) : 0;
        worst = std::max(worst, std::abs(out[i] - want));
      }
      EXPECT_LT(worst, 6e-5) << rate << " Hz, a tone of " << hz << " Hz";
    }
  }
}

TEST(Resampler, AnyCutOfTheInputGivesTheSameBits) {
  std::vector<float> in(30000);
  uint32_t seed = 1;
  for (float& v : in) v = float(seed = seed * 1664525 + 1013904223) / 4e9f - 0.5f;
  for (const int rate : {44100, 8000, 44099}) {
    std::vector<float> whole, parts;
    media::Resampler a(rate, kSampleRate), b(rate, kSampleRate);
    a.add(in, whole);
    a.finish(whole);
    for (size_t at = 0, n = 1; at < in.size(); at += n, n = n * 3 % 1009 + 1) {
      n = std::min(n, in.size() - at);
      b.add(std::span(in).subspan(at, n), parts);
    }
    b.finish(parts);
    EXPECT_EQ(whole, parts) << rate;
  }
}

// A WAV with frames of the given bytes.
std::string wav(int tag, int channels, int rate, int bits, const std::string& data, bool extensible = false) {
  auto le = [](uint64_t v, int n) {
    std::string s;
    for (int i = 0; i < n; ++i) s += char(v >> 8 * i);
    return s;
  };
  const int block = channels * bits / 8;
  std::string format = le(uint64_t(extensible ? 0xfffe : tag), 2) + le(uint64_t(channels), 2) + le(uint64_t(rate), 4) +
                       le(uint64_t(rate * block), 4) + le(uint64_t(block), 2) + le(uint64_t(bits), 2);
  if (extensible)
    format += le(22, 2) + le(uint64_t(bits), 2) + le(0, 4) + le(uint64_t(tag), 2) +
              std::string("\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71", 14);
  const std::string body = "WAVEfmt " + le(format.size(), 4) + format + "LIST" + le(3, 4) + "odd" + std::string(1, 0) +
                           "data" + le(data.size(), 4) + data;
  return "RIFF" + le(body.size(), 4) + body;
}

template <class T>
std::string raw(std::initializer_list<T> values) {
  std::string s;
  for (const T v : values) s.append(reinterpret_cast<const char*>(&v), sizeof(T));
  return s;
}

TEST(Wav, EveryFormatHasItsSamples) {
  const std::vector<float> want = {0, 0.5f, -1, 0.25f};
  for (const bool extensible : {false, true}) {
    EXPECT_EQ(must_hear(wav(1, 1, 16000, 8, raw<uint8_t>({128, 192, 0, 160}), extensible), "8").samples, want);
    EXPECT_EQ(must_hear(wav(1, 1, 16000, 16, raw<int16_t>({0, 16384, -32768, 8192}), extensible), "16").samples, want);
    EXPECT_EQ(
        must_hear(wav(1, 1, 16000, 24, raw<uint8_t>({0, 0, 0, 0, 0, 0x40, 0, 0, 0x80, 0, 0, 0x20}), extensible), "24")
            .samples,
        want);
    EXPECT_EQ(must_hear(wav(1, 1, 16000, 32, raw<int32_t>({0, 1 << 30, INT32_MIN, 1 << 29}), extensible), "32").samples,
              want);
    EXPECT_EQ(must_hear(wav(3, 1, 16000, 32, raw<float>({0, 0.5f, -1, 0.25f}), extensible), "float").samples, want);
    EXPECT_EQ(must_hear(wav(3, 1, 16000, 64, raw<double>({0, 0.5, -1, 0.25}), extensible), "double").samples, want);
  }
  EXPECT_EQ(must_hear(wav(1, 2, 16000, 16, raw<int16_t>({0, 16384, -32768, 8192})), "stereo").samples,
            (std::vector<float>{0.25f, -0.375f}));
}

TEST(Wav, LongAndPipedFilesAreRead) {
  const std::string data = raw<int16_t>({0, 16384, -32768, 8192}), plain = wav(1, 1, 16000, 16, data);
  const std::vector<float> want = {0, 0.5f, -1, 0.25f};
  // RF64: the size is in chunk ds64.
  std::string rf64 = "RF64\xff\xff\xff\xffWAVE" + std::string("ds64\x1c\0\0\0", 8) + raw<uint64_t>({100, 8, 4}) +
                     raw<uint32_t>({0}) + plain.substr(12);
  rf64.replace(rf64.find("data") + 4, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(must_hear(rf64, "RF64").samples, want);
  // A program that wrote to a pipe did not know the sizes.
  std::string piped = plain;
  piped.replace(4, 4, "\xff\xff\xff\xff");
  piped.replace(piped.find("data") + 4, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(must_hear(piped, "piped").samples, want);
}

TEST(Sounds, FlacHasTheSamplesOfTheWav) {
  EXPECT_EQ(must_hear(media_file("mono16k.flac"), "mono16k.flac").samples, mono());
  const Sound tone = must_hear(media_file("tone.flac"), "tone.flac");
  EXPECT_EQ(tone.kind, "FLAC");
  EXPECT_EQ(tone.channels, 2);
  ASSERT_EQ(tone.samples.size(), 3200u);
  for (size_t i = 800; i < 2400; ++i)
    EXPECT_NEAR(tone.samples[i], 0.375 * std::sin(2 * M_PI * 440 * double(i) / 16000), 1e-4);
}

TEST(Sounds, Mp3SoundsAsItWasMade) {
  const std::string file = media_file("tone.mp3");
  auto tone = decode_sound(bytes_of(file), "tone.mp3");
  if (!tone && tone.error().what.find("libmpg123") != std::string::npos) GTEST_SKIP() << tone.error().message();
  ASSERT_TRUE(tone) << tone.error().message();
  EXPECT_EQ(tone->rate, 22050);
  ASSERT_GT(tone->samples.size(), 5600u);
  // 440 Hz of amplitude 0.375, whatever the delay of the coder.
  std::complex<double> sum = 0;
  for (size_t i = 1600; i < 4800; ++i)
    sum += double(tone->samples[i]) * std::polar(1.0, -2 * M_PI * 440 * double(i) / 16000);
  EXPECT_NEAR(std::abs(sum) * 2 / 3200, 0.375, 0.01);
}

TEST(Sounds, PiecesOf30Seconds) {
  const std::vector<float> s(2 * kPieceSamples + 160);
  const auto pieces = sound_pieces(s, kLeastMelSamples);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(conformer_tokens(int64_t(pieces[1].size())), 750);
  EXPECT_EQ(sound_pieces(s, 1).size(), 3u);
  EXPECT_TRUE(sound_pieces(std::span(s).first(160), kLeastMelSamples).empty());
  const auto frames = raw_frames(std::vector<float>(641, 1.0f));
  ASSERT_EQ(frames.size(), 1280u);
  EXPECT_EQ(frames[640], 1.0f);
  EXPECT_EQ(frames[641], 0.0f);
}

TEST(Sounds, RefusalsSayWhatWasExpected) {
  auto refusal = [](const std::string& file, SoundLimits limits = {}) {
    auto s = decode_sound(bytes_of(file), "request", limits);
    return s ? std::string("taken") : s.error().message();
  };
  const std::string data = raw<int16_t>({0, 16384, -32768, 8192});
  EXPECT_EQ(refusal(wav(1, 9, 16000, 16, std::string(36, 0))),
            "request: a WAV of 9 channels; expected 1 to 8 (mix it to one channel)");
  EXPECT_EQ(refusal(wav(1, 1, 3999, 16, data)),
            "request: a WAV of 3999 Hz; expected 4000 to 192000 (resample it to 16,000 Hz)");
  EXPECT_EQ(refusal(wav(7, 1, 8000, 8, data)),
            "request: a WAV of format 7 with 8 bits; expected PCM (1) with 8, 16, 24 or 32, or float (3) with 32 or 64 "
            "(save it as PCM of 16 bits)");
  EXPECT_EQ(refusal(wav(1, 1, 16000, 16, "")), "request: a WAV without samples (send another recording)");
  EXPECT_EQ(refusal(wav(3, 1, 16000, 32, raw<float>({0, NAN}))),
            "request: a WAV whose sample 1 is nan; expected -1 to 1 (check the program that wrote it)");
  SoundLimits short_ones;
  short_ones.seconds = 0.1;
  EXPECT_EQ(refusal(media_file("official/mono16k.wav"), short_ones),
            "request: a WAV of 0.2 s or more; expected at most 0.1 s (cut the recording into shorter ones)");
  EXPECT_EQ(refusal(media_file("mono16k.flac"), short_ones),
            "request: a FLAC of 0.2 s or more; expected at most 0.1 s (cut the recording into shorter ones)");
  EXPECT_EQ(refusal("OggS"),
            "request: a sound; expected WAV, FLAC or MP3, found bytes that begin 4f 67 67 53 (save it as WAV)");
  EXPECT_EQ(refusal(""), "request: a sound; expected WAV, FLAC or MP3, found no bytes (save it as WAV)");
}

}  // namespace
}  // namespace facet::test
