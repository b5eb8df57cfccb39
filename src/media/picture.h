#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

// Pictures as people send them, to pixels as the vision tower takes them. Bytes are untrusted: what a header asks for is
// compared with PictureLimits before memory or time is spent on it.
namespace facet {

// Red, green, blue, a byte each: rgb[(y * width + x) * 3 + channel], row 0 is the top.
struct Picture {
  int width = 0, height = 0;
  std::vector<uint8_t> rgb;
};

struct PictureLimits {
  size_t bytes = 20'000'000;            // of the file
  int64_t pixels = 64'000'000;          // of the picture or the canvas of an animation
  int side = 16'384;                    // pixels; libwebp cannot do more either
  int64_t memory = int64_t{180} << 20;  // bytes that decoding and resizing may hold at a time
  int scans = 100;                      // of a progressive JPEG, each of which goes over all blocks
};

// What the header says. Width and height are those after the orientation that Exif asks for.
struct PictureInfo {
  std::string kind;  // "JPEG", "PNG", "WebP", "GIF" or "BMP"
  int width = 0, height = 0;
  int orientation = 1;  // Exif 2.32, tag 0x0112: 1..8
};

// What a picture is resized to: a grid of cells of 48 x 48 pixels, one soft token each.
struct TargetSize {
  int width = 0, height = 0;  // pixels, multiples of 48
  int soft_tokens = 0;
};

inline constexpr int kImageTokenBudgets[] = {70, 140, 280, 560, 1120};

// The largest of kImageTokenBudgets that is at most `tokens`, or the smallest of them.
int image_token_budget(int64_t tokens);

// The size that fills a budget of soft tokens and keeps the aspect ratio: get_aspect_ratio_preserving_size() of
// transformers 5.17, in float64 as there. Errors: a side of 0, a budget that is none of kImageTokenBudgets.
Result<TargetSize> target_size(int width, int height, int budget, const std::string& where);

// The first bytes say which kind it is; "" if none of those that PictureInfo names.
std::string picture_kind(std::span<const std::byte> bytes);

// The header alone. A picture whose pixels are broken still has one.
Result<PictureInfo> picture_info(std::span<const std::byte> bytes, const std::string& where,
                                 const PictureLimits& limits = {});

// All pixels, with the orientation applied: the bytes of Pillow's exif_transpose(image).convert("RGB"), with these
// exceptions. Grey of 16 bits is its high byte. A file that ends early is an error even if Pillow would take it.
// Alpha is dropped, colour profiles are ignored, of an animation the first frame counts.
Result<Picture> decode_picture(std::span<const std::byte> bytes, const std::string& where,
                               const PictureLimits& limits = {});

// decode_picture(), target_size() and resize_bicubic() in one: the same bits, but rows are resized as they come, so that
// a picture of 64 million pixels takes no more memory than the rows of its kernel.
Result<Picture> decode_resized(std::span<const std::byte> bytes, int budget, const std::string& where,
                               const PictureLimits& limits = {}, int n_threads = 1);

// Pillow's Image.resize(BICUBIC) bit for bit, horizontal pass first always: antialiased, a = -0.5, 8 bits after each
// pass. Width and height are at least 1. Results are the same for every n_threads.
Picture resize_bicubic(const Picture& picture, int width, int height, int n_threads = 1);

}  // namespace facet
