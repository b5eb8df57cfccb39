#include "formats/dtype.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/half.h"
#include "formats/blocks.h"
#include "formats/codebooks.h"

namespace facet {
namespace {

constexpr DTypeInfo kTypes[] = {
    {"F32", 0, 1, 4, true},
    {"F16", 1, 1, 2, true},
    {"BF16", 30, 1, 2, true},
    {"Q4_0", 2, 32, sizeof(BlockQ4_0), true},
    {"Q4_1", 3, 32, sizeof(BlockQ4_1), true},
    {"Q5_0", 6, 32, sizeof(BlockQ5_0), true},
    {"Q5_1", 7, 32, sizeof(BlockQ5_1), true},
    {"Q8_0", 8, 32, sizeof(BlockQ8_0), true},
    {"Q2_K", 10, 256, sizeof(BlockQ2_K), true},
    {"Q3_K", 11, 256, sizeof(BlockQ3_K), true},
    {"Q4_K", 12, 256, sizeof(BlockQ4_K), true},
    {"Q5_K", 13, 256, sizeof(BlockQ5_K), true},
    {"Q6_K", 14, 256, sizeof(BlockQ6_K), true},
    {"IQ4_NL", 20, 32, sizeof(BlockIQ4_NL), true},
    {"IQ4_XS", 23, 256, sizeof(BlockIQ4_XS), true},
    {"IQ1_S", 19, 256, sizeof(BlockIQ1_S), true},
    {"IQ1_M", 29, 256, sizeof(BlockIQ1_M), true},
    {"IQ2_XXS", 16, 256, sizeof(BlockIQ2_XXS), true},
    {"IQ2_XS", 17, 256, sizeof(BlockIQ2_XS), true},
    {"IQ2_S", 22, 256, sizeof(BlockIQ2_S), true},
    {"IQ3_XXS", 18, 256, sizeof(BlockIQ3_XXS), true},
    {"IQ3_S", 21, 256, sizeof(BlockIQ3_S), true},
    {"MXFP4", 39, 32, sizeof(BlockMXFP4), true},
    {"NVFP4", 40, 64, sizeof(BlockNVFP4), true},
    {"I8", 24, 1, 1, false},
    {"I16", 25, 1, 2, false},
    {"I32", 26, 1, 4, false},
    {"I64", 27, 1, 8, false},
    {"F64", 28, 1, 8, false},
};
static_assert(std::size(kTypes) == size_t(DType::kCount));

char lower(char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; }

// Each dequantise() below repeats the order of operations of ggml's dequantize_row_*: scale products first,
// as floats, then times the code, then the minimum. The order is part of the format: it decides the last bit.

void dequantise(const BlockQ4_0& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int j = 0; j < 16; ++j) {
    y[j] = float((b.qs[j] & 15) - 8) * d;
    y[j + 16] = float((b.qs[j] >> 4) - 8) * d;
  }
}

void dequantise(const BlockQ4_1& b, float* y) {
  const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
  for (int j = 0; j < 16; ++j) {
    y[j] = float(b.qs[j] & 15) * d + m;
    y[j + 16] = float(b.qs[j] >> 4) * d + m;
  }
}

// Codes of a block with a plane of fifth bits: q[j] = nibble | bit << 4.
void five_bit_codes(const uint8_t* qs, const uint8_t* qh, int* q) {
  uint32_t high;
  std::memcpy(&high, qh, sizeof high);
  for (int j = 0; j < 16; ++j) {
    q[j] = int((qs[j] & 15) | (((high >> j) & 1) << 4));
    q[j + 16] = int((qs[j] >> 4) | (((high >> (j + 16)) & 1) << 4));
  }
}

void dequantise(const BlockQ5_0& b, float* y) {
  const float d = f16_to_f32(b.d);
  int q[32];
  five_bit_codes(b.qs, b.qh, q);
  for (int j = 0; j < 32; ++j) y[j] = float(q[j] - 16) * d;
}

void dequantise(const BlockQ5_1& b, float* y) {
  const float d = f16_to_f32(b.d), m = f16_to_f32(b.m);
  int q[32];
  five_bit_codes(b.qs, b.qh, q);
  for (int j = 0; j < 32; ++j) y[j] = float(q[j]) * d + m;
}

void dequantise(const BlockQ8_0& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int j = 0; j < 32; ++j) y[j] = float(b.qs[j]) * d;
}

