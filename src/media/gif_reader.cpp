#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "media/picture_reader.h"

namespace facet::media {
namespace {

// GIF89a, section numbers of its specification. A file that is read from front to back; behind the end there are zeros.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> b) : b_(b) {}
  bool ended() const { return over_; }
  int u8() {
    if (at_ < b_.size()) return b_[at_++];
    over_ = true;
    return 0;
  }
  int u16() {
    const int low = u8();
    return low | u8() << 8;
  }
  std::span<const uint8_t> take(size_t n) {
    if (n > b_.size() - at_) {
      over_ = true;
      n = b_.size() - at_;
    }
    at_ += n;
    return b_.subspan(at_ - n, n);
  }
  // Data sub-blocks (15), the last of which is empty.
  void skip_blocks() {
    for (int n = u8(); n > 0 && !over_; n = u8()) take(size_t(n));
  }

 private:
  std::span<const uint8_t> b_;
  size_t at_ = 0;
  bool over_ = false;
};

// Variable-length codes of LZW (appendix F), read from sub-blocks.
class Codes {
 public:
  explicit Codes(Bytes& bytes) : bytes_(bytes) {}
  // -1: there are no more.
  int next(int n_bits) {
    while (have_ < n_bits) {
      if (left_ == 0 && (left_ = bytes_.u8()) == 0) return -1;
      if (bytes_.ended()) return -1;
      bits_ |= uint32_t(bytes_.u8()) << have_;
      have_ += 8;
      --left_;
    }
    const int code = int(bits_ & ((1u << n_bits) - 1));
    bits_ >>= n_bits;
    have_ -= n_bits;
    return code;
  }

 private:
  Bytes& bytes_;
  uint32_t bits_ = 0;
  int have_ = 0, left_ = 0;
};

// Strings of LZW, each an older one and a byte behind it.
class Strings {
 public:
  static constexpr int kMost = 4096;
  explicit Strings(int root_bits) : roots_(1 << root_bits) { clear(); }
  void clear() { n_ = roots_ + 2, last_ = -1; }
  int size() const { return n_; }
  // The bytes of one code, last first, into back[0, n). 0: no such code. Adds the string that the code makes known.
  int expand(int code, uint8_t* back) {
    if (code > n_ || (code >= roots_ && code < roots_ + 2) || (code == n_ && (last_ < 0 || n_ == kMost))) return 0;
    int n = 0, at = code;
    if (code == n_) {  // the last string and its own first byte
      back[n++] = first_;
      at = last_;
    }
    for (; at >= roots_; at = prefix_[at]) back[n++] = suffix_[at];
    back[n++] = first_ = uint8_t(at);
    if (last_ >= 0 && n_ < kMost) {
      prefix_[n_] = uint16_t(last_);
      suffix_[n_++] = first_;
    }
    last_ = code;
    return n;
  }

