#pragma once
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"
#include "backend/cuda/kernels/matmul/layout.h"

// What the tensor types' trait files share. A file of this folder has all of a type: how its bytes lie in a tile, a
// tile's product with activations, its values, and how it is made from the file's blocks.
//
//   TileTraits<tile>::product(w, x, at, lane, acc)    acc += the tile at w, in shared memory, times activations x;
//                                                     at: the tile's place in x, in tiles
//   TileTraits<tile>::values(v, w, lane, row, j, h)   the eight weights of row g + 8 * row that lane 4 g + t holds in
//                                                     columns 64 j + 32 h..
//   TileTraits<tile>::repack(to)                      a lane's part of a tile from the file's rows
//
// For many rows (wide.cuh) a product comes in parts, with the same integers and the same order of f32 sums, so that two
// strips share what is read of the activations. Of types of codes:
//   Head head(w, lane)                                what all groups of the tile need
//   Group group(w, head, j, lane)                     the operand of 64 columns
//   add<kTwo>(group, b, second, scale, sum)           sum += group times eight rows: their codes, second codes and
//   scales kPerTile, and then Tail tail(w, lane), add_tail(tail, sums, part, acc): sum is a tile's, and goes into acc
//   at its end
//
// Lane 4 g + t of a warp holds rows g and g + 8. In every 64 columns it has 8 of the first 32 and 8 of the second, h:
// of codes 32 h + 16 (i / 4) + 4 t + i % 4, i = 0..7, of bf16 and f16 32 h + 8 t + i. Codes lie in words of four
// columns, which are operands of integer tensor cores once the bits are in place: word e of four is row g + 8 (e % 2),
// columns 16 (e / 2) + 4 t.. A byte of a word of nibbles has the column of the first 32 in its low half, of the second
// in its high half. j counts groups of 64 columns.
namespace facet::cuda {

template <Tile tile>
struct TileTraits;

__device__ __forceinline__ uint4 shared16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }
// (v & mask) | with, in one instruction.
__device__ __forceinline__ uint32_t and_or(uint32_t v, uint32_t mask, uint32_t with) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(v), "r"(mask), "r"(with));
  return d;
}
__device__ __forceinline__ uint32_t shifted(uint32_t w, int left) { return left >= 0 ? w << left : w >> -left; }
__device__ __forceinline__ int byte_of(uint32_t w, int i) { return int(__byte_perm(w, 0, 0x4440u | uint32_t(i))); }
__device__ __forceinline__ int signed_byte_of(uint32_t w, int i) {
  int d;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(d) : "r"(w), "r"(0x8880 | i * 0x1111));  // the sign three times
  return d;
}
__device__ __forceinline__ uint32_t word_of(uint4 v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Accumulators of rows g (0, 1) and g + 8 (2, 3); with one row of activations all columns of a product are the same,
// and 1 and 3 are not kept.
template <class Acts>
using AccOf = float[Acts::kTiles][4];
template <class Acts>
constexpr int kColStep = Acts::kN == 1 ? 2 : 1;

// A lane's codes of a tile at w: those of row g + 8 * row, in columns 32 h.. of 64.
struct TileCodes {
  const uint8_t* w;
  int lane, row, h;
  __device__ int byte(int at, int i) const { return int(w[at + lane * 16 + (2 * (i / 4) + row) * 4 + i % 4]); }
  __device__ int nibble(int at, int i) const { return (byte(at, i) >> (4 * h)) & 15; }
  __device__ int fifth(uint32_t f, int i) const { return int(f >> (8 * (i % 4) + 4 * h + 2 * (i / 4) + row)) & 1; }
  __device__ uint32_t word(int at) const { return *reinterpret_cast<const uint32_t*>(w + at); }
};

// A tile at p that is made of rows at raw, row_bytes apart; n_row of them exist, and n_col of the tile's columns.
struct TileRepack {
  uint8_t* p;
  const uint8_t* raw;
  int64_t row_bytes;
  int n_row, n_col, lane;
  __device__ const uint8_t* row(int r) const { return raw + r * row_bytes; }
  __device__ void put(int at, uint32_t v) const { *reinterpret_cast<uint32_t*>(p + at) = v; }
  // Four columns of row g + 8 (e % 2), 16 (e / 2) + 4 t..: a byte each of code(row's bytes, column).
  template <class F>
  __device__ uint32_t bytes(int e, F&& code) const {
    const int r = lane / 4 + 8 * (e % 2);
    uint32_t v = 0;
    if (r < n_row)
      for (int i = 0; i < 4; ++i) v |= uint32_t(code(row(r), 16 * (e / 2) + 4 * (lane % 4) + i) & 255) << (8 * i);
    return v;
  }
};
__device__ __forceinline__ int code_half(const uint8_t* qs, int i) { return (qs[i % 16] >> (i / 16 * 4)) & 15; }
__device__ __forceinline__ uint16_t u16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

}  // namespace facet::cuda
