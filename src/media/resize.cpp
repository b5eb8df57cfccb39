#include "media/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/threads.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace facet::media {
namespace {

constexpr int kBits = 22;     // of weights behind the point
constexpr int kLowBits = 11;  // of the low half of a weight
constexpr int kBatch = 32;    // rows that threads share

// Keys' cubic convolution with a = -0.5.
double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}

int taps_stride(int in, int out) {
  const double support = 2.0 * std::max(1.0, double(in) / out);
  return (int(std::ceil(support)) * 2 + 2) & ~1;
}

uint8_t clip8(int32_t sum) { return uint8_t(std::clamp(sum >> kBits, 0, 255)); }

}  // namespace

BicubicTaps::BicubicTaps(int in, int out, bool mirrored) : stride_(taps_stride(in, out)) {
  const double scale = double(in) / out, filter_scale = std::max(scale, 1.0), support = 2.0 * filter_scale;
  first_.resize(size_t(out));
  count_.resize(size_t(out));
  weights_.resize(size_t(out) * size_t(stride_));
  pairs_.resize(weights_.size());
  std::vector<double> w(static_cast<size_t>(stride_));
  for (int i = 0; i < out; ++i) {
    // The order of these operations is Pillow's: the weights' last bits depend on it.
    const double center = (i + 0.5) * scale, inverse = 1.0 / filter_scale;
    const int begin = std::max(0, int(center - support + 0.5)), end = std::min(in, int(center + support + 0.5)),
              n = end - begin;
    double sum = 0;
    for (int j = 0; j < n; ++j) sum += w[size_t(j)] = cubic((j + begin - center + 0.5) * inverse);
    int32_t* to = &weights_[size_t(i) * size_t(stride_)];
    for (int j = 0; j < n; ++j) {
      const double x = (sum != 0.0 ? w[size_t(j)] / sum : w[size_t(j)]) * (1 << kBits);
      to[mirrored ? n - 1 - j : j] = int32_t(x < 0 ? x - 0.5 : x + 0.5);
    }
    first_[size_t(i)] = mirrored ? in - end : begin;
    count_[size_t(i)] = n;
    most_ = std::max(most_, n);
    for (int j = 0; j < stride_; j += 2) {
      auto both = [](int32_t a, int32_t b) { return int32_t(uint32_t(uint16_t(a)) | uint32_t(uint16_t(b)) << 16); };
      constexpr int32_t kLow = (1 << kLowBits) - 1;
      int32_t* pair = &pairs_[size_t(i) * size_t(stride_) + size_t(j)];
      pair[0] = both(to[j] >> kLowBits, to[j + 1] >> kLowBits);
      pair[1] = both(to[j] & kLow, to[j + 1] & kLow);
    }
  }
}

int64_t BicubicTaps::memory(int in, int out) { return int64_t(out) * (8 + 8 * int64_t(taps_stride(in, out))); }

void weigh_rows_plain(const uint8_t* const* rows, const BicubicTaps& taps, int i, uint8_t* out, size_t n) {
  const int32_t* w = taps.weights(i);
  const int count = taps.count(i);
  for (size_t x = 0; x < n; ++x) {
    int32_t sum = 1 << (kBits - 1);
    for (int j = 0; j < count; ++j) sum += w[j] * rows[j][x];
    out[x] = clip8(sum);
  }
}

void weigh_pixels_plain(const uint8_t* in, const BicubicTaps& taps, uint8_t* out) {
  for (int i = 0; i < taps.n_out(); ++i, out += 3) {
    const int32_t* w = taps.weights(i);
    const uint8_t* p = in + size_t(taps.first(i)) * 3;
    int32_t r = 1 << (kBits - 1), g = r, b = r;
    for (int j = 0; j < taps.count(i); ++j, p += 3) r += w[j] * p[0], g += w[j] * p[1], b += w[j] * p[2];
    out[0] = clip8(r), out[1] = clip8(g), out[2] = clip8(b);
  }
}

#if defined(__SSE2__)
namespace {
// high * 2048 + low, rounded and shifted; all bits as those of one sum of 32-bit products.
__m128i finish_sum(__m128i high, __m128i low) {
  const __m128i sum =
      _mm_add_epi32(_mm_add_epi32(_mm_slli_epi32(high, kLowBits), low), _mm_set1_epi32(1 << (kBits - 1)));
  return _mm_srai_epi32(sum, kBits);
}
}  // namespace

