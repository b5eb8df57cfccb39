// Kernels for AVX2 with FMA and F16C. Codes are signed bytes: |code| times x with the sign of the code moved to x,
// which no pair of products overflows (2 * 128 * 127 fits 16 bits).
#include "backend/cpu/simd.h"
#include "formats/codebooks.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace facet {
namespace {

constexpr bool kUnsigned = false;
inline __m256i dot32(__m256i codes, __m256i x) {  // sums of four products each
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#include "backend/cpu/simd_ymm.h"
// Uses the vectors above.
#include "backend/cpu/simd_ymm_books.h"

// Pairs of vectors, so that sums go as they do with AVX-512.
constexpr int W = 16, kDotRows = 2, kDotTok = 2, kScoreRows = 4, kScoreQueries = 3, kWide = 2, kWideQueries = 3,
              kTileQueries = 6, kTilePanels = 1, kManyRows = 4, kManyTok = 3;
constexpr int kFoldedRows = 4;
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
  return {(v8)_mm256_fmadd_ps((__m256)a.a, (__m256)b.a, (__m256)c.a),
          (v8)_mm256_fmadd_ps((__m256)a.b, (__m256)b.b, (__m256)c.b)};
}
typedef v8 vpart;
constexpr int kParts = 2;
inline v8& part_of(vf& x, int i) { return i ? x.b : x.a; }
inline v8 load_part_at(const float* p) { return (v8)_mm256_loadu_ps(p); }
inline void store_part_at(float* p, v8 v) { _mm256_storeu_ps(p, (__m256)v); }
inline v8 fma(v8 a, v8 b, v8 c) { return (v8)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
inline vf load_f16(const std::byte* p) { return {(v8)_mm256_cvtph_ps(load16(p)), (v8)_mm256_cvtph_ps(load16(p + 16))}; }
inline v8 bf16_at(const std::byte* p) { return (v8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(load16(p)), 16); }
inline vf load_bf16(const std::byte* p) { return {bf16_at(p), bf16_at(p + 16)}; }

// Of each of four rows, the sum of a 128-bit lane, as (0 + 2) + (1 + 3).
inline __m256 lane_sums(v8 a, v8 b, v8 c, v8 d) {
  auto quarters = [](v8 x, v8 y) {
    return _mm256_castps_pd(
        _mm256_add_ps(_mm256_unpacklo_ps((__m256)x, (__m256)y), _mm256_unpackhi_ps((__m256)x, (__m256)y)));
  };
  const __m256d x = quarters(a, b), y = quarters(c, d);
  return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
}
inline __m128 halves_sum(__m256 x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
inline __m128 four_rows(const vf* r) {
  return _mm_add_ps(halves_sum(lane_sums(r[0].a, r[1].a, r[2].a, r[3].a)),
                    halves_sum(lane_sums(r[0].b, r[1].b, r[2].b, r[3].b)));
}
inline vf fold_rows(const vf* a) {
  return {(v8)_mm256_set_m128(four_rows(a + 4), four_rows(a)),
          (v8)_mm256_set_m128(four_rows(a + 12), four_rows(a + 8))};
}
inline vf larger(vf a, vf b) { return {a.a > b.a ? a.a : b.a, a.b > b.b ? a.b : b.b}; }
inline void fold_many(const vf* a, float* y) {
  __m128 s[4];  // lanes 0 + 8 + 4 + 12 and so on of a row
  for (int r = 0; r < 4; ++r) s[r] = halves_sum((__m256)(a[r].a + a[r].b));
  const auto pair = [](__m128 p, __m128 q) { return _mm_add_ps(_mm_unpacklo_ps(p, q), _mm_unpackhi_ps(p, q)); };
  const __m128 p = pair(s[0], s[1]), q = pair(s[2], s[3]);
  _mm_storeu_ps(y, _mm_add_ps(_mm_movelh_ps(p, q), _mm_movehl_ps(q, p)));
}

#include "backend/cpu/simd_float.h"
// Uses the loops above.
#include "backend/cpu/simd_encoder.h"

void to_f16(const float* x, std::byte* y, int64_t n) {
  for (int64_t i = 0; i < n; i += 8)
    _mm_storeu_si128((__m128i*)(y + 2 * i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

// ---- two ways to multiply columns of codes
//
// Codes and activations of 16 bits, two products in a lane: without VNNI nothing is quicker for codes of eight bits.
// Narrow codes as unsigned bytes: pairs of products, and sums of a few of them, fit 16 bits.
//
// A chunk's record: [8 k][2][8 groups][2] activations of 16 bits, of each group columns 4k and 4k + 2, then 4k + 1 and
// 4k + 3, which is what shifts by eight make of four codes in a dword; then [8 k][8 groups][4] of eight.

struct Pairs {
  __m256i even, odd;
};
inline Pairs widen(__m256i four) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8), _mm256_srai_epi16(four, 8)};
}

void interleave(int64_t n, const QuantRow* row) {
  for (int64_t c = 0; c < (n + kChunkCols - 1) / kChunkCols; ++c) {
    __m256i v[8];
    transpose8(row->q + kChunkCols * c, v);
    std::byte* to = row->record + kRecordBytes * c;
    for (int k = 0; k < 8; ++k) {
      const Pairs p = widen(v[k]);
      store32(to + 64 * k, p.even), store32(to + 64 * k + 32, p.odd);
      store32(to + 512 + 32 * k, v[k]);
    }
  }
}

// ---- few tokens

inline __m256 add_scaled(__m256 f, __m256i dot, __m256 w, const float* d) {
  return _mm256_add_ps(f, _mm256_mul_ps(_mm256_cvtepi32_ps(dot), _mm256_mul_ps(w, _mm256_loadu_ps(d))));
}

// Adds to each token's f the products of chunk c, which has n groups: lane g is group g.
template <class T, int N>
inline __attribute__((always_inline)) void add_chunk(__m256* f, const std::byte* p, int n, const QuantRow* x,
                                                     int64_t c) {
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
    const __m256i first = _mm256_permute2x128_si256(a, b, 0x20), second = _mm256_permute2x128_si256(a, b, 0x31);
    if constexpr (has_halves<T>()) {
      f[t] = add_scaled(f[t], first, k.w, x[t].d + 8 * c);
      f[t] = add_scaled(f[t], second, k.m, x[t].d + 8 * c);
      continue;
    }
    f[t] = add_scaled(f[t], _mm256_add_epi32(first, second), k.w, x[t].d + 8 * c);
    if constexpr (T::kMin) f[t] = _mm256_add_ps(f[t], _mm256_mul_ps(k.m, _mm256_loadu_ps(x[t].ds + 8 * c)));
  }
}

template <class T, int N>
void gemv_tokens(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, const QuantRow* x, float* y,
                 int64_t stride) {
  const int64_t n_chunk = n_in / kChunkCols;
  const int rest = int(n_in % kChunkCols / 32);
  for (int64_t o = 0; o < n_row; ++o) {
    const std::byte* p = w + o * row_bytes;
    __m256 f[N];
    for (int t = 0; t < N; ++t) f[t] = _mm256_setzero_ps();
    int64_t c = 0;
    for (; c < n_chunk; ++c, p += chunk_bytes<T>()) {
      // The next rows follow in memory. Only a hint: an address beyond the file is harmless.
      for (int64_t i = 0; i < chunk_bytes<T>(); i += 64)
        _mm_prefetch((const char*)(uintptr_t(p) + 1536 + uintptr_t(i)), _MM_HINT_T0);
      add_chunk<T, N>(f, p, 8, x, c);
    }
    if (rest) add_chunk<T, N>(f, p, rest, x, c);
    for (int t = 0; t < N; ++t) y[t * stride + o] = fold_lanes(f[t]);
  }
}

// A chunk with its groups in the lanes of the codes too.
struct Columns {
  __m256i v[8];    // v[k] holds columns 4 k .. 4 k + 3 of each group
  __m256 w, m;     // m: minima, or second scales
  __m256i sub[2];  // scales of the first and the last sixteen columns
};
// How many dwords of a group's codes times activations can be summed in 16 bits; below 2, 16 bits a factor are better.
template <class T>
constexpr int run_of() {
  const int most = 32767 / (2 * 127 * T::kMaxCode);
  return most >= 8 && !T::kSub && !has_halves<T>() ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 0;
}
template <class T>
inline __attribute__((always_inline)) void columns_of(const std::byte* p, int n, Columns& to) {
  __m256i v[8] = {};
  Scales k{};
  T::codes(p, n, v);
  T::scales(p, n, k);
  if constexpr (run_of<T>() > 0 && T::kOffset > 0)  // unsigned
    for (__m256i& x : v) x = _mm256_add_epi8(x, _mm256_set1_epi8(T::kOffset));
  transpose8(v, to.v);
  to.w = k.w;
  if constexpr (T::kMin || has_halves<T>()) to.m = k.m;
  if constexpr (T::kSub) {
    const __m256i sub = _mm256_cvtepi8_epi16(k.sub);
    to.sub[0] = _mm256_srai_epi32(_mm256_slli_epi32(sub, 16), 16), to.sub[1] = _mm256_srai_epi32(sub, 16);
  }
}

// To s[t], kDwords dwords of codes from k.v[from] on times the activations of token t.
template <class T, int N, int kDwords>
inline __attribute__((always_inline)) void dots_of(__m256i* s, const Columns& k, int from, const QuantRow* const* x,
                                                   int64_t c) {
  constexpr int kRun = run_of<T>();
  for (int t = 0; t < N; ++t) s[t] = _mm256_setzero_si256();
  if constexpr (kRun > 0) {
    for (int i = from; i < from + kDwords; i += kRun) {
      __m256i few[N];
      for (int r = 0; r < kRun; ++r)
        for (int t = 0; t < N; ++t) {
          const __m256i d =
              _mm256_maddubs_epi16(k.v[i + r], load32(x[t]->record + kRecordBytes * c + 512 + 32 * (i + r)));
          few[t] = r ? _mm256_add_epi16(few[t], d) : d;
        }
      for (int t = 0; t < N; ++t) s[t] = _mm256_add_epi32(s[t], _mm256_madd_epi16(few[t], _mm256_set1_epi16(1)));
    }
  } else {
    for (int i = from; i < from + kDwords; ++i) {
      const Pairs four = widen(k.v[i]);
      for (int t = 0; t < N; ++t)
        s[t] = _mm256_add_epi32(s[t], _mm256_madd_epi16(four.even, load32(x[t]->record + kRecordBytes * c + 64 * i)));
      for (int t = 0; t < N; ++t)
        s[t] =
            _mm256_add_epi32(s[t], _mm256_madd_epi16(four.odd, load32(x[t]->record + kRecordBytes * c + 64 * i + 32)));
    }
  }
}

// Adds to each token's f the products of chunk c: lane g is group g.
template <class T, int N>
inline __attribute__((always_inline)) void add_records(__m256* f, const Columns& k, const QuantRow* const* x,
                                                       int64_t c) {
  constexpr bool kTooLarge = run_of<T>() > 0 && T::kOffset > 0;
  __m256i s[N];
  if constexpr (T::kSub || has_halves<T>()) {
    __m256i second[N];
    dots_of<T, N, 4>(s, k, 0, x, c), dots_of<T, N, 4>(second, k, 4, x, c);
    for (int t = 0; t < N; ++t) {
      if constexpr (kTooLarge) {
        const __m256i sums = load32(x[t]->sum16 + 16 * c);
        s[t] = _mm256_sub_epi32(
            s[t], _mm256_slli_epi32(_mm256_srai_epi32(_mm256_slli_epi32(sums, 16), 16), shift_of(T::kOffset)));
        second[t] = _mm256_sub_epi32(second[t], _mm256_slli_epi32(_mm256_srai_epi32(sums, 16), shift_of(T::kOffset)));
      }
      if constexpr (has_halves<T>()) {
        f[t] = add_scaled(f[t], s[t], k.w, x[t]->d + 8 * c);
        f[t] = add_scaled(f[t], second[t], k.m, x[t]->d + 8 * c);
      } else {
        s[t] = _mm256_add_epi32(_mm256_mullo_epi32(s[t], k.sub[0]), _mm256_mullo_epi32(second[t], k.sub[1]));
      }
    }
  } else {
    dots_of<T, N, 8>(s, k, 0, x, c);
    if constexpr (kTooLarge)
      for (int t = 0; t < N; ++t)
        s[t] = _mm256_sub_epi32(s[t], _mm256_madd_epi16(load32(x[t]->sum16 + 16 * c), _mm256_set1_epi16(T::kOffset)));
  }
  if constexpr (has_halves<T>()) return;
  for (int t = 0; t < N; ++t) {
    f[t] = add_scaled(f[t], s[t], k.w, x[t]->d + 8 * c);
    if constexpr (T::kMin) f[t] = _mm256_add_ps(f[t], _mm256_mul_ps(k.m, _mm256_loadu_ps(x[t]->ds + 8 * c)));
  }
}

// fold_lanes of each of eight vectors.
inline __m256 fold_eight(const __m256* f) {
  auto quarters = [&](int i) {
    return _mm256_add_ps(_mm256_permute2f128_ps(f[i], f[i + 4], 0x20), _mm256_permute2f128_ps(f[i], f[i + 4], 0x31));
  };
  auto pairs = [](__m256 a, __m256 b) {
    const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
  };
  const __m256 a = pairs(quarters(0), quarters(1)), b = pairs(quarters(2), quarters(3));
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD));
}
inline void store_sums(const __m256* f, int n_tok, float* y, int64_t stride) {
  float sum[8];
  _mm256_storeu_ps(sum, fold_eight(f));
  for (int t = 0; t < n_tok; ++t) y[t * stride] = sum[t];
}

