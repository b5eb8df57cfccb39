#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "media/sound_reader.h"

namespace facet::media {
namespace {

constexpr uint16_t kPcm = 1, kFloat = 3, kExtensible = 0xfffe;
constexpr uint64_t kUnknown = 0xffffffff;  // a size that a program that writes to a pipe does not know, or that of RF64

struct Format {
  uint32_t tag = 0, channels = 0, rate = 0, block = 0, bits = 0;
  size_t sample_bytes() const { return bits / 8; }
};

uint32_t u16(std::span<const uint8_t> b, size_t at) { return b[at] | uint32_t(b[at + 1]) << 8; }
uint32_t u32(std::span<const uint8_t> b, size_t at) { return u16(b, at) | u16(b, at + 2) << 16; }
uint64_t u64(std::span<const uint8_t> b, size_t at) { return u32(b, at) | uint64_t(u32(b, at + 4)) << 32; }

Result<Format> read_format(const SoundSource& source, std::span<const uint8_t> body) {
  if (body.size() < 16)
    return source.error(
        fmt::format("a WAV that cannot be read: chunk \"fmt \"; expected 16 bytes or more, found {}", body.size()));
  Format f{u16(body, 0), u16(body, 2), u32(body, 4), u16(body, 12), u16(body, 14)};
  // The first two bytes of the GUID are the tag.
  if (f.tag == kExtensible && body.size() >= 40) f.tag = u16(body, 24);
  const bool pcm = f.tag == kPcm && (f.bits == 8 || f.bits == 16 || f.bits == 24 || f.bits == 32);
  if (!pcm && !(f.tag == kFloat && (f.bits == 32 || f.bits == 64))) {
    return source.error(
        fmt::format(
            "a WAV of format {} with {} bits; expected PCM (1) with 8, 16, 24 or 32, or float (3) with 32 or 64", f.tag,
            f.bits),
        "save it as PCM of 16 bits");
  }
  if (f.channels == 0 || f.block != f.channels * f.sample_bytes()) {
    return source.error(fmt::format("a WAV that cannot be read: frames of {} bytes with {} channels of {} bits",
                                    f.block, f.channels, f.bits));
  }
  return f;
}

// One sample to -1..1; 8 bits are unsigned, all others signed.
float sample(const Format& f, const uint8_t* p) {
  switch (f.tag == kFloat ? f.bits + 1 : f.bits) {
    case 8:
      return float(int(p[0]) - 128) / 128.0f;
    case 16:
      return float(int16_t(p[0] | p[1] << 8)) / 32768.0f;
    case 24:
      return float(int32_t(uint32_t(p[0]) << 8 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 24) >> 8) / 8388608.0f;
    case 32:
      return float(double(int32_t(u32({p, 4}, 0))) / 2147483648.0);
    case 33:
      return std::bit_cast<float>(u32({p, 4}, 0));
    default:
      return float(std::bit_cast<double>(u64({p, 8}, 0)));
  }
}

Status read_data(const SoundSource& source, const Format& f, std::span<const uint8_t> data, SoundFrames& frames) {
  if (auto ok = frames.begin("WAV", f.rate, f.channels, int64_t(data.size() / f.block)); !ok) return ok;
  constexpr size_t kAtOnce = 4096;  // frames
  std::vector<float> some;
  for (size_t n = data.size() / f.block, i = 0; i < n;) {
    const size_t k = std::min(kAtOnce, n - i);
    some.resize(k * f.channels);
    for (size_t s = 0; s < some.size(); ++s) some[s] = sample(f, &data[i * f.block + s * f.sample_bytes()]);
    if (auto ok = frames.add(some); !ok) return ok;
    i += k;
  }
  (void)source;
  return Ok{};
}

}  // namespace

Status read_wav(const SoundSource& source, SoundFrames& frames) {
  const auto b = source.bytes;
  const bool rf64 = std::memcmp(b.data(), "RF64", 4) == 0;
  uint64_t long_data = kUnknown;  // of chunk "ds64" (EBU Tech 3306)
  Format format;
  for (size_t at = 12; at + 8 <= b.size();) {
    const std::string_view id(reinterpret_cast<const char*>(&b[at]), 4);
    uint64_t size = u32(b, at + 4);
    const uint64_t left = b.size() - at - 8;
    if (id == "data") {
      if (format.channels == 0) return source.error("a WAV that cannot be read: chunk \"data\" before chunk \"fmt \"");
      if (rf64 && size == kUnknown) size = long_data;
      // A program that wrote to a pipe: up to the end.
      if (size == kUnknown && u32(b, 4) == kUnknown && !rf64) size = left;
      if (size > left) {
        return source.error(
            fmt::format("a WAV that ends early: chunk \"data\" of {} bytes; the file has {} of them", size, left));
      }
      return read_data(source, format, b.subspan(at + 8, size_t(size)), frames);
    }
    if (size > left) break;
    const auto body = b.subspan(at + 8, size_t(size));
    if (id == "ds64" && body.size() >= 16) long_data = u64(body, 8);
    if (id == "fmt ") {
      auto f = read_format(source, body);
      if (!f) return f.error();
      format = *f;
    }
    at += 8 + size_t(size + (size & 1));
  }
  return source.error("a WAV that cannot be read: it has no chunk \"data\", or ends before it");
}

}  // namespace facet::media
