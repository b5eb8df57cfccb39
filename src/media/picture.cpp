#include "media/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "media/picture_reader.h"
#include "media/resize.h"

namespace facet {
namespace media {
namespace {

std::span<const uint8_t> as_u8(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
}

// Refuses what a header asks for. `own` is what the taker of rows will hold.
Status check_header(const PictureHeader& h, const PictureSource& source, int64_t own) {
  const PictureLimits& limits = source.limits;
  const std::string size = fmt::format("{} of {} x {} pixels", h.kind, h.width, h.height);
  if (h.width < 1 || h.height < 1) {
    return source.error(size + "; expected sides of at least 1", "send another picture");
  }
  // Sides first: their product cannot overflow then.
  if (h.width > limits.side || h.height > limits.side) {
    return source.error(fmt::format("{}; expected sides of at most {}", size, limits.side), "make the picture smaller");
  }
  if (h.width * h.height > limits.pixels) {
    return source.error(fmt::format("{}, {} in all; expected at most {}", size, h.width * h.height, limits.pixels),
                        "make the picture smaller");
  }
  if (h.reader_bytes + own > limits.memory) {
    return source.error(
        fmt::format("{}; decoding would hold {} bytes, at most {}", size, h.reader_bytes + own, limits.memory),
        "make the picture smaller, or save it as a baseline JPEG or a PNG that is not interlaced");
  }
  return Ok{};
}

PictureInfo info_of(const PictureHeader& h) {
  const bool transposed = Orientation(h.orientation).transposed;
  return {h.kind, int(transposed ? h.height : h.width), int(transposed ? h.width : h.height), h.orientation};
}

// Takes the header alone.
class HeaderOnly : public PictureRows {
 public:
  explicit HeaderOnly(const PictureSource& source) : source_(source) {}
  Result<bool> begin(const PictureHeader& header) override {
    if (auto ok = check_header(header, source_, 0); !ok) return ok.error();
    info = info_of(header);
    return false;
  }
  void row(int, const uint8_t*) override {}
  PictureInfo info;

 private:
  const PictureSource& source_;
};

// Takes all pixels.
class WholePicture : public PictureRows {
 public:
  explicit WholePicture(const PictureSource& source) : source_(source) {}
  Result<bool> begin(const PictureHeader& h) override {
    if (auto ok = check_header(h, source_, 0); !ok) return ok.error();  // sides, before their product
    if (auto ok = check_header(h, source_, h.width * h.height * 3); !ok) return ok.error();
    const PictureInfo info = info_of(h);
    stored_width_ = int(h.width);
    stored_height_ = int(h.height);
    orientation_ = Orientation(h.orientation);
    picture.width = info.width;
    picture.height = info.height;
    picture.rgb.resize(size_t(h.width * h.height) * 3);
    return true;
  }
  void row(int y, const uint8_t* rgb) override {
    const int r = orientation_.mirror_rows ? stored_height_ - 1 - y : y;
    const size_t pitch = size_t(picture.width) * 3;
    if (!orientation_.transposed && !orientation_.mirror_columns) {
      std::memcpy(&picture.rgb[size_t(r) * pitch], rgb, pitch);
      return;
    }
    for (int x = 0; x < stored_width_; ++x, rgb += 3) {
      const int c = orientation_.mirror_columns ? stored_width_ - 1 - x : x;
      uint8_t* to =
          &picture.rgb[orientation_.transposed ? size_t(c) * pitch + size_t(r) * 3 : size_t(r) * pitch + size_t(c) * 3];
      to[0] = rgb[0], to[1] = rgb[1], to[2] = rgb[2];
    }
  }
  Picture picture;

 private:
  const PictureSource& source_;
  Orientation orientation_{1};
  int stored_width_ = 0, stored_height_ = 0;
};

// Takes rows and resizes them.
class ResizedPicture : public PictureRows {
 public:
  ResizedPicture(const PictureSource& source, int budget, int n_threads)
      : source_(source), budget_(budget), n_threads_(n_threads) {}
  Result<bool> begin(const PictureHeader& h) override {
    if (auto ok = check_header(h, source_, 0); !ok) return ok.error();
    const PictureInfo info = info_of(h);
    auto size = target_size(info.width, info.height, budget_, source_.where);
    if (!size) return size.error();
    const ResizeShape shape{int(h.width), int(h.height), Orientation(h.orientation), size->width, size->height};
    if (auto ok = check_header(h, source_, Resizer::memory(shape)); !ok) return ok.error();
    resizer_.emplace(shape, n_threads_);
    return true;
  }
  void row(int, const uint8_t* rgb) override { resizer_->row(rgb); }
  Picture finish() { return resizer_->finish(); }

