#pragma once
#include "backend/cuda/kernels/attention/fragments.cuh"

// Rows of the cache as the prefill kernels multiply them: f16, in shared memory or in copies.
namespace facet::cuda {

// Byte `byte` of row `row` of an f16 tile of `rows` rows: panels of 128 bytes a row with the swizzle of wgmma, which
// also keeps ldmatrix free of bank conflicts.
__device__ __forceinline__ int tile_at(int rows, int row, int byte) {
  return byte / 128 * rows * 128 + row * 128 + (byte % 128 ^ (row % 8) * 16);
}

// Place of value d in an expanded row; four adjacent values have adjacent places.
template <KvType T>
FACET_HD constexpr int place_of(int d) {
  if (T == KvType::kQ8_0) return q8_at(d);
  if (T == KvType::kQ4_0) return d / 64 * 64 + d % 32 / 4 * 8 + d % 64 / 32 * 4 + d % 4;
  return d;
}

// What one thread expands of a row in device layout: piece i of kPieces, held in registers between read() and write().
// at(byte): where that byte of the row is, and the rest of its word (Q8_0: of its sixteen). put(byte, v) stores 16
// bytes of the f16 row.
template <KvType T, int E>
struct DeviceKvPiece {
  static constexpr int kCodes = device_kv_code_bytes(T, E);
  static constexpr int kPieces = E / (T == KvType::kQ8_0 ? 16 : T == KvType::kQ4_0 ? 8 : 32);
  static constexpr int kSpan = tq3_span(E), kUnits = kSpan / 32;  // TQ3_0
  uint4 codes;
  uint32_t earlier, later;  // scales: of a pair of blocks; of TQ3_0's four, the first and the last two

  template <class At>
  __device__ __forceinline__ void read(At at, int i) {
    auto word = [&](int byte) { return *reinterpret_cast<const uint32_t*>(at(byte)); };
    if constexpr (T == KvType::kQ8_0) {
      codes = *reinterpret_cast<const uint4*>(at(i * 16));
      earlier = word(kCodes + i / 4 * 4);
    } else if constexpr (T == KvType::kQ4_0) {
      codes.x = word(i * 4);
      earlier = word(kCodes + i / 8 * 4);
    } else {
      const int scales = kCodes + i / kUnits * (kSpan / 16);
      codes.x = word(i * 12), codes.y = word(i * 12 + 4), codes.z = word(i * 12 + 8);
      earlier = word(scales);
      later = kSpan == 256 ? word(scales + 8) : earlier;
    }
  }
  template <class Put>
  __device__ __forceinline__ void write(int i, Put put) const {
    auto scaled = [](uint32_t v, uint32_t d) { return expand::mul2(v, d); };
    auto twice = [](uint32_t pair, int hi) { return __byte_perm(pair, pair, hi ? 0x3232 : 0x1010); };
    if constexpr (T == KvType::kQ8_0) {
      const uint32_t d0 = twice(earlier, 0), d1 = twice(earlier, 1);
      put(i * 32, make_uint4(scaled(expand::bytes_lo(codes.x), d0), scaled(expand::bytes_hi(codes.x), d0),
                             scaled(expand::bytes_lo(codes.y), d1), scaled(expand::bytes_hi(codes.y), d1)));
      put(i * 32 + 16, make_uint4(scaled(expand::bytes_lo(codes.z), d0), scaled(expand::bytes_hi(codes.z), d0),
                                  scaled(expand::bytes_lo(codes.w), d1), scaled(expand::bytes_hi(codes.w), d1)));
    } else if constexpr (T == KvType::kQ4_0) {
      const uint32_t d0 = twice(earlier, 0), d1 = twice(earlier, 1), u = codes.x;
      put(i * 16, make_uint4(scaled(expand::nibbles_lo(u), d0), scaled(expand::nibbles_hi(u), d0),
                             scaled(expand::nibbles_lo(u >> 8), d1), scaled(expand::nibbles_hi(u >> 8), d1)));
    } else {
#pragma unroll
      for (int set = 0; set < 4; ++set) {
        const uint32_t s = expand::index_set(codes.x, codes.y, codes.z, set);
        const uint32_t d = scaled(twice(set < 2 ? earlier : later, 0), 0x30003000);  // an eighth
        uint4 v;
        expand::indices(s, v.x, v.y);
        expand::indices(s >> 16, v.z, v.w);
        const int value = i / kUnits * kSpan + set * (kSpan / 4) + i % kUnits * 8;
        put(value * 2, make_uint4(scaled(v.x, d), scaled(v.y, d), scaled(v.z, d), scaled(v.w, d)));
      }
    }
  }
};

// Rows [first, first + n) in device layout (row_at(row) of the cache) to f16, by 256 threads; store(row, byte, v) puts
// 16 bytes of an f16 row in their place.
template <KvType T, int E, class RowAt, class Store>
__device__ __forceinline__ void expand_device_rows(RowAt row_at, int first, int n, Store store) {
  if constexpr (device_kv_has_scales(T)) {
    using Piece = DeviceKvPiece<T, E>;
    for (int i = threadIdx.x; i < n * Piece::kPieces; i += 256) {
      const int row = first + i / Piece::kPieces;
      const char* from = row_at(row);
      Piece piece;
      piece.read([&](int byte) { return from + byte; }, i % Piece::kPieces);
      piece.write(i % Piece::kPieces, [&](int byte, uint4 v) { store(row, byte, v); });
    }
  }
}
// A tile's rows, one after another, to f16 rows in shared memory.
template <KvType T, int E, int kKeys>
__device__ __forceinline__ void expand_rows(char* to, const char* raw, int first = 0, int n = kKeys) {
  const auto row_at = [&](int row) { return raw + row * device_kv_bytes(T, E); };
  expand_device_rows<T, E>(row_at, first, n, [&](int row, int byte, uint4 v) {
    *reinterpret_cast<uint4*>(to + tile_at(kKeys, row, byte)) = v;
  });
}

}  // namespace facet::cuda