// Up to N tokens; what lies beyond n_tok is the last of them once more.
template <int N>
struct Tokens {
  const QuantRow* row[N];
  Tokens(const QuantRow* x, int n_tok) {
    for (int t = 0; t < N; ++t) row[t] = x + (t < n_tok ? t : n_tok - 1);
  }
};
template <class F>
inline void with_width(int n_tok, F f) {
  if (n_tok <= 4) return f.template operator()<4>();
  if (n_tok <= 6) return f.template operator()<6>();
  f.template operator()<8>();
}

template <class T, int N>
void gemv_records(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const QuantRow* x,
                  float* y, int64_t stride) {
  const Tokens<N> tokens(x, n_tok);
  const int64_t n_chunk = n_in / kChunkCols;
  const int rest = int(n_in % kChunkCols / 32);
  Columns k;
  for (int64_t o = 0; o < n_row; ++o) {
    const std::byte* p = w + o * row_bytes;
    __m256 f[8] = {};
    int64_t c = 0;
    for (; c < n_chunk; ++c, p += chunk_bytes<T>()) {
      for (int64_t i = 0; i < chunk_bytes<T>(); i += 64)
        _mm_prefetch((const char*)(uintptr_t(p) + 1536 + uintptr_t(i)), _MM_HINT_T0);
      columns_of<T>(p, 8, k);
      add_records<T, N>(f, k, tokens.row, c);
    }
    if (rest) columns_of<T>(p, rest, k), add_records<T, N>(f, k, tokens.row, c);
    store_sums(f, n_tok, y + o, stride);
  }
}

