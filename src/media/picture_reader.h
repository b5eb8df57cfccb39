#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "media/picture.h"

// Within src/media: one reader for each kind of file, each of which gives its rows to a PictureRows.
namespace facet::media {

// What a reader knows before it allocates anything for pixels.
struct PictureHeader {
  const char* kind = "";
  int64_t width = 0, height = 0;  // as stored
  int orientation = 1;
  int64_t reader_bytes = 0;  // that the reader itself will hold while rows come
};

// Of width x height pixels, neither negative; 2^60 where they are more. Readers add them up before anybody has judged
// the sides, which in a PNG may be 2^31 - 1 each.
inline int64_t pixel_bytes(int64_t width, int64_t height, int64_t bytes_per_pixel) {
  constexpr int64_t kMost = int64_t(1) << 60;
  int64_t pixels, bytes;
  if (__builtin_mul_overflow(width, height, &pixels) || __builtin_mul_overflow(pixels, bytes_per_pixel, &bytes)) {
    return kMost;
  }
  return std::min(bytes, kMost);
}

class PictureRows {
 public:
  virtual ~PictureRows() = default;
  // false: rows are not wanted.
  virtual Result<bool> begin(const PictureHeader& header) = 0;
  // Row y, which is the one after the last, in red, green, blue. At least kRowPadding bytes behind it can be read.
  virtual void row(int y, const uint8_t* rgb) = 0;
};
inline constexpr int kRowPadding = 16;

// A picture and the words for what is wrong with it.
struct PictureSource {
  std::span<const uint8_t> bytes;
  const std::string& where;
  const PictureLimits& limits;
  Error error(std::string what, std::string hint = "check the file; other programs may repair it") const {
    return {where, std::move(what), std::move(hint)};
  }
};

Status read_jpeg(const PictureSource& source, PictureRows& rows);
Status read_png(const PictureSource& source, PictureRows& rows);
Status read_webp(const PictureSource& source, PictureRows& rows);
Status read_gif(const PictureSource& source, PictureRows& rows);
Status read_bmp(const PictureSource& source, PictureRows& rows);

// The orientation that a TIFF header with its first directory asks for; 1 where it says nothing or nonsense.
int exif_orientation(std::span<const uint8_t> tiff);

// How stored rows and columns become those that are seen.
struct Orientation {
  explicit Orientation(int exif)
      : transposed(exif >= 5),
        mirror_columns(exif == 2 || exif == 3 || exif == 7 || exif == 8),
        mirror_rows(exif == 3 || exif == 4 || exif == 6 || exif == 7) {}
  bool transposed;                   // stored rows are seen as columns
  bool mirror_columns, mirror_rows;  // of the stored picture
};

}  // namespace facet::media
