// Kernels without any instruction beyond the compiler's baseline: what the others are compared with.
#include "backend/cpu/simd.h"
#include "base/half.h"
#include "formats/blocks.h"
#include "formats/codebooks.h"

namespace facet {
namespace {

// Sixteen lanes, as with AVX2 and AVX-512, so that sums go as theirs do. The compiler cuts them to what there is; the
// functions that pass them are inside this file.
constexpr int W = 16, kDotRows = 1, kDotTok = 4, kScoreRows = 4, kScoreQueries = 1, kWide = 2, kWideQueries = 1,
              kTileQueries = 2, kTilePanels = 1, kManyRows = 2, kManyTok = 2;
constexpr int kFoldedRows = 0;
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

// a * b + c rounded once. The product of two floats is exact as a double; of the sum with c, the last bit is set if
// anything is lost (rounding to odd), and then rounding to float is right.
inline float fma(float a, float b, float c) {
#if defined(__FP_FAST_FMAF)
  return __builtin_fmaf(a, b, c);
#else
  const double p = double(a) * double(b), d = double(c);
  double s = p + d;
  const double q = s - p, lost = (p - (s - q)) + (d - q);
  if (lost < 0 || lost > 0) {  // not if it is NaN: the sum is none or infinite
    int64_t bits;
    __builtin_memcpy(&bits, &s, sizeof bits);
    if (!(bits & 1)) bits += (lost > 0) == (s > 0) ? 1 : -1;
    __builtin_memcpy(&s, &bits, sizeof s);
  }
  return float(s);
#endif
}
template <class V>
inline V fma(V a, V b, V c) {
  constexpr int kLanes = sizeof(V) / sizeof(float);
  float x[kLanes], y[kLanes], z[kLanes];
  __builtin_memcpy(x, &a, sizeof a), __builtin_memcpy(y, &b, sizeof b), __builtin_memcpy(z, &c, sizeof c);
  for (int i = 0; i < kLanes; ++i) z[i] = fma(x[i], y[i], z[i]);
  __builtin_memcpy(&c, z, sizeof c);
  return c;
}
inline float half_at(const std::byte* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return f16_to_f32(h);
}
typedef vf vpart;
constexpr int kParts = 1;
inline vf& part_of(vf& x, int) { return x; }
inline vf load_part_at(const float* p) { return load(p); }
inline void store_part_at(float* p, vf v) { store(p, v); }
inline vf load_f16(const std::byte* p) {
  float t[W];
  for (int i = 0; i < W; ++i) t[i] = half_at(p + 2 * i);
  return load(t);
}
// As registers of 128 bits are folded: (0 + 2) + (1 + 3) of each, then (A + B) + (C + D).
inline vf fold_rows(const vf* a) {
  float s[W];
  for (int r = 0; r < W; ++r) {
    float t[W], q[4];
    store(t, a[r]);
    for (int i = 0; i < 4; ++i) q[i] = (t[4 * i] + t[4 * i + 2]) + (t[4 * i + 1] + t[4 * i + 3]);
    s[r] = (q[0] + q[1]) + (q[2] + q[3]);
  }
  return load(s);
}
inline vf larger(vf a, vf b) { return a > b ? a : b; }
inline void fold_many(const vf*, float*) {}

#include "backend/cpu/simd_float.h"
// Uses the loops above.
#include "backend/cpu/simd_encoder.h"

// Groups of 32 to signed bytes, nearest even. A NaN is larger than anything as bits, so it becomes the scale.
void quantize(const float* x, int64_t n, const QuantRow* to) {
  const int64_t padded = (n + kChunkCols - 1) / kChunkCols * kChunkCols;
  for (int64_t g = 0; g < padded / 32; ++g) {
    float v[32] = {};
    int8_t* q = to->q + 32 * g;
    if (32 * g + 32 <= n) __builtin_memcpy(v, x + 32 * g, sizeof v);
    int32_t top = 0;
    for (int i = 0; i < 32; ++i) {
      int32_t b;
      __builtin_memcpy(&b, v + i, 4);
      b &= 0x7FFFFFFF;
      top = b > top ? b : top;
    }
    float amax;
    __builtin_memcpy(&amax, &top, 4);
    const bool tiny = amax < 1e-30f, finite = amax < 3e38f;
    const float d = tiny ? 0.f : amax / 127.f, inverse = !tiny && finite ? 127.f / amax : 0.f;
    int32_t c[32];
    for (int i = 0; i < 32; ++i) {
      const float r = v[i] * inverse + 12582912.f;
      int32_t b;
      __builtin_memcpy(&b, &r, 4);
      c[i] = finite ? b - 0x4B400000 : 0;
    }
    int32_t low = 0, high = 0;
    for (int i = 0; i < 16; ++i) low += c[i], high += c[i + 16];
    for (int i = 0; i < 32; ++i) q[i] = int8_t(c[i]);
    to->d[g] = d;
    to->ds[g] = d * float(low + high);
    to->sum16[2 * g] = int16_t(low), to->sum16[2 * g + 1] = int16_t(high);
  }
}

constexpr void (*to_f16)(const float*, std::byte*, int64_t) = nullptr;

// Up to eight groups of 32 columns of a row.
struct Chunk {
  int8_t code[kChunkCols];
  float w[8], m[8];
  int sub[16];
  void fill_w(float v) {
    for (float& x : w) x = v;
  }
};
template <class Block>
Block block_at(const std::byte* p) {
  Block b;
  __builtin_memcpy(&b, p, sizeof b);
  return b;
}
inline int nibble(const uint8_t* qs, int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
inline int fifth(const uint8_t* qh, int i) { return ((qh[i / 8] >> (i % 8)) & 1) << 4; }

// A type of 32-column blocks: code(b, i) of column i, minimum(b).
template <class Block, bool kHasMin, class Code>
void read_blocks(const std::byte* p, int n, Chunk& c, Code code) {
  for (int g = 0; g < n; ++g) {
    const Block b = block_at<Block>(p + g * int(sizeof(Block)));
    c.w[g] = f16_to_f32(b.d);
    if constexpr (kHasMin) c.m[g] = f16_to_f32(b.m);
    for (int i = 0; i < 32; ++i) c.code[32 * g + i] = int8_t(code(b, i));
  }
}
struct Small {
  static constexpr bool kMin = false, kSub = false, kHalves = false;
};
struct SmallMin {
  static constexpr bool kMin = true, kSub = false, kHalves = false;
};
struct Sixteens {
  static constexpr bool kMin = false, kSub = true, kHalves = false;
};
struct Halves {  // two scales a group: w of the first sixteen columns, m of the others
  static constexpr bool kMin = false, kSub = false, kHalves = true;
};
struct Q8_0 : Small {
  static constexpr int64_t kBytes = 8 * sizeof(BlockQ8_0);
  static void read(const std::byte* p, int n, Chunk& c) {
    read_blocks<BlockQ8_0, kMin>(p, n, c, [](const auto& b, int i) { return b.qs[i]; });
  }
};
struct Q4_0 : Small {
  static constexpr int64_t kBytes = 8 * sizeof(BlockQ4_0);
  static void read(const std::byte* p, int n, Chunk& c) {
    read_blocks<BlockQ4_0, kMin>(p, n, c, [](const auto& b, int i) { return nibble(b.qs, i) - 8; });
  }
};
struct Q4_1 : SmallMin {
  static constexpr int64_t kBytes = 8 * sizeof(BlockQ4_1);
  static void read(const std::byte* p, int n, Chunk& c) {
    read_blocks<BlockQ4_1, kMin>(p, n, c, [](const auto& b, int i) { return nibble(b.qs, i); });
  }
};
struct Q5_0 : Small {
  static constexpr int64_t kBytes = 8 * sizeof(BlockQ5_0);
  static void read(const std::byte* p, int n, Chunk& c) {
    read_blocks<BlockQ5_0, kMin>(p, n, c, [](const auto& b, int i) { return (nibble(b.qs, i) | fifth(b.qh, i)) - 16; });
  }
};
struct Q5_1 : SmallMin {
  static constexpr int64_t kBytes = 8 * sizeof(BlockQ5_1);
  static void read(const std::byte* p, int n, Chunk& c) {
    read_blocks<BlockQ5_1, kMin>(p, n, c, [](const auto& b, int i) { return nibble(b.qs, i) | fifth(b.qh, i); });
  }
};
struct IQ4_NL : Small {
  static constexpr int64_t kBytes = 8 * sizeof(BlockIQ4_NL);
  static void read(const std::byte* p, int n, Chunk& c) {
    read_blocks<BlockIQ4_NL, kMin>(p, n, c, [](const auto& b, int i) { return kIQ4Values[nibble(b.qs, i)]; });
  }
};
struct IQ4_XS : Small {
  static constexpr int64_t kBytes = sizeof(BlockIQ4_XS);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ4_XS>(p);
    for (int g = 0; g < 8; ++g) {
      const int scale = ((b.scales_l[g / 2] >> (4 * (g % 2))) & 15) | (((b.scales_h >> (2 * g)) & 3) << 4);
      c.w[g] = f16_to_f32(b.d) * float(scale - 32);
      for (int i = 0; i < 32; ++i) c.code[32 * g + i] = kIQ4Values[nibble(b.qs + 16 * g, i)];
    }
  }
};
template <class Block>
void k4_scales(const Block& b, Chunk& c) {
  for (int g = 0; g < 8; ++g) {
    uint8_t scale, min;
    k4_scale_min(g, b.scales, scale, min);
    c.w[g] = f16_to_f32(b.d) * float(scale);
    c.m[g] = -f16_to_f32(b.dmin) * float(min);
  }
}
struct Q4_K : SmallMin {
  static constexpr int64_t kBytes = sizeof(BlockQ4_K);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockQ4_K>(p);
    k4_scales(b, c);
    for (int i = 0; i < 256; ++i) c.code[i] = int8_t((b.qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 15);
  }
};
struct Q5_K : SmallMin {
  static constexpr int64_t kBytes = sizeof(BlockQ5_K);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockQ5_K>(p);
    k4_scales(b, c);
    for (int i = 0; i < 256; ++i)
      c.code[i] =
          int8_t(((b.qs[i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4)) & 15) | (((b.qh[i % 32] >> (i / 32)) & 1) << 4));
  }
};
struct Q6_K : Sixteens {
  static constexpr int64_t kBytes = sizeof(BlockQ6_K);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockQ6_K>(p);
    for (int i = 0; i < 256; ++i) {
      const int half = i / 128, quarter = i / 32 % 4, l = i % 32;
      const int low = b.ql[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)),
                high = b.qh[32 * half + l] >> (2 * quarter);
      c.code[i] = int8_t(((low & 15) | ((high & 3) << 4)) - 32);
    }
    for (int g = 0; g < 8; ++g) c.w[g] = f16_to_f32(b.d);
    for (int i = 0; i < 16; ++i) c.sub[i] = b.scales[i];
  }
};
struct Q3_K : Sixteens {
  static constexpr int64_t kBytes = sizeof(BlockQ3_K);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockQ3_K>(p);
    for (int i = 0; i < 256; ++i)
      c.code[i] = int8_t(((b.qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2)) & 3) -
                         (((b.hmask[i % 32] >> (i / 32)) & 1) ? 0 : 4));
    for (int g = 0; g < 8; ++g) c.w[g] = f16_to_f32(b.d);
    for (int i = 0; i < 16; ++i) c.sub[i] = k3_scale(i, b.scales);
  }
};

