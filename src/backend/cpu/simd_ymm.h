// Included by simd_avx2.cpp, simd_avx512vnni.cpp and simd_amx.cpp only, inside their anonymous namespaces: unpacking of
// quantised rows with 256-bit vectors. The including file defines
//   kUnsigned           codes are kept as unsigned bytes, code + kOffset; otherwise as signed bytes
//
// Types below describe a chunk of up to eight groups of 32 columns. kOffset is what the unsigned codes are too large
// by, kMaxCode the largest of them.

struct Scales {
  __m256 w, m;  // of the eight groups; zero beyond the last
  __m128i sub;  // sixteen signed sub-scales
};

__m128i load16(const std::byte* p) { return _mm_loadu_si128((const __m128i*)p); }
__m256i load32(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
__m256i nibbles(__m128i b) {  // low nibbles, then high ones
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(b, 4), b), _mm256_set1_epi8(15));
}
template <int kOffset>
__m256i biased(__m256i raw) {
  return kUnsigned ? raw : _mm256_sub_epi8(raw, _mm256_set1_epi8(kOffset));
}

uint16_t u16_at(const std::byte* p) {
  uint16_t v;
  __builtin_memcpy(&v, p, 2);
  return v;
}
float half_at(const std::byte* p) { return _cvtsh_ss(u16_at(p)); }
// Halves at p, p + stride, ...
__m256 halves(const std::byte* p, int stride, int n) {
  if (n == 8) {
    auto at = [&](int i) { return short(u16_at(p + i * stride)); };
    return _mm256_cvtph_ps(_mm_set_epi16(at(7), at(6), at(5), at(4), at(3), at(2), at(1), at(0)));
  }
  uint16_t h[8] = {};
  for (int i = 0; i < n; ++i) h[i] = u16_at(p + i * stride);
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)h));
}
__m256 floats_of(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)); }

// Bit i of the word becomes bit 4 of byte i.
__m256i fifth_bits(const std::byte* p) {
  int32_t word;
  __builtin_memcpy(&word, p, 4);
  const __m256i byte = _mm256_shuffle_epi8(
      _mm256_set1_epi32(word), _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
  const __m256i other_bits = _mm256_set1_epi64x(0x7fbfdfeff7fbfdfe);
  return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_or_si256(byte, other_bits), _mm256_set1_epi8(-1)),
                          _mm256_set1_epi8(16));
}

__m256i iq4_codes(__m128i b) {
  __m128i table = _mm_setr_epi8(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
  if (kUnsigned) table = _mm_xor_si128(table, _mm_set1_epi8(-128));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), nibbles(b));
}

// Eight six-bit scales (low half of the result) and minima (high half) of a Q4_K or Q5_K block.
__m128i k4_scales(const std::byte* p) {
  uint32_t a, b, c;
  __builtin_memcpy(&a, p, 4), __builtin_memcpy(&b, p + 4, 4), __builtin_memcpy(&c, p + 8, 4);
  const uint32_t scale_high = (c & 0x0f0f0f0f) | ((a >> 6 & 0x03030303) << 4),
                 min_high = (c >> 4 & 0x0f0f0f0f) | ((b >> 6 & 0x03030303) << 4);
  return _mm_set_epi32(int(min_high), int(b & 0x3f3f3f3f), int(scale_high), int(a & 0x3f3f3f3f));
}