 private:
  const int roots_;
  int n_ = 0, last_ = -1;
  uint8_t first_ = 0;
  uint16_t prefix_[kMost];
  uint8_t suffix_[kMost];
};

// Fills `indices`; how many there are when the data end or break.
size_t read_lzw(Bytes& bytes, int root_bits, std::span<uint8_t> indices) {
  Codes codes(bytes);
  Strings strings(root_bits);
  std::vector<uint8_t> back(Strings::kMost + 1);
  const int clear = 1 << root_bits, end = clear + 1;
  int n_bits = root_bits + 1;
  size_t n = 0;
  while (n < indices.size()) {
    const int code = codes.next(n_bits);
    if (code < 0 || code == end) break;
    if (code == clear) {
      strings.clear();
      n_bits = root_bits + 1;
      continue;
    }
    int k = strings.expand(code, back.data());
    if (k == 0) break;
    while (k > 0 && n < indices.size()) indices[n++] = back[size_t(--k)];
    if (strings.size() == 1 << n_bits && n_bits < 12) ++n_bits;
  }
  return n;
}

struct Palette {
  uint8_t rgb[256][3];
  // Indices that it does not have are greys, as in Pillow.
  Palette() {
    for (int i = 0; i < 256; ++i) std::memset(rgb[i], i, 3);
  }
  void read(Bytes& bytes, int flags) {
    const auto b = bytes.take(size_t{3} << ((flags & 7) + 1));
    std::memcpy(rgb, b.data(), b.size());
  }
};

// The first picture and what stands in front of it.
struct Frame {
  int64_t width = 0, height = 0;  // of the screen
  int x = 0, y = 0, w = 0, h = 0;
  int background = 0;  // the index around the frame: the transparent one, as in Pillow
  bool interlaced = false;
  Palette palette;
};

// Up to the picture's data. false: there is no picture.
bool read_head(Bytes& bytes, Frame& f) {
  bytes.take(6);
  f.width = bytes.u16();
  f.height = bytes.u16();
  const int screen = bytes.u8();
  bytes.take(2);
  if (screen & 0x80) f.palette.read(bytes, screen);
  for (;;) {
    const int kind = bytes.u8();
    if (bytes.ended() || kind == 0x3b) return false;
    if (kind == 0x2c) break;
    if (kind != 0x21) continue;  // padding, as Pillow does
    if (bytes.u8() == 0xf9) {    // graphic control (23)
      const auto body = bytes.take(size_t(bytes.u8()));
      if (body.size() >= 4 && body[0] & 1) f.background = body[3];
      if (body.empty()) continue;
    }
    bytes.skip_blocks();
  }
  f.x = bytes.u16(), f.y = bytes.u16(), f.w = bytes.u16(), f.h = bytes.u16();
  const int flags = bytes.u8();
  f.interlaced = flags & 0x40;
  if (flags & 0x80) {
    f.palette = Palette();
    f.palette.read(bytes, flags);
  }
  // A frame that is larger than the screen makes it larger, as in Pillow.
  f.width = std::max<int64_t>(f.width, f.x + f.w);
  f.height = std::max<int64_t>(f.height, f.y + f.h);
  return !bytes.ended();
}

// Which row of the frame the k-th row of the data is (appendix E).
std::vector<int> row_order(const Frame& f) {
  std::vector<int> rows;
  constexpr int kFirst[] = {0, 4, 2, 1}, kStep[] = {8, 8, 4, 2};
  for (int pass = 0; pass < (f.interlaced ? 4 : 1); ++pass) {
    for (int y = f.interlaced ? kFirst[pass] : 0; y < f.h; y += f.interlaced ? kStep[pass] : 1) rows.push_back(y);
  }
  return rows;
}

}  // namespace

Status read_gif(const PictureSource& source, PictureRows& rows) {
  Bytes bytes(source.bytes);
  Frame f;
  if (!read_head(bytes, f)) return source.error("a GIF that cannot be read: it ends before its first picture");
  if (f.w == 0 || f.h == 0) return source.error(fmt::format("a GIF whose first picture has {} x {} pixels", f.w, f.h));
  const int root_bits = bytes.u8();
  if (root_bits < 1 || root_bits > 8) {
    return source.error(
        fmt::format("a GIF that cannot be read: LZW minimum code size; expected 1 to 8, found {}", root_bits));
  }
  auto wanted = rows.begin({"GIF", f.width, f.height, 1, int64_t(f.w) * f.h + f.width * 3 + (1 << 16)});
  if (!wanted) return wanted.error();
  if (!*wanted) return Ok{};
  std::vector<uint8_t> indices(size_t(f.w) * size_t(f.h));
  if (const size_t n = read_lzw(bytes, root_bits, indices); n < indices.size()) {
    return source.error(
        fmt::format("a GIF that cannot be read: {} of {} pixels, then the data end or break", n, indices.size()));
  }
  std::vector<int> from(size_t(f.h));  // the row of the data that is row y of the frame
  const std::vector<int> order = row_order(f);
  for (size_t k = 0; k < order.size(); ++k) from[size_t(order[k])] = int(k);
  std::vector<uint8_t> row(size_t(f.width) * 3 + kRowPadding);
  for (int y = 0; y < int(f.height); ++y) {
    for (int x = 0; x < int(f.width); ++x) std::memcpy(&row[size_t(x) * 3], f.palette.rgb[f.background], 3);
    if (y >= f.y && y < f.y + f.h) {
      const uint8_t* in = &indices[size_t(from[size_t(y - f.y)]) * size_t(f.w)];
      for (int x = 0; x < f.w; ++x) std::memcpy(&row[size_t(f.x + x) * 3], f.palette.rgb[in[x]], 3);
    }
    rows.row(y, row.data());
  }
  return Ok{};
}

}  // namespace facet::media
