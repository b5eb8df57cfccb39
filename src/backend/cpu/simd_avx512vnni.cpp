// Kernels for AVX-512 with VNNI. Codes are unsigned bytes; what they are too large by is taken off the integer sums.
#include "backend/cpu/simd.h"
#include "formats/codebooks.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace facet {
namespace {

constexpr bool kUnsigned = true;

#include "backend/cpu/simd_ymm.h"
// Use the vectors above.
#include "backend/cpu/simd_ymm_books.h"

#include "backend/cpu/simd_pack.h"

constexpr int W = 16, kDotRows = 4, kDotTok = 4, kScoreRows = 16, kScoreQueries = 1, kWide = 8, kWideQueries = 1,
              kTileQueries = 6, kTilePanels = 4, kManyRows = 8, kManyTok = 3;
constexpr int kFoldedRows = 8;
typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint16_t vh __attribute__((vector_size(32)));
inline vf load(const float* p) {
  vf v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, vf v) { __builtin_memcpy(p, &v, sizeof v); }
inline vf splat(float x) { return x - vf{}; }
inline vf if_below(vf x, float c, vf a, vf b) { return x < c ? a : b; }
inline vf if_above(vf x, float c, vf a, vf b) { return x > c ? a : b; }
inline vf two_to(vf n) { return (vf)(((vi)n - 0x4B400000 + 127) << 23); }
inline vf load_bf16(const std::byte* p) {
  vh h;
  __builtin_memcpy(&h, p, sizeof h);
  return (vf)(__builtin_convertvector(h, vi) << 16);
}
inline vf fma(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
typedef vf vpart;
constexpr int kParts = 1;
inline vf& part_of(vf& x, int) { return x; }
inline vf load_part_at(const float* p) { return load(p); }
inline void store_part_at(float* p, vf v) { store(p, v); }
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
    t[i] =
        pairs(quarters((__m512)a[4 * i], (__m512)a[4 * i + 1]), quarters((__m512)a[4 * i + 2], (__m512)a[4 * i + 3]));
  return (vf)halves_of(halves_of(t[0], t[1]), halves_of(t[2], t[3]));
}
inline vf larger(vf a, vf b) { return a > b ? a : b; }
// fold() of eight, in its order.
inline void fold_many(const vf* a, float* y) {
  __m512 s[4], u[2];
  for (int i = 0; i < 4; ++i) {
    const __m512 p = (__m512)a[2 * i], q = (__m512)a[2 * i + 1];
    s[i] = _mm512_add_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xEE));
  }
  for (int i = 0; i < 2; ++i) u[i] = halves_of(s[2 * i], s[2 * i + 1]);  // 128 bits i: four lanes of row 4 m + i
  const __m512d lo = _mm512_castps_pd(u[0]), hi = _mm512_castps_pd(u[1]);
  const __m512 v =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(lo, hi)), _mm512_castpd_ps(_mm512_unpackhi_pd(lo, hi)));
  float t[16];
  _mm512_storeu_ps(t, _mm512_add_ps(_mm512_shuffle_ps(v, v, 0x88), _mm512_shuffle_ps(v, v, 0xDD)));
  for (int i = 0; i < 4; ++i) y[i] = t[4 * i], y[4 + i] = t[4 * i + 1];
}

#include "backend/cpu/simd_float.h"
// Uses the loops above.
#include "backend/cpu/simd_encoder.h"

