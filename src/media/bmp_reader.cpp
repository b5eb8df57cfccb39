#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "media/picture_reader.h"

namespace facet::media {
namespace {

// What BITMAPFILEHEADER and the header behind it say.
struct Bitmap {
  int64_t width = 0, height = 0;
  bool top_down = false;
  int bits = 0;             // of a pixel
  size_t pixels = 0;        // offset in the file
  uint32_t masks[3] = {};   // of red, green, blue in 16 and 32 bits
  uint8_t palette[256][3];  // up to 8 bits
  size_t pitch() const { return size_t((width * bits + 31) / 32 * 4); }
};

uint32_t u16(std::span<const uint8_t> b, size_t at) { return b[at] | uint32_t(b[at + 1]) << 8; }
uint32_t u32(std::span<const uint8_t> b, size_t at) { return u16(b, at) | u16(b, at + 2) << 16; }

void read_palette(std::span<const uint8_t> b, size_t at, size_t entry, size_t colors, Bitmap& m) {
  for (size_t i = 0; i < 256; ++i) {
    std::memset(m.palette[i], int(i), 3);  // what a palette does not have
    if (i >= colors || at + entry * i + 3 > b.size()) continue;
    const uint8_t* p = &b[at + entry * i];
    m.palette[i][0] = p[2], m.palette[i][1] = p[1], m.palette[i][2] = p[0];
  }
}

constexpr uint32_t kPlain = 0, kRle8 = 1, kRle4 = 2, kBitfields = 3, kAlphaBitfields = 6;

Result<Bitmap> read_header(const PictureSource& source) {
  const auto b = source.bytes;
  Bitmap m;
  const size_t header = b.size() >= 18 ? u32(b, 14) : 0;
  if (header < 12 || (header > 12 && header < 40) || header > 256 || b.size() < 14 + header) {
    return source.error(fmt::format(
        "a BMP that cannot be read: header of {} bytes in a file of {}; expected 12, or 40 to 256", header, b.size()));
  }
  const bool old = header == 12;
  const int64_t height = old ? int64_t(u16(b, 20)) : int64_t(int32_t(u32(b, 22)));
  m.width = old ? int64_t(u16(b, 18)) : int64_t(int32_t(u32(b, 18)));
  m.top_down = height < 0;
  m.height = m.top_down ? -height : height;
  m.bits = int(u16(b, old ? 24 : 28));
  m.pixels = u32(b, 10);
  const uint32_t compression = old ? kPlain : u32(b, 30);
  if (compression == kRle8 || compression == kRle4) {
    return source.error("a BMP with run-length encoding, which is not read", "save it as PNG");
  }
  const bool fields = compression == kBitfields || compression == kAlphaBitfields;
  if ((compression != kPlain && !fields) || (fields && m.bits != 16 && m.bits != 32)) {
    return source.error(
        fmt::format("a BMP of compression {} with {} bits; expected 0, or 3 with 16 or 32 bits", compression, m.bits),
        "save it as PNG");
  }
  if (m.bits == 16) m.masks[0] = 0x7c00, m.masks[1] = 0x3e0, m.masks[2] = 0x1f;
  if (m.bits == 32) m.masks[0] = 0xff0000, m.masks[1] = 0xff00, m.masks[2] = 0xff;
  if (fields) {
    if (b.size() < 66) return source.error("a BMP that cannot be read: the file ends early");
    for (size_t i = 0; i < 3; ++i) m.masks[i] = u32(b, 54 + 4 * i);  // the same place in all headers
  }
  if (m.bits == 1 || m.bits == 4 || m.bits == 8) {
    const size_t named = old ? 0 : u32(b, 46), most = size_t{1} << m.bits;
    read_palette(b, 14 + header, old ? 3 : 4, named ? std::min(named, most) : most, m);
  } else if (m.bits != 16 && m.bits != 24 && m.bits != 32) {
    return source.error(fmt::format("a BMP of {} bits a pixel; expected 1, 4, 8, 16, 24 or 32", m.bits),
                        "save it as PNG");
  }
  return m;
}

// The bits of a mask to 0..255: v * 255 / the most it can be.
struct Field {
  explicit Field(uint32_t mask) : mask_(mask) {
    while (mask && !(mask & 1)) mask >>= 1, ++shift_;
    most_ = mask;
  }
  uint8_t of(uint32_t pixel) const { return most_ ? uint8_t(uint64_t((pixel & mask_) >> shift_) * 255 / most_) : 0; }

 private:
  uint32_t mask_, most_ = 0;
  int shift_ = 0;
};

void read_row(const Bitmap& m, const Field (&fields)[3], std::span<const uint8_t> in, uint8_t* out) {
  for (size_t x = 0; x < size_t(m.width); ++x, out += 3) {
    if (m.bits <= 8) {
      const size_t bit = x * size_t(m.bits);
      const int index = in[bit / 8] >> (8 - m.bits - int(bit % 8)) & ((1 << m.bits) - 1);
      std::memcpy(out, m.palette[index], 3);
    } else if (m.bits == 24) {
      out[0] = in[3 * x + 2], out[1] = in[3 * x + 1], out[2] = in[3 * x];
    } else {
      const uint32_t pixel = m.bits == 16 ? u16(in, 2 * x) : u32(in, 4 * x);
      for (int k = 0; k < 3; ++k) out[k] = fields[k].of(pixel);
    }
  }
}

}  // namespace

Status read_bmp(const PictureSource& source, PictureRows& rows) {
  auto m = read_header(source);
  if (!m) return m.error();
  auto wanted = rows.begin({"BMP", m->width, m->height, 1, m->width * 3});
  if (!wanted) return wanted.error();
  if (!*wanted) return Ok{};
  const size_t size = source.bytes.size(), need = m->pitch() * size_t(m->height);
  if (m->pixels > size || need > size - m->pixels) {
    return source.error(fmt::format("a BMP that cannot be read: its pixels are bytes {} to {} of a file of {}",
                                    m->pixels, m->pixels + need, size));
  }
  const Field fields[3] = {Field(m->masks[0]), Field(m->masks[1]), Field(m->masks[2])};
  std::vector<uint8_t> row(size_t(m->width) * 3 + kRowPadding);
  for (int64_t y = 0; y < m->height; ++y) {
    const int64_t stored = m->top_down ? y : m->height - 1 - y;
    read_row(*m, fields, source.bytes.subspan(m->pixels + size_t(stored) * m->pitch(), m->pitch()), row.data());
    rows.row(int(y), row.data());
  }
  return Ok{};
}

}  // namespace facet::media