void weigh_rows(const uint8_t* const* rows, const BicubicTaps& taps, int i, uint8_t* out, size_t n) {
  const int32_t* pairs = taps.pairs(i);
  const int count = taps.count(i);
  const __m128i zero = _mm_setzero_si128();
  size_t x = 0;
  for (; x + 16 <= n; x += 16) {
    __m128i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
    for (int j = 0; j < count; j += 2) {
      const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j] + x));
      const __m128i b = j + 1 < count ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[j + 1] + x)) : zero;
      const __m128i left = _mm_unpacklo_epi8(a, b), right = _mm_unpackhi_epi8(a, b);
      const __m128i v[4] = {_mm_unpacklo_epi8(left, zero), _mm_unpackhi_epi8(left, zero),
                            _mm_unpacklo_epi8(right, zero), _mm_unpackhi_epi8(right, zero)};
      const __m128i wh = _mm_set1_epi32(pairs[j]), wl = _mm_set1_epi32(pairs[j + 1]);
      for (int k = 0; k < 4; ++k) {
        high[k] = _mm_add_epi32(high[k], _mm_madd_epi16(v[k], wh));
        low[k] = _mm_add_epi32(low[k], _mm_madd_epi16(v[k], wl));
      }
    }
    const __m128i first = _mm_packs_epi32(finish_sum(high[0], low[0]), finish_sum(high[1], low[1]));
    const __m128i second = _mm_packs_epi32(finish_sum(high[2], low[2]), finish_sum(high[3], low[3]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + x), _mm_packus_epi16(first, second));
  }
  for (; x < n; ++x) {
    const int32_t* w = taps.weights(i);
    int32_t sum = 1 << (kBits - 1);
    for (int j = 0; j < count; ++j) sum += w[j] * rows[j][x];
    out[x] = clip8(sum);
  }
}

void weigh_pixels(const uint8_t* in, const BicubicTaps& taps, uint8_t* out) {
  const __m128i zero = _mm_setzero_si128();
  for (int i = 0; i < taps.n_out(); ++i, out += 3) {
    const int32_t* pairs = taps.pairs(i);
    const uint8_t* p = in + size_t(taps.first(i)) * 3;
    const int count = taps.count(i);
    __m128i high = zero, low = zero;
    for (int j = 0; j < count; j += 2, p += 6) {
      // r0 g0 b0 r1 g1 b1 and two bytes more, then each channel beside that of the next pixel.
      const __m128i v = _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)), zero);
      const __m128i both = _mm_unpacklo_epi16(v, _mm_srli_si128(v, 6));
      high = _mm_add_epi32(high, _mm_madd_epi16(both, _mm_set1_epi32(pairs[j])));
      low = _mm_add_epi32(low, _mm_madd_epi16(both, _mm_set1_epi32(pairs[j + 1])));
    }
    const __m128i words = _mm_packs_epi32(finish_sum(high, low), zero);
    const uint32_t rgb = uint32_t(_mm_cvtsi128_si32(_mm_packus_epi16(words, zero)));
    out[0] = uint8_t(rgb), out[1] = uint8_t(rgb >> 8), out[2] = uint8_t(rgb >> 16);
  }
}
#else
void weigh_rows(const uint8_t* const* rows, const BicubicTaps& taps, int i, uint8_t* out, size_t n) {
  weigh_rows_plain(rows, taps, i, out, n);
}
void weigh_pixels(const uint8_t* in, const BicubicTaps& taps, uint8_t* out) { weigh_pixels_plain(in, taps, out); }
#endif

Resizer::Resizer(const ResizeShape& s, int n_threads)
    : shape_(s),
      n_threads_(std::max(1, n_threads)),
      columns_(s.stored_width, s.orientation.transposed ? s.height : s.width, s.orientation.mirror_columns),
      rows_(s.stored_height, s.orientation.transposed ? s.width : s.height, s.orientation.mirror_rows),
      pitch_(size_t(s.stored_width) * 3 + kRowPadding) {
  const bool transposed = s.orientation.transposed;
  n_ring_ = transposed ? rows_.most() : n_threads_ > 1 ? kBatch : 0;
  waiting_.resize(size_t(n_ring_) * pitch_);
  mid_pitch_ = size_t(transposed ? s.stored_width : s.width) * 3 + kRowPadding;
  mid_.resize(size_t(transposed ? s.width : s.stored_height) * mid_pitch_);
}

int64_t Resizer::memory(const ResizeShape& s) {
  const bool transposed = s.orientation.transposed;
  const int64_t w = s.stored_width, h = s.stored_height, pitch = w * 3 + kRowPadding;
  const int64_t columns = transposed ? s.height : s.width, rows = transposed ? s.width : s.height;
  const int64_t ring = transposed ? taps_stride(int(h), int(rows)) : kBatch;
  const int64_t mid = transposed ? rows * pitch : h * (columns * 3 + kRowPadding);
  return BicubicTaps::memory(int(w), int(columns)) + BicubicTaps::memory(int(h), int(rows)) + ring * pitch + mid +
         int64_t(s.width) * s.height * 3;
}

