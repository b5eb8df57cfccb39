#include "formats/quantize.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/half.h"
#include "formats/blocks.h"
#include "formats/quantize_k.h"

namespace facet {
namespace {

// float to integer code in [0, most], rounding toward zero; NaN gives 0. A plain cast would be undefined
// behaviour for what a block with an infinity or NaN computes.
int code(float v, int most) { return v > 0.0f ? (v < float(most) ? int(v) : most) : 0; }

// The value of largest magnitude with its sign; the first one of equals, as ggml takes it.
float signed_extreme(const float* x, int n) {
  float amax = 0.0f, extreme = 0.0f;
  for (int j = 0; j < n; ++j)
    if (amax < std::fabs(x[j])) {
      amax = std::fabs(x[j]);
      extreme = x[j];
    }
  return extreme;
}

float inverse(float d) { return d != 0.0f ? 1.0f / d : 0.0f; }

uint8_t nibbles(int lo, int hi) { return uint8_t((lo & 15) | ((hi & 15) << 4)); }

uint32_t fifth_bits(const int* q) {
  uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= uint32_t(q[j] >> 4) << j;
  return bits;
}

// The scale maps the extreme to the code furthest from zero, -8 or -16, so that its sign is the sign of the
// extreme. Codes use the scale before it is rounded to f16, in all of these.
void quantise(const float* x, BlockQ4_0& b) {
  const float d = signed_extreme(x, 32) / -8.0f, id = inverse(d);
  b.d = f32_to_f16(d);
  for (int j = 0; j < 16; ++j) b.qs[j] = nibbles(code(x[j] * id + 8.5f, 15), code(x[j + 16] * id + 8.5f, 15));
}

void quantise(const float* x, BlockQ5_0& b) {
  const float d = signed_extreme(x, 32) / -16.0f, id = inverse(d);
  b.d = f32_to_f16(d);
  int q[32];
  for (int j = 0; j < 32; ++j) q[j] = code(x[j] * id + 16.5f, 31);
  for (int j = 0; j < 16; ++j) b.qs[j] = nibbles(q[j], q[j + 16]);
  const uint32_t high = fifth_bits(q);
  std::memcpy(b.qh, &high, sizeof high);
}

struct Range {
  float min, max;
};

Range range_of(const float* x, int n) {
  Range r{x[0], x[0]};
  for (int j = 1; j < n; ++j) {
    if (x[j] < r.min) r.min = x[j];
    if (x[j] > r.max) r.max = x[j];
  }
  return r;
}

void quantise(const float* x, BlockQ4_1& b) {
  const Range r = range_of(x, 32);
  const float d = (r.max - r.min) / 15.0f, id = inverse(d);
  b.d = f32_to_f16(d);
  b.m = f32_to_f16(r.min);
  for (int j = 0; j < 16; ++j)
    b.qs[j] = nibbles(code((x[j] - r.min) * id + 0.5f, 15), code((x[j + 16] - r.min) * id + 0.5f, 15));
}

void quantise(const float* x, BlockQ5_1& b) {
  const Range r = range_of(x, 32);
  const float d = (r.max - r.min) / 31.0f, id = inverse(d);
  b.d = f32_to_f16(d);
  b.m = f32_to_f16(r.min);
  int q[32];
  for (int j = 0; j < 32; ++j) q[j] = code((x[j] - r.min) * id + 0.5f, 31);
  for (int j = 0; j < 16; ++j) b.qs[j] = nibbles(q[j], q[j + 16]);
  const uint32_t high = fifth_bits(q);
  std::memcpy(b.qh, &high, sizeof high);
}

void quantise(const float* x, BlockQ8_0& b) {
  const float d = std::fabs(signed_extreme(x, 32)) / 127.0f, id = inverse(d);
  b.d = f32_to_f16(d);
  for (int j = 0; j < 32; ++j) {
    const float v = x[j] * id;  // half away from zero, as roundf; v +- 0.5 itself would round 0.49999997 up
    const int t = v >= 0.0f ? code(v, 127) : -code(-v, 127);
    const float rest = v - float(t);
    b.qs[j] = int8_t(t + (rest >= 0.5f && t < 127 ? 1 : 0) - (rest <= -0.5f && t > -127 ? 1 : 0));
  }
}

template <class Block>
void quantise_blocks(const float* src, std::byte* dst, int64_t n) {
  for (int64_t i = 0; i < n / Block::kElems; ++i) {
    Block b;
    quantise(src + i * Block::kElems, b);
    std::memcpy(dst + size_t(i) * sizeof b, &b, sizeof b);
  }
}

template <class Convert>
void narrow(const float* src, std::byte* dst, int64_t n, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t h = convert(src[i]);
    std::memcpy(dst + size_t(i) * 2, &h, 2);
  }
}

}  // namespace

bool can_quantize(DType t) {
  switch (t) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ8_0:
      return true;
    default:
      return is_searched(t);
  }
}

void quantize_row(DType t, const float* src, std::byte* dst, int64_t n) {
  check_whole_blocks(t, n);
  switch (t) {
    case DType::kF32:
      std::memcpy(dst, src, size_t(n) * sizeof(float));
      return;
    case DType::kF16:
      narrow(src, dst, n, f32_to_f16);
      return;
    case DType::kBF16:
      narrow(src, dst, n, f32_to_bf16);
      return;
    case DType::kQ4_0:
      quantise_blocks<BlockQ4_0>(src, dst, n);
      return;
    case DType::kQ4_1:
      quantise_blocks<BlockQ4_1>(src, dst, n);
      return;
    case DType::kQ5_0:
      quantise_blocks<BlockQ5_0>(src, dst, n);
      return;
    case DType::kQ5_1:
      quantise_blocks<BlockQ5_1>(src, dst, n);
      return;
    case DType::kQ8_0:
      quantise_blocks<BlockQ8_0>(src, dst, n);
      return;
    default:
      CHECK(is_searched(t), "there is no encoder for {}", dtype_name(t));
      quantize_searched_row(t, src, dst, n);
  }
}

}  // namespace facet