struct Q8_0 {
  static constexpr int kGroupBytes = 34, kOffset = 128, kMaxCode = 255;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g) {
      v[g] = load32(p + 34 * g + 2);
      if (kUnsigned) v[g] = _mm256_xor_si256(v[g], _mm256_set1_epi8(-128));
    }
  }
  static void scales(const std::byte* p, int n, Scales& s) { s.w = halves(p, 34, n); }
};
struct Q4_0 {
  static constexpr int kGroupBytes = 18, kOffset = 8, kMaxCode = 15;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g) v[g] = biased<8>(nibbles(load16(p + 18 * g + 2)));
  }
  static void scales(const std::byte* p, int n, Scales& s) { s.w = halves(p, 18, n); }
};
struct Q4_1 {
  static constexpr int kGroupBytes = 20, kOffset = 0, kMaxCode = 15;
  static constexpr bool kMin = true, kSub = false;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g) v[g] = nibbles(load16(p + 20 * g + 4));
  }
  static void scales(const std::byte* p, int n, Scales& s) { s.w = halves(p, 20, n), s.m = halves(p + 2, 20, n); }
};
struct Q5_0 {
  static constexpr int kGroupBytes = 22, kOffset = 16, kMaxCode = 31;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g)
      v[g] = biased<16>(_mm256_or_si256(nibbles(load16(p + 22 * g + 6)), fifth_bits(p + 22 * g + 2)));
  }
  static void scales(const std::byte* p, int n, Scales& s) { s.w = halves(p, 22, n); }
};
struct Q5_1 {
  static constexpr int kGroupBytes = 24, kOffset = 0, kMaxCode = 31;
  static constexpr bool kMin = true, kSub = false;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g) v[g] = _mm256_or_si256(nibbles(load16(p + 24 * g + 8)), fifth_bits(p + 24 * g + 4));
  }
  static void scales(const std::byte* p, int n, Scales& s) { s.w = halves(p, 24, n), s.m = halves(p + 2, 24, n); }
};
struct IQ4_NL {
  static constexpr int kGroupBytes = 18, kOffset = 128, kMaxCode = 255;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g) v[g] = iq4_codes(load16(p + 18 * g + 2));
  }
  static void scales(const std::byte* p, int n, Scales& s) { s.w = halves(p, 18, n); }
};
// Types of 256-column blocks: a chunk is a block, kGroupBytes an eighth of it only in name.
struct IQ4_XS {
  static constexpr int kBlockBytes = 136, kOffset = 128, kMaxCode = 255;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) v[g] = iq4_codes(load16(p + 8 + 16 * g));
  }
  static void scales(const std::byte* p, int, Scales& s) {
    uint32_t low;
    __builtin_memcpy(&low, p + 4, 4);
    const uint32_t high = u16_at(p + 2);
    const __m256i shift4 = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28),
                  shift2 = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
    const __m256i l = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(int(low)), shift4), _mm256_set1_epi32(15));
    const __m256i h = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(int(high)), shift2), _mm256_set1_epi32(3));
    const __m256i scale = _mm256_sub_epi32(_mm256_or_si256(l, _mm256_slli_epi32(h, 4)), _mm256_set1_epi32(32));
    s.w = _mm256_mul_ps(_mm256_set1_ps(half_at(p)), _mm256_cvtepi32_ps(scale));
  }
};
struct Q4_K {
  static constexpr int kBlockBytes = 144, kOffset = 0, kMaxCode = 15;
  static constexpr bool kMin = true, kSub = false;
  static void codes(const std::byte* p, int, __m256i* v) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int k = 0; k < 4; ++k) {
      const __m256i b = load32(p + 16 + 32 * k);
      v[2 * k] = _mm256_and_si256(b, low), v[2 * k + 1] = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    const __m128i k = k4_scales(p + 4);
    s.w = _mm256_mul_ps(_mm256_set1_ps(half_at(p)), floats_of(k));
    s.m = _mm256_mul_ps(_mm256_set1_ps(-half_at(p + 2)), floats_of(_mm_srli_si128(k, 8)));
  }
};
struct Q5_K {
  static constexpr int kBlockBytes = 176, kOffset = 0, kMaxCode = 31;
  static constexpr bool kMin = true, kSub = false;
  static void codes(const std::byte* p, int, __m256i* v) {
    const __m256i low = _mm256_set1_epi8(15), fifth = _mm256_set1_epi8(16), h = load32(p + 16);
    for (int k = 0; k < 4; ++k) {
      const __m256i b = load32(p + 48 + 32 * k);
      v[2 * k] = _mm256_and_si256(b, low), v[2 * k + 1] = _mm256_and_si256(_mm256_srli_epi16(b, 4), low);
    }
    for (int g = 0; g < 8; ++g)
      v[g] = _mm256_or_si256(
          v[g], _mm256_and_si256(g < 4 ? _mm256_slli_epi16(h, 4 - g) : _mm256_srli_epi16(h, g - 4), fifth));
  }
  static void scales(const std::byte* p, int n, Scales& s) { Q4_K::scales(p, n, s); }
};
struct Q6_K {
  static constexpr int kBlockBytes = 210, kOffset = 32, kMaxCode = 63;
  static constexpr bool kMin = false, kSub = true;
  static void codes(const std::byte* p, int, __m256i* v) {
    const __m256i low = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(48);
    for (int half = 0; half < 2; ++half) {
      const __m256i a = load32(p + 64 * half), b = load32(p + 64 * half + 32), h = load32(p + 128 + 32 * half);
      __m256i* o = v + 4 * half;
      o[0] = biased<32>(_mm256_or_si256(_mm256_and_si256(a, low), _mm256_and_si256(_mm256_slli_epi16(h, 4), pair)));
      o[1] = biased<32>(_mm256_or_si256(_mm256_and_si256(b, low), _mm256_and_si256(_mm256_slli_epi16(h, 2), pair)));
      o[2] = biased<32>(_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 4), low), _mm256_and_si256(h, pair)));
      o[3] = biased<32>(_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 4), low),
                                        _mm256_and_si256(_mm256_srli_epi16(h, 2), pair)));
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    s.w = _mm256_set1_ps(half_at(p + 208));
    s.sub = load16(p + 192);
  }
};
struct Q3_K {
  static constexpr int kBlockBytes = 110, kOffset = 4, kMaxCode = 7;
  static constexpr bool kMin = false, kSub = true;
  static void codes(const std::byte* p, int, __m256i* v) {
    const __m256i two = _mm256_set1_epi8(3), third = _mm256_set1_epi8(4), h = load32(p);
    for (int g = 0; g < 8; ++g) {
      const __m256i q = load32(p + 32 + 32 * (g / 4));
      const __m256i bit = _mm256_and_si256(g < 2 ? _mm256_slli_epi16(h, 2 - g) : _mm256_srli_epi16(h, g - 2), third);
      v[g] = biased<4>(_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(q, 2 * (g % 4)), two), bit));
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    const uint8_t* b = (const uint8_t*)p + 96;
    int8_t k[16];
    for (int i = 0; i < 16; ++i)
      k[i] = int8_t(((i < 8 ? b[i] & 15 : b[i - 8] >> 4) | ((b[8 + (i & 3)] >> (2 * (i >> 2))) & 3) << 4) - 32);
    s.w = _mm256_set1_ps(half_at(p + 108));
    s.sub = _mm_loadu_si128((const __m128i*)k);
  }
};

