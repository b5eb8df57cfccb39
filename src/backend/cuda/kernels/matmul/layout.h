#pragma once
#include <cstdint>

#include "backend/step.h"
#include "formats/dtype.h"

// How weight matrices lie in device memory: tiles of 16 rows, in the order in which the lanes of a warp feed them to
// tensor cores, with the same number of bytes as in the file. A strip is 16 rows, its tiles one after the other.
//
// How the bytes of each type lie in its tile: tiles/.
//
// Rows and columns beyond the matrix are zeros.
namespace facet::cuda {

enum class Tile : uint8_t { kQ4_K, kQ5_K, kQ6_K, kQ4_0, kQ5_0, kQ8_0, kBF16, kF16 };
constexpr int kTileRows = 16;

// A type's line: columns and bytes of a tile, and how many tiles of a strip the kernels for few rows fetch and multiply
// as one: a small tile costs more to fetch than to multiply. Their bytes are whole lines of 128.
struct TileLayout {
  int cols, bytes, group;
  bool is_float;    // bf16 or f16: else codes, which integer tensor cores take
  bool is_precise;  // its own error is less than that of activations in one byte
};
FACET_HD constexpr TileLayout tile_layout(Tile t) {
  switch (t) {
    case Tile::kQ4_K:
      return {256, 16 * 144, 1, false, false};
    case Tile::kQ5_K:
      return {256, 16 * 176, 1, false, false};
    case Tile::kQ6_K:
      return {256, 16 * 210, 1, false, true};
    case Tile::kQ4_0:
      return {64, 16 * 36, 4, false, true};
    case Tile::kQ5_0:
      return {64, 16 * 44, 4, false, true};
    case Tile::kQ8_0:
      return {64, 16 * 68, 2, false, true};
    case Tile::kBF16:
    case Tile::kF16:
      return {64, 16 * 128, 1, true, false};
  }
  return {};
}
FACET_HD constexpr int tile_cols(Tile t) { return tile_layout(t).cols; }
FACET_HD constexpr int tile_bytes(Tile t) { return tile_layout(t).bytes; }
FACET_HD constexpr int group_tiles(Tile t) { return tile_layout(t).group; }
FACET_HD constexpr bool is_float(Tile t) { return tile_layout(t).is_float; }

// How a product with few rows reads its input (acts.cuh): a byte a value, two, or bf16.
enum class Input : uint8_t { kByte, kTwoBytes, kBf16 };
FACET_HD constexpr bool may_be_fine(Tile t) { return !is_float(t); }

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
  return is_float(m.tile) ? Input::kBf16 : m.fine ? Input::kTwoBytes : Input::kByte;
}

// Partial sums that a product leaves to the reader of its output: y[t][16 j + r] is the sum over sets s, in order, of
// p[((s * n_job + j) * width + t) * 16 + r].
struct Partials {
  const float* p = nullptr;
  int n_set = 0, n_job = 0, width = 0;
};

}  // namespace facet::cuda