void dequantise(const BlockQ2_K& b, float* y) {
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  for (int k = 0; k < 16; ++k) {  // groups of 16 in output order
    const int half = k / 8, shift = k % 8 / 2 * 2;
    const float dl = d * float(b.scales[k] & 15), ml = dmin * float(b.scales[k] >> 4);
    const uint8_t* q = b.qs + 32 * half + 16 * (k % 2);
    for (int l = 0; l < 16; ++l) y[16 * k + l] = dl * float((q[l] >> shift) & 3) - ml;
  }
}

void dequantise(const BlockQ3_K& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 16; ++k) {
    const int half = k / 8, j = k % 8 / 2, at = 16 * (k % 2);
    const float dl = d * float(k3_scale(k, b.scales));
    const uint8_t *q = b.qs + 32 * half + at, *h = b.hmask + at;
    for (int l = 0; l < 16; ++l) {
      const int code = ((q[l] >> (2 * j)) & 3) - (((h[l] >> (4 * half + j)) & 1) ? 0 : 4);
      y[16 * k + l] = dl * float(code);
    }
  }
}

void dequantise(const BlockQ4_K& b, float* y) {
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 8; ++g) {  // groups of 32
    uint8_t sc, m;
    k4_scale_min(g, b.scales, sc, m);
    const float d1 = d * float(sc), m1 = dmin * float(m);
    const uint8_t* q = b.qs + 32 * (g / 2);
    const int shift = 4 * (g % 2);
    for (int l = 0; l < 32; ++l) y[32 * g + l] = d1 * float((q[l] >> shift) & 15) - m1;
  }
}

void dequantise(const BlockQ5_K& b, float* y) {
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  for (int g = 0; g < 8; ++g) {
    uint8_t sc, m;
    k4_scale_min(g, b.scales, sc, m);
    const float d1 = d * float(sc), m1 = dmin * float(m);
    const uint8_t* q = b.qs + 32 * (g / 2);
    const int shift = 4 * (g % 2);
    for (int l = 0; l < 32; ++l) {
      const int code = ((q[l] >> shift) & 15) + (((b.qh[l] >> g) & 1) << 4);
      y[32 * g + l] = d1 * float(code) - m1;
    }
  }
}

void dequantise(const BlockQ6_K& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 16; ++k) {  // groups of 16; quarter selects the nibble, the ql half-row and the qh pair
    const int half = k / 8, quarter = k % 8 / 2, at = 16 * (k % 2);
    const uint8_t *ql = b.ql + 64 * half + 32 * (quarter % 2) + at, *qh = b.qh + 32 * half + at;
    const int nibble = 4 * (quarter / 2), pair = 2 * quarter;
    const float dl = d * float(b.scales[k]);
    for (int l = 0; l < 16; ++l) {
      const int code = (((ql[l] >> nibble) & 15) | (((qh[l] >> pair) & 3) << 4)) - 32;
      y[16 * k + l] = dl * float(code);
    }
  }
}

void iq4_values(const uint8_t* qs, float d, float* y) {
  for (int j = 0; j < 16; ++j) {
    y[j] = d * float(kIQ4Values[qs[j] & 15]);
    y[j + 16] = d * float(kIQ4Values[qs[j] >> 4]);
  }
}

void dequantise(const BlockIQ4_NL& b, float* y) { iq4_values(b.qs, f16_to_f32(b.d), y); }

void dequantise(const BlockIQ4_XS& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    const int ls = ((b.scales_l[g / 2] >> (4 * (g % 2))) & 15) | (((b.scales_h >> (2 * g)) & 3) << 4);
    iq4_values(b.qs + 16 * g, d * float(ls - 32), y + 32 * g);
  }
}

// y[i] = step * magnitude i of a book's entry, negative where its bit of signs is set.
template <class Word>
void signed_values(Word entry, unsigned signs, float step, float* y) {
  for (size_t i = 0; i < sizeof entry; ++i) {
    const float v = step * float(entry >> (8 * i) & 255);
    y[i] = signs >> i & 1 ? -v : v;
  }
}
// y[0..7] = step / 8 * (value of the entry + shift)
void shifted_values(uint64_t entry, int shift, float step, float* y) {
  for (int i = 0; i < 8; ++i) y[i] = step * (float(int8_t(entry >> (8 * i)) + shift) * 0.125f);
}
template <class T>
T word_at(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
int nibble_of(const uint8_t* p, int i) { return p[i / 2] >> (4 * (i % 2)) & 15; }

void dequantise(const BlockIQ2_XXS& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    const uint8_t* q = b.qs + 8 * g;
    const auto signs = word_at<uint32_t>(q + 4);
    const float step = d * (0.5f + float(signs >> 28)) * 0.25f;
    for (int k = 0; k < 4; ++k)
      signed_values(kIq2XxsGrid.entry[q[k]], kSignByte.entry[signs >> (7 * k) & 127], step, y + 32 * g + 8 * k);
  }
}