// The rows that wait, each along its columns.
void Resizer::flush() {
  const int first = next_row_ - n_waiting_;
  parallel_for(n_waiting_, n_threads_, [&](int64_t k) {
    weigh_pixels(&waiting_[size_t(k) * pitch_], columns_, &mid_[size_t(first + k) * mid_pitch_]);
  });
  n_waiting_ = 0;
}

// Every pixel of the first pass whose stored rows have all come.
void Resizer::emit_columns() {
  const int n = rows_.n_out();
  for (; next_out_ < n; ++next_out_) {
    const int i = shape_.orientation.mirror_rows ? n - 1 - next_out_ : next_out_;  // in the order of their last rows
    if (rows_.first(i) + rows_.count(i) > next_row_) return;
    weigh_columns(i);
  }
}

void Resizer::weigh_columns(int i) {
  const size_t n = size_t(shape_.stored_width) * 3;
  std::vector<const uint8_t*> from(size_t(rows_.count(i)));
  for (int j = 0; j < rows_.count(i); ++j) from[size_t(j)] = &waiting_[size_t((rows_.first(i) + j) % n_ring_) * pitch_];
  weigh_rows(from.data(), rows_, i, &mid_[size_t(i) * mid_pitch_], n);
}

void Resizer::row(const uint8_t* rgb) {
  CHECK(next_row_ < shape_.stored_height, "row {} of a picture of {}", next_row_, shape_.stored_height);
  if (shape_.orientation.transposed) {
    std::memcpy(&waiting_[size_t(next_row_ % n_ring_) * pitch_], rgb, pitch_ - kRowPadding);
    ++next_row_;
    emit_columns();
    return;
  }
  if (n_threads_ == 1) {
    weigh_pixels(rgb, columns_, &mid_[size_t(next_row_++) * mid_pitch_]);
    return;
  }
  std::memcpy(&waiting_[size_t(n_waiting_++) * pitch_], rgb, pitch_ - kRowPadding);
  ++next_row_;
  if (n_waiting_ == kBatch) flush();
}

Picture Resizer::finish() {
  CHECK(next_row_ == shape_.stored_height, "{} rows of a picture of {}", next_row_, shape_.stored_height);
  Picture out{shape_.width, shape_.height, {}};
  out.rgb.resize(size_t(out.width) * size_t(out.height) * 3);
  if (!shape_.orientation.transposed) {
    flush();
    parallel_for(out.height, n_threads_, [&](int64_t y) {
      const int i = int(y);
      std::vector<const uint8_t*> from(size_t(rows_.count(i)));
      for (int j = 0; j < rows_.count(i); ++j) from[size_t(j)] = &mid_[size_t(rows_.first(i) + j) * mid_pitch_];
      weigh_rows(from.data(), rows_, i, &out.rgb[size_t(y) * size_t(out.width) * 3], size_t(out.width) * 3);
    });
    return out;
  }
  // Rows of mid_ are columns of the result.
  parallel_for(out.width, n_threads_, [&](int64_t x) {
    std::vector<uint8_t> column(size_t(out.height) * 3);
    weigh_pixels(&mid_[size_t(x) * mid_pitch_], columns_, column.data());
    for (int y = 0; y < out.height; ++y)
      std::memcpy(&out.rgb[(size_t(y) * size_t(out.width) + size_t(x)) * 3], &column[size_t(y) * 3], 3);
  });
  return out;
}

}  // namespace facet::media

namespace facet {

Picture resize_bicubic(const Picture& picture, int width, int height, int n_threads) {
  CHECK(picture.width > 0 && picture.height > 0 && width > 0 && height > 0, "{} x {} to {} x {}", picture.width,
        picture.height, width, height);
  if (picture.width == width && picture.height == height) return picture;
  media::Resizer resizer({picture.width, picture.height, media::Orientation(1), width, height}, n_threads);
  const size_t pitch = size_t(picture.width) * 3;
  std::vector<uint8_t> row(pitch + media::kRowPadding);  // the last row of a picture has nothing behind it
  for (int y = 0; y < picture.height; ++y) {
    std::memcpy(row.data(), &picture.rgb[size_t(y) * pitch], pitch);
    resizer.row(row.data());
  }
  return resizer.finish();
}

}  // namespace facet