inline int nibble_of(const uint8_t* p, int i) { return p[i / 2] >> (4 * (i % 2)) & 15; }
inline uint32_t u32_of(const uint8_t* p) {
  return p[0] | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24;
}
// The magnitudes of a book's entry, negative where a bit of signs is set.
template <class Word>
void signed_codes(Word entry, unsigned signs, int8_t* code) {
  for (int i = 0; i < int(sizeof entry); ++i) {
    const int v = int(entry >> (8 * i) & 255);
    code[i] = int8_t(signs >> i & 1 ? -v : v);
  }
}
void shifted_codes(uint64_t entry, int shift, int8_t* code) {
  for (int i = 0; i < 8; ++i) code[i] = int8_t(int8_t(entry >> (8 * i)) + shift);
}
struct IQ2_XXS : Small {
  static constexpr int64_t kBytes = sizeof(BlockIQ2_XXS);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ2_XXS>(p);
    for (int g = 0; g < 8; ++g) {
      const uint8_t* q = b.qs + 8 * g;
      const uint32_t signs = u32_of(q + 4);
      c.w[g] = f16_to_f32(b.d) * 0.125f * float(2 * (signs >> 28) + 1);
      for (int k = 0; k < 4; ++k)
        signed_codes(kIq2XxsGrid.entry[q[k]], kSignByte.entry[signs >> (7 * k) & 127], c.code + 32 * g + 8 * k);
    }
  }
};
struct IQ2_XS : Sixteens {
  static constexpr int64_t kBytes = sizeof(BlockIQ2_XS);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ2_XS>(p);
    c.fill_w(f16_to_f32(b.d) * 0.125f);
    for (int k = 0; k < 16; ++k) c.sub[k] = 2 * nibble_of(b.scales, k) + 1;
    for (int k = 0; k < 32; ++k) {
      const int q = b.qs[2 * k] | b.qs[2 * k + 1] << 8;
      signed_codes(kIq2XsGrid.entry[q & 511], kSignByte.entry[q >> 9], c.code + 8 * k);
    }
  }
};
struct IQ2_S : Sixteens {
  static constexpr int64_t kBytes = sizeof(BlockIQ2_S);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ2_S>(p);
    c.fill_w(f16_to_f32(b.d) * 0.125f);
    for (int k = 0; k < 16; ++k) c.sub[k] = 2 * nibble_of(b.scales, k) + 1;
    for (int k = 0; k < 32; ++k)
      signed_codes(kIq2SGrid.entry[b.qs[k] | (b.qh[k / 4] >> (2 * (k % 4)) & 3) << 8], b.signs[k], c.code + 8 * k);
  }
};
struct IQ3_XXS : Small {
  static constexpr int64_t kBytes = sizeof(BlockIQ3_XXS);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ3_XXS>(p);
    for (int g = 0; g < 8; ++g) {
      const uint32_t signs = u32_of(b.signs + 4 * g);
      c.w[g] = f16_to_f32(b.d) * 0.25f * float(2 * (signs >> 28) + 1);
      for (int k = 0; k < 8; ++k)
        signed_codes(kIq3XxsGrid.entry[b.qs[8 * g + k]],
                     unsigned(kSignByte.entry[signs >> (7 * (k / 2)) & 127]) >> (4 * (k % 2)), c.code + 32 * g + 4 * k);
    }
  }
};
struct IQ3_S : Small {
  static constexpr int64_t kBytes = sizeof(BlockIQ3_S);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ3_S>(p);
    for (int g = 0; g < 8; ++g) c.w[g] = f16_to_f32(b.d) * float(2 * nibble_of(b.scales, g) + 1);
    for (int k = 0; k < 64; ++k)
      signed_codes(kIq3SGrid.entry[b.qs[k] | (b.qh[k / 8] >> (k % 8) & 1) << 8], unsigned(nibble_of(b.signs, k)),
                   c.code + 4 * k);
  }
};
struct IQ1_S : Small {
  static constexpr int64_t kBytes = sizeof(BlockIQ1_S);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ1_S>(p);
    for (int g = 0; g < 8; ++g) {
      const int high = b.qh[2 * g] | b.qh[2 * g + 1] << 8;
      c.w[g] = f16_to_f32(b.d) * 0.125f * float(2 * (high >> 12 & 7) + 1);
      for (int k = 0; k < 4; ++k)
        shifted_codes(kIq1Grid.entry[b.qs[4 * g + k] | (high >> (3 * k) & 7) << 8], high >> 15 ? -1 : 1,
                      c.code + 32 * g + 8 * k);
    }
  }
};
struct IQ1_M : Sixteens {
  static constexpr int64_t kBytes = sizeof(BlockIQ1_M);
  static void read(const std::byte* p, int, Chunk& c) {
    const auto b = block_at<BlockIQ1_M>(p);
    c.fill_w(f16_to_f32(iq1m_step(b.scales)) * 0.125f);
    for (int k = 0; k < 16; ++k) c.sub[k] = 2 * iq1m_scale(k, b.scales) + 1;
    for (int k = 0; k < 32; ++k) {
      const int high = nibble_of(b.qh, k);
      shifted_codes(kIq1Grid.entry[b.qs[k] | (high & 7) << 8], high & 8 ? -1 : 1, c.code + 8 * k);
    }
  }
};
struct MXFP4 : Small {
  static constexpr int64_t kBytes = 8 * sizeof(BlockMXFP4);
  static void read(const std::byte* p, int n, Chunk& c) {
    for (int g = 0; g < n; ++g) {
      const auto b = block_at<BlockMXFP4>(p + g * int(sizeof(BlockMXFP4)));
      c.w[g] = half_of_e8m0(b.e);
      for (int i = 0; i < 32; ++i) c.code[32 * g + i] = kFp4Values[nibble(b.qs, i)];
    }
  }
};
struct NVFP4 : Halves {
  static constexpr int64_t kBytes = 4 * sizeof(BlockNVFP4);
  static void read(const std::byte* p, int n, Chunk& c) {
    for (int g = 0; g < n; ++g) {  // of 32: two of the four sixteens of a block
      const auto b = block_at<BlockNVFP4>(p + g / 2 * int(sizeof(BlockNVFP4)));
      const int first = g % 2 * 2;
      c.w[g] = half_of_ue4m3(b.scales[first]), c.m[g] = half_of_ue4m3(b.scales[first + 1]);
      for (int half = 0; half < 2; ++half)
        for (int i = 0; i < 8; ++i) {
          const int q = b.qs[8 * (first + half) + i], at = 32 * g + 16 * half + i;
          c.code[at] = kFp4Values[q & 15], c.code[at + 8] = kFp4Values[q >> 4];
        }
    }
  }
};