void dequantise(const BlockIQ2_XS& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 32; ++k) {  // eights
    const auto q = word_at<uint16_t>(b.qs + 2 * k);
    const float step = d * (0.5f + float(nibble_of(b.scales, k / 2))) * 0.25f;
    signed_values(kIq2XsGrid.entry[q & 511], kSignByte.entry[q >> 9], step, y + 8 * k);
  }
}

void dequantise(const BlockIQ2_S& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 32; ++k) {
    const int index = b.qs[k] | (b.qh[k / 4] >> (2 * (k % 4)) & 3) << 8;
    const float step = d * (0.5f + float(nibble_of(b.scales, k / 2))) * 0.25f;
    signed_values(kIq2SGrid.entry[index], b.signs[k], step, y + 8 * k);
  }
}

void dequantise(const BlockIQ3_XXS& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    const auto signs = word_at<uint32_t>(b.signs + 4 * g);
    const float step = d * (0.5f + float(signs >> 28)) * 0.5f;
    for (int k = 0; k < 8; ++k)
      signed_values(kIq3XxsGrid.entry[b.qs[8 * g + k]],
                    unsigned(kSignByte.entry[signs >> (7 * (k / 2)) & 127]) >> (4 * (k % 2)), step, y + 32 * g + 4 * k);
  }
}

void dequantise(const BlockIQ3_S& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int k = 0; k < 64; ++k) {  // fours
    const int index = b.qs[k] | (b.qh[k / 8] >> (k % 8) & 1) << 8;
    const float step = d * float(1 + 2 * nibble_of(b.scales, k / 8));
    signed_values(kIq3SGrid.entry[index], unsigned(nibble_of(b.signs, k)), step, y + 4 * k);
  }
}

void dequantise(const BlockIQ1_S& b, float* y) {
  const float d = f16_to_f32(b.d);
  for (int g = 0; g < 8; ++g) {
    const int high = word_at<uint16_t>(b.qh + 2 * g), shift = high >> 15 ? -1 : 1;
    const float step = d * float(2 * (high >> 12 & 7) + 1);
    for (int k = 0; k < 4; ++k)
      shifted_values(kIq1Grid.entry[b.qs[4 * g + k] | (high >> (3 * k) & 7) << 8], shift, step, y + 32 * g + 8 * k);
  }
}

void dequantise(const BlockIQ1_M& b, float* y) {
  const float d = f16_to_f32(iq1m_step(b.scales));
  for (int k = 0; k < 32; ++k) {
    const int high = nibble_of(b.qh, k);
    const float step = d * float(2 * iq1m_scale(k / 2, b.scales) + 1);
    shifted_values(kIq1Grid.entry[b.qs[k] | (high & 7) << 8], high & 8 ? -1 : 1, step, y + 8 * k);
  }
}

void dequantise(const BlockMXFP4& b, float* y) {
  const float d = half_of_e8m0(b.e);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * float(kFp4Values[b.qs[j] & 15]);
    y[j + 16] = d * float(kFp4Values[b.qs[j] >> 4]);
  }
}

void dequantise(const BlockNVFP4& b, float* y) {
  for (int k = 0; k < 4; ++k) {
    const float d = half_of_ue4m3(b.scales[k]);
    for (int j = 0; j < 8; ++j) {
      const uint8_t q = b.qs[8 * k + j];
      y[16 * k + j] = d * float(kFp4Values[q & 15]);
      y[16 * k + j + 8] = d * float(kFp4Values[q >> 4]);
    }
  }
}

template <class Block>
void dequantise_blocks(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n / Block::kElems; ++i) {
    Block b;
    std::memcpy(&b, src + size_t(i) * sizeof b, sizeof b);
    dequantise(b, dst + i * Block::kElems);
  }
}

