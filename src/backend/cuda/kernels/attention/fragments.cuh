#pragma once
#include <cuda_fp16.h>

#include "backend/cuda/kernels/attention/device_kv_layout.cuh"
#include "backend/cuda/kernels/common/mma.cuh"

// Tiles of K and V rows in shared memory, in the device layout of the cache, and their expansion to the A fragments of
// m16n8k16 products in f16. Lane 4 g + c holds rows g and g + 8 of a fragment.
//
//   K   rows are 16 keys, columns 16 values: step t = 0..3 of a group of 64 values
//   V^T rows are 16 values, columns 16 keys: tile m = 0..3 of a group of 64 values
//
// Which value is which row or column of a fragment is free, and chosen so that a lane reads the codes it needs with one
// load per group: k_value and v_value say it. Q is stored to match, and the output is read to match. Integer codes
// become exact f16 integers; block scales multiply partial sums (K) or probabilities (V).
namespace facet::cuda {

__device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Shared layout of a tile's rows. Strides and the exchange of half-lines keep the reads below free of bank conflicts.
template <KvType T, int E>
struct TileShape {
  static constexpr int kCodes = device_kv_code_bytes(T, E), kScales = device_kv_has_scales(T) ? E / 16 : 0;
  static constexpr bool kWide = T == KvType::kF16 || T == KvType::kQ8_0;
  static constexpr int kStrideK = kWide ? kCodes : T == KvType::kQ4_0 ? kCodes + 32 : kCodes + 16;
  static constexpr int kStrideV = kCodes + 16;
};
// K rows of the wide types are not padded: the 64-byte halves of each 128 bytes change places in odd rows.
template <KvType T>
__device__ __forceinline__ int k_chunk(int chunk, int row) {
  return T == KvType::kF16 || T == KvType::kQ8_0 ? chunk ^ (row & 1) << 2 : chunk;
}
// A shared row is read as K and as V: pieces of each 128 bytes change places by row, so that neither has conflicts.
// shared_xor: 16-byte chunks of the wide types, 32 bytes (a group) of Q4_0; TQ3_0's units need none.
template <KvType T>
struct SharedShape {
  static constexpr int kCodes = device_kv_code_bytes(T, kSharedCols), kScales = device_kv_scale_bytes(T, kSharedCols);
  static constexpr int kStride = T == KvType::kQ4_0 ? 384 : T == KvType::kTQ3_0 ? kCodes + 32 : kCodes;
  static constexpr int kStrideK = kStride, kStrideV = kStride;
  static constexpr int kFirstV = (kSharedCols - 512) / 64;  // group of 64 where V begins
};
template <KvType T>
__device__ __forceinline__ int shared_xor(int row) {
  if (T == KvType::kTQ3_0) return 0;
  if (T == KvType::kQ4_0) return (row & 2) | ((row ^ row >> 2) & 1);
  return (row & 6) ^ (row & 1) << 2;
}
// Place of a row's 16-byte chunk.
template <KvType T>
__device__ __forceinline__ int shared_chunk(int chunk, int row) {
  return chunk ^ (T == KvType::kQ4_0 ? shared_xor<T>(row) << 1 : shared_xor<T>(row));
}

// Value 0..63 of a group -> step t, lane part c (i is value % 4).
template <KvType T>
__device__ __forceinline__ int k_step(int r) {
  switch (T) {
    case KvType::kF16:
      return r / 32 * 2 + r % 8 / 4;
    case KvType::kQ8_0:
      return r / 32 * 2 + r % 32 / 16;
    case KvType::kQ4_0:
      return r / 32 * 2 + r % 8 / 4;
    default:
      return r / 32 * 2 + r % 8 / 4;
  }
}
template <KvType T>
__device__ __forceinline__ int k_lane(int r) {
  return T == KvType::kQ8_0 ? r % 16 / 4 : r % 32 / 8;
}
// First of the values that lane part g holds of tiles 2 half and 2 half + 1: the four of them are adjacent.
template <KvType T>
__device__ __forceinline__ int v_value(int half, int g) {
  switch (T) {
    case KvType::kQ8_0:
      return 32 * half + 16 * (g & 1) + 4 * (g >> 1);
    case KvType::kQ4_0:
      return 32 * half + 4 * g;
    default:
      return 8 * g + 4 * half;
  }
}

// What decoded values are too large by, and why: TQ3_0's codebook is scaled so that f16 keeps its precision.
template <KvType T>
constexpr float kOverscale = T == KvType::kTQ3_0 ? 8.f : 1.f;

namespace expand {

__device__ __forceinline__ uint32_t sub(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t mul2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
// (a & mask) | bits in one instruction, which takes one immediate: the compiler makes two of the expression.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(bits));
  return d;
}
// Bytes 0, 1 or 2, 3 of w, biased by 128.
__device__ __forceinline__ uint32_t bytes_lo(uint32_t w) { return sub(__byte_perm(w, 0x64646464, 0x4140), 0x64806480); }
__device__ __forceinline__ uint32_t bytes_hi(uint32_t w) { return sub(__byte_perm(w, 0x64646464, 0x4342), 0x64806480); }
// Nibbles 0 and 4, or 1 and 5, less 8.
__device__ __forceinline__ uint32_t nibbles_lo(uint32_t w) {
  return sub(and_or(w, 0x000F000F, 0x64006400), 0x64086408);
}
__device__ __forceinline__ uint32_t nibbles_hi(uint32_t w) {
  return fma2(and_or(w, 0x00F000F0, 0x64006400), 0x2C002C00, 0xD480D480);
}
// TQ3_0: nibbles 0..3 of s are indices; 8 * codebook as f16, from tables of its low and high bytes.
__device__ __forceinline__ void indices(uint32_t s, uint32_t& v01, uint32_t& v23) {
  const uint32_t lo = __byte_perm(0x7E358B1A, 0x1A8B357E, s), hi = __byte_perm(0xB1B8BBBE, 0x3E3B3831, s);
  v01 = __byte_perm(lo, hi, 0x5140);
  v23 = __byte_perm(lo, hi, 0x7362);
}
// The eight indices of a unit's set.
__device__ __forceinline__ uint32_t index_set(uint32_t x, uint32_t y, uint32_t z, int set) {
  if (set < 3) return (set == 0 ? x : set == 1 ? y : z) & 0x77777777;
  return (x >> 3 & 0x11111111) | (y >> 2 & 0x22222222) | (z >> 1 & 0x44444444);
}
__device__ __forceinline__ uint32_t index_set(const char* unit, int set) {
  const uint32_t* w = reinterpret_cast<const uint32_t*>(unit);
  return set < 3 ? w[set] & 0x77777777 : index_set(w[0], w[1], w[2], set);
}

// Set 2 * half + upper of a unit, for lanes that differ in `upper`.
__device__ __forceinline__ uint32_t half_set(const char* unit, int half, int upper) {
  const uint32_t* w = reinterpret_cast<const uint32_t*>(unit);
  if (half == 0) return w[upper] & 0x77777777;
  const uint32_t last = w[2], third = last & 0x77777777;
  const uint32_t fourth = (w[0] >> 3 & 0x11111111) | (w[1] >> 2 & 0x22222222) | (last >> 1 & 0x44444444);
  return upper ? fourth : third;
}

}  // namespace expand

// Fragments of the four steps of group `group`. row: shared memory of row g of the sixteen; below: row g + 8. swap:
// what chunks' places are XORed with (4 in odd rows of the wide types; in shared rows shared_xor).
template <KvType T, bool kShared = false>
__device__ __forceinline__ void k_fragments(uint32_t (&a)[4][4], const char* row, const char* below, int group, int c,
                                            int swap) {
  const char* rows[2] = {row, below};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (T == KvType::kF16) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int chunk = group * 8 + part * 4 + c;
        const uint4 u = *reinterpret_cast<const uint4*>(rows[h] + 16 * (chunk ^ swap));
        a[2 * part][h] = u.x, a[2 * part][h + 2] = u.y, a[2 * part + 1][h] = u.z, a[2 * part + 1][h + 2] = u.w;
      }
    } else if constexpr (T == KvType::kQ8_0) {
      const int chunk = group * 4 + c;
      const uint4 u = *reinterpret_cast<const uint4*>(rows[h] + 16 * (chunk ^ swap));
      a[0][h] = expand::bytes_lo(u.x), a[0][h + 2] = expand::bytes_hi(u.x);
      a[2][h] = expand::bytes_lo(u.y), a[2][h + 2] = expand::bytes_hi(u.y);
      a[1][h] = expand::bytes_lo(u.z), a[1][h + 2] = expand::bytes_hi(u.z);
      a[3][h] = expand::bytes_lo(u.w), a[3][h + 2] = expand::bytes_hi(u.w);
    } else if constexpr (T == KvType::kQ4_0) {
      const uint2 u = *reinterpret_cast<const uint2*>(rows[h] + (kShared ? group ^ swap : group) * 32 + c * 8);
      a[0][h] = expand::nibbles_lo(u.x), a[0][h + 2] = expand::nibbles_hi(u.x);
      a[1][h] = expand::nibbles_lo(u.y), a[1][h + 2] = expand::nibbles_hi(u.y);
      a[2][h] = expand::nibbles_lo(u.x >> 8), a[2][h + 2] = expand::nibbles_hi(u.x >> 8);
      a[3][h] = expand::nibbles_lo(u.y >> 8), a[3][h + 2] = expand::nibbles_hi(u.y >> 8);
    } else {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const uint32_t s = kShared ? expand::index_set(rows[h] + group / 2 * 48 + c * 12, group % 2 * 2 + part)
                                   : expand::index_set(rows[h] + group / 4 * 96 + (c + 4 * part) * 12, group % 4);
        expand::indices(s, a[2 * part][h], a[2 * part][h + 2]);
        expand::indices(s >> 16, a[2 * part + 1][h], a[2 * part + 1][h + 2]);
      }
    }
  }
}

