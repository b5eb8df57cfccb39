#pragma once
#include "backend/cuda/kernels/attention/fragments.cuh"
#include "backend/cuda/kernels/attention/params.cuh"
#include "backend/cuda/kernels/common/tensor_load.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/tensor_map.h"

// Tiles of 128 shared rows in codes, for decode.cuh: a warp scores 16 keys over all of K's values, so that no sum is
// divided among warps, and then multiplies 64 of V's values by all keys. Three barriers a tile.
//
// Q4_0's codes go to the tensor cores as they are: bits of a code under a mask are an f16 below the smallest normal,
// 2^-24 times the code, or 16 times that for the upper of two masks; products are exact. That codes are too large by 8
// leaves as a constant of its query: K's sums begin at -8 times the sum of its values, and V's lose 8 times the sum
// of probabilities times scales, which one more product by ones finds. TQ3_0's are values of its table.
namespace facet::cuda {

constexpr int kCodeTileKeys = 128;

// Shared rows in shared memory as they are in the cache, scales behind the codes, so that a tensor map copies a whole
// tile. The strides, 92 and 172 words, keep reads free of bank conflicts if rows that are read at once are two apart
// (Q4_0, and V's) or four (Q8_0's of K): packed_key has the key of row r of a fragment of 16 keys of K.
constexpr bool is_packed(KvType t) { return t == KvType::kQ4_0 || t == KvType::kQ8_0; }
template <KvType T>
struct PackedRows {
  static constexpr int kCodes = SharedShape<T>::kCodes, kScales = SharedShape<T>::kScales, kStride = kCodes + kScales;
  static constexpr int kStrideK = kStride, kStrideV = kStride;
};
template <KvType T>
__device__ __forceinline__ int packed_key(int r) {
  if (T == KvType::kQ4_0) return r % 8 * 2 + r / 8;
  return T == KvType::kQ8_0 ? r / 8 * 8 + r % 8 / 2 + r % 2 * 4 : r;
}

// Rows of a tile in shared memory: PackedRows, or as SharedShape has them with scales behind all rows.
template <KvType T>
struct CodeTile {
  static constexpr bool kPacked = is_packed(T);
  static constexpr int kCodes = SharedShape<T>::kCodes, kScales = SharedShape<T>::kScales;
  static constexpr int kStride = kPacked ? kCodes + kScales : SharedShape<T>::kStride;
  static constexpr int kStrideK = kStride, kStrideV = kStride;
  static constexpr int kOffset = T == KvType::kQ4_0 ? 8 : 0;  // of codes; 0: values, no codes
  // What a product is too large by.
  static constexpr float kUnit = kOffset > 0 ? 0x1p-24f : kOverscale<T>;
};
// Where the scales of a row lie.
template <KvType T>
__device__ __forceinline__ int code_scales(int row) {
  using Tile = CodeTile<T>;
  return Tile::kPacked ? row * Tile::kStride + Tile::kCodes : kCodeTileKeys * Tile::kStride + row * Tile::kScales;
}
// What a query's value is multiplied by, for the upper of two masks.
template <KvType T>
constexpr float kUpperMask = T == KvType::kQ4_0 ? 1.f / 16 : 1.f;

// As k_fragments and v_fragments of shared rows, but that codes stay codes.
template <KvType T>
__device__ __forceinline__ void k_codes(uint32_t (&a)[4][4], const char* row, const char* below, int group, int c) {
  const char* rows[2] = {row, below};
  if constexpr (T == KvType::kQ4_0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint2 u = *reinterpret_cast<const uint2*>(rows[h] + group * 32 + c * 8);
      const uint32_t w[4] = {u.x, u.y, u.x >> 8, u.y >> 8};
#pragma unroll
      for (int t = 0; t < 4; ++t) a[t][h] = w[t] & 0x000F000F, a[t][h + 2] = w[t] & 0x00F000F0;
    }
  } else {
    k_fragments<T, true>(a, row, below, group, c, 0);
  }
}
template <KvType T>
__device__ __forceinline__ void v_codes(uint32_t (&a)[4][4], const char* const (&rows)[4], int group, int g) {
  if constexpr (T == KvType::kQ4_0) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t x = *reinterpret_cast<const uint32_t*>(rows[2 * h] + group * 32 + g * 4);
      const uint32_t y = *reinterpret_cast<const uint32_t*>(rows[2 * h + 1] + group * 32 + g * 4);
      const uint32_t lo = __byte_perm(x, y, 0x5410), hi = __byte_perm(x, y, 0x7632);
      const uint32_t w[4] = {lo, hi, lo >> 8, hi >> 8};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[i / 2 * 2][2 * h + i % 2] = w[i] & 0x000F000F, a[i / 2 * 2 + 1][2 * h + i % 2] = w[i] & 0x00F000F0;
    }
  } else {
    v_fragments<T, true>(a, rows, group, g);
  }
}