void to_f16(const float* x, std::byte* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 16)
    store32(y + 2 * i, _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

// ---- one token: two weight rows at a time, group g of the first in lane g and of the second in lane 8 + g
//
// The forced inlining matters: as calls, which the compiler prefers, these pass their vectors through memory.

constexpr int64_t kAhead = 2048;  // bytes from a weight to the one asked for meanwhile, at least

inline __m512i both(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }
inline __m512i twice(const void* p) { return _mm512_broadcast_i64x4(load32(p)); }

// Scales of a chunk of two rows.
struct TwoScales {
  __m512 w, m;
  __m512i wide, sub_a, sub_b;  // of sixteen columns: all, of even sixteens, of odd ones
};
template <class T>
inline __attribute__((always_inline)) void scales_of_two(const std::byte* a, const std::byte* b, int n, TwoScales& s) {
  Scales ka{}, kb{};
  T::scales(a, n, ka), T::scales(b, n, kb);
  s.w = _mm512_insertf32x8(_mm512_castps256_ps512(ka.w), kb.w, 1);
  if constexpr (T::kMin || has_halves<T>()) s.m = _mm512_insertf32x8(_mm512_castps256_ps512(ka.m), kb.m, 1);
  if constexpr (T::kSub) {
    s.wide = both(_mm256_cvtepi8_epi16(ka.sub), _mm256_cvtepi8_epi16(kb.sub));
    s.sub_a = _mm512_srai_epi32(_mm512_slli_epi32(s.wide, 16), 16), s.sub_b = _mm512_srai_epi32(s.wide, 16);
  }
}

// The six-bit scales and minima of two Q4_K or Q5_K blocks: Q4_K::scales with a group in each dword.
inline __attribute__((always_inline)) void k4_scales_of_two(const std::byte* a, const std::byte* b, TwoScales& s) {
  const __m256i heads =
      _mm256_inserti128_si256(_mm256_castsi128_si256(load16(a)), load16(b), 1);  // d, dmin, 12 bytes of scales
  const __m512i head =
      _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(heads));
  // Byte 0 of a dword holds the low bits, of groups 4 to 7 in a nibble; their high bits are bits 6 and 7 of byte 1.
  auto dwords = [&](__m256i at) __attribute__((always_inline)) {
    return _mm512_shuffle_epi8(head, _mm512_broadcast_i64x4(at));
  };
  const __m512i scale = dwords(_mm256_setr_epi32(0xFFFFFF04, 0xFFFFFF05, 0xFFFFFF06, 0xFFFFFF07, 0xFFFF040C, 0xFFFF050D,
                                                 0xFFFF060E, 0xFFFF070F));
  const __m512i least = dwords(_mm256_setr_epi32(0xFFFFFF08, 0xFFFFFF09, 0xFFFFFF0A, 0xFFFFFF0B, 0xFFFF080C, 0xFFFF090D,
                                                 0xFFFF0A0E, 0xFFFF0B0F));
  const __m512i low_bits = _mm512_broadcast_i64x4(_mm256_setr_epi32(63, 63, 63, 63, 15, 15, 15, 15));
  const __m512i nibble = _mm512_broadcast_i64x4(_mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
  auto six_bits = [&](__m512i low, __m512i v) __attribute__((always_inline)) {
    return _mm512_cvtepi32_ps(_mm512_or_si512(_mm512_and_si512(low, low_bits),
                                              _mm512_and_si512(_mm512_srli_epi32(v, 10), _mm512_set1_epi32(48))));
  };
  const __m256i d = _mm256_shuffle_epi8(heads, _mm256_set1_epi16(0x0100)),
                m = _mm256_shuffle_epi8(heads, _mm256_set1_epi16(0x0302));
  s.w = _mm512_mul_ps(_mm512_cvtph_ps(d), six_bits(scale, scale));
  s.m = _mm512_mul_ps(_mm512_cvtph_ps(_mm256_xor_si256(m, _mm256_set1_epi16(short(0x8000)))),
                      six_bits(_mm512_srlv_epi32(least, nibble), least));
}
template <>
inline __attribute__((always_inline)) void scales_of_two<Q4_K>(const std::byte* a, const std::byte* b, int,
                                                               TwoScales& s) {
  k4_scales_of_two(a, b, s);
}
template <>
inline __attribute__((always_inline)) void scales_of_two<Q5_K>(const std::byte* a, const std::byte* b, int,
                                                               TwoScales& s) {
  k4_scales_of_two(a, b, s);
}

// Codes of a row's chunk: v[k] holds group k, then group k + 4.
template <class T>
inline __attribute__((always_inline)) void codes_of_one(const std::byte* p, int n, __m512i* v) {
  __m256i c[8] = {};
  T::codes(p, n, c);
  for (int k = 0; k < 4; ++k) v[k] = both(c[k], c[k + 4]);
}

inline __m512i low_nibbles(__m512i b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
inline __m512i high_nibbles(__m512i b) { return low_nibbles(_mm512_srli_epi16(b, 4)); }
inline __m512i both_at(const std::byte* p, int off, int other) { return both(load32(p + off), load32(p + other)); }
template <>
inline __attribute__((always_inline)) void codes_of_one<Q4_K>(const std::byte* p, int, __m512i* v) {
  for (int k = 0; k < 2; ++k) {
    const __m512i b = both_at(p, 16 + 32 * k, 80 + 32 * k);
    v[2 * k] = low_nibbles(b), v[2 * k + 1] = high_nibbles(b);
  }
}
template <>
inline __attribute__((always_inline)) void codes_of_one<Q5_K>(const std::byte* p, int, __m512i* v) {
  codes_of_one<Q4_K>(p + 32, 8, v);
  const __m256i h = load32(p + 16);
  const __m512i fifth = both(_mm256_slli_epi16(h, 4), h);  // bit 4 + k of groups k and k + 4
  for (int k = 0; k < 4; ++k)
    v[k] = _mm512_or_si512(v[k], _mm512_and_si512(_mm512_srli_epi16(fifth, unsigned(k)), _mm512_set1_epi8(16)));
}
template <>
inline __attribute__((always_inline)) void codes_of_one<Q6_K>(const std::byte* p, int, __m512i* v) {
  const __m512i a = both_at(p, 0, 64), b = both_at(p, 32, 96), h = _mm512_loadu_si512(p + 128),
                pair = _mm512_set1_epi8(48);
  v[0] = _mm512_or_si512(low_nibbles(a), _mm512_and_si512(_mm512_slli_epi16(h, 4), pair));
  v[1] = _mm512_or_si512(low_nibbles(b), _mm512_and_si512(_mm512_slli_epi16(h, 2), pair));
  v[2] = _mm512_or_si512(high_nibbles(a), _mm512_and_si512(h, pair));
  v[3] = _mm512_or_si512(high_nibbles(b), _mm512_and_si512(_mm512_srli_epi16(h, 2), pair));
}

// Per 128 bits: sums of pairs of a, then of b. No element is beyond +-kMost.
template <int kMost>
inline __m512i add_pairs(__m512i a, __m512i b) {
  if constexpr (kMost <= 32767) return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xDD)));
}
// Sums of sixteen products: per 128 bits, one of each v[k] x[k].
template <class T>
inline __attribute__((always_inline)) __m512i dots_of_one(const __m512i* v, const __m512i* x) {
  const __m512i zero = _mm512_setzero_si512();
  constexpr int kFour = 4 * 127 * T::kMaxCode;
  const __m512i low = add_pairs<kFour>(_mm512_dpbusd_epi32(zero, v[0], x[0]), _mm512_dpbusd_epi32(zero, v[1], x[1]));
  const __m512i high = add_pairs<kFour>(_mm512_dpbusd_epi32(zero, v[2], x[2]), _mm512_dpbusd_epi32(zero, v[3], x[3]));
  return add_pairs<2 * kFour>(low, high);
}