template <class Convert>
void widen(const std::byte* src, float* dst, int64_t n, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t h;
    std::memcpy(&h, src + size_t(i) * 2, 2);
    dst[i] = convert(h);
  }
}

}  // namespace

const DTypeInfo& dtype_info(DType t) {
  CHECK(t < DType::kCount, "no such dtype: {}", int(t));
  return kTypes[size_t(t)];
}

std::optional<DType> dtype_from_ggml(uint32_t ggml_id) {
  for (size_t i = 0; i < std::size(kTypes); ++i)
    if (kTypes[i].ggml_id == ggml_id) return DType(i);
  return std::nullopt;
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    const std::string_view have = kTypes[i].name;
    bool same = have.size() == name.size();
    for (size_t c = 0; same && c < name.size(); ++c) same = lower(have[c]) == lower(name[c]);
    if (same) return DType(i);
  }
  return std::nullopt;
}

void check_whole_blocks(DType t, int64_t n) {
  const DTypeInfo& info = dtype_info(t);
  CHECK(n % info.block == 0, "row of {} elements is not a multiple of the {} block of {}", n, info.name, info.block);
}

void dequantize_row(DType t, const std::byte* src, float* dst, int64_t n) {
  check_whole_blocks(t, n);
  switch (t) {
    case DType::kF32:
      std::memcpy(dst, src, size_t(n) * sizeof(float));
      return;
    case DType::kF16:
      widen(src, dst, n, f16_to_f32);
      return;
    case DType::kBF16:
      widen(src, dst, n, bf16_to_f32);
      return;
    case DType::kQ4_0:
      dequantise_blocks<BlockQ4_0>(src, dst, n);
      return;
    case DType::kQ4_1:
      dequantise_blocks<BlockQ4_1>(src, dst, n);
      return;
    case DType::kQ5_0:
      dequantise_blocks<BlockQ5_0>(src, dst, n);
      return;
    case DType::kQ5_1:
      dequantise_blocks<BlockQ5_1>(src, dst, n);
      return;
    case DType::kQ8_0:
      dequantise_blocks<BlockQ8_0>(src, dst, n);
      return;
    case DType::kQ2_K:
      dequantise_blocks<BlockQ2_K>(src, dst, n);
      return;
    case DType::kQ3_K:
      dequantise_blocks<BlockQ3_K>(src, dst, n);
      return;
    case DType::kQ4_K:
      dequantise_blocks<BlockQ4_K>(src, dst, n);
      return;
    case DType::kQ5_K:
      dequantise_blocks<BlockQ5_K>(src, dst, n);
      return;
    case DType::kQ6_K:
      dequantise_blocks<BlockQ6_K>(src, dst, n);
      return;
    case DType::kIQ4_NL:
      dequantise_blocks<BlockIQ4_NL>(src, dst, n);
      return;
    case DType::kIQ4_XS:
      dequantise_blocks<BlockIQ4_XS>(src, dst, n);
      return;
    case DType::kIQ1_S:
      dequantise_blocks<BlockIQ1_S>(src, dst, n);
      return;
    case DType::kIQ1_M:
      dequantise_blocks<BlockIQ1_M>(src, dst, n);
      return;
    case DType::kIQ2_XXS:
      dequantise_blocks<BlockIQ2_XXS>(src, dst, n);
      return;
    case DType::kIQ2_XS:
      dequantise_blocks<BlockIQ2_XS>(src, dst, n);
      return;
    case DType::kIQ2_S:
      dequantise_blocks<BlockIQ2_S>(src, dst, n);
      return;
    case DType::kIQ3_XXS:
      dequantise_blocks<BlockIQ3_XXS>(src, dst, n);
      return;
    case DType::kIQ3_S:
      dequantise_blocks<BlockIQ3_S>(src, dst, n);
      return;
    case DType::kMXFP4:
      dequantise_blocks<BlockMXFP4>(src, dst, n);
      return;
    case DType::kNVFP4:
      dequantise_blocks<BlockNVFP4>(src, dst, n);
      return;
    default:
      CHECK(false, "{} cannot be dequantised", dtype_name(t));
  }
}

std::string shape_string(const TensorView& t) {
  std::string s = "[";
  for (int i = 0; i < std::max(t.n_dims, 1); ++i) s += (i ? " x " : "") + std::to_string(t.ne[size_t(i)]);
  return s + "]";
}

}  // namespace facet
