// Encoders of the two-level block types: the search of quantize_search.h, then the layout of blocks.h.
#include "formats/quantize_k.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "formats/blocks.h"
#include "formats/quantize_search.h"

namespace facet {
namespace {

// How finely the first step looks. Chosen for squared error against time: more trials than these change the
// error of Gaussian data by less than 0.2 %.
constexpr Trials kTrialsQ3{2.6f, 0.2f, 12, 2};
constexpr Trials kTrialsQ6{28.0f, 0.5f, 11, 1};
constexpr Trials kTrialsIq4{88.0f, 9.0f, 7, 2};
constexpr RangeTrials kTrialsQ2{2.4f, 0.2f, 7, 0.06f, 3, 2};
constexpr RangeTrials kTrialsQ4{12.0f, 0.4f, 11, 0.0f, 1, 2};
constexpr RangeTrials kTrialsQ5{28.0f, 0.5f, 9, 0.0f, 1, 2};

// Codes in the order of the block's elements.
template <int W, int G, int E, class Code>
FACET_LANES void store_codes(uint8_t* codes, const Code& code) {
  for (int p = 0; p < G / W; ++p)
    for (int i = 0; i < E; ++i) {
      const auto q = __builtin_convertvector(code(p, i), typename Lanes<W>::I);
      for (int g = 0; g < W; ++g) codes[(p * W + g) * E + i] = uint8_t(q[g]);
    }
}

template <class Levels, int W, int G, int E>
FACET_LANES void store_codes(const Grouped<W, G, E>& b, const ScaleFit<G>& fit, uint8_t* codes) {
  using L = Lanes<W>;
  store_codes<W, G, E>(
      codes, [&](int p, int i) __attribute__((always_inline)) {
        const auto id = L::inverse(L::load(fit.scale + p * W) * fit.d);
        return Levels::template code<L>(Levels::template nearest<L>(b.x[p][i] * id));
      });
}

template <int Most, int W, int G, int E>
FACET_LANES void store_codes(const Grouped<W, G, E>& b, const ScaleMinFit<G>& fit, uint8_t* codes) {
  using L = Lanes<W>;
  store_codes<W, G, E>(
      codes, [&](int p, int i) __attribute__((always_inline)) {
        const auto id = L::inverse(L::load(fit.scale + p * W) * fit.d), m = L::load(fit.min + p * W) * fit.dmin;
        return L::nearest((b.x[p][i] + m) * id, 0, Most);
      });
}

// The layout of two-bit planes in Q2_K and Q3_K, which is also that of the high bits of Q6_K.
FACET_LANES uint8_t four_pairs(const uint8_t* codes, int shift) {
  const auto pair = [&](int k) { return (codes[32 * k] >> shift & 3) << (2 * k); };
  return uint8_t(pair(0) | pair(1) | pair(2) | pair(3));
}

template <int W>
FACET_LANES void encode(const float* src, BlockQ2_K& b) {
  const Grouped<W, 16, 16> x(src);
  if (x.unit.zero()) return;
  const auto fit = fit_scales_mins<3, 15>(x, kTrialsQ2);
  uint8_t codes[256];
  store_codes<3>(x, fit, codes);
  b.d = x.unit.stored(fit.d);
  b.dmin = x.unit.stored(fit.dmin);
  for (int g = 0; g < 16; ++g) b.scales[g] = uint8_t(int(fit.scale[g]) | int(fit.min[g]) << 4);
  for (int half = 0; half < 2; ++half)
    for (int l = 0; l < 32; ++l) b.qs[32 * half + l] = four_pairs(codes + 128 * half + l, 0);
}

template <int W>
FACET_LANES void encode(const float* src, BlockQ3_K& b) {
  using Levels = WholeLevels<-4, 3>;
  const Grouped<W, 16, 16> x(src);
  if (x.unit.zero()) return;
  const auto fit = fit_scales<Levels, -32>(x, kTrialsQ3);
  uint8_t codes[256];
  store_codes<Levels>(x, fit, codes);
  b.d = x.unit.stored(fit.d);
  for (int k = 0; k < 16; ++k) {
    const int sc = int(fit.scale[k]) + 32;
    b.scales[k % 8] |= uint8_t((sc & 15) << (k < 8 ? 0 : 4));
    b.scales[8 + k % 4] |= uint8_t((sc >> 4) << (2 * (k / 4)));
  }
  for (int half = 0; half < 2; ++half)
    for (int l = 0; l < 32; ++l) {
      b.qs[32 * half + l] = four_pairs(codes + 128 * half + l, 0);
      for (int j = 0; j < 4; ++j) b.hmask[l] |= uint8_t((codes[128 * half + 32 * j + l] >> 2) << (4 * half + j));
    }
}

template <int W>
FACET_LANES void encode(const float* src, BlockQ6_K& b) {
  using Levels = WholeLevels<-32, 31>;
  const Grouped<W, 16, 16> x(src);
  if (x.unit.zero()) return;
  const auto fit = fit_scales<Levels, -128>(x, kTrialsQ6);
  uint8_t codes[256];
  store_codes<Levels>(x, fit, codes);
  b.d = x.unit.stored(fit.d);
  for (int k = 0; k < 16; ++k) b.scales[k] = int8_t(fit.scale[k]);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* c = codes + 128 * half;
    for (int l = 0; l < 64; ++l) b.ql[64 * half + l] = uint8_t((c[l] & 15) | (c[64 + l] & 15) << 4);
    for (int l = 0; l < 32; ++l) b.qh[32 * half + l] = four_pairs(c + l, 4);
  }
}

// The inverse of k4_scale_min.
FACET_LANES void pack_k4_scales(const ScaleMinFit<8>& fit, uint8_t* s) {
  for (int j = 0; j < 4; ++j) {
    const int low = int(fit.scale[j]), low_min = int(fit.min[j]);
    const int high = int(fit.scale[j + 4]), high_min = int(fit.min[j + 4]);
    s[j] = uint8_t(low | (high >> 4) << 6);
    s[j + 4] = uint8_t(low_min | (high_min >> 4) << 6);
    s[j + 8] = uint8_t((high & 15) | (high_min & 15) << 4);
  }
}

// Group 2k in the low and 2k + 1 in the high nibbles of 32 bytes.
FACET_LANES void pack_group_pairs(const uint8_t* codes, uint8_t* qs) {
  for (int k = 0; k < 4; ++k)
    for (int l = 0; l < 32; ++l)
      qs[32 * k + l] = uint8_t((codes[64 * k + l] & 15) | (codes[64 * k + 32 + l] & 15) << 4);
}

// What Q4_K and Q5_K share: scales, minima and the low nibbles of codes in 0..Most. False: all zeros.
template <int W, int Most, class Block>
FACET_LANES bool encode_nibbles(const float* src, const RangeTrials& trials, Block& b, uint8_t* codes) {
  const Grouped<W, 8, 32> x(src);
  if (x.unit.zero()) return false;
  const auto fit = fit_scales_mins<Most, 63>(x, trials);
  store_codes<Most>(x, fit, codes);
  b.d = x.unit.stored(fit.d);
  b.dmin = x.unit.stored(fit.dmin);
  pack_k4_scales(fit, b.scales);
  pack_group_pairs(codes, b.qs);
  return true;
}

template <int W>
FACET_LANES void encode(const float* src, BlockQ4_K& b) {
  uint8_t codes[256];
  encode_nibbles<W, 15>(src, kTrialsQ4, b, codes);
}

template <int W>
FACET_LANES void encode(const float* src, BlockQ5_K& b) {
  uint8_t codes[256];
  if (!encode_nibbles<W, 31>(src, kTrialsQ5, b, codes)) return;
  for (int g = 0; g < 8; ++g)
    for (int l = 0; l < 32; ++l) b.qh[l] |= uint8_t((codes[32 * g + l] >> 4) << g);
}

FACET_LANES void pack_halves(const uint8_t* codes, uint8_t* qs) {
  for (int l = 0; l < 16; ++l) qs[l] = uint8_t(codes[l] | codes[l + 16] << 4);
}

template <int W>
FACET_LANES void encode(const float* src, BlockIQ4_XS& b) {
  const Grouped<W, 8, 32> x(src);
  if (x.unit.zero()) return;
  const auto fit = fit_scales<Iq4Levels, -32>(x, kTrialsIq4);
  uint8_t codes[256];
  store_codes<Iq4Levels>(x, fit, codes);
  b.d = x.unit.stored(fit.d);
  for (int g = 0; g < 8; ++g) {
    const int sc = int(fit.scale[g]) + 32;
    b.scales_l[g / 2] |= uint8_t((sc & 15) << (4 * (g % 2)));
    b.scales_h = uint16_t(b.scales_h | (sc >> 4) << (2 * g));
    pack_halves(codes + 32 * g, b.qs + 16 * g);
  }
}

template <class Block, int W>
FACET_LANES void encode_blocks(const float* src, std::byte* dst, int64_t n) {
  for (int64_t i = 0; i < n / Block::kElems; ++i) {
    Block b;
    std::memset(&b, 0, sizeof b);
    encode<W>(src + i * Block::kElems, b);
    std::memcpy(dst + size_t(i) * sizeof b, &b, sizeof b);
  }
}

// One scale a block and no second level: a lane is a block, W at a time.
template <int W>
FACET_LANES void encode_iq4_nl(const float* src, std::byte* dst, int64_t n) {
  using L = Lanes<W>;
  constexpr int kElems = BlockIQ4_NL::kElems;
  for (int64_t at = 0; at < n / kElems; at += W) {
    const int blocks = int(std::min<int64_t>(W, n / kElems - at));
    BlockUnit unit[W];
    typename L::F x[kElems] = {};
    for (int g = 0; g < blocks; ++g) {
      const float* block = src + (at + g) * kElems;
      unit[g] = BlockUnit::of(block, kElems);
      for (int i = 0; i < kElems; ++i) x[i][g] = block[i] * unit[g].down;
    }
    auto scale = fit_scale<L, kElems, Iq4Levels>(x, kTrialsIq4);
    for (int g = 0; g < W; ++g) scale[g] = unit[g].storable(scale[g]);
    scale = scale_or_zero<L, kElems, Iq4Levels>(x, scale);
    const auto id = L::inverse(scale);
    uint8_t codes[W * kElems];
    store_codes<W, W, kElems>(
        codes, [&](int, int i)
                   __attribute__((always_inline)) { return Iq4Levels::code<L>(Iq4Levels::nearest<L>(x[i] * id)); });
    for (int g = 0; g < blocks; ++g) {
      BlockIQ4_NL b;
      b.d = unit[g].stored(scale[g]);
      pack_halves(codes + g * kElems, b.qs);
      std::memcpy(dst + size_t(at + g) * sizeof b, &b, sizeof b);
    }
  }
}

template <int W>
FACET_LANES void encode_row(DType t, const float* src, std::byte* dst, int64_t n) {
  switch (t) {
    case DType::kQ2_K:
      return encode_blocks<BlockQ2_K, W>(src, dst, n);
    case DType::kQ3_K:
      return encode_blocks<BlockQ3_K, W>(src, dst, n);
    case DType::kQ4_K:
      return encode_blocks<BlockQ4_K, W>(src, dst, n);
    case DType::kQ5_K:
      return encode_blocks<BlockQ5_K, W>(src, dst, n);
    case DType::kQ6_K:
      return encode_blocks<BlockQ6_K, W>(src, dst, n);
    case DType::kIQ4_NL:
      return encode_iq4_nl<W>(src, dst, n);
    case DType::kIQ4_XS:
      return encode_blocks<BlockIQ4_XS, W>(src, dst, n);
    default:
      CHECK(false, "{} is not found by a search", dtype_name(t));
  }
}

// The same code for each instruction set; contraction is off, so it computes the same bits.
void encode_baseline(DType t, const float* src, std::byte* dst, int64_t n) { encode_row<4>(t, src, dst, n); }

#if defined(__x86_64__)
[[gnu::target("avx2")]] void encode_avx2(DType t, const float* src, std::byte* dst, int64_t n) {
  encode_row<8>(t, src, dst, n);
}
#endif

}  // namespace

bool is_searched(DType t) {
  switch (t) {
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return true;
    default:
      return false;
  }
}

void quantize_searched_row(DType t, const float* src, std::byte* dst, int64_t n) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return encode_avx2(t, src, dst, n);
#endif
  encode_baseline(t, src, dst, n);
}

}  // namespace facet
