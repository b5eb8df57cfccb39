// Kernels for AVX-512 with VNNI. Codes are unsigned bytes; what they are too large by is taken off the integer sums.
#include "backend/cpu/simd.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace facet {
namespace {

constexpr bool kUnsigned = true;
inline __m256i dot32(__m256i codes, __m256i x) { return _mm256_dpbusd_epi32(_mm256_setzero_si256(), codes, x); }

#include "backend/cpu/simd_ymm.h"

constexpr int W = 16;
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
inline vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
inline vf load_f16(const std::byte* p) { return (vf)_mm512_cvtph_ps(load32(p)); }

inline __m512 quarters(__m512 a, __m512 b) {  // per 128 bits: sums of pairs of a and b, interleaved
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
inline __m512 pairs(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))));
}
inline __m512 halves_of(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}
inline vf fold_rows(const vf* a) {
  __m512 t[4];
  for (int i = 0; i < 4; ++i)
    t[i] = pairs(quarters((__m512)a[4 * i], (__m512)a[4 * i + 1]), quarters((__m512)a[4 * i + 2], (__m512)a[4 * i + 3]));
  return (vf)halves_of(halves_of(t[0], t[1]), halves_of(t[2], t[3]));
}

#include "backend/cpu/simd_float.h"

void to_f16(const float* x, std::byte* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) store32(y + 2 * i, _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

// ---- N tokens, sixteen rows in the lanes

template <class T, int N>
void gemm_tokens(const PackedTile* w, const QuantRow* x, float* y) {
  __m512 part[8][N];
  for (int j = 0; j < 8; ++j) {
    __m512 f[N];
    for (int t = 0; t < N; ++t) f[t] = _mm512_setzero_ps();
    for (int c = 0; c < w->n_chunk; ++c) {
      const int64_t at = int64_t(j) * w->n_chunk + c;
      const int g = 8 * c + j;
      const uint8_t* code = w->code + at * 512;
      __m512i s[N];
      auto half = [&](int from, int to) {
        for (int t = 0; t < N; ++t) s[t] = _mm512_setzero_si512();
#pragma GCC unroll 8
        for (int k = from; k < to; ++k) {
          const __m512i v = _mm512_loadu_si512(code + 64 * k);
#pragma GCC unroll 8
          for (int t = 0; t < N; ++t) {
            int32_t four;
            __builtin_memcpy(&four, x[t].q + 32 * g + 4 * k, 4);
            s[t] = _mm512_dpbusd_epi32(s[t], v, _mm512_set1_epi32(four));
          }
        }
      };
      if constexpr (T::kSub) {
        __m512i sum[N];
        for (int h = 0; h < 2; ++h) {
          half(4 * h, 4 * h + 4);
          const __m512i sub = _mm512_loadu_si512(w->sub + at * 32 + 16 * h);
          for (int t = 0; t < N; ++t) {
            const __m512i d = _mm512_mullo_epi32(_mm512_sub_epi32(s[t], _mm512_set1_epi32(T::kOffset * x[t].sum16[2 * g + h])), sub);
            sum[t] = h ? _mm512_add_epi32(sum[t], d) : d;
          }
        }
        for (int t = 0; t < N; ++t) s[t] = sum[t];
      } else {
        half(0, 8);
        if constexpr (T::kOffset != 0)
          for (int t = 0; t < N; ++t)
            s[t] = _mm512_sub_epi32(s[t], _mm512_set1_epi32(T::kOffset * (x[t].sum16[2 * g] + x[t].sum16[2 * g + 1])));
      }
      const __m512 wv = _mm512_loadu_ps(w->w + at * 16);
      for (int t = 0; t < N; ++t)
        f[t] = _mm512_add_ps(f[t], _mm512_mul_ps(_mm512_cvtepi32_ps(s[t]), _mm512_mul_ps(wv, _mm512_set1_ps(x[t].d[g]))));
      if constexpr (T::kMin) {
        const __m512 mv = _mm512_loadu_ps(w->m + at * 16);
        for (int t = 0; t < N; ++t) f[t] = _mm512_add_ps(f[t], _mm512_mul_ps(mv, _mm512_set1_ps(x[t].ds[g])));
      }
    }
    for (int t = 0; t < N; ++t) part[j][t] = f[t];
  }
  for (int t = 0; t < N; ++t) {
    auto sum4 = [&](int i) { return _mm512_add_ps(part[i][t], part[i + 4][t]); };
    _mm512_storeu_ps(y + 16 * t, _mm512_add_ps(_mm512_add_ps(sum4(0), sum4(2)), _mm512_add_ps(sum4(1), sum4(3))));
  }
}

template <class T>
void gemm(const PackedTile* w, int n_tok, const QuantRow* x, float* y) {
  int t = 0;
  for (; t + 8 <= n_tok; t += 8) gemm_tokens<T, 8>(w, x + t, y + 16 * t);
  if (t + 4 <= n_tok) gemm_tokens<T, 4>(w, x + t, y + 16 * t), t += 4;
  if (t + 2 <= n_tok) gemm_tokens<T, 2>(w, x + t, y + 16 * t), t += 2;
  if (t < n_tok) gemm_tokens<T, 1>(w, x + t, y + 16 * t);
}

#include "backend/cpu/simd_table.h"

}  // namespace

constinit const SimdKernels kAvx512Kernels = make_table("avx512");

}  // namespace facet
#endif