// What a sum of 32 products begins at, for a query whose values there are sum together.
template <KvType T>
constexpr float kCodeStart = -CodeTile<T>::kOffset* CodeTile<T>::kUnit;
// An output of tile m from its sum and that of probabilities times scales, but for 1 / kUnit.
template <KvType T>
__device__ __forceinline__ float code_value(int m, float acc, float off) {
  if (T == KvType::kQ4_0 && m % 2) acc *= 1.f / 16;
  return CodeTile<T>::kOffset > 0 ? __fmaf_rn(kCodeStart<T>, off, acc) : acc;
}

// A lane's 8 of 64 outputs of column nt, e.
template <KvType T, int NT>
__device__ __forceinline__ void put_code_values(__half* to, const float (&acc)[4][NT][4], const float (&off)[NT][4],
                                                int nt, int e, float inverse, int g) {
  uint32_t word[4];
#pragma unroll
  for (int m = 0; m < 4; ++m) {
    const float of_half = off[nt][m / 2 * 2 + e];
    const __half2 v = __floats2half2_rn(code_value<T>(m, acc[m][nt][e], of_half) * inverse,
                                        code_value<T>(m, acc[m][nt][2 + e], of_half) * inverse);
    word[m] = *reinterpret_cast<const uint32_t*>(&v);
  }
  if constexpr (T == KvType::kTQ3_0) {
    *reinterpret_cast<uint4*>(to + v_value<T>(0, g)) = make_uint4(word[0], word[1], word[2], word[3]);
  } else {
    *reinterpret_cast<uint2*>(to + v_value<T>(0, g)) = make_uint2(word[0], word[1]);
    *reinterpret_cast<uint2*>(to + v_value<T>(1, g)) = make_uint2(word[2], word[3]);
  }
}

// A layer's rows as the tensor memory accelerator copies whole tiles of them; on: it is there.
struct PackedMap {
  CUtensorMap map;
  bool on;
};
// Stages that whole tiles of kKeys rows come to by the map, a barrier each. All threads count alike.
template <KvType T, int kKeys, int kStages>
struct MappedStages {
  bool on = false;
  uint64_t* bars = nullptr;
  uint32_t phases = 0;  // a bit a stage

  __device__ __forceinline__ MappedStages(const PackedMap& map, char* at) {
#if __CUDA_ARCH__ >= 900
    on = map.on, bars = reinterpret_cast<uint64_t*>(at);
    if (!on || threadIdx.x != 0) return;
    for (int i = 0; i < kStages; ++i) barrier_init(bars + i, 1);
    barriers_publish();
#endif
  }
  template <class Nothing>
  __device__ __forceinline__ MappedStages(const Nothing&, char*) {}
  // False: the tile is the caller's to copy.
  template <class Map>
  __device__ __forceinline__ bool load(char* to, const Map& rows, int head, int row, int slot, int stage,
                                       bool whole) const {
#if __CUDA_ARCH__ >= 900
    if constexpr (std::is_same_v<Map, PackedMap>) {
      if (!on || !whole) return false;
      if (threadIdx.x != 0) return true;
      publish_to_products();  // whoever had this memory before has met this thread
      barrier_arrive_expecting(bars + stage, unsigned(kKeys * PackedRows<T>::kStride));
      tensor_load(to, &rows.map, slot, row, head * (PackedRows<T>::kStride / 4), bars + stage);
      return true;
    }
#endif
    return false;
  }
  __device__ __forceinline__ void wait(int stage) {
    barrier_wait(bars + stage, phases >> stage & 1);
    phases ^= 1u << stage;
  }
};

