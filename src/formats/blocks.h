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