inline __m512 add_scaled(__m512 f, __m512i dot, __m512 w, __m512 d) {
  return _mm512_add_ps(f, _mm512_mul_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(w, d)));
}
// Of types with two scales: first and second are dots of halves of groups, sums the sums of activations there.
template <class T>
inline __m512 add_halves(__m512 f, __m512i first, __m512i second, __m512i sums, const TwoScales& s, __m512 d) {
  constexpr unsigned kShift = unsigned(shift_of(T::kOffset));
  first = _mm512_sub_epi32(first, _mm512_slli_epi32(_mm512_srai_epi32(_mm512_slli_epi32(sums, 16), 16), kShift));
  second = _mm512_sub_epi32(second, _mm512_slli_epi32(_mm512_srai_epi32(sums, 16), kShift));
  return add_scaled(add_scaled(f, first, s.w, d), second, s.m, d);
}

template <class T>
void one_token(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, const QuantRow* x, float* y) {
  const int64_t n_chunk = n_in / kChunkCols;
  const int rest = int(n_in % kChunkCols / 32);
  const int64_t ahead = (kAhead + 2 * row_bytes - 1) / (2 * row_bytes) * 2 * row_bytes;
  for (int64_t o = 0; o < n_row; o += 2) {
    const std::byte *a = w + o * row_bytes, *b = o + 1 < n_row ? a + row_bytes : a;
    __m512 f = _mm512_setzero_ps();
    auto add = [&](int64_t c, int n) __attribute__((always_inline)) {
      __m512i va[4], vb[4], xs[4];
      TwoScales s;
      codes_of_one<T>(a, n, va), codes_of_one<T>(b, n, vb);
      scales_of_two<T>(a, b, n, s);
      for (int k = 0; k < 4; ++k) xs[k] = both(load32(x->q + 256 * c + 32 * k), load32(x->q + 256 * c + 32 * k + 128));
      const __m512i da = dots_of_one<T>(va, xs), db = dots_of_one<T>(vb, xs);
      __m512i even = _mm512_shuffle_i32x4(da, db, 0x88), odd = _mm512_shuffle_i32x4(da, db, 0xDD);
      const __m512 d = _mm512_castsi512_ps(twice(x->d + 8 * c));
      if constexpr (has_halves<T>()) {
        f = add_halves<T>(f, even, odd, twice(x->sum16 + 16 * c), s, d);
        return;
      }
      if constexpr (T::kSub) even = _mm512_mullo_epi32(even, s.sub_a), odd = _mm512_mullo_epi32(odd, s.sub_b);
      __m512i dot = _mm512_add_epi32(even, odd);
      if constexpr (T::kOffset != 0) {
        const __m512i excess = _mm512_madd_epi16(twice(x->sum16 + 16 * c), T::kSub ? s.wide : _mm512_set1_epi16(1));
        dot = _mm512_sub_epi32(dot, _mm512_slli_epi32(excess, unsigned(shift_of(T::kOffset))));
      }
      f = add_scaled(f, dot, s.w, d);
      if constexpr (T::kMin) f = _mm512_add_ps(f, _mm512_mul_ps(s.m, _mm512_castsi512_ps(twice(x->ds + 8 * c))));
    };
    int64_t c = 0;
    for (; c < n_chunk; ++c, a += chunk_bytes<T>(), b += chunk_bytes<T>()) {
      // Rows to come. Only a hint: an address beyond the file is harmless.
      for (int64_t i = 0; i < chunk_bytes<T>(); i += 64) {
        _mm_prefetch((const char*)(uintptr_t(a) + uintptr_t(ahead + i)), _MM_HINT_T0);
        _mm_prefetch((const char*)(uintptr_t(b) + uintptr_t(ahead + i)), _MM_HINT_T0);
      }
      add(c, 8);
    }
    if (rest) add(c, rest);
    y[o] = fold_lanes(_mm512_castps512_ps256(f));
    if (o + 1 < n_row) y[o + 1] = fold_lanes(_mm512_extractf32x8_ps(f, 1));
  }
}

