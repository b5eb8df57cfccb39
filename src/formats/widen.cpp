#include "formats/widen.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/half.h"
#include "formats/blocks.h"
#include "formats/codebooks.h"

namespace facet {
namespace {

template <class From, class To, int kTo, class F>
void each_block(const std::byte* src, std::byte* dst, int64_t n, F&& widen) {
  for (int64_t i = 0; i < n / From::kElems; ++i) {
    From from;
    To to[kTo];
    std::memcpy(&from, src + size_t(i) * sizeof from, sizeof from);
    std::memset(to, 0, sizeof to);
    widen(from, to);
    std::memcpy(dst + size_t(i) * sizeof to, to, sizeof to);
  }
}

void iq4_codes(const uint8_t* qs, int8_t* to) {
  for (int j = 0; j < 16; ++j) to[j] = kIQ4Values[qs[j] & 15], to[j + 16] = kIQ4Values[qs[j] >> 4];
}

void widen(const BlockIQ4_NL& b, BlockQ8_0* to) {
  to->d = b.d;
  iq4_codes(b.qs, to->qs);
}

void widen(const BlockIQ4_XS& b, BlockQ8_0* to) {
  for (int g = 0; g < 8; ++g) {
    const int ls = ((b.scales_l[g / 2] >> (4 * (g % 2))) & 15) | (((b.scales_h >> (2 * g)) & 3) << 4);
    to[g].d = f32_to_f16(f16_to_f32(b.d) * float(ls - 32));
    iq4_codes(b.qs + 16 * g, to[g].qs);
  }
}

// A row of signed codes as one block of Q6_K; scale(k) is of sixteen k.
template <class Code, class Scale>
void q6_block(uint16_t d, Code code, Scale scale, BlockQ6_K* to) {
  to->d = d;
  for (int k = 0; k < 16; ++k) to->scales[k] = int8_t(scale(k));
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)  // element 128 half + 32 j + l
      for (int l = 0; l < 32; ++l) {
        const int c = code(128 * half + 32 * j + l) + 32;
        to->ql[64 * half + 32 * (j % 2) + l] |= uint8_t((c & 15) << (4 * (j / 2)));
        to->qh[32 * half + l] |= uint8_t((c >> 4) << (2 * j));
      }
}

void widen(const BlockQ3_K& b, BlockQ6_K* to) {
  auto code = [&](int i) {
    const int low = (b.qs[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4))) & 3;
    return low - (((b.hmask[i % 32] >> (i / 32)) & 1) ? 0 : 4);
  };
  q6_block(
      b.d, code, [&](int k) { return k3_scale(k, b.scales); }, to);
}

