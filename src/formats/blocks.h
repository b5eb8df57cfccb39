#pragma once
#include <cstddef>
#include <cstdint>

// Quantised blocks as they lie in GGUF files, little endian, no padding. d, m, dmin and norm are f16 bits.
// Drawings: one box per field, byte offsets below. Elements are numbered 0.. inside the block; "lo/hi" are
// the low and high nibble of a byte. Copy a block out with memcpy before use: files align tensors, not
// blocks.
namespace facet {

//  | d | qs: 16 bytes              |   y[j] = d (lo_j - 8), y[j+16] = d (hi_j - 8)
//  0   2                          18
struct BlockQ4_0 {
  static constexpr int kElems = 32;
  uint16_t d;
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ4_0) == 18);

//  | d | m | qs: 16 bytes          |   y[j] = d lo_j + m, y[j+16] = d hi_j + m
//  0   2   4                      20
struct BlockQ4_1 {
  static constexpr int kElems = 32;
  uint16_t d, m;
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ4_1) == 20);

//  | d | qh: 32 bits | qs: 16 bytes |  fifth bit of element j is bit j of qh (byte j/8); y = d (q - 16)
//  0   2             6             22
struct BlockQ5_0 {
  static constexpr int kElems = 32;
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_0) == 22);

//  | d | m | qh: 32 bits | qs: 16 bytes |  as Q5_0, y = d q + m
//  0   2   4             8             24
struct BlockQ5_1 {
  static constexpr int kElems = 32;
  uint16_t d, m;
  uint8_t qh[4];
  uint8_t qs[16];
};
static_assert(sizeof(BlockQ5_1) == 24);

//  | d | qs: 32 signed bytes |   y[j] = d qs_j
//  0   2                    34
struct BlockQ8_0 {
  static constexpr int kElems = 32;
  uint16_t d;
  int8_t qs[32];
};
static_assert(sizeof(BlockQ8_0) == 34);

//  | scales: 16 bytes | qs: 64 bytes | d | dmin |   scale byte: lo = scale, hi = minimum, of 16 elements
//  0                  16             80  82    84
//  qs byte 32h+l holds elements 128h+l, +32, +64, +96 in bits 0-1, 2-3, 4-5, 6-7
struct BlockQ2_K {
  static constexpr int kElems = 256;
  uint8_t scales[16];
  uint8_t qs[64];
  uint16_t d, dmin;
};
static_assert(sizeof(BlockQ2_K) == 84);

//  | hmask: 32 bytes | qs: 64 bytes | scales: 12 bytes | d |
//  0                 32             96                108 110
//  qs as in Q2_K; hmask byte l, bit 4h+j is the third bit of element 128h+32j+l (clear: subtract 4).
//  Sixteen 6-bit scales, biased by 32: low nibbles in bytes 0-7 (0-7 in lo, 8-15 in hi), high
//  pairs in bytes 8-11.
struct BlockQ3_K {
  static constexpr int kElems = 256;
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  uint16_t d;
};
static_assert(sizeof(BlockQ3_K) == 110);

//  | d | dmin | scales: 12 bytes | qs: 128 bytes |   32 elements share a scale and a minimum of 6 bits each
//  0   2      4                  16             144
//  qs byte 32k+l: lo = element 64k+l, hi = element 64k+32+l
//  scales: bytes 0-3 scale 0-3 (bits 0-5), bytes 4-7 minimum 0-3 (bits 0-5),
//          bytes 8-11 low nibbles of scale 4-7 (lo) and minimum 4-7 (hi); their top two bits are bits 6-7 of
//          bytes 0-3 (scale) and 4-7 (minimum)
struct BlockQ4_K {
  static constexpr int kElems = 256;
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ4_K) == 144);