template <class T>
void read_chunk(const std::byte* row, int c, int64_t n_in, Chunk& k) {
  k = {};
  const int left = int(n_in / 32) - 8 * c;
  T::read(row + c * T::kBytes, left < 8 ? left : 8, k);
}
float fold_lanes(const float* l) { return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7])); }

// The products of a group, whose halves sum up to part, on a lane's sum.
template <class T>
float add_group(float lane, const int* part, const int* sub, float w, float m, float d, float ds) {
  if (T::kHalves) {
    lane += float(part[0]) * (w * d);
    return lane + float(part[1]) * (m * d);
  }
  const int dot = T::kSub ? part[0] * sub[0] + part[1] * sub[1] : part[0] + part[1];
  lane += float(dot) * (w * d);
  return T::kMin ? lane + m * ds : lane;
}

template <class T>
void gemv(const std::byte* w, int64_t row_bytes, int64_t n_row, int64_t n_in, int n_tok, const QuantRow* x, float* y,
          int64_t stride) {
  for (int64_t o = 0; o < n_row; ++o) {
    float lane[kMaxGemvTok][8] = {};
    for (int c = 0; c < int((n_in + 255) / 256); ++c) {
      Chunk k;
      read_chunk<T>(w + o * row_bytes, c, n_in, k);
      for (int t = 0; t < n_tok; ++t)
        for (int j = 0; j < 8; ++j) {
          const int g = 8 * c + j;
          int part[2] = {};
          for (int i = 0; i < 32; ++i) part[i / 16] += k.code[32 * j + i] * x[t].q[32 * g + i];
          const int sub[2] = {k.sub[2 * j], k.sub[2 * j + 1]};
          lane[t][j] = add_group<T>(lane[t][j], part, sub, k.w[j], k.m[j], x[t].d[g], x[t].ds[g]);
        }
    }
    for (int t = 0; t < n_tok; ++t) y[t * stride + o] = fold_lanes(lane[t]);
  }
}