// Products of the keys of one warp, 16 from `row` on (lane part g's, and 8 below), with NT blocks of eight queries from
// block n0 on: sums[nt][j] as a fragment of m16n8k16 has them.
template <KvType T, int NT>
__device__ __forceinline__ void code_scores(float (&sums)[NT][4], const char* base, int key0, const char* q,
                                            const float* init, int n_query, int n0, int lane) {
  using Tile = CodeTile<T>;
  const int g = lane / 4, c = lane % 4;
  const int key[2] = {key0 + packed_key<T>(g), key0 + packed_key<T>(g + 8)};
  const char *row = base + key[0] * Tile::kStride, *below = base + key[1] * Tile::kStride;
#pragma unroll
  for (int nt = 0; nt < NT; ++nt)
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[nt][j] = 0;
  constexpr int kUnroll = NT == 1 ? 4 : NT == 2 ? 2 : 1;
#pragma unroll kUnroll
  for (int group = 0; group < 8; ++group) {
    uint32_t a[4][4];
    k_codes<T>(a, row, below, group, c);
    float d[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(base + code_scales<T>(key[h]) + group * 4);
      d[h][0] = half_at(pair, 0), d[h][1] = half_at(pair, 1);
    }
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      const uint4* b = reinterpret_cast<const uint4*>(q) + ((n0 + nt) * 8 + group) * 64 + lane;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 w = b[32 * h];
        float block[4] = {};
        if constexpr (Tile::kOffset > 0) {
          const float2 from =
              *reinterpret_cast<const float2*>(init + (2 * group + h) * n_query + 8 * (n0 + nt) + 2 * c);
          block[0] = block[2] = from.x, block[1] = block[3] = from.y;
        }
        mma_f16(block, a[2 * h], w.x, w.y);
        mma_f16(block, a[2 * h + 1], w.z, w.w);
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[nt][j] = __fmaf_rn(d[j / 2][h], block[j], sums[nt][j]);
      }
    }
  }
}

// acc[m][nt] += a tile's V^T times its probabilities, of group `group` of 64 values and keys [0, 16 n_step); off[nt] +=
// the sums of probabilities times scales of its halves, one in rows 0 to 7 of a fragment, one below (code types).
template <KvType T, int NT, int kStrideP>
__device__ __forceinline__ void code_values(float (&acc)[4][NT][4], float (&off)[NT][4], const char* base,
                                            const char* prob, int group, int n0, int n_step, int lane) {
  using Tile = CodeTile<T>;
  const int g = lane / 4, c = lane % 4;
  constexpr int kUnroll = NT == 1 ? 4 : NT == 2 ? 2 : 1;
#pragma unroll kUnroll
  for (int ks = 0; ks < n_step; ++ks) {
    const char *rows[4], *scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 16 * ks + 2 * c + i % 2 + i / 2 * 8;
      rows[i] = base + key * Tile::kStride;
      scale[i] = base + code_scales<T>(key) + group * 4;
    }
    uint32_t a[4][4], d[2][2];  // d: [half][b0, b1], scales of the pairs of keys
    v_codes<T>(a, rows, group, g);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t x = *reinterpret_cast<const uint32_t*>(scale[2 * h]),
                     y = *reinterpret_cast<const uint32_t*>(scale[2 * h + 1]);
      d[0][h] = __byte_perm(x, y, 0x5410), d[1][h] = __byte_perm(x, y, 0x7632);
    }
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      const char* at = prob + ((8 * (n0 + nt) + g) * kStrideP + 16 * ks + 2 * c) * 2;
      const uint32_t b0 = *reinterpret_cast<const uint32_t*>(at), b1 = *reinterpret_cast<const uint32_t*>(at + 16);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t s0 = expand::mul2(b0, d[h][0]), s1 = expand::mul2(b1, d[h][1]);
        mma_f16(acc[2 * h][nt], a[2 * h], s0, s1);
        mma_f16(acc[2 * h + 1][nt], a[2 * h + 1], s0, s1);
        if constexpr (Tile::kOffset > 0) {
          constexpr uint32_t kOne = 0x3C003C00;  // in the rows of a half
          const uint32_t ones[4] = {h == 0 ? kOne : 0, h == 1 ? kOne : 0, h == 0 ? kOne : 0, h == 1 ? kOne : 0};
          mma_f16(off[nt], ones, s0, s1);
        }
      }
    }
  }
}

}  // namespace facet::cuda
