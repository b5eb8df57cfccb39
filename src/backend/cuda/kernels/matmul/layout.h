#pragma once
#include <cstdint>

#include "backend/step.h"
#include "formats/dtype.h"

// How weight matrices lie in device memory: tiles of 16 rows, in the order in which the lanes of a warp feed them to
// tensor cores, with the same number of bytes as in the file. A strip is 16 rows, its tiles one after the other.
//
// Lane 4 g + t of a warp holds rows g and g + 8. In every 64 columns it has 8 of the first 32 and 8 of the second, h:
// of codes 32 h + 16 (i / 4) + 4 t + i % 4, i = 0..7, of bf16 and f16 32 h + 8 t + i. Codes lie in words of four
// columns, which are operands of integer tensor cores once the bits are in place: word e of four is row g + 8 (e % 2),
// columns 16 (e / 2) + 4 t.. A byte of a word of nibbles has the column of the first 32 in its low half, of the second
// in its high half. j counts groups of 64 columns.
//
//   Q4_K  256 columns   nibbles [j][lane][e] | row: d, dmin, M[4], S[8]
//                       S[i] bits 0-5: scale i; M[i]: low nibbles of minima i (lo) and i + 4 (hi), their top bits in
//                       S[i] and S[i + 4] bits 6-7
//   Q5_K  256 columns   nibbles as Q4_K | fifth bits [lane][j] words, a byte a column: bit e first, bit 4 + e second
//   half
//                       | rows as Q4_K
//   Q6_K  256 columns   nibbles as Q4_K | top pairs [j / 2][lane][j % 2][row] words, a byte a column, bits 2 s of
//   columns 16 s..;
//                       the upper bit inverted: the sign of code - 32 | scales [row][16] | d [row]
//   Q4_0  64 columns    nibbles [lane][e], signed: code - 8 | d [row][h]
//   Q5_0  64 columns    nibbles [lane][e] | fifth bits [lane] words as Q5_K's, inverted: the sign of code - 16 | d
//   [row][h] Q8_0  64 columns    codes [h][lane][e] | d [row][h] BF16, F16 64 columns   [h][row][lane][i]
//
// Rows and columns beyond the matrix are zeros.
namespace facet::cuda {

enum class Tile : uint8_t { kQ4_K, kQ5_K, kQ6_K, kQ4_0, kQ5_0, kQ8_0, kBF16, kF16 };
constexpr int kTileRows = 16;

FACET_HD constexpr int tile_cols(Tile t) { return t <= Tile::kQ6_K ? 256 : 64; }
FACET_HD constexpr int tile_bytes(Tile t) {
  switch (t) {
    case Tile::kQ4_K:
      return 16 * 144;
    case Tile::kQ5_K:
      return 16 * 176;
    case Tile::kQ6_K:
      return 16 * 210;
    case Tile::kQ4_0:
      return 16 * 36;
    case Tile::kQ5_0:
      return 16 * 44;
    case Tile::kQ8_0:
      return 16 * 68;
    case Tile::kBF16:
    case Tile::kF16:
      return 16 * 128;
  }
  return 0;
}

// Tiles of a strip that kernels for few rows fetch and multiply as one: a small tile costs more to fetch than to
// multiply. Their bytes are whole lines of 128.
FACET_HD constexpr int group_tiles(Tile t) {
  return t == Tile::kQ4_0 || t == Tile::kQ5_0 ? 4 : t == Tile::kQ8_0 ? 2 : 1;
}

// How a product with few rows reads its input (acts.cuh): a byte a value, two, or bf16.
enum class Input : uint8_t { kByte, kTwoBytes, kBf16 };
FACET_HD constexpr bool may_be_fine(Tile t) { return t < Tile::kBF16; }

// A matrix [n_out, n_in], or a stack of them, in tiles.
struct TiledMatrix {
  const uint8_t* p = nullptr;
  Tile tile = Tile::kBF16;
  int n_out = 0, n_in = 0, n_stack = 1;
  bool fine = false;  // may_be_fine(tile), and products read two bytes a value
  FACET_HD int n_strip() const { return (n_out + kTileRows - 1) / kTileRows; }
  FACET_HD int n_tile() const { return (n_in + tile_cols(tile) - 1) / tile_cols(tile); }  // of a strip
  FACET_HD int64_t strip_bytes() const { return int64_t(n_tile()) * tile_bytes(tile); }
  FACET_HD int64_t matrix_bytes() const { return n_strip() * strip_bytes(); }
  FACET_HD const uint8_t* strip(int64_t stack, int s) const { return p + stack * matrix_bytes() + s * strip_bytes(); }
};

FACET_HD constexpr Input input_of(const TiledMatrix& m) {
  return m.tile >= Tile::kBF16 ? Input::kBf16 : m.fine ? Input::kTwoBytes : Input::kByte;
}

// What a product has left to whoever reads its output: y[t][16 j + r] is the sum over sets s, in order, of
// p[((s * n_job + j) * width + t) * 16 + r].
struct Partials {
  const float* p = nullptr;
  int n_set = 0, n_job = 0, width = 0;
};

}  // namespace facet::cuda
