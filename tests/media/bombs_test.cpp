// Files that claim much and hold little, or hold much in a few bytes: one line of error, and little memory.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "media/files.h"
#include "support/sanitized.h"

namespace facet::test {
namespace {

std::string le(uint64_t v, int n) {
  std::string s;
  for (int i = 0; i < n; ++i) s += char(i < 8 ? v >> 8 * i : 0);
  return s;
}
std::string be(uint64_t v, int n) {
  std::string s = le(v, n);
  return {s.rbegin(), s.rend()};
}

std::string chunk(const std::string& kind, const std::string& body) {
  uint32_t crc = ~0u;
  for (const char c : kind + body) {
    crc ^= uint8_t(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return be(body.size(), 4) + kind + body + be(~crc, 4);
}

// n zeros, 258 of them in 13 bits (RFC 1950 and 1951, fixed codes).
std::string zeros(uint64_t n) {
  std::string s = "\x78\x9c";
  uint32_t bits = 0;
  int have = 0;
  auto put = [&](uint32_t code, int k, bool code_word) {  // code words come with their highest bit first
    for (int i = 0; i < k; ++i) {
      bits |= (code >> (code_word ? k - 1 - i : i) & 1) << have;
      if (++have == 8) s += char(bits), bits = 0, have = 0;
    }
  };
  put(1, 1, false), put(1, 2, false);  // the last block, fixed codes
  put(0x30, 8, true);
  uint64_t left = n - 1;
  for (; left >= 258; left -= 258) put(0xc5, 8, true), put(0, 5, true);
  for (; left > 0; --left) put(0x30, 8, true);
  put(0, 7, true);
  if (have) s += char(bits);
  return s + be(n % 65521 << 16 | 1, 4);
}

std::string png(uint32_t w, uint32_t h, const std::string& behind_head, int depth = 8, int type = 2,
                int interlaced = 0) {
  return "\x89PNG\r\n\x1a\n" +
         chunk("IHDR", be(w, 4) + be(h, 4) + char(depth) + char(type) + std::string(2, 0) + char(interlaced)) +
         behind_head;
}
std::string png_of_zeros(uint32_t w, uint32_t h, int pixel, int depth = 8, int type = 2, int interlaced = 0) {
  return png(w, h, chunk("IDAT", zeros(uint64_t(h) * (1 + uint64_t(w) * uint64_t(pixel)))) + chunk("IEND", ""), depth,
             type, interlaced);
}

// A real JPEG whose frame header says another size.
std::string jpeg(const std::string& name, uint32_t w, uint32_t h) {
  std::string s = media_file("kinds/" + name);
  for (size_t at = 2; at + 9 < s.size(); at += 2 + size_t(uint8_t(s[at + 2]) << 8 | uint8_t(s[at + 3]))) {
    if (uint8_t(s[at + 1]) >= 0xc0 && uint8_t(s[at + 1]) <= 0xc2) {
      s.replace(at + 5, 4, be(h, 2) + be(w, 2));
      return s;
    }
  }
  ADD_FAILURE() << name << " has no frame header";
  return s;
}

// The last scan of a progressive JPEG again and again.
std::string jpeg_of_scans(uint32_t w, uint32_t h, int n) {
  std::string s = jpeg("progressive-420.jpg", w, h);
  const size_t scan = s.rfind("\xff\xda"), end = s.rfind("\xff\xd9");
  const std::string again = s.substr(scan, end - scan);
  s.resize(end);
  for (int i = 0; i < n; ++i) s += again;
  return s + "\xff\xd9";
}

std::string riff(const std::string& body) { return "RIFF" + le(body.size(), 4) + body; }
std::string webp_canvas(uint32_t w, uint32_t h, int n_frames) {
  std::string body = "WEBPVP8X" + le(10, 4) + le(2, 4) + le(w - 1, 3) + le(h - 1, 3) + "ANIM" + le(6, 4) + le(0, 6);
  const std::string still = media_file("kinds/lossless.webp").substr(12);
  for (int i = 0; i < n_frames; ++i)
    body += "ANMF" + le(16 + still.size(), 4) + le(0, 6) + le(52, 3) + le(36, 3) + le(100, 3) + le(0, 1) + still;
  return riff(body);
}
std::string webp_lossless(uint32_t w, uint32_t h) {
  return riff("WEBPVP8L" + le(20, 4) + "\x2f" + le((w - 1) | (h - 1) << 14, 4) + std::string(15, 0));
}
std::string webp_lossy(uint32_t w, uint32_t h) {
  return riff("WEBPVP8 " + le(20, 4) + "\x10\x02" + std::string(1, 0) + "\x9d\x01\x2a" + le(w, 2) + le(h, 2) +
              std::string(10, 0));
}
std::string gif(uint32_t w, uint32_t h, const std::string& rest) {
  return "GIF89a" + le(w, 2) + le(h, 2) + std::string(3, 0) + rest;
}
std::string gif_frame(uint32_t x, uint32_t y, uint32_t w, uint32_t h) {
  return "\x2c" + le(x, 2) + le(y, 2) + le(w, 2) + le(h, 2) + std::string(1, 0) + "\x08";
}
std::string bmp(int32_t w, int32_t h, int bits, const std::string& pixels) {
  return "BM" + le(0, 8) + le(54, 4) + le(40, 4) + le(uint32_t(w), 4) + le(uint32_t(h), 4) + le(1, 2) +
         le(uint64_t(bits), 2) + le(0, 24) + pixels;
}
std::string wav(uint32_t channels, uint32_t rate, uint32_t bits, uint32_t data_size) {
  return riff("WAVEfmt " + le(16, 4) + le(1, 2) + le(channels, 2) + le(rate, 4) + le(0, 4) +
              le(channels * bits / 8, 2) + le(bits, 2) + "data" + le(data_size, 4) + std::string(64, 0));
}
std::string rf64(uint64_t size) {
  std::string s = wav(1, 16000, 16, 0xffffffff);
  s = "RF64" + s.substr(4, 8) + "ds64" + le(28, 4) + le(size, 8) + le(size, 8) + le(size, 8) + le(0, 4) + s.substr(12);
  return s;
}
std::string flac(uint64_t samples) {  // STREAMINFO alone: 96 kHz, 8 channels, 24 bits
  return "fLaC" + be(0x80000022, 4) + be(4096, 2) + be(65535, 2) + std::string(6, 0) +
         be(uint64_t{96000} << 44 | uint64_t{7} << 41 | uint64_t{23} << 36 | samples, 8) + std::string(16, 0);
}

// What a fresh process says of a file, and how much memory it takes at most, in KiB.
struct Seen {
  std::string message;
  long most = 0;
};
template <class F>
Seen in_a_child(F f) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string m = f();
    const ssize_t n = write(ends[1], m.data(), m.size());
    _exit(n == ssize_t(m.size()) ? 0 : 1);
  }
  close(ends[1]);
  Seen seen;
  char some[512];
  for (ssize_t n; (n = read(ends[0], some, sizeof some)) > 0;) seen.message.append(some, size_t(n));
  close(ends[0]);
  int status = 0;
  rusage use{};
  EXPECT_EQ(wait4(child, &status, 0, &use), child);
  EXPECT_EQ(status, 0);
  seen.most = use.ru_maxrss;
  return seen;
}

std::string verdict(const std::string& file) {
  if (!sound_kind(bytes_of(file)).empty()) {
    auto s = decode_sound(bytes_of(file), "file");
    return s ? "taken" : s.error().message();
  }
  auto p = decode_resized(bytes_of(file), 280, "file");
  return p ? "taken" : p.error().message();
}

struct Bomb {
  const char* name;
  std::string file;
  const char* message;  // what the line has in it
};

std::vector<Bomb> bombs() {
  const std::string mega_text = chunk("zTXt", std::string("a\0\0", 3) + zeros(100'000'000)) +
                                chunk("iCCP", std::string("a\0\0", 3) + zeros(100'000'000));
  std::string extensions;
  for (int i = 0; i < 1'000'000; ++i) extensions += std::string("\x21\xfe\x01 \0", 5);
  return {
      {"PNG of 100,000 squared", png(100'000, 100'000, ""), "file: "},
      {"PNG of 2^31 - 1 squared", png(0x7fffffff, 0x7fffffff, ""), "file: "},
      {"PNG of 2^31 - 1 squared with pixels, interlaced",
       png(0x7fffffff, 0x7fffffff, chunk("IDAT", zeros(100)) + chunk("IEND", ""), 8, 2, 1),
       "PNG of 2147483647 x 2147483647 pixels; expected sides of at most 16384"},
      {"PNG of 100,000 squared with pixels", png_of_zeros(100'000, 100, 3),
       "PNG of 100000 x 100 pixels; expected sides of at most 16384"},
      {"PNG of 16,384 squared", png_of_zeros(16'384, 100, 3).replace(20, 4, be(16'384, 4)), "file: "},
      {"PNG without a side", png(0, 5, ""), "file: a PNG that cannot be read"},
      {"PNG of zeros, the largest that is taken", png_of_zeros(7'900, 7'900, 3), "taken"},
      {"PNG of zeros, interlaced and deep", png_of_zeros(7'990, 7'990, 8, 16, 6, 1), "decoding would hold"},
      {"PNG with a row of its rows", png(7'900, 7'900, chunk("IDAT", zeros(23'701)) + chunk("IEND", "")),
       "a PNG that cannot be read"},
      {"PNG with texts and profiles of 100 MB", png(10, 10, mega_text), "a PNG that cannot be read"},
      {"WebP animation of 16,383 squared", webp_canvas(16'383, 16'383, 1),
       "WebP of 16383 x 16383 pixels, 268402689 in all; expected at most 64000000"},
      {"WebP animation of 4,000 frames", webp_canvas(53, 37, 4'000), "taken"},
      {"WebP, lossless, 16,384 squared", webp_lossless(16'384, 16'384), "file: "},
      {"WebP, lossless, 7,900 squared", webp_lossless(7'900, 7'900), "decoding would hold"},
      {"WebP, lossy, 16,383 squared", webp_lossy(16'383, 16'383), "file: "},
      {"GIF with a screen of 65,535 squared", gif(65'535, 65'535, gif_frame(0, 0, 1, 1)),
       "GIF of 65535 x 65535 pixels; expected sides of at most 16384"},
      {"GIF with a frame of 65,535 squared", gif(1, 1, gif_frame(65'535, 65'535, 65'535, 65'535)),
       "GIF of 131070 x 131070 pixels"},
      {"GIF of 7,900 squared without data", gif(7'900, 7'900, gif_frame(0, 0, 7'900, 7'900) + std::string(1, 0)),
       "0 of 62410000 pixels, then the data end or break"},
      {"GIF with a million extensions", gif(9, 9, extensions), "ends before its first picture"},
      {"BMP with negative sides", bmp(-10, -10, 24, "abc"), "BMP of -10 x 10 pixels; expected sides of at least 1"},
      {"BMP of height -2^31", bmp(10, INT32_MIN, 24, "abc"), "BMP of 10 x 2147483648 pixels"},
      {"BMP of 2^31 squared", bmp(INT32_MAX, INT32_MIN, 24, "abc"), "BMP of 2147483647 x 2147483648 pixels"},
      {"BMP of 8,000 squared without pixels", bmp(8'000, 8'000, 32, "abc"), "its pixels are bytes 54 to"},
      {"JPEG of 65,535 squared", jpeg("baseline-420.jpg", 65'535, 65'535), "file: "},
      {"JPEG of 65,500 squared", jpeg("baseline-420.jpg", 65'500, 65'500),
       "JPEG of 65500 x 65500 pixels; expected sides of at most 16384"},
      {"JPEG of height 0", jpeg("baseline-420.jpg", 100, 0), "a JPEG that cannot be read"},
      {"JPEG of 8,000 squared that ends in its first rows", jpeg("baseline-420.jpg", 8'000, 8'000), "taken"},
      {"JPEG, progressive, 8,000 squared", jpeg("progressive-444.jpg", 8'000, 8'000), "decoding would hold"},
      {"JPEG, progressive, 8,000 x 7,400 without data", jpeg("progressive-420.jpg", 8'000, 7'400), ""},
      {"JPEG of 10,000 scans", jpeg_of_scans(7'000, 7'000, 10'000), "too many scans"},
      {"WAV of 2^31 samples", wav(1, 16'000, 16, 0x80000000),
       "a WAV that ends early: chunk \"data\" of 2147483648 bytes; the file has 64 of them"},
      {"WAV of 2^32 bytes", wav(1, 16'000, 16, 0xfffffffe), "a WAV that ends early"},
      {"WAV of 65,535 channels", wav(65'535, 16'000, 8, 64), "expected 1 to 8"},
      {"WAV of 4 GHz", wav(1, 0xffffffff, 16, 64), "expected 4000 to 192000"},
      {"RF64 of 2^63 bytes", rf64(uint64_t{1} << 63), "a WAV that ends early"},
      {"FLAC of 2^36 samples", flac((uint64_t{1} << 36) - 1), "a FLAC that"},
      {"MP3 of a tag", "ID3\x04" + std::string(2, 0) + "\x7f\x7f\x7f\x7f", "an MP3"},
  };
}

TEST(Bombs, AreOneLineAndLittleMemory) {
  const auto all = bombs();
  ASSERT_GE(all.size(), 20u);
  const long idle = in_a_child([] { return std::string("idle"); }).most;
  long worst = 0;
  for (const Bomb& b : all) {
    SCOPED_TRACE(b.name);
    const Seen seen = in_a_child([&] { return verdict(b.file); });
    EXPECT_NE(seen.message.find(b.message), std::string::npos) << seen.message;
    EXPECT_EQ(seen.message.find('\n'), std::string::npos);
    EXPECT_LT(seen.message.size(), 300u);
    worst = std::max(worst, seen.most - idle);
    if (!kSanitized) {
      EXPECT_LT(seen.most - idle, 200'000'000 / 1024) << seen.message;
    }
  }
  RecordProperty("worst_kib", int(worst));
  std::printf("%zu files, at most %ld KiB above idle\n", all.size(), worst);
}

TEST(Bombs, EveryFileCutAnywhereIsRefusedOrWhole) {
  for (const char* name : {"kinds/baseline-420.jpg", "kinds/progressive-420.jpg", "kinds/rgb.png",
                           "kinds/interlaced.png", "kinds/lossy.webp", "kinds/lossless-alpha.webp", "kinds/plain.gif",
                           "kinds/rgb.bmp", "kinds/palette.bmp", "official/eight8k.wav", "mono16k.flac", "tone.mp3"}) {
    const std::string file = media_file(name);
    size_t taken = 0;
    for (size_t n = 0; n < file.size(); n += 1 + file.size() / 97) {
      const std::string m = verdict(file.substr(0, n));
      if (m == "taken") {
        ++taken;
        continue;
      }
      EXPECT_EQ(m.find("file: "), 0u) << name << " cut at " << n << ": " << m;
      EXPECT_EQ(m.find('\n'), std::string::npos);
      EXPECT_EQ(m.back(), ')') << m;
    }
    // MP3 is a stream of frames: any beginning of it is one. A baseline JPEG may lack its last two bytes.
    EXPECT_LE(taken, std::string(name) == "tone.mp3" ? 97u : 1u) << name;
  }
}

TEST(Bombs, BytesTurnedAreReadOrRefused) {
  uint64_t seed = 7;
  auto next = [&] { return (seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33; };
  for (const char* name :
       {"kinds/baseline-422.jpg", "kinds/progressive-420.jpg", "kinds/cmyk.jpg", "kinds/palette-4.png",
        "kinds/lossy-alpha.webp", "kinds/lossless.webp", "kinds/interlaced.gif", "kinds/offset.gif",
        "kinds/32-masks.bmp", "official/eight8k.wav", "tone.flac", "tone.mp3"}) {
    const std::string file = media_file(name);
    for (int i = 0; i < 60; ++i) {
      std::string turned = file;
      for (int k = 0; k < 3; ++k) turned[4 + next() % (turned.size() - 4)] = char(next());
      const std::string m = verdict(turned);
      EXPECT_TRUE(m == "taken" || (m.find("file: ") == 0 && m.find('\n') == std::string::npos)) << name << ": " << m;
    }
  }
}

}  // namespace
}  // namespace facet::test