//  | d | dmin | scales: 12 bytes | qh: 32 bytes | qs: 128 bytes |   as Q4_K; byte l of qh, bit 2k+half is the
//  0   2      4                  16             48             176  fifth bit of element 64k+32*half+l
struct BlockQ5_K {
  static constexpr int kElems = 256;
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
static_assert(sizeof(BlockQ5_K) == 176);

//  | ql: 128 bytes | qh: 64 bytes | scales: 16 signed bytes | d |   y = d scale (q - 32), a scale per 16
//  0               128            192                      208 210
//  half h: ql byte 64h+l lo/hi = elements 128h+l / +64, byte 64h+32+l = elements 128h+32+l / +64;
//  qh byte 32h+l holds bits 4-5 of elements 128h+l, +32, +64, +96
struct BlockQ6_K {
  static constexpr int kElems = 256;
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ6_K) == 210);

//  | d | qs: 16 bytes |   as Q4_0 with the codes looked up in kIQ4Values
//  0   2             18
struct BlockIQ4_NL {
  static constexpr int kElems = 32;
  uint16_t d;
  uint8_t qs[16];
};
static_assert(sizeof(BlockIQ4_NL) == 18);

//  | d | scales_h | scales_l: 4 bytes | qs: 128 bytes |   eight 6-bit scales, biased by 32: low nibbles in
//  0   2          4                   8              136  scales_l, top pairs in scales_h; 32 codes as IQ4_NL
struct BlockIQ4_XS {
  static constexpr int kElems = 256;
  uint16_t d, scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};
static_assert(sizeof(BlockIQ4_XS) == 136);

// Types with a code book (codebooks.h): a code is an index into it, for eight or four magnitudes at a time, and signs
// lie apart. Sevens: seven sign bits; the eighth makes their number even (sign_byte).

//  | d | qs: 8 x { 4 indices of 8 bits | u32: 4 sevens, scale in bits 28-31 } |   a scale for 32 elements,
//  0   2                                                                     66  y = d (1/2 + scale) / 4 * magnitude
struct BlockIQ2_XXS {
  static constexpr int kElems = 256;
  uint16_t d;
  uint8_t qs[64];
};
static_assert(sizeof(BlockIQ2_XXS) == 66);

//  | d | qs: 32 x u16: index in bits 0-8, a seven in 9-15 | scales: 16 nibbles, one for 16 elements |   as IQ2_XXS
//  0   2                                                 66                                        74
struct BlockIQ2_XS {
  static constexpr int kElems = 256;
  uint16_t d;
  uint8_t qs[64], scales[8];
};
static_assert(sizeof(BlockIQ2_XS) == 74);

//  | d | qs: low 8 bits of 32 indices | signs: 32 bytes | qh: their high pairs | scales: 16 nibbles |   as IQ2_XS
//  0   2                             34                66                     74                  82
struct BlockIQ2_S {
  static constexpr int kElems = 256;
  uint16_t d;
  uint8_t qs[32], signs[32], qh[8], scales[8];
};
static_assert(sizeof(BlockIQ2_S) == 82);

//  | d | qs: 64 indices of 8 bits | 8 x u32: 4 sevens, scale in bits 28-31 |   a scale for 32 elements, four
//  0   2                         66                                       98  magnitudes an index,
//  y = d (1/2 + scale) / 2 * magnitude
struct BlockIQ3_XXS {
  static constexpr int kElems = 256;
  uint16_t d;
  uint8_t qs[64], signs[32];
};
static_assert(sizeof(BlockIQ3_XXS) == 98);

//  | d | qs: low 8 bits of 64 indices | qh: their ninth bits | signs: 32 bytes | scales: 8 nibbles |   a scale for 32
//  0   2                             66                     74               106                110  elements,
//  y = d (1 + 2 scale) * magnitude
struct BlockIQ3_S {
  static constexpr int kElems = 256;
  uint16_t d;
  uint8_t qs[64], qh[8], signs[32], scales[4];
};
static_assert(sizeof(BlockIQ3_S) == 110);

//  | d | qs: low 8 bits of 32 indices | qh: 8 x u16: high triples in bits 0-11, scale in 12-14, shift in 15 |
//  0   2                             34                                                                     50
//  y = d (1 + 2 scale) * (value -+ 1/8): values of -1, 0, 1, the shift's bit set: less
struct BlockIQ1_S {
  static constexpr int kElems = 256;
  uint16_t d;
  uint8_t qs[32], qh[16];
};
static_assert(sizeof(BlockIQ1_S) == 50);

