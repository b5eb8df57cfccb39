// Included by simd_avx2.cpp, simd_avx512vnni.cpp and simd_amx.cpp only, inside their anonymous namespaces, after
// simd_ymm.h: types whose codes come from a code book or are E2M1. Entries of a book are loaded one by one, which every
// processor does at two a cycle where gathers take three cycles an entry on some; signs follow.

// v, negated in byte i where bit i is set.
inline __m256i negated(__m256i v, uint32_t bits) {
#ifdef __AVX512BW__
  return _mm256_mask_sub_epi8(v, __mmask32(bits), _mm256_setzero_si256(), v);
#else
  const __m256i byte = _mm256_shuffle_epi8(
      _mm256_set1_epi32(int(bits)), _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0));
  const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i mask = _mm256_cmpeq_epi8(_mm256_and_si256(byte, bit), bit);
  return _mm256_sub_epi8(_mm256_xor_si256(v, mask), mask);
#endif
}
template <int kOffset>
inline __m256i with_signs(__m256i magnitudes, uint32_t signs) {
  const __m256i v = negated(magnitudes, signs);
  return kUnsigned ? _mm256_add_epi8(v, _mm256_set1_epi8(kOffset)) : v;
}
uint32_t u32_at(const std::byte* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, 4);
  return v;
}
uint64_t u64_at(const std::byte* p) {
  uint64_t v;
  __builtin_memcpy(&v, p, 8);
  return v;
}
// Sign bits of 32 elements from four sevens in bits 0 to 27.
uint32_t sign_bits(uint32_t sevens) {
  const uint8_t* byte = kSignByte.entry;
  return byte[sevens & 127] | uint32_t(byte[sevens >> 7 & 127]) << 8 | uint32_t(byte[sevens >> 14 & 127]) << 16 |
         uint32_t(byte[sevens >> 21 & 127]) << 24;
}
// Indices through memory: to take them out of a vector costs more, which compilers do all the same.
template <class V>
inline void put_indices(uint32_t* to, V index) {
  __builtin_memcpy(to, &index, sizeof index);
  __asm__("" : "+m"(*(V*)to));
}
template <class Index>
inline __m256i fours_at(const uint32_t* book, const Index* i) {  // eight entries of four
  auto at = [&](int k) { return _mm256_set1_epi32(int(book[uint32_t(i[k])])); };
  const __m256i low = _mm256_blend_epi32(_mm256_blend_epi32(at(0), at(1), 2), _mm256_blend_epi32(at(2), at(3), 8), 0xC);
  const __m256i high =
      _mm256_blend_epi32(_mm256_blend_epi32(at(4), at(5), 0x20), _mm256_blend_epi32(at(6), at(7), 0x80), 0xC0);
  return _mm256_blend_epi32(low, high, 0xF0);
}
template <class Index>
inline __m256i eights_at(const uint64_t* book, const Index* i) {  // four entries of eight
  auto at = [&](int k) { return _mm256_set1_epi64x(int64_t(book[uint32_t(i[k])])); };
  return _mm256_blend_epi32(_mm256_blend_epi32(at(0), at(1), 0x0C), _mm256_blend_epi32(at(2), at(3), 0xC0), 0xF0);
}
inline __m256i eights_of(const uint64_t* book, __m128i index) {
  alignas(16) uint32_t i[4];
  put_indices(i, index);
  return eights_at(book, i);
}
inline __m256i fours_of(const uint32_t* book, __m256i index) {
  alignas(32) uint32_t i[8];
  put_indices(i, index);
  return fours_at(book, i);
}
// 1 + 2 n for the sixteen nibbles n at p.
__m128i odd_nibbles(const std::byte* p) {
  const __m128i b = _mm_loadl_epi64((const __m128i*)p);
  const __m128i n = _mm_and_si128(_mm_unpacklo_epi8(b, _mm_srli_epi16(b, 4)), _mm_set1_epi8(15));
  return _mm_add_epi8(_mm_add_epi8(n, n), _mm_set1_epi8(1));
}
__m256 floats_of_eight(__m256i dwords) { return _mm256_cvtepi32_ps(dwords); }
// d times 1 + 2 n for the eight dwords n.
__m256 odd_steps(float d, __m256i n) {
  return _mm256_mul_ps(_mm256_set1_ps(d),
                       floats_of_eight(_mm256_add_epi32(_mm256_add_epi32(n, n), _mm256_set1_epi32(1))));
}
__m256i fp4_codes(__m256i nibble) {  // offset 16
  const __m256i table = _mm256_broadcastsi128_si256(
      kUnsigned ? _mm_setr_epi8(16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4)
                : _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
  return _mm256_shuffle_epi8(table, nibble);
}

struct IQ2_XXS {
  static constexpr int kBlockBytes = 66, kOffset = 64, kMaxCode = 107;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) {
      v[g] = with_signs<kOffset>(eights_at(kIq2XxsGrid.entry, p + 2 + 8 * g), sign_bits(u32_at(p + 6 + 8 * g)));
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    const __m256i odd = _mm256_setr_epi32(1, 3, 5, 7, 1, 3, 5, 7);  // dwords of four groups' words
    const __m256i low = _mm256_permutevar8x32_epi32(load32(p + 2), odd),
                  high = _mm256_permutevar8x32_epi32(load32(p + 34), odd);
    s.w = odd_steps(half_at(p) * 0.125f, _mm256_srli_epi32(_mm256_blend_epi32(low, high, 0xF0), 28));
  }
};
struct IQ2_XS {
  static constexpr int kBlockBytes = 74, kOffset = 64, kMaxCode = 107;
  static constexpr bool kMin = false, kSub = true;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) {
      const uint64_t q = u64_at(p + 2 + 8 * g);
      const __m128i index = _mm_and_si128(_mm_cvtepu16_epi32(_mm_cvtsi64_si128((long long)q)), _mm_set1_epi32(511));
      const uint8_t* byte = kSignByte.entry;
      const uint32_t signs = byte[q >> 9 & 127] | uint32_t(byte[q >> 25 & 127]) << 8 |
                             uint32_t(byte[q >> 41 & 127]) << 16 | uint32_t(byte[q >> 57]) << 24;
      v[g] = with_signs<kOffset>(eights_of(kIq2XsGrid.entry, index), signs);
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    s.w = _mm256_set1_ps(half_at(p) * 0.125f);
    s.sub = odd_nibbles(p + 66);
  }
};
struct IQ2_S {
  static constexpr int kBlockBytes = 82, kOffset = 64, kMaxCode = 107;
  static constexpr bool kMin = false, kSub = true;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) {
      const __m128i low = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(int(u32_at(p + 2 + 4 * g))));
      const __m128i pairs = _mm_sllv_epi32(_mm_set1_epi32(int(p[66 + g])), _mm_setr_epi32(8, 6, 4, 2));
      const __m128i index = _mm_or_si128(low, _mm_and_si128(pairs, _mm_set1_epi32(0x300)));
      v[g] = with_signs<kOffset>(eights_of(kIq2SGrid.entry, index), u32_at(p + 34 + 4 * g));
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    s.w = _mm256_set1_ps(half_at(p) * 0.125f);
    s.sub = odd_nibbles(p + 74);
  }
};
struct IQ3_XXS {
  static constexpr int kBlockBytes = 98, kOffset = 64, kMaxCode = 126;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) {
      v[g] = with_signs<kOffset>(fours_at(kIq3XxsGrid.entry, p + 2 + 8 * g), sign_bits(u32_at(p + 66 + 4 * g)));
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    s.w = odd_steps(half_at(p) * 0.25f, _mm256_srli_epi32(load32(p + 66), 28));
  }
};
struct IQ3_S {
  static constexpr int kBlockBytes = 110, kOffset = 16, kMaxCode = 31;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) {
      const __m256i low = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)u64_at(p + 2 + 8 * g)));
      const __m256i ninth =
          _mm256_sllv_epi32(_mm256_set1_epi32(int(p[66 + g])), _mm256_setr_epi32(8, 7, 6, 5, 4, 3, 2, 1));
      const __m256i index = _mm256_or_si256(low, _mm256_and_si256(ninth, _mm256_set1_epi32(256)));
      v[g] = with_signs<kOffset>(fours_of(kIq3SGrid.entry, index), u32_at(p + 74 + 4 * g));
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    const __m256i nibble =
        _mm256_srlv_epi32(_mm256_set1_epi32(int(u32_at(p + 106))), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    s.w = odd_steps(half_at(p), _mm256_and_si256(nibble, _mm256_set1_epi32(15)));
  }
};
struct IQ1_S {
  static constexpr int kBlockBytes = 50, kOffset = 16, kMaxCode = 25;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) {
      const int high = u16_at(p + 34 + 2 * g);
      const __m128i low = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(int(u32_at(p + 2 + 4 * g))));
      const __m128i triples =
          _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi32(high), _mm_setr_epi32(0, 3, 6, 9)), _mm_set1_epi32(7));
      const __m256i value = eights_of(kIq1Grid.entry, _mm_or_si128(low, _mm_slli_epi32(triples, 8)));
      v[g] = _mm256_add_epi8(value, _mm256_set1_epi8(char((high >> 15 ? -1 : 1) + (kUnsigned ? kOffset : 0))));
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    const __m256i high = _mm256_cvtepu16_epi32(load16(p + 34));
    s.w = odd_steps(half_at(p) * 0.125f, _mm256_and_si256(_mm256_srli_epi32(high, 12), _mm256_set1_epi32(7)));
  }
};
struct IQ1_M {
  static constexpr int kBlockBytes = 56, kOffset = 16, kMaxCode = 25;
  static constexpr bool kMin = false, kSub = true;
  static void codes(const std::byte* p, int, __m256i* v) {
    for (int g = 0; g < 8; ++g) {
      const int high = u16_at(p + 32 + 2 * g);  // four nibbles
      const __m128i low = _mm_cvtepu8_epi32(_mm_cvtsi32_si128(int(u32_at(p + 4 * g))));
      const __m128i nibble = _mm_srlv_epi32(_mm_set1_epi32(high), _mm_setr_epi32(0, 4, 8, 12));
      const __m128i triples = _mm_and_si128(nibble, _mm_set1_epi32(7));
      const __m256i value = eights_of(kIq1Grid.entry, _mm_or_si128(low, _mm_slli_epi32(triples, 8)));
      // 1 or -1 in each of the eight bytes of an entry
      const __m256i less = _mm256_cvtepi32_epi64(_mm_srai_epi32(_mm_slli_epi32(nibble, 28), 31));
      const __m256i shift = _mm256_or_si256(less, _mm256_set1_epi8(1));
      v[g] = _mm256_add_epi8(value, kUnsigned ? _mm256_add_epi8(shift, _mm256_set1_epi8(kOffset)) : shift);
    }
  }
  static void scales(const std::byte* p, int, Scales& s) {
    const uint64_t words = u64_at(p + 48);
    const auto step =
        uint16_t((words >> 12 & 0xF) | (words >> 24 & 0xF0) | (words >> 36 & 0xF00) | (words >> 48 & 0xF000));
    s.w = _mm256_set1_ps(_cvtsh_ss(step) * 0.125f);
    int8_t k[16];
    for (int i = 0; i < 16; ++i) k[i] = int8_t(2 * (words >> (i / 4 * 16 + i % 4 * 3) & 7) + 1);
    s.sub = _mm_loadu_si128((const __m128i*)k);
  }
};
struct MXFP4 {
  static constexpr int kGroupBytes = 17, kOffset = 16, kMaxCode = 28;
  static constexpr bool kMin = false, kSub = false;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g) v[g] = fp4_codes(nibbles(load16(p + 17 * g + 1)));
  }
  static void scales(const std::byte* p, int n, Scales& s) {
    int32_t e[8];
    for (int g = 0; g < 8; ++g) e[g] = g < n ? int(p[17 * g]) : 0;
    const __m256i x = load32(e);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(x, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), x);  // below 2^-126
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), x);
    s.w = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, is_small));
  }
};
// Two scales for 32 columns: w of the first sixteen, m of the others.
struct NVFP4 {
  static constexpr int kGroupBytes = 18, kOffset = 16, kMaxCode = 28;
  static constexpr bool kMin = false, kSub = false, kHalves = true;
  static void codes(const std::byte* p, int n, __m256i* v) {
    for (int g = 0; g < n; ++g) {
      const __m128i b = load16(p + g / 2 * 36 + 4 + g % 2 * 16);  // two sixteens of eight bytes
      const __m128i low = _mm_and_si128(b, _mm_set1_epi8(15)),
                    high = _mm_and_si128(_mm_srli_epi16(b, 4), _mm_set1_epi8(15));
      v[g] = fp4_codes(_mm256_set_m128i(_mm_unpackhi_epi64(low, high), _mm_unpacklo_epi64(low, high)));
    }
  }
  static void scales(const std::byte* p, int n, Scales& s) {
    uint32_t four[4] = {};
    for (int b = 0; b < n / 2; ++b) four[b] = u32_at(p + 36 * b);
    const __m128i bytes = _mm_loadu_si128((const __m128i*)four);
    const __m128i valid =
        _mm_andnot_si128(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(127)), _mm_and_si128(bytes, _mm_set1_epi8(127)));
    const __m128i by_half =
        _mm_shuffle_epi8(valid, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    s.w = half_of_ue4m3(by_half), s.m = half_of_ue4m3(_mm_srli_si128(by_half, 8));
  }
  // As an f16 an E4M3 is 2^8 too small, subnormal or not; half of it is 2^7.
  static __m256 half_of_ue4m3(__m128i bytes) {
    return _mm256_mul_ps(_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(bytes), 7)), _mm256_set1_ps(128.f));
  }
};

template <class T>
constexpr bool has_halves() {
  return requires { T::kHalves; };
}