uint32_t u32_at(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class Word>
int byte_of(Word w, int i) {
  return int8_t(w >> (8 * i));
}

void widen(const BlockIQ3_S& b, BlockQ6_K* to) {
  auto code = [&](int i) {
    const int index = b.qs[i / 4] | (b.qh[i / 32] >> (i / 4 % 8) & 1) << 8;
    const int v = byte_of(kIq3SGrid.entry[index], i % 4);
    return b.signs[i / 8] >> (i % 8) & 1 ? -v : v;
  };
  q6_block(
      b.d, code, [&](int k) { return 1 + 2 * (b.scales[k / 4] >> (k / 2 % 2 * 4) & 15); }, to);
}

// An eighth of d: exact unless d is below 2^-11, where it rounds.
uint16_t eighth(uint16_t d) { return f32_to_f16(f16_to_f32(d) * 0.125f); }

void widen(const BlockIQ1_S& b, BlockQ6_K* to) {
  auto high = [&](int g) { return b.qh[2 * g] | b.qh[2 * g + 1] << 8; };
  auto code = [&](int i) {
    const int g = i / 32, index = b.qs[i / 8] | (high(g) >> (3 * (i / 8 % 4)) & 7) << 8;
    return byte_of(kIq1Grid.entry[index], i % 8) + (high(g) >> 15 ? -1 : 1);
  };
  q6_block(
      eighth(b.d), code, [&](int k) { return 2 * (high(k / 2) >> 12 & 7) + 1; }, to);
}

void widen(const BlockIQ1_M& b, BlockQ6_K* to) {
  auto code = [&](int i) {
    const int high = b.qh[i / 16] >> (i / 8 % 2 * 4) & 15;
    return byte_of(kIq1Grid.entry[b.qs[i / 8] | (high & 7) << 8], i % 8) + (high & 8 ? -1 : 1);
  };
  q6_block(
      eighth(iq1m_step(b.scales)), code, [&](int k) { return 2 * iq1m_scale(k, b.scales) + 1; }, to);
}

void widen(const BlockIQ3_XXS& b, BlockQ8_0* to) {
  for (int g = 0; g < 8; ++g) {
    const uint32_t signs = u32_at(b.signs + 4 * g);
    to[g].d = f32_to_f16(f16_to_f32(b.d) * (0.5f + float(signs >> 28)) * 0.5f);
    for (int i = 0; i < 32; ++i) {
      const int v = byte_of(kIq3XxsGrid.entry[b.qs[8 * g + i / 4]], i % 4);
      to[g].qs[i] = int8_t(kSignByte.entry[signs >> (7 * (i / 8)) & 127] >> (i % 8) & 1 ? -v : v);
    }
  }
}

void widen(const BlockIQ2_XXS& b, BlockQ8_0* to) {
  for (int g = 0; g < 8; ++g) {
    const uint8_t* q = b.qs + 8 * g;
    const uint32_t signs = u32_at(q + 4);
    to[g].d = f32_to_f16(f16_to_f32(b.d) * (0.5f + float(signs >> 28)) * 0.25f);
    for (int i = 0; i < 32; ++i) {
      const int v = byte_of(kIq2XxsGrid.entry[q[i / 8]], i % 8);
      to[g].qs[i] = int8_t(kSignByte.entry[signs >> (7 * (i / 8)) & 127] >> (i % 8) & 1 ? -v : v);
    }
  }
}

// Scales beyond f16 end at its largest power of two; no weight is that large.
void widen(const BlockMXFP4& b, BlockQ8_0* to) {
  to->d = f32_to_f16(std::min(half_of_e8m0(b.e), 0x1p15f));
  for (int j = 0; j < 16; ++j) to->qs[j] = kFp4Values[b.qs[j] & 15], to->qs[j + 16] = kFp4Values[b.qs[j] >> 4];
}

}  // namespace

DType wider_type(DType t) {
  switch (t) {
    case DType::kQ3_K:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
      return DType::kQ6_K;
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kIQ3_XXS:
    case DType::kIQ2_XXS:
    case DType::kMXFP4:
      return DType::kQ8_0;
    default:
      return DType::kBF16;
  }
}

namespace {
// False for types that become BF16.
bool widen_blocks(DType t, const std::byte* src, std::byte* dst, int64_t n) {
  const auto f = [](const auto& b, auto* to) { widen(b, to); };
  switch (t) {
    case DType::kQ3_K:
      return each_block<BlockQ3_K, BlockQ6_K, 1>(src, dst, n, f), true;
    case DType::kIQ3_S:
      return each_block<BlockIQ3_S, BlockQ6_K, 1>(src, dst, n, f), true;
    case DType::kIQ1_S:
      return each_block<BlockIQ1_S, BlockQ6_K, 1>(src, dst, n, f), true;
    case DType::kIQ1_M:
      return each_block<BlockIQ1_M, BlockQ6_K, 1>(src, dst, n, f), true;
    case DType::kIQ4_NL:
      return each_block<BlockIQ4_NL, BlockQ8_0, 1>(src, dst, n, f), true;
    case DType::kIQ4_XS:
      return each_block<BlockIQ4_XS, BlockQ8_0, 8>(src, dst, n, f), true;
    case DType::kIQ3_XXS:
      return each_block<BlockIQ3_XXS, BlockQ8_0, 8>(src, dst, n, f), true;
    case DType::kIQ2_XXS:
      return each_block<BlockIQ2_XXS, BlockQ8_0, 8>(src, dst, n, f), true;
    case DType::kMXFP4:
      return each_block<BlockMXFP4, BlockQ8_0, 1>(src, dst, n, f), true;
    default:
      return false;
  }
}
}  // namespace

void widen_row(DType t, const std::byte* src, std::byte* dst, int64_t n) {
  if (!widen_blocks(t, src, dst, n)) scale_row(t, src, dst, n, 1);
}

void scale_row(DType t, const std::byte* src, std::byte* dst, int64_t n, float factor) {
  std::vector<float> f(static_cast<size_t>(n));
  dequantize_row(t, src, f.data(), n);
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t h = f32_to_bf16(f[size_t(i)] * factor);
    std::memcpy(dst + 2 * i, &h, sizeof h);
  }
}

}  // namespace facet