template <class T>
constexpr int64_t chunk_bytes() {
  if constexpr (requires { T::kBlockBytes; })
    return T::kBlockBytes;
  else
    return 8 * T::kGroupBytes;
}
constexpr int shift_of(int offset) { return __builtin_ctz(unsigned(offset)); }

inline float fold_lanes(__m256 f) {
  const __m128 a = _mm_add_ps(_mm256_castps256_ps128(f), _mm256_extractf128_ps(f, 1));
  const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

// Eight rows of eight dwords to columns: out[j] holds dword j of each. r is scratch, and may be out.
inline __attribute__((always_inline)) void transpose8(__m256i* r, __m256i* out) {
  __m256i t[8];
  for (int i = 0; i < 8; i += 2)
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]), t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]), r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]), r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    const __m256i a = r[i], b = r[i + 4];
    out[i] = _mm256_permute2x128_si256(a, b, 0x20), out[i + 4] = _mm256_permute2x128_si256(a, b, 0x31);
  }
}
inline void transpose8(const void* from, __m256i* out) {  // of rows 32 bytes apart
  __m256i r[8];
  for (int i = 0; i < 8; ++i) r[i] = load32((const char*)from + 32 * i);
  transpose8(r, out);
}
void store32(void* p, __m256i v) { _mm256_storeu_si256((__m256i*)p, v); }

// Groups of 32 to signed bytes, nearest even. A NaN is larger than anything as bits, so it becomes the scale.
inline void quantize(const float* x, int64_t n, const QuantRow* to) {
  const int64_t padded = (n + kChunkCols - 1) / kChunkCols * kChunkCols;
  const __m256 magic = _mm256_set1_ps(12582912.f);  // 1.5 * 2^23: adding it rounds to an integer
  for (int64_t g = 0; g < padded / 32; ++g) {
    __m256 v[4] = {};
    __m256i top = _mm256_setzero_si256();
    if (32 * g + 32 <= n)
      for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 32 * g + 8 * i);
    for (const __m256& f : v)
      top = _mm256_max_epi32(top, _mm256_and_si256(_mm256_castps_si256(f), _mm256_set1_epi32(0x7FFFFFFF)));
    __m128i most = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4E));
    most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xB1));
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(most));
    const bool tiny = amax < 1e-30f, finite = amax < 3e38f;
    const float d = tiny ? 0.f : amax / 127.f, inverse = !tiny && finite ? 127.f / amax : 0.f;
    __m256i c[4];
    for (int i = 0; i < 4; ++i) {
      const __m256 r = _mm256_add_ps(_mm256_mul_ps(v[i], _mm256_set1_ps(inverse)), magic);
      c[i] = finite ? _mm256_sub_epi32(_mm256_castps_si256(r), _mm256_castps_si256(magic)) : _mm256_setzero_si256();
    }
    const __m256i low = _mm256_add_epi32(c[0], c[1]), high = _mm256_add_epi32(c[2], c[3]);
    const __m256i halves_of = _mm256_hadd_epi32(low, high);  // two of low, two of high, and so in each lane
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(halves_of), _mm256_extracti128_si256(halves_of, 1));
    sum = _mm_hadd_epi32(sum, sum);
    const __m256i words_a = _mm256_packs_epi32(c[0], c[1]), words_b = _mm256_packs_epi32(c[2], c[3]);
    store32(to->q + 32 * g, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words_a, words_b),
                                                        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    const int sum_low = _mm_cvtsi128_si32(sum), sum_high = _mm_extract_epi32(sum, 1);
    to->d[g] = d;
    to->ds[g] = d * float(sum_low + sum_high);
    to->sum16[2 * g] = int16_t(sum_low), to->sum16[2 * g + 1] = int16_t(sum_high);
  }
}