// ---- few tokens: the same lanes, over columns of codes

void interleave(int64_t n, const QuantRow* row) {
  for (int64_t c = 0; c < (n + kChunkCols - 1) / kChunkCols; ++c) {
    std::byte* to = row->record + kRecordBytes * c;
    __m256i t[8];
    transpose8(row->q + kChunkCols * c, t);
    for (int k = 0; k < 8; ++k) store32(to + 32 * k, t[k]);
    const __m256i sums = load32(row->sum16 + 16 * c);
    store32(to + 256, load32(row->d + 8 * c));
    store32(to + 288, load32(row->ds + 8 * c));
    store32(to + 320, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
    store32(to + 352, sums);
  }
}

// A chunk of two rows: v[k] holds columns 4 k .. 4 k + 3 of each group.
struct TwoRows : TwoScales {
  __m512i v[8];
};
template <class T>
inline void load_two(const std::byte* a, const std::byte* b, int n, TwoRows& r) {
  __m256i va[8] = {}, vb[8] = {};
  T::codes(a, n, va), T::codes(b, n, vb);
  scales_of_two<T>(a, b, n, r);
  __m512i z[8], t[8];
  for (int g = 0; g < 8; ++g) z[g] = both(va[g], vb[g]);
  for (int i = 0; i < 8; i += 2)
    t[i] = _mm512_unpacklo_epi32(z[i], z[i + 1]), t[i + 1] = _mm512_unpackhi_epi32(z[i], z[i + 1]);
  for (int i = 0; i < 8; i += 4) {
    z[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]), z[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    z[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]), z[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), high = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
  for (int k = 0; k < 4; ++k)
    r.v[k] = _mm512_permutex2var_epi64(z[k], low, z[k + 4]),
    r.v[k + 4] = _mm512_permutex2var_epi64(z[k], high, z[k + 4]);
}

// f += the products of one token's record with a chunk.
template <class T>
inline __m512 add_record(__m512 f, const TwoRows& r, const std::byte* x) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512 d = _mm512_castsi512_ps(twice(x + 256));
  __m512i dot;
  if constexpr (T::kSub || has_halves<T>()) {
    __m512i a = zero, b = zero;
    for (int k = 0; k < 4; ++k)
      a = _mm512_dpbusd_epi32(a, r.v[k], twice(x + 32 * k)),
      b = _mm512_dpbusd_epi32(b, r.v[k + 4], twice(x + 32 * k + 128));
    if constexpr (has_halves<T>()) return add_halves<T>(f, a, b, twice(x + 352), r, d);
    const __m512i excess = _mm512_madd_epi16(twice(x + 352), r.wide);
    dot = _mm512_add_epi32(_mm512_mullo_epi32(a, r.sub_a), _mm512_mullo_epi32(b, r.sub_b));
    dot = _mm512_sub_epi32(dot, _mm512_slli_epi32(excess, unsigned(shift_of(T::kOffset))));
  } else {
    dot = zero;
    if constexpr (T::kOffset != 0)
      dot = _mm512_sub_epi32(zero, _mm512_slli_epi32(twice(x + 320), unsigned(shift_of(T::kOffset))));
    for (int k = 0; k < 8; ++k) dot = _mm512_dpbusd_epi32(dot, r.v[k], twice(x + 32 * k));
  }
  f = add_scaled(f, dot, r.w, d);
  if constexpr (T::kMin) f = _mm512_add_ps(f, _mm512_mul_ps(r.m, _mm512_castsi512_ps(twice(x + 288))));
  return f;
}

