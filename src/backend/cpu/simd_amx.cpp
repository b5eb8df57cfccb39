// Products of many rows by AMX; the rest of its table is AVX-512's. Codes are signed bytes.
//
// A tile product is sixteen tokens by sixteen weight rows over one group of 32 columns, or half of one where
// sixteens have scales of their own: what follows it is per group, so no longer sum of integers is of use. It
// keeps the tile unit busy for 16 cycles. Scaling its 256 integers takes 4 to 7 vector instructions for each
// 16, two a cycle: 32 to 56 cycles, which is what bounds these kernels. So everything else is kept out of
// that loop: rows are rearranged once per matrix (panel), and the sums of a lane stay in registers.
#include "backend/cpu/simd.h"
#include "formats/codebooks.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace facet {
namespace {

constexpr bool kUnsigned = false;

#include "backend/cpu/simd_ymm.h"
// Use the vectors above.
#include "backend/cpu/simd_ymm_books.h"

#include "backend/cpu/simd_pack.h"

void panel(int64_t n, int n_tok, const QuantRow* x, std::byte* to) {
  const int64_t n_chunk = (n + kChunkCols - 1) / kChunkCols;
  for (int64_t c = 0; c < n_chunk; ++c) {
    auto group = [&](int j) { return to + (j * n_chunk + c) * kPanelBytes; };
    alignas(64) float d[kPanelRows][8] = {}, ds[kPanelRows][8] = {};
    for (int r = 0; r < kPanelRows; ++r) {
      const bool is = r < n_tok;
      for (int j = 0; j < 8; ++j)
        store32(group(j) + 32 * r, is ? load32(x[r].q + kChunkCols * c + 32 * j) : _mm256_setzero_si256());
      if (is) store32(d[r], load32(x[r].d + 8 * c)), store32(ds[r], load32(x[r].ds + 8 * c));
    }
    for (int h = 0; h < 2; ++h) {
      __m256i t[8];
      transpose8(d[8 * h], t);
      for (int j = 0; j < 8; ++j) store32(group(j) + 512 + 32 * h, t[j]);
      transpose8(ds[8 * h], t);
      for (int j = 0; j < 8; ++j) store32(group(j) + 576 + 32 * h, t[j]);
    }
  }
}

// Tiles 0 and 1 hold integer sums, 2 and 3 codes of tokens, 4 and 5 of weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
// Groups of which the halves are summed apart.
template <class T>
constexpr bool in_halves() {
  return T::kSub || has_halves<T>();
}
template <class T>
void configure(int n_tok) {
  TileConfig k;
  constexpr int kCols = in_halves<T>() ? 16 : 32;
  for (const int i : {0, 1}) k.row_bytes[i] = 64, k.rows[i] = uint8_t(n_tok);
  for (const int i : {2, 3}) k.row_bytes[i] = kCols, k.rows[i] = uint8_t(n_tok);
  for (const int i : {4, 5}) k.row_bytes[i] = 64, k.rows[i] = kCols / 4;
  asm volatile("" ::"r"(&k) : "memory");  // GCC takes only its first eight bytes for read
  _tile_loadconfig(&k);
}

// The integers of one group: [N][16], twice for halves of a group.
template <class T>
inline __attribute__((always_inline)) void multiply(const std::byte* x, const uint8_t* code, int32_t* to) {
  _tile_zero(0);
  _tile_loadd(2, x, 32);
  _tile_loadd(4, code, 64);
  _tile_dpbssd(0, 2, 4);
  _tile_stored(0, to, 64);
  if constexpr (in_halves<T>()) {
    _tile_zero(1);
    _tile_loadd(3, x + 16, 32);
    _tile_loadd(5, code + 256, 64);
    _tile_dpbssd(1, 3, 5);
    _tile_stored(1, to + 256, 64);
  }
}

// The first n_tok of N tokens.
template <class T, int N>
void gemm_tokens(const PackedTile* w, int n_tok, const std::byte* x, float* y, int64_t stride) {
  constexpr int kAhead = 2, kRing = 4;  // products between a tile's store and its scaling
  alignas(64) int32_t dot[kRing][in_halves<T>() ? 512 : 256];
  __m512 part[8][N];
  const int n = 8 * w->n_chunk;
  for (int i = 0; i < kAhead && i < n; ++i) multiply<T>(x + i * kPanelBytes, w->code + i * 512, dot[i % kRing]);
  int i = 0;
  for (int j = 0; j < 8; ++j) {
    __m512 f[N];
    for (int t = 0; t < N; ++t) f[t] = _mm512_setzero_ps();
    for (int c = 0; c < w->n_chunk; ++c, ++i) {
      if (i + kAhead < n)
        multiply<T>(x + (i + kAhead) * kPanelBytes, w->code + (i + kAhead) * 512, dot[(i + kAhead) % kRing]);
      const int32_t* s = dot[i % kRing];
      const float* d = (const float*)(x + int64_t(i) * kPanelBytes + 512);
      const __m512 wv = _mm512_loadu_ps(w->w + i * 16);
      __m512 sub_a, sub_b, mv;
      if constexpr (T::kSub) {
        sub_a = _mm512_cvtepi32_ps(_mm512_loadu_si512(w->sub + i * 32));
        sub_b = _mm512_cvtepi32_ps(_mm512_loadu_si512(w->sub + i * 32 + 16));
      }
      if constexpr (T::kMin || has_halves<T>()) mv = _mm512_loadu_ps(w->m + i * 16);
#pragma GCC unroll 16
      for (int t = 0; t < N; ++t) {
        __m512 v = _mm512_cvtepi32_ps(_mm512_load_si512(s + 16 * t));
        if constexpr (T::kSub)  // exact: the sum is below 2^24, so this is the integer that others convert
          v = _mm512_fmadd_ps(v, sub_a, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(s + 256 + 16 * t)), sub_b));
        f[t] = _mm512_add_ps(f[t], _mm512_mul_ps(v, _mm512_mul_ps(wv, _mm512_set1_ps(d[t]))));
        if constexpr (T::kMin) f[t] = _mm512_add_ps(f[t], _mm512_mul_ps(mv, _mm512_set1_ps(d[16 + t])));
        if constexpr (has_halves<T>())
          f[t] = _mm512_add_ps(f[t], _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(s + 256 + 16 * t)),
                                                   _mm512_mul_ps(mv, _mm512_set1_ps(d[t]))));
      }
    }
    for (int t = 0; t < N; ++t) part[j][t] = f[t];
  }
  for (int t = 0; t < n_tok; ++t) {
    auto sum4 = [&](int k) { return _mm512_add_ps(part[k][t], part[k + 4][t]); };
    _mm512_storeu_ps(y + t * stride, _mm512_add_ps(_mm512_add_ps(sum4(0), sum4(2)), _mm512_add_ps(sum4(1), sum4(3))));
  }
}

