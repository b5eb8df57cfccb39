#include "formats/widen.h"

#include <cstring>
#include <vector>

#include "base/half.h"
#include "formats/blocks.h"

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

void widen(const BlockQ3_K& b, BlockQ6_K* to) {
  to->d = b.d;
  for (int k = 0; k < 16; ++k) to->scales[k] = int8_t(k3_scale(k, b.scales));
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < 4; ++j)  // element 128 half + 32 j + l
      for (int l = 0; l < 32; ++l) {
        const int code = ((b.qs[32 * half + l] >> (2 * j)) & 3) - (((b.hmask[l] >> (4 * half + j)) & 1) ? 0 : 4) + 32;
        to->ql[64 * half + 32 * (j % 2) + l] |= uint8_t((code & 15) << (4 * (j / 2)));
        to->qh[32 * half + l] |= uint8_t((code >> 4) << (2 * j));
      }
}

}  // namespace

DType wider_type(DType t) {
  switch (t) {
    case DType::kQ3_K:
      return DType::kQ6_K;
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return DType::kQ8_0;
    default:
      return DType::kBF16;
  }
}

void widen_row(DType t, const std::byte* src, std::byte* dst, int64_t n) {
  switch (t) {
    case DType::kQ3_K:
      return each_block<BlockQ3_K, BlockQ6_K, 1>(src, dst, n, [](const auto& b, auto* to) { widen(b, to); });
    case DType::kIQ4_NL:
      return each_block<BlockIQ4_NL, BlockQ8_0, 1>(src, dst, n, [](const auto& b, auto* to) { widen(b, to); });
    case DType::kIQ4_XS:
      return each_block<BlockIQ4_XS, BlockQ8_0, 8>(src, dst, n, [](const auto& b, auto* to) { widen(b, to); });
    default:
      break;
  }
  std::vector<float> f(static_cast<size_t>(n));
  dequantize_row(t, src, f.data(), n);
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t h = f32_to_bf16(f[size_t(i)]);
    std::memcpy(dst + 2 * i, &h, sizeof h);
  }
}

}  // namespace facet