template <class T, int N>
void few_tokens(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const QuantRow* x,
                float* y, int64_t stride) {
  const std::byte* record[N];
  for (int t = 0; t < N; ++t) record[t] = x[t < n_tok ? t : n_tok - 1].record;
  const int64_t n_chunk = n_in / kChunkCols;
  const int rest = int(n_in % kChunkCols / 32);
  for (int64_t o = 0; o < n_row; o += 2) {
    const std::byte *a = w + o * row_bytes, *b = o + 1 < n_row ? a + row_bytes : a;
    __m512 f[N];
    for (int t = 0; t < N; ++t) f[t] = _mm512_setzero_ps();
    int64_t at = 0;
    auto add = [&](int n) __attribute__((always_inline)) {
      TwoRows r;
      load_two<T>(a, b, n, r);
#pragma GCC unroll 16
      for (int t = 0; t < N; ++t) f[t] = add_record<T>(f[t], r, record[t] + at);
    };
    for (int64_t c = 0; c < n_chunk; ++c, a += chunk_bytes<T>(), b += chunk_bytes<T>(), at += kRecordBytes) {
      // The next two rows. Only a hint: an address beyond the file is harmless.
      for (int64_t i = 0; i < chunk_bytes<T>(); i += 64) {
        _mm_prefetch((const char*)(uintptr_t(a) + uintptr_t(2 * row_bytes + i)), _MM_HINT_T0);
        _mm_prefetch((const char*)(uintptr_t(b) + uintptr_t(2 * row_bytes + i)), _MM_HINT_T0);
      }
      add(8);
    }
    if (rest) add(rest);
    for (int t = 0; t < n_tok; ++t) {
      y[t * stride + o] = fold_lanes(_mm512_castps512_ps256(f[t]));
      if (o + 1 < n_row) y[t * stride + o + 1] = fold_lanes(_mm512_extractf32x8_ps(f[t], 1));
    }
  }
}