template <class T>
void pack(const std::byte* w, int64_t row_bytes, int n_row, int64_t n_in, const PackedTile* to) {
  for (int c = 0; c < to->n_chunk; ++c)
    for (int r = 0; r < kTileRows; ++r) {
      Chunk k;
      read_chunk<T>(w + (r < n_row ? r : n_row - 1) * row_bytes, c, n_in, k);
      for (int j = 0; j < 8; ++j) {
        const int64_t at = int64_t(j) * to->n_chunk + c;
        for (int i = 0; i < 32; ++i) to->code[at * 512 + i / 4 * 64 + r * 4 + i % 4] = uint8_t(k.code[32 * j + i]);
        to->w[at * 16 + r] = k.w[j];
        if (T::kMin || T::kHalves) to->m[at * 16 + r] = k.m[j];
        if (T::kSub) to->sub[at * 32 + r] = k.sub[2 * j], to->sub[at * 32 + 16 + r] = k.sub[2 * j + 1];
      }
    }
}

template <class T>
void gemm(const PackedTile* w, int n_tok, const QuantRow* x, const std::byte*, float* y, int64_t stride) {
  for (int t = 0; t < n_tok; ++t)
    for (int r = 0; r < kTileRows; ++r) {
      float lane[8] = {};
      for (int j = 0; j < 8; ++j)
        for (int c = 0; c < w->n_chunk; ++c) {
          const int64_t at = int64_t(j) * w->n_chunk + c;
          const int g = 8 * c + j;
          int part[2] = {};
          for (int i = 0; i < 32; ++i)
            part[i / 16] += int8_t(w->code[at * 512 + i / 4 * 64 + r * 4 + i % 4]) * x[t].q[32 * g + i];
          const int sub[2] = {T::kSub ? w->sub[at * 32 + r] : 0, T::kSub ? w->sub[at * 32 + 16 + r] : 0};
          lane[j] = add_group<T>(lane[j], part, sub, w->w[at * 16 + r], T::kMin || T::kHalves ? w->m[at * 16 + r] : 0,
                                 x[t].d[g], x[t].ds[g]);
        }
      y[t * stride + r] = fold_lanes(lane);
    }
}

#include "backend/cpu/simd_table.h"

}  // namespace

constinit const SimdKernels kScalarKernels = make_table("scalar", 4);

}  // namespace facet
