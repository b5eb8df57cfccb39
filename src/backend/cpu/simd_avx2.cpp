// Kernels for AVX2 with FMA and F16C. Codes are signed bytes: |code| times x with the sign of the code moved to x,
// which no pair of products overflows (2 * 128 * 127 fits 16 bits).
#include "backend/cpu/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

namespace facet {
namespace {

constexpr bool kUnsigned = false;
inline __m256i dot32(__m256i codes, __m256i x) {  // sums of four products each
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#include "backend/cpu/simd_ymm.h"

// Pairs of vectors, so that sums go as they do with AVX-512.
constexpr int W = 16, kDotRows = 2, kDotTok = 2, kScoreRows = 4, kWide = 4;
typedef float v8 __attribute__((vector_size(32)));
typedef int32_t i8 __attribute__((vector_size(32)));
struct vf {
  v8 a, b;
};
inline vf load(const float* p) { return {(v8)_mm256_loadu_ps(p), (v8)_mm256_loadu_ps(p + 8)}; }
inline void store(float* p, vf v) {
  _mm256_storeu_ps(p, (__m256)v.a);
  _mm256_storeu_ps(p + 8, (__m256)v.b);
}
inline vf splat(float x) { return {x - v8{}, x - v8{}}; }
inline vf operator+(vf x, vf y) { return {x.a + y.a, x.b + y.b}; }
inline vf operator-(vf x, vf y) { return {x.a - y.a, x.b - y.b}; }
inline vf operator*(vf x, vf y) { return {x.a * y.a, x.b * y.b}; }
inline vf operator-(vf x, float y) { return {x.a - y, x.b - y}; }
inline vf operator+(vf x, float y) { return {x.a + y, x.b + y}; }
inline vf operator*(vf x, float y) { return {x.a * y, x.b * y}; }
inline vf operator+(float x, vf y) { return {x + y.a, x + y.b}; }
inline vf operator-(float x, vf y) { return {x - y.a, x - y.b}; }
inline vf operator*(float x, vf y) { return {x * y.a, x * y.b}; }
inline vf operator/(float x, vf y) { return {x / y.a, x / y.b}; }
inline vf operator-(vf x) { return {-x.a, -x.b}; }
inline vf& operator+=(vf& x, vf y) { return x = x + y; }
inline vf if_below(vf x, float c, vf a, vf b) { return {x.a < c ? a.a : b.a, x.b < c ? a.b : b.b}; }
inline vf if_above(vf x, float c, vf a, vf b) { return {x.a > c ? a.a : b.a, x.b > c ? a.b : b.b}; }
inline v8 two_to(v8 n) { return (v8)(((i8)n - 0x4B400000 + 127) << 23); }
inline vf two_to(vf n) { return {two_to(n.a), two_to(n.b)}; }
inline vf fma(vf a, vf b, vf c) {
  return {(v8)_mm256_fmadd_ps((__m256)a.a, (__m256)b.a, (__m256)c.a), (v8)_mm256_fmadd_ps((__m256)a.b, (__m256)b.b, (__m256)c.b)};
}
inline vf load_f16(const std::byte* p) { return {(v8)_mm256_cvtph_ps(load16(p)), (v8)_mm256_cvtph_ps(load16(p + 16))}; }
inline v8 bf16_at(const std::byte* p) { return (v8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16); }
inline vf load_bf16(const std::byte* p) { return {bf16_at(p), bf16_at(p + 16)}; }

// Of each of four rows, the sum of a 128-bit lane, as (0 + 2) + (1 + 3).
inline __m256 lane_sums(v8 a, v8 b, v8 c, v8 d) {
  auto quarters = [](v8 x, v8 y) { return _mm256_castps_pd(_mm256_add_ps(_mm256_unpacklo_ps((__m256)x, (__m256)y), _mm256_unpackhi_ps((__m256)x, (__m256)y))); };
  const __m256d x = quarters(a, b), y = quarters(c, d);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
inline __m128 halves_sum(__m256 x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
inline __m128 four_rows(const vf* r) {
  return _mm_add_ps(halves_sum(lane_sums(r[0].a, r[1].a, r[2].a, r[3].a)), halves_sum(lane_sums(r[0].b, r[1].b, r[2].b, r[3].b)));
}
inline vf fold_rows(const vf* a) {
  return {(v8)_mm256_set_m128(four_rows(a + 4), four_rows(a)), (v8)_mm256_set_m128(four_rows(a + 12), four_rows(a + 8))};
}

#include "backend/cpu/simd_float.h"

void to_f16(const float* x, std::byte* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 8)
    _mm_storeu_si128((__m128i*)(y + 2 * i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

// ---- N tokens, eight of the sixteen rows in the lanes

template <class T, int N>
void gemm_tokens(const PackedTile* w, int rows, const QuantRow* x, float* y, int64_t stride) {
  __m256 part[8][N];
  for (int j = 0; j < 8; ++j) {
    __m256 f[N];
    for (int t = 0; t < N; ++t) f[t] = _mm256_setzero_ps();
    for (int c = 0; c < w->n_chunk; ++c) {
      const int64_t at = int64_t(j) * w->n_chunk + c;
      const int g = 8 * c + j;
      const uint8_t* code = w->code + at * 512 + 4 * rows;
      __m256i s[N];
      auto half = [&](int from, int to) {
        for (int t = 0; t < N; ++t) s[t] = _mm256_setzero_si256();
        for (int k = from; k < to; ++k) {
          const __m256i v = load32(code + 64 * k);
          for (int t = 0; t < N; ++t) {
            int32_t four;
            __builtin_memcpy(&four, x[t].q + 32 * g + 4 * k, 4);
            s[t] = _mm256_add_epi32(s[t], dot32(v, _mm256_set1_epi32(four)));
          }
        }
      };
      if constexpr (T::kSub) {
        __m256i sum[N];
        for (int h = 0; h < 2; ++h) {
          half(4 * h, 4 * h + 4);
          const __m256i sub = load32(w->sub + at * 32 + 16 * h + rows);
          for (int t = 0; t < N; ++t) {
            const __m256i d = _mm256_mullo_epi32(s[t], sub);
            sum[t] = h ? _mm256_add_epi32(sum[t], d) : d;
          }
        }
        for (int t = 0; t < N; ++t) s[t] = sum[t];
      } else {
        half(0, 8);
      }
      const __m256 wv = _mm256_loadu_ps(w->w + at * 16 + rows);
      for (int t = 0; t < N; ++t)
        f[t] = _mm256_add_ps(f[t], _mm256_mul_ps(_mm256_cvtepi32_ps(s[t]), _mm256_mul_ps(wv, _mm256_set1_ps(x[t].d[g]))));
      if constexpr (T::kMin) {
        const __m256 mv = _mm256_loadu_ps(w->m + at * 16 + rows);
        for (int t = 0; t < N; ++t) f[t] = _mm256_add_ps(f[t], _mm256_mul_ps(mv, _mm256_set1_ps(x[t].ds[g])));
      }
    }
    for (int t = 0; t < N; ++t) part[j][t] = f[t];
  }
  for (int t = 0; t < N; ++t) {
    auto sum4 = [&](int i) { return _mm256_add_ps(part[i][t], part[i + 4][t]); };
    _mm256_storeu_ps(y + t * stride + rows, _mm256_add_ps(_mm256_add_ps(sum4(0), sum4(2)), _mm256_add_ps(sum4(1), sum4(3))));
  }
}

template <class T>
void gemm(const PackedTile* w, int n_tok, const QuantRow* x, const std::byte*, float* y, int64_t stride) {
  for (int rows = 0; rows < kTileRows; rows += 8) {
    int t = 0;
    for (; t + 4 <= n_tok; t += 4) gemm_tokens<T, 4>(w, rows, x + t, y + t * stride, stride);
    for (; t < n_tok; ++t) gemm_tokens<T, 1>(w, rows, x + t, y + t * stride, stride);
  }
}

// ---- few tokens

// Adds to each token's f the products of chunk c, which has n groups: lane g is group g.
template <class T, int N>
inline __attribute__((always_inline)) void add_chunk(__m256* f, const std::byte* p, int n, const QuantRow* x, int64_t c) {
  __m256i v[8];
  Scales k{};
  T::codes(p, n, v);
  T::scales(p, n, k);
  __m256i sub_a{}, sub_b{};
  if constexpr (T::kSub) {
    const __m128i sub = _mm_shuffle_epi8(k.sub, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    sub_a = _mm256_cvtepi8_epi32(sub), sub_b = _mm256_cvtepi8_epi32(_mm_srli_si128(sub, 8));
  }
  for (int t = 0; t < N; ++t) {
    __m256i s[8];
    for (int g = 0; g < 8; ++g) s[g] = g < n ? dot32(v[g], load32(x[t].q + 256 * c + 32 * g)) : _mm256_setzero_si256();
    // Lanes of a: the first halves of groups 0..3, then their second halves; of b: groups 4..7.
    __m256i a = _mm256_hadd_epi32(_mm256_hadd_epi32(s[0], s[1]), _mm256_hadd_epi32(s[2], s[3]));
    __m256i b = _mm256_hadd_epi32(_mm256_hadd_epi32(s[4], s[5]), _mm256_hadd_epi32(s[6], s[7]));
    if constexpr (T::kSub) a = _mm256_mullo_epi32(a, sub_a), b = _mm256_mullo_epi32(b, sub_b);
    const __m256i dot = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
    f[t] = _mm256_add_ps(f[t], _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(k.w, _mm256_loadu_ps(x[t].d + 8 * c))));
    if constexpr (T::kMin) f[t] = _mm256_add_ps(f[t], _mm256_mul_ps(k.m, _mm256_loadu_ps(x[t].ds + 8 * c)));
  }
}

template <class T, int N>
void gemv_tokens(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, const QuantRow* x, float* y, int64_t stride) {
  const int64_t n_chunk = n_in / kChunkCols;
  const int rest = int(n_in % kChunkCols / 32);
  for (int64_t o = 0; o < n_row; ++o) {
    const std::byte* p = w + o * row_bytes;
    __m256 f[N];
    for (int t = 0; t < N; ++t) f[t] = _mm256_setzero_ps();
    int64_t c = 0;
    for (; c < n_chunk; ++c, p += chunk_bytes<T>()) {
      // The next rows follow in memory. Only a hint: an address beyond the file is harmless.
      for (int64_t i = 0; i < chunk_bytes<T>(); i += 64) _mm_prefetch((const char*)(uintptr_t(p) + 1536 + uintptr_t(i)), _MM_HINT_T0);
      add_chunk<T, N>(f, p, 8, x, c);
    }
    if (rest) add_chunk<T, N>(f, p, rest, x, c);
    for (int t = 0; t < N; ++t) y[t * stride + o] = fold_lanes(f[t]);
  }
}

template <class T>
void gemv(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const QuantRow* x, float* y, int64_t stride) {
  if (n_tok == 1) gemv_tokens<T, 1>(w, row_bytes, n_row, n_in, x, y, stride);
  if (n_tok == 2) gemv_tokens<T, 2>(w, row_bytes, n_row, n_in, x, y, stride);
  if (n_tok == 3) gemv_tokens<T, 3>(w, row_bytes, n_row, n_in, x, y, stride);
  if (n_tok == 4) gemv_tokens<T, 4>(w, row_bytes, n_row, n_in, x, y, stride);
  if (n_tok <= 4) return;
  // Four tokens at a time; a few rows of weights stay in the first cache meanwhile.
  constexpr int64_t kRows = 8;
  for (int64_t o = 0; o < n_row; o += kRows)
    for (int t = 0; t < n_tok; t += 4) gemv<T>(w + o * row_bytes, row_bytes, std::min(kRows, n_row - o), n_in, std::min(4, n_tok - t), x + t, y + t * stride + o, stride);
}

#include "backend/cpu/simd_table.h"

}  // namespace

constinit const SimdKernels kAvx2Kernels = make_table("avx2", 8);

}  // namespace facet
#endif