template <class T>
void gemv(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const QuantRow* x, float* y,
          int64_t stride) {
  if (n_tok == 1) return one_token<T>(w, row_bytes, n_row, n_in, x, y);
  // What the registers hold at a time, over rows that stay in the cache between passes.
  constexpr int kPass = 16, kRows = 32;
  const int passes = (n_tok + kPass - 1) / kPass, each = (n_tok + passes - 1) / passes;
  auto few = each <= 2    ? few_tokens<T, 2>
             : each <= 3  ? few_tokens<T, 3>
             : each <= 4  ? few_tokens<T, 4>
             : each <= 6  ? few_tokens<T, 6>
             : each <= 8  ? few_tokens<T, 8>
             : each <= 12 ? few_tokens<T, 12>
                          : few_tokens<T, kPass>;
  for (int64_t o = 0; o < n_row; o += kRows)
    for (int t = 0; t < n_tok; t += each)
      few(w + o * row_bytes, row_bytes, n_row - o < kRows ? n_row - o : kRows, n_in,
          n_tok - t < each ? n_tok - t : each, x + t, y + t * stride + o, stride);
}

// ---- many tokens: sixteen rows in the lanes

template <class T, int N>
void gemm_tokens(const PackedTile* w, const QuantRow* x, float* y, int64_t stride) {
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
      if constexpr (has_halves<T>()) {
        for (int h = 0; h < 2; ++h) {
          half(4 * h, 4 * h + 4);
          const __m512 wv = _mm512_loadu_ps((h ? w->m : w->w) + at * 16);
          for (int t = 0; t < N; ++t)
            f[t] = add_scaled(f[t], _mm512_sub_epi32(s[t], _mm512_set1_epi32(T::kOffset * x[t].sum16[2 * g + h])), wv,
                              _mm512_set1_ps(x[t].d[g]));
        }
        continue;
      }
      if constexpr (T::kSub) {
        __m512i sum[N];
        for (int h = 0; h < 2; ++h) {
          half(4 * h, 4 * h + 4);
          const __m512i sub = _mm512_loadu_si512(w->sub + at * 32 + 16 * h);
          for (int t = 0; t < N; ++t) {
            const __m512i d =
                _mm512_mullo_epi32(_mm512_sub_epi32(s[t], _mm512_set1_epi32(T::kOffset * x[t].sum16[2 * g + h])), sub);
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
      for (int t = 0; t < N; ++t) f[t] = add_scaled(f[t], s[t], wv, _mm512_set1_ps(x[t].d[g]));
      if constexpr (T::kMin) {
        const __m512 mv = _mm512_loadu_ps(w->m + at * 16);
        for (int t = 0; t < N; ++t) f[t] = _mm512_add_ps(f[t], _mm512_mul_ps(mv, _mm512_set1_ps(x[t].ds[g])));
      }
    }
    for (int t = 0; t < N; ++t) part[j][t] = f[t];
  }
  for (int t = 0; t < N; ++t) {
    auto sum4 = [&](int i) { return _mm512_add_ps(part[i][t], part[i + 4][t]); };
    _mm512_storeu_ps(y + t * stride, _mm512_add_ps(_mm512_add_ps(sum4(0), sum4(2)), _mm512_add_ps(sum4(1), sum4(3))));
  }
}

template <class T>
void gemm(const PackedTile* w, int n_tok, const QuantRow* x, const std::byte*, float* y, int64_t stride) {
  int t = 0;
  for (; t + 8 <= n_tok; t += 8) gemm_tokens<T, 8>(w, x + t, y + t * stride, stride);
  if (t + 4 <= n_tok) gemm_tokens<T, 4>(w, x + t, y + t * stride, stride), t += 4;
  if (t + 2 <= n_tok) gemm_tokens<T, 2>(w, x + t, y + t * stride, stride), t += 2;
  if (t < n_tok) gemm_tokens<T, 1>(w, x + t, y + t * stride, stride);
}

#include "backend/cpu/simd_table.h"

}  // namespace

constinit const SimdKernels kAvx512Kernels = make_table("avx512", kMaxGemvTok, interleave);

}  // namespace facet
#endif
