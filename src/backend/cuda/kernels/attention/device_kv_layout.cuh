#pragma once
#include "backend/kv_layer.h"

// A head vector of the cache as the device keeps it: all codes, then the f16 scale of each block of 32. The bytes are
// those of kv_codec's blocks in another order, chosen so that a lane of an attention tile finds the values of its
// matrix fragments side by side, and so that they expand to f16 in few instructions:
//
//   F16, F32  as they are
//   Q8_0      codes + 128, so that 0x64 in front of one makes the f16 1024 + code + 128. A group of 64 values is
//             four chunks of 16 bytes; chunk c holds value 32 b + 16 a + 4 c + i at byte 4 (2 a + b) + i
//   Q4_0      a group of 64 values is eight words; word x holds values 4 x + i and 32 + 4 x + i in nibbles
//             {0, 4, 1, 5}[i] and {2, 6, 3, 7}[i]: every mask of 0x000F000F gives a pair
//   TQ3_0     256 values are eight units of three words; unit u holds indices of 64 j + 8 u + i. Nibble i of word j < 3
//             has that of set j in its low bits; its high bit is bit j of the index of set 3, value i
//             (head widths below 256: 32 values are 8 bytes of low pairs and 4 of high bits, as in the block; shared
//             rows: 128 values are four such units, set j being 32 j + 8 u + i)
//
// A shared row (kv_codec.h), of heads of 512, is one such vector of 640 values: K is the first 512, V the last. It is
// filled up to whole sixteens.
//
// In all of these the values that one step of a matrix product takes from a row lie in one block of 32 (TQ3_0: one
// group of 128), so scales multiply partial sums and not values.
namespace facet::cuda {

constexpr int kSharedCols = 640;
FACET_HD constexpr int device_kv_code_bytes(KvType t, int E) {
  switch (t) {
    case KvType::kF32:
      return 4 * E;
    case KvType::kF16:
      return 2 * E;
    case KvType::kQ8_0:
      return E;
    case KvType::kQ4_0:
      return E / 2;
    case KvType::kTQ3_0:
      return E / 8 * 3;
  }
  return 0;
}
FACET_HD constexpr bool device_kv_has_scales(KvType t) { return t != KvType::kF16 && t != KvType::kF32; }
FACET_HD constexpr int device_kv_scale_bytes(KvType t, int E) {
  return !device_kv_has_scales(t) ? 0 : E == kSharedCols ? 48 : E / 16;
}
FACET_HD constexpr int device_kv_bytes(KvType t, int E) {
  return device_kv_code_bytes(t, E) + device_kv_scale_bytes(t, E);
}
// Values that the units of TQ3_0 are made of, for vectors of 256 and more.
FACET_HD constexpr int tq3_span(int E) { return E == kSharedCols ? 128 : 256; }

// The channel of value d of K's part of a shared row ([own | rest]), or of V's ([rest | own]): own channels are the
// blocks 0 and 4 of 64.
FACET_HD constexpr int shared_channel(int d, bool of_k) {
  const int block = d / 64;
  return int((of_k ? 0x76532140u : 0x40765321u) >> (4 * block) & 15) * 64 + d % 64;
}

// Four adjacent codes; every word starts with such.
FACET_HD inline uint32_t four_codes(const uint8_t* code) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const uint32_t*>(code);
#else
  return uint32_t(code[0]) | uint32_t(code[1]) << 8 | uint32_t(code[2]) << 16 | uint32_t(code[3]) << 24;
#endif
}

// Byte of value d's code (Q8_0).
FACET_HD constexpr int q8_at(int d) {
  const int b = d / 32 % 2, a = d / 16 % 2, c = d / 4 % 4;
  return d / 64 * 64 + c * 16 + (2 * a + b) * 4 + d % 4;
}
// The word w of codes, from a row's unpacked codes, one byte each.
FACET_HD inline uint32_t q8_word(const uint8_t* code, int w) {
  const int group = w / 16, c = w % 16 / 4, b = w % 2, a = w % 4 / 2;
  return four_codes(code + group * 64 + 32 * b + 16 * a + 4 * c);
}
FACET_HD constexpr int q4_nibble(int d) { return d % 2 * 4 + d / 2 % 2 + d / 32 % 2 * 2; }
FACET_HD inline uint32_t q4_word(const uint8_t* code, int w) {
  const uint8_t* at = code + w / 8 * 64 + w % 8 * 4;
  const uint32_t lo = four_codes(at), hi = four_codes(at + 32);
  uint32_t word = 0;
  for (int i = 0; i < 4; ++i)
    word |= (lo >> (8 * i) & 15) << (4 * q4_nibble(i)) | (hi >> (8 * i) & 15) << (4 * q4_nibble(32 + i));
  return word;
}
FACET_HD inline uint32_t tq3_word(const uint8_t* code, int w, int E) {
  uint32_t word = 0;
  if (E >= 256) {
    const int span = tq3_span(E), words = span / 32 * 3, set = span / 4, j = w % 3;
    const uint8_t* at = code + w / words * span + w % words / 3 * 8;
    for (int half = 0; half < 2; ++half) {
      const uint32_t own = four_codes(at + set * j + 4 * half), last = four_codes(at + 3 * set + 4 * half);
      for (int i = 0; i < 4; ++i)
        word |= ((own >> (8 * i) & 7) | (last >> (8 * i + j) & 1) << 3) << (4 * (4 * half + i));
    }
  } else {
    const uint8_t* at = code + w / 3 * 32;
    if (w % 3 < 2)
      for (int i = 0; i < 16; ++i) word |= uint32_t(at[16 * (w % 3) + i] & 3) << (2 * i);
    else
      for (int i = 0; i < 32; ++i) word |= uint32_t(at[i] >> 2) << i;
  }
  return word;
}
FACET_HD inline uint32_t device_kv_word(KvType t, const uint8_t* code, int w, int E) {
  return t == KvType::kQ8_0 ? q8_word(code, w) : t == KvType::kQ4_0 ? q4_word(code, w) : tq3_word(code, w, E);
}

// The code of value d: 0..255, 0..15 or 0..7.
FACET_HD inline int device_kv_code(KvType t, const uint8_t* p, int d, int E) {
  if (t == KvType::kQ8_0) return p[q8_at(d)];
  if (t == KvType::kQ4_0) {
    const int nibble = q4_nibble(d), word = d / 64 * 8 + d % 32 / 4;
    return p[4 * word + nibble / 2] >> (4 * (nibble % 2)) & 15;
  }
  if (E < 256) {
    const uint8_t* b = p + d / 32 * 12;
    const int i = d % 32;
    return (b[i / 4] >> (2 * (i % 4)) & 3) | (b[8 + i / 8] >> (i % 8) & 1) << 2;
  }
  const int span = tq3_span(E);
  const uint8_t* unit = p + d / span * (span / 8 * 3) + d / 8 % (span / 32) * 12;
  const int set = d / (span / 4) % 4, i = d % 8;
  auto nibble = [&](int word) { return unit[4 * word + i / 2] >> (4 * (i % 2)) & 15; };
  if (set < 3) return nibble(set) & 7;
  return nibble(0) >> 3 | nibble(1) >> 3 << 1 | nibble(2) >> 3 << 2;
}

}  // namespace facet::cuda