template <class T>
void gemm(const PackedTile* w, int n_tok, const QuantRow*, const std::byte* x, float* y, int64_t stride) {
  const int64_t bytes = int64_t(8) * w->n_chunk * kPanelBytes;
  int t = 0;
  if (n_tok >= kPanelRows) configure<T>(kPanelRows);
  for (; t + kPanelRows <= n_tok; t += kPanelRows, x += bytes)
    gemm_tokens<T, kPanelRows>(w, kPanelRows, x, y + t * stride, stride);
  if (const int left = n_tok - t) {
    const int n = (left + 3) / 4 * 4;
    configure<T>(n);
    auto* few = n == 4    ? gemm_tokens<T, 4>
                : n == 8  ? gemm_tokens<T, 8>
                : n == 12 ? gemm_tokens<T, 12>
                          : gemm_tokens<T, 16>;
    few(w, left, x, y + t * stride, stride);
  }
  _tile_release();
}

#include "backend/cpu/simd_types.h"

constexpr SimdKernels make_table() {
  SimdKernels k{};
  k.name = "amx";
  k.gemv_tok = 24;  // where packing a tile pays, its rows read from memory
  k.panel = panel;
  each_quantised([&k]<class T>(DType type) {
    k.pack[int(type)] = pack<T>;
    k.gemm[int(type)] = gemm<T>;
  });
  return k;
}

}  // namespace

constinit const SimdKernels kAmxKernels = make_table();

}  // namespace facet
#endif