// Fragments of the four tiles of group `group` for sixteen keys. rows: those of the keys 2 c, 2 c + 1, 2 c + 8, 2 c
// + 9. swap: shared_xor of the first two, in shared rows.
template <KvType T, bool kShared = false>
__device__ __forceinline__ void v_fragments(uint32_t (&a)[4][4], const char* const (&rows)[4], int group, int g,
                                            int swap0 = 0, int swap1 = 0) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const char *r0 = rows[2 * h], *r1 = rows[2 * h + 1];
    if constexpr (T == KvType::kF16) {
      const uint4 x = *reinterpret_cast<const uint4*>(r0 + group * 128 + (g ^ swap0) * 16);
      const uint4 y = *reinterpret_cast<const uint4*>(r1 + group * 128 + (g ^ swap1) * 16);
      a[0][2 * h] = __byte_perm(x.x, y.x, 0x5410), a[0][2 * h + 1] = __byte_perm(x.x, y.x, 0x7632);
      a[1][2 * h] = __byte_perm(x.y, y.y, 0x5410), a[1][2 * h + 1] = __byte_perm(x.y, y.y, 0x7632);
      a[2][2 * h] = __byte_perm(x.z, y.z, 0x5410), a[2][2 * h + 1] = __byte_perm(x.z, y.z, 0x7632);
      a[3][2 * h] = __byte_perm(x.w, y.w, 0x5410), a[3][2 * h + 1] = __byte_perm(x.w, y.w, 0x7632);
    } else if constexpr (T == KvType::kQ8_0) {
      const int chunk = group * 4 + (g >> 1), at = (g & 1) * 8;
      const uint2 x = *reinterpret_cast<const uint2*>(r0 + (chunk ^ swap0) * 16 + at),
                  y = *reinterpret_cast<const uint2*>(r1 + (chunk ^ swap1) * 16 + at);
      const uint32_t t0 = __byte_perm(x.x, y.x, 0x5140), t1 = __byte_perm(x.x, y.x, 0x7362);
      const uint32_t t2 = __byte_perm(x.y, y.y, 0x5140), t3 = __byte_perm(x.y, y.y, 0x7362);
      a[0][2 * h] = expand::bytes_lo(t0), a[0][2 * h + 1] = expand::bytes_hi(t0);
      a[1][2 * h] = expand::bytes_lo(t1), a[1][2 * h + 1] = expand::bytes_hi(t1);
      a[2][2 * h] = expand::bytes_lo(t2), a[2][2 * h + 1] = expand::bytes_hi(t2);
      a[3][2 * h] = expand::bytes_lo(t3), a[3][2 * h + 1] = expand::bytes_hi(t3);
    } else if constexpr (T == KvType::kQ4_0) {
      const uint32_t x = *reinterpret_cast<const uint32_t*>(r0 + (group ^ swap0) * 32 + g * 4);
      const uint32_t y = *reinterpret_cast<const uint32_t*>(r1 + (group ^ swap1) * 32 + g * 4);
      const uint32_t lo = __byte_perm(x, y, 0x5410), hi = __byte_perm(x, y, 0x7632);
      a[0][2 * h] = expand::nibbles_lo(lo), a[0][2 * h + 1] = expand::nibbles_lo(hi);
      a[1][2 * h] = expand::nibbles_hi(lo), a[1][2 * h + 1] = expand::nibbles_hi(hi);
      a[2][2 * h] = expand::nibbles_lo(lo >> 8), a[2][2 * h + 1] = expand::nibbles_lo(hi >> 8);
      a[3][2 * h] = expand::nibbles_hi(lo >> 8), a[3][2 * h + 1] = expand::nibbles_hi(hi >> 8);
    } else {
      uint32_t x, y;
      if constexpr (kShared) {
        const int at = group / 2 * 48 + g % 4 * 12;
        x = expand::half_set(r0 + at, group % 2, g / 4), y = expand::half_set(r1 + at, group % 2, g / 4);
      } else {
        const int at = group / 4 * 96 + g * 12;
        x = expand::index_set(r0 + at, group % 4), y = expand::index_set(r1 + at, group % 4);
      }
      const uint32_t even = (x & 0x0F0F0F0F) | (y << 4 & 0xF0F0F0F0), odd = (x >> 4 & 0x0F0F0F0F) | (y & 0xF0F0F0F0);
      expand::indices(even, a[0][2 * h], a[1][2 * h]);
      expand::indices(even >> 16, a[2][2 * h], a[3][2 * h]);
      expand::indices(odd, a[0][2 * h + 1], a[1][2 * h + 1]);
      expand::indices(odd >> 16, a[2][2 * h + 1], a[3][2 * h + 1]);
    }
  }
}

}  // namespace facet::cuda
