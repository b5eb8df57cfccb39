#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "media/picture.h"
#include "media/picture_reader.h"

// Within src/media: Pillow's bicubic resize over rows that come one after the other.
namespace facet::media {

// For each of `out` pixels of one axis: which of `in` pixels it is made of, and how much of each. Weights are fixed-point
// numbers with 22 bits behind the point, as Pillow's.
class BicubicTaps {
 public:
  // mirrored: the axis of the source is read from its other end.
  BicubicTaps(int in, int out, bool mirrored);
  int n_out() const { return int(first_.size()); }
  int first(int i) const { return first_[size_t(i)]; }
  int count(int i) const { return count_[size_t(i)]; }
  int most() const { return most_; }  // no count is larger
  const int32_t* weights(int i) const { return &weights_[size_t(i) * size_t(stride_)]; }
  // The same weights in pairs of two 16-bit halves, for pmaddwd: weight = high * 2048 + low. pairs(i)[2 * j] has the
  // high halves of weights 2 j and 2 j + 1, pairs(i)[2 * j + 1] the low ones. A weight behind the last is 0.
  const int32_t* pairs(int i) const { return &pairs_[size_t(i) * size_t(stride_)]; }
  static int64_t memory(int in, int out);

 private:
  int stride_, most_ = 0;  // stride_: even
  std::vector<int> first_, count_;
  std::vector<int32_t> weights_, pairs_;
};

// n bytes: sum over j of weights[j] * rows[j][i], rounded. rows: `count` pointers.
void weigh_rows(const uint8_t* const* rows, const BicubicTaps& taps, int i, uint8_t* out, size_t n);
// One row of pixels, n_out of them. Reads at most 7 bytes behind the last pixel of `in`.
void weigh_pixels(const uint8_t* in, const BicubicTaps& taps, uint8_t* out);
// The same bits in plain C++: what other processors run, and what tests compare with.
void weigh_rows_plain(const uint8_t* const* rows, const BicubicTaps& taps, int i, uint8_t* out, size_t n);
void weigh_pixels_plain(const uint8_t* in, const BicubicTaps& taps, uint8_t* out);

struct ResizeShape {
  int stored_width, stored_height;
  Orientation orientation;
  int width, height;  // as seen, of the result
};

// Rows of a stored picture go in, the resized picture as it is seen comes out. The pass along what is seen as rows is
// first. Where stored rows are seen as columns, that pass goes over the last few stored rows.
class Resizer {
 public:
  Resizer(const ResizeShape& shape, int n_threads);
  void row(const uint8_t* rgb);  // with kRowPadding readable bytes behind it
  Picture finish();              // after the last row
  static int64_t memory(const ResizeShape& shape);

 private:
  void flush();
  void emit_columns();
  void weigh_columns(int i);
  ResizeShape shape_;
  int n_threads_;
  BicubicTaps columns_, rows_;  // of stored columns and stored rows
  int next_row_ = 0, next_out_ = 0;
  size_t pitch_;      // bytes of a stored row with its padding
  size_t mid_pitch_;  // bytes of a row of mid_ with its padding
  // Not transposed: rows that wait for enough company to be resized by several threads. Transposed: a ring of the last
  // rows_.most() stored rows.
  std::vector<uint8_t> waiting_;
  int n_waiting_ = 0, n_ring_ = 0;
  std::vector<uint8_t> mid_;  // after the first pass: [stored_height][width], or transposed [width][stored_width]
};

}  // namespace facet::media
