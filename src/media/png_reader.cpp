#include "media/picture_reader.h"

#if FACET_MEDIA
#include "media/foreign.h"

#include <png.h>

#include <csetjmp>
#include <cstring>
#include <vector>

#include <fmt/format.h>

namespace facet::media {
namespace {

// libpng and what it calls. Its errors jump back into attempt(): nothing that it calls holds a C++ object.
struct Decoder {
  png_structp png;
  png_infop info;
  jmp_buf jump;
  char message[128];
  const uint8_t* at;
  size_t left;
};

[[noreturn]] void on_error(png_structp png, const char* text) {
  auto* d = static_cast<Decoder*>(png_get_error_ptr(png));
  std::strncpy(d->message, text, sizeof(d->message) - 1);
  longjmp(d->jump, 1);
}
void on_warning(png_structp, const char*) {}

void on_read(png_structp png, png_bytep to, size_t n) {
  auto* d = static_cast<Decoder*>(png_get_io_ptr(png));
  if (n > d->left) png_error(png, "the file ends early");
  std::memcpy(to, d->at, n);
  d->at += n;
  d->left -= n;
}

// Whether libpng came back on its own. f calls libpng and nothing else.
template <class F>
__attribute__((noinline)) bool attempt(Decoder& d, F f) {
  if (setjmp(d.jump) != 0) return false;
  f();
  return true;
}

struct Owner {
  Decoder d{};
  ~Owner() {
    if (d.png) png_destroy_read_struct(&d.png, &d.info, nullptr);
  }
};

// The eXIf chunk, which may stand in front of the pixels or behind them.
int orientation_of(std::span<const uint8_t> bytes) {
  for (size_t at = 8; at + 12 <= bytes.size();) {
    const size_t length =
        size_t(bytes[at]) << 24 | size_t(bytes[at + 1]) << 16 | size_t(bytes[at + 2]) << 8 | bytes[at + 3];
    if (length > bytes.size() - at - 12) break;
    if (std::memcmp(&bytes[at + 4], "eXIf", 4) == 0) return exif_orientation(bytes.subspan(at + 8, length));
    at += 12 + length;
  }
  return 1;
}

// Values to red, green, blue. Indices that the palette does not have are greys, as in Pillow.
struct Expand {
  int channels = 3;  // of what libpng gives: 1 or 3
  uint8_t palette[256][3];
  void row(const uint8_t* in, size_t n, uint8_t* out) const {
    if (channels == 3) {
      std::memcpy(out, in, n * 3);
      return;
    }
    for (size_t i = 0; i < n; ++i, out += 3) std::memcpy(out, palette[in[i]], 3);
  }
};

// Asks for 8 bits, no alpha, one byte for each index.
void set_transforms(Decoder& d, Expand& expand) {
  const int type = png_get_color_type(d.png, d.info), depth = png_get_bit_depth(d.png, d.info);
  for (int i = 0; i < 256; ++i) std::memset(expand.palette[i], i, 3);
  if (type == PNG_COLOR_TYPE_PALETTE) {
    png_colorp colors = nullptr;
    int n = 0;
    png_get_PLTE(d.png, d.info, &colors, &n);
    for (int i = 0; i < n && i < 256; ++i) {
      expand.palette[i][0] = colors[i].red, expand.palette[i][1] = colors[i].green,
      expand.palette[i][2] = colors[i].blue;
    }
    png_set_packing(d.png);
  } else if (depth < 8) {
    png_set_expand_gray_1_2_4_to_8(d.png);
  } else if (depth == 16) {
    png_set_strip_16(d.png);  // the high byte
  }
  if (type & PNG_COLOR_MASK_ALPHA) png_set_strip_alpha(d.png);
  expand.channels = type & PNG_COLOR_MASK_COLOR && type != PNG_COLOR_TYPE_PALETTE ? 3 : 1;
}

void open(Decoder& d, const PictureSource& source) {
  d.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &d, on_error, on_warning);
  if (!d.png) return;
  attempt(d, [&] { d.info = png_create_info_struct(d.png); });
  attempt(d, [&] {
    png_set_read_fn(d.png, &d, on_read);
    // Sides are judged by us, with our words; profiles, texts and other chunks are skipped, never inflated.
    png_set_user_limits(d.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_chunk_malloc_max(d.png, 1 << 20);
    png_set_keep_unknown_chunks(d.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  });
  d.at = source.bytes.data();
  d.left = source.bytes.size();
}

}  // namespace

Status read_png(const PictureSource& source, PictureRows& rows) {
  Owner owner;
  Decoder& d = owner.d;
  open(d, source);
  auto failed = [&] { return source.error(fmt::format("a PNG that cannot be read: {}", d.message)); };
  if (!d.png || !d.info) return source.error("a PNG; no memory to read it", "free memory");
  if (!attempt(d, [&] { png_read_info(d.png, d.info); })) return failed();
  const int64_t width = png_get_image_width(d.png, d.info), height = png_get_image_height(d.png, d.info);
  const bool interlaced = png_get_interlace_type(d.png, d.info) != PNG_INTERLACE_NONE;
  const int type = png_get_color_type(d.png, d.info);
  const int channels = type & PNG_COLOR_MASK_COLOR && type != PNG_COLOR_TYPE_PALETTE ? 3 : 1;
  // Interlaced: all pixels, once those of the last pass have come. Rows of libpng have up to 8 bytes a pixel, two of them.
  const int64_t own = (1 << 16) + 16 * width + pixel_bytes(width, interlaced ? height : 1, channels);
  auto wanted = rows.begin({"PNG", width, height, orientation_of(source.bytes), own});
  if (!wanted) return wanted.error();
  if (!*wanted) return Ok{};
  Expand expand;
  if (!attempt(d, [&] {
        set_transforms(d, expand);
        png_set_interlace_handling(d.png);
        png_read_update_info(d.png, d.info);
      })) {
    return failed();
  }
  const size_t pitch = size_t(width * channels);
  if (png_get_rowbytes(d.png, d.info) != pitch || expand.channels != channels) {
    return source.error("a PNG whose rows have an unexpected length", "save it again as RGB");
  }
  std::vector<uint8_t> pixels(interlaced ? pitch * size_t(height) : pitch), row(size_t(width) * 3 + kRowPadding);
  for (int pass = 0; interlaced && pass < 7; ++pass) {
    for (int64_t y = 0; y < height; ++y) {
      if (!attempt(d, [&] { png_read_row(d.png, &pixels[size_t(y) * pitch], nullptr); })) return failed();
    }
  }
  for (int64_t y = 0; y < height; ++y) {
    uint8_t* line = &pixels[interlaced ? size_t(y) * pitch : 0];
    if (!interlaced && !attempt(d, [&] { png_read_row(d.png, line, nullptr); })) return failed();
    expand.row(line, size_t(width), row.data());
    rows.row(int(y), row.data());
  }
  return Ok{};
}

}  // namespace facet::media
#else
namespace facet::media {
Status read_png(const PictureSource& source, PictureRows&) {
  return source.error("a PNG; this facet was built without PNG (FACET_MEDIA=OFF)",
                      "build it with -DFACET_MEDIA=ON, or save the picture as BMP");
}
}  // namespace facet::media
#endif