 private:
  const PictureSource& source_;
  const int budget_, n_threads_;
  std::optional<Resizer> resizer_;
};

Status read_picture(const PictureSource& source, PictureRows& rows) {
  if (source.bytes.size() > source.limits.bytes) {
    return source.error(
        fmt::format("a picture of {} bytes; expected at most {}", source.bytes.size(), source.limits.bytes),
        "make the file smaller");
  }
  const std::string kind = picture_kind(std::as_bytes(source.bytes));
  if (kind == "JPEG") return read_jpeg(source, rows);
  if (kind == "PNG") return read_png(source, rows);
  if (kind == "WebP") return read_webp(source, rows);
  if (kind == "GIF") return read_gif(source, rows);
  if (kind == "BMP") return read_bmp(source, rows);
  std::string found = source.bytes.empty() ? "no bytes" : "bytes that begin";
  for (size_t i = 0; i < std::min<size_t>(8, source.bytes.size()); ++i)
    found += fmt::format(" {:02x}", source.bytes[i]);
  return source.error("a picture; expected JPEG, PNG, WebP, GIF or BMP, found " + found,
                      "save it as JPEG or PNG; HEIC, AVIF, TIFF and SVG are not read");
}

}  // namespace
}  // namespace media

std::string picture_kind(std::span<const std::byte> bytes) {
  const auto b = media::as_u8(bytes);
  auto is = [&](size_t at, std::string_view text) {
    return b.size() >= at + text.size() && std::memcmp(b.data() + at, text.data(), text.size()) == 0;
  };
  if (is(0, "\xff\xd8\xff")) return "JPEG";
  if (is(0, "\x89PNG\r\n\x1a\n")) return "PNG";
  if (is(0, "RIFF") && is(8, "WEBP")) return "WebP";
  if (is(0, "GIF87a") || is(0, "GIF89a")) return "GIF";
  if (is(0, "BM")) return "BMP";
  return "";
}

int image_token_budget(int64_t tokens) {
  int best = kImageTokenBudgets[0];
  for (const int b : kImageTokenBudgets) {
    if (b <= tokens) best = b;
  }
  return best;
}

Result<TargetSize> target_size(int width, int height, int budget, const std::string& where) {
  constexpr int kCell = 48;
  if (std::find(std::begin(kImageTokenBudgets), std::end(kImageTokenBudgets), budget) == std::end(kImageTokenBudgets)) {
    return Error{where, fmt::format("image tokens; expected 70, 140, 280, 560 or 1120, found {}", budget),
                 "name one of these budgets"};
  }
  if (width < 1 || height < 1) {
    return Error{where, fmt::format("a picture of {} x {} pixels; expected sides of at least 1", width, height),
                 "send another picture"};
  }
  const double most = 256.0 * 9 * budget;  // pixels: 9 patches of 16 x 16 for each token
  const double factor = std::sqrt(most / (double(height) * double(width)));
  auto cells = [&](int side) { return int64_t(std::floor(factor * side / kCell)); };
  int64_t h = cells(height), w = cells(width);
  // A strip that is less than a cell high gets one row of cells, as long as its aspect ratio asks.
  if (h == 0) {
    h = 1;
    w = std::min<int64_t>(width / height, budget);
  } else if (w == 0) {
    w = 1;
    h = std::min<int64_t>(height / width, budget);
  }
  if (h < 1 || w < 1 || h * w > budget) {
    return Error{
        where, fmt::format("a picture of {} x {} pixels; it does not fit into {} image tokens", width, height, budget),
        "cut the picture so that it is less of a strip"};
  }
  return TargetSize{int(w) * kCell, int(h) * kCell, int(h * w)};
}

Result<PictureInfo> picture_info(std::span<const std::byte> bytes, const std::string& where,
                                 const PictureLimits& limits) {
  const media::PictureSource source{media::as_u8(bytes), where, limits};
  media::HeaderOnly rows(source);
  if (auto ok = media::read_picture(source, rows); !ok) return ok.error();
  return rows.info;
}

Result<Picture> decode_picture(std::span<const std::byte> bytes, const std::string& where,
                               const PictureLimits& limits) {
  const media::PictureSource source{media::as_u8(bytes), where, limits};
  media::WholePicture rows(source);
  if (auto ok = media::read_picture(source, rows); !ok) return ok.error();
  return std::move(rows.picture);
}

Result<Picture> decode_resized(std::span<const std::byte> bytes, int budget, const std::string& where,
                               const PictureLimits& limits, int n_threads) {
  const media::PictureSource source{media::as_u8(bytes), where, limits};
  media::ResizedPicture rows(source, budget, n_threads);
  if (auto ok = media::read_picture(source, rows); !ok) return ok.error();
  return rows.finish();
}

}  // namespace facet