template <class T>
void gemv(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const QuantRow* x, float* y,
          int64_t stride) {
  if (n_tok == 1) gemv_tokens<T, 1>(w, row_bytes, n_row, n_in, x, y, stride);
  if (n_tok == 2) gemv_tokens<T, 2>(w, row_bytes, n_row, n_in, x, y, stride);
  if (n_tok > 2)
    with_width(n_tok, [&]<int N>() { gemv_records<T, N>(w, row_bytes, n_row, n_in, n_tok, x, y, stride); });
}

// ---- many tokens: rows of a tile lie one after the other, chunk c of row r at index r * n_chunk + c, each as Columns

template <class T>
void pack(const std::byte* w, int64_t row_bytes, int n_row, int64_t n_in, const PackedTile* to) {
  Columns k;
  for (int r = 0; r < kTileRows; ++r) {
    const std::byte* p = w + (r < n_row ? r : n_row - 1) * row_bytes;
    for (int c = 0; c < to->n_chunk; ++c, p += chunk_bytes<T>()) {
      // The next tile. Only a hint: an address beyond the file is harmless.
      for (int64_t i = 0; i < chunk_bytes<T>(); i += 64)
        _mm_prefetch((const char*)(uintptr_t(p) + uintptr_t(kTileRows * row_bytes + i)), _MM_HINT_T1);
      const int64_t left = n_in / 32 - 8 * c, at = int64_t(r) * to->n_chunk + c;
      if (left >= 8)
        columns_of<T>(p, 8, k);
      else
        columns_of<T>(p, int(left), k);
      for (int i = 0; i < 8; ++i) store32(to->code + at * 256 + 32 * i, k.v[i]);
      _mm256_storeu_ps(to->w + at * 8, k.w);
      if constexpr (T::kMin || has_halves<T>()) _mm256_storeu_ps(to->m + at * 8, k.m);
      if constexpr (T::kSub) store32(to->sub + at * 16, k.sub[0]), store32(to->sub + at * 16 + 8, k.sub[1]);
    }
  }
}

