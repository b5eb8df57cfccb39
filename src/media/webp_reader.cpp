#include "media/picture_reader.h"

#if FACET_MEDIA
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstring>
#include <memory>
#include <vector>

#include <fmt/format.h>

namespace facet::media {
namespace {

struct DeleteDemuxer {
  void operator()(WebPDemuxer* d) const { WebPDemuxDelete(d); }
};

int orientation_of(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk{};
  int orientation = 1;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk)) {
    std::span<const uint8_t> body(chunk.chunk.bytes, chunk.chunk.size);
    // Some writers keep the head of a JPEG segment.
    if (body.size() > 6 && std::memcmp(body.data(), "Exif\0\0", 6) == 0) body = body.subspan(6);
    orientation = exif_orientation(body);
  }
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

struct Frame {
  WebPIterator it{};
  ~Frame() { WebPDemuxReleaseIterator(&it); }
};

}  // namespace

Status read_webp(const PictureSource& source, PictureRows& rows) {
  const WebPData data{source.bytes.data(), source.bytes.size()};
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemux(&data));
  if (!demuxer)
    return source.error("a WebP that cannot be read: its parts do not fit together, or the file ends early");
  Frame frame;
  const int64_t width = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH),
                height = WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT);
  WebPBitstreamFeatures features{};
  if (!WebPDemuxGetFrame(demuxer.get(), 1, &frame.it) ||
      WebPGetFeatures(frame.it.fragment.bytes, frame.it.fragment.size, &features) != VP8_STATUS_OK) {
    return source.error("a WebP that cannot be read: it has no first frame");
  }
  const WebPIterator& f = frame.it;
  if (f.x_offset < 0 || f.y_offset < 0 || features.width != f.width || features.height != f.height ||
      int64_t(f.x_offset) + f.width > width || int64_t(f.y_offset) + f.height > height) {
    return source.error(
        fmt::format("a WebP that cannot be read: a frame of {} x {} pixels at {}, {} of a canvas of {} x {}",
                    features.width, features.height, f.x_offset, f.y_offset, width, height));
  }
  // libwebp gives rows when it has them all: lossless files four bytes a pixel within, others a few rows and alpha.
  constexpr int kLossless = 2;
  const int64_t own =
      pixel_bytes(width, height, 3) + pixel_bytes(f.width, f.height, features.format == kLossless ? 4 : 1) + (1 << 20);
  auto wanted = rows.begin({"WebP", width, height, orientation_of(demuxer.get()), own});
  if (!wanted) return wanted.error();
  if (!*wanted) return Ok{};
  // What the first frame of an animation does not cover is black, as in Pillow.
  const size_t pitch = size_t(width) * 3;
  std::vector<uint8_t> pixels(pitch * size_t(height) + kRowPadding);
  uint8_t* to = &pixels[size_t(f.y_offset) * pitch + size_t(f.x_offset) * 3];
  const size_t room = pixels.size() - size_t(to - pixels.data());
  if (!WebPDecodeRGBInto(f.fragment.bytes, f.fragment.size, to, room, int(pitch))) {
    return source.error("a WebP that cannot be read: its pixels are broken, or the file ends early");
  }
  for (int64_t y = 0; y < height; ++y) rows.row(int(y), &pixels[size_t(y) * pitch]);
  return Ok{};
}

}  // namespace facet::media
#else
namespace facet::media {
Status read_webp(const PictureSource& source, PictureRows&) {
  return source.error("a WebP; this facet was built without WebP (FACET_MEDIA=OFF)",
                      "build it with -DFACET_MEDIA=ON, or save the picture as BMP");
}
}  // namespace facet::media
#endif