//  | qs: low 8 bits of 32 indices | qh: 32 nibbles: high triple, shift in bit 3 | scales: 4 x u16 |   as IQ1_S, scales
//  0                             32                                            48               56  of 3 bits for 16
//  elements; the top nibbles of the four words are d
struct BlockIQ1_M {
  static constexpr int kElems = 256;
  uint8_t qs[32], qh[16], scales[8];
};
static_assert(sizeof(BlockIQ1_M) == 56);

//  | e | qs: 16 bytes |   as IQ4_NL with kFp4Values, y = 2^(e - 128) * value
//  0   1             17
struct BlockMXFP4 {
  static constexpr int kElems = 32;
  uint8_t e;
  uint8_t qs[16];
};
static_assert(sizeof(BlockMXFP4) == 17);

//  | scales: 4 x UE4M3 | qs: 32 bytes |   a scale for 16 elements: of sixteen k, byte 8k+j of qs: lo = element j, hi =
//  0                   4             36  element 8+j, y = scale / 2 * value
struct BlockNVFP4 {
  static constexpr int kElems = 64;
  uint8_t scales[4];
  uint8_t qs[32];
};
static_assert(sizeof(BlockNVFP4) == 36);

//  | norm | low bits: 8 bytes | high bits: 4 bytes |   index of element j = bits 2(j%4).. of low[j/4] and
//  0      2                   10                   14  bit j%8 of high[j/8]; y = norm kTq3Values[index]
//  K/V cache only. All blocks of a rotation group carry the same norm (kv_codec.h).
struct BlockTQ3_0 {
  static constexpr int kElems = 32;
  uint16_t norm;
  uint8_t low[8];
  uint8_t high[4];
};
static_assert(sizeof(BlockTQ3_0) == 14);

inline constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice the values of E2M1, a sign, two bits of exponent and one of mantissa.
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 2^(e - 128), half of E8M0's 2^(e - 127).
inline float half_of_e8m0(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}
// Half of an unsigned E4M3: four bits of exponent, three of mantissa. The top bit counts for nothing; 0x7F, the NaN, is
// 0, and 0xFF, as ggml reads it, is not.
inline float half_of_ue4m3(uint8_t x) {
  const int exponent = x >> 3 & 15, mantissa = x & 7;
  if (x == 0x7F) return 0;
  if (exponent == 0) return float(mantissa) * 0x1p-10f;
  const uint32_t bits = uint32_t(exponent - 8 + 127) << 23 | uint32_t(mantissa) << 20;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

// The f16 that is a step of an IQ1_M block, and the scale of its 16 elements k (0..15).
inline uint16_t iq1m_step(const uint8_t* s) {
  return uint16_t(s[1] >> 4 | (s[3] & 0xF0) | (s[5] & 0xF0) << 4 | (s[7] & 0xF0) << 8);
}
inline int iq1m_scale(int k, const uint8_t* s) {
  const int word = s[k / 4 * 2] | s[k / 4 * 2 + 1] << 8;
  return word >> (3 * (k % 4)) & 7;
}

// The six-bit scale and minimum of 32-element group j (0..7) of a Q4_K or Q5_K block.
inline void k4_scale_min(int j, const uint8_t* s, uint8_t& scale, uint8_t& min) {
  if (j < 4) {
    scale = s[j] & 63;
    min = s[j + 4] & 63;
  } else {
    scale = uint8_t((s[j + 4] & 15) | ((s[j - 4] >> 6) << 4));
    min = uint8_t((s[j + 4] >> 4) | ((s[j] >> 6) << 4));
  }
}

// The six-bit scale of 16-element group k (0..15) of a Q3_K block, without its bias.
inline int k3_scale(int k, const uint8_t* s) {
  const int low = k < 8 ? s[k] & 15 : s[k - 8] >> 4, high = (s[8 + (k & 3)] >> (2 * (k >> 2))) & 3;
  return (low | (high << 4)) - 32;
}

}  // namespace facet
