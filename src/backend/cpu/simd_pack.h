// Included by simd_avx512vnni.cpp and simd_amx.cpp only, after simd_ymm.h, inside their anonymous namespaces: tiles
// with their rows in lanes, in the order that PackedTile gives.

template <class T>
void pack(const std::byte* w, int64_t row_bytes, int n_row, int64_t n_in, const PackedTile* to) {
  alignas(64) uint8_t code[8][kTileRows][32];  // a chunk of each row
  alignas(64) float wv[kTileRows][8], mv[kTileRows][8];
  alignas(64) int32_t sub[2][kTileRows][8];  // of even and odd sixteens
  for (int c = 0; c < to->n_chunk; ++c) {
    const int left = int(n_in / 32) - 8 * c, n = left < 8 ? left : 8;
    for (int r = 0; r < kTileRows; ++r) {
      const std::byte* p = w + (r < n_row ? r : n_row - 1) * row_bytes + c * chunk_bytes<T>();
      // The next tile. Only a hint: an address beyond the file is harmless.
      for (int64_t i = 0; i < chunk_bytes<T>(); i += 64)
        _mm_prefetch((const char*)(uintptr_t(p) + uintptr_t(kTileRows * row_bytes + i)), _MM_HINT_T1);
      __m256i v[8] = {};
      Scales k{};
      if (n == 8)
        T::codes(p, 8, v), T::scales(p, 8, k);
      else
        T::codes(p, n, v), T::scales(p, n, k);
      for (int g = 0; g < 8; ++g) store32(code[g][r], v[g]);
      _mm256_storeu_ps(wv[r], k.w);
      if constexpr (T::kMin || has_halves<T>()) _mm256_storeu_ps(mv[r], k.m);
      if constexpr (T::kSub) {
        const __m256i wide = _mm256_cvtepi8_epi16(k.sub);
        store32(sub[0][r], _mm256_srai_epi32(_mm256_slli_epi32(wide, 16), 16));
        store32(sub[1][r], _mm256_srai_epi32(wide, 16));
      }
    }
    for (int j = 0; j < 8; ++j) {
      const int64_t at = int64_t(j) * to->n_chunk + c;
      for (int h = 0; h < 2; ++h) {
        __m256i t[8];
        transpose8(code[j][8 * h], t);
        for (int k = 0; k < 8; ++k) store32(to->code + at * 512 + 64 * k + 32 * h, t[k]);
      }
    }
    auto by_group = [&](const void* from, auto* dst, int64_t each, int64_t off) {
      for (int h = 0; h < 2; ++h) {
        __m256i t[8];
        transpose8((const char*)from + 256 * h, t);
        for (int j = 0; j < 8; ++j) store32(dst + (int64_t(j) * to->n_chunk + c) * each + off + 8 * h, t[j]);
      }
    };
    by_group(wv, to->w, 16, 0);
    if constexpr (T::kMin || has_halves<T>()) by_group(mv, to->m, 16, 0);
    if constexpr (T::kSub) by_group(sub[0], to->sub, 32, 0), by_group(sub[1], to->sub, 32, 16);
  }
}