template <class T, int N>
void gemm_records(const PackedTile* w, int n_tok, const QuantRow* x, float* y, int64_t stride) {
  const Tokens<N> tokens(x, n_tok);
  Columns k;
  for (int r = 0; r < kTileRows; ++r) {
    __m256 f[8] = {};
    for (int c = 0; c < w->n_chunk; ++c) {
      const int64_t at = int64_t(r) * w->n_chunk + c;
      for (int i = 0; i < 8; ++i) k.v[i] = load32(w->code + at * 256 + 32 * i);
      k.w = _mm256_loadu_ps(w->w + at * 8);
      if constexpr (T::kMin || has_halves<T>()) k.m = _mm256_loadu_ps(w->m + at * 8);
      if constexpr (T::kSub) k.sub[0] = load32(w->sub + at * 16), k.sub[1] = load32(w->sub + at * 16 + 8);
      add_records<T, N>(f, k, tokens.row, c);
    }
    store_sums(f, n_tok, y + r, stride);
  }
}

template <class T>
void gemm(const PackedTile* w, int n_tok, const QuantRow* x, const std::byte*, float* y, int64_t stride) {
  for (int t = 0; t < n_tok; t += 8) {
    const int n = n_tok - t < 8 ? n_tok - t : 8;
    with_width(n, [&]<int N>() { gemm_records<T, N>(w, n, x + t, y + t * stride, stride); });
  }
}

#include "backend/cpu/simd_table.h"

}  // namespace

constinit const SimdKernels kAvx2Kernels = make_table("avx2", 8, interleave, true);

}  // namespace facet
#endif
