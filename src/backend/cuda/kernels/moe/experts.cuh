#pragma once
#include <algorithm>
#include <initializer_list>

#include "backend/cuda/kernels/matmul/stream.cuh"
#include "backend/cuda/kernels/moe/moe.h"

// What moe_decode and moe_small_batch share: how they read a stack of experts' matrices, and the order in which they
// add.
namespace facet::cuda {

constexpr int kExpertWarps = 12;  // of a block
// A strip's columns are added up in slices of pieces, and these in order.
constexpr int kUpSlices = 2, kDownSlices = 3;
FACET_HD constexpr int sub_matrices(int slices) { return slices == kUpSlices ? 2 : 1; }
FACET_HD constexpr int slice_begin(int n_piece, int slice, int slices) { return n_piece * slice / slices; }

// These fields come first among a kernel's arguments, as in SkinnyArgs: a warp needs them before its first copy.
struct ExpertTiles {
  const uint8_t* p;
  int64_t matrix_bytes;                   // of an expert's
  int strip_bytes, piece_bytes, n_piece;  // a piece: group_tiles() tiles of a strip
  int strip0;                             // of the sub-matrix in its stack's matrix
  int n_tile;                             // of a strip
  Tile tile;
};
// w: gate and up, or down; up_strip: where up begins in its stack's matrix. stage_bytes: a ring's stage holds a piece
// of any of them.
inline Input take_tiles(ExpertTiles* to, int& stage_bytes, std::initializer_list<TiledMatrix> w, int up_strip) {
  Input in = Input::kByte;
  for (const TiledMatrix& m : w) in = std::max(in, input_of(m));
  stage_bytes = 1024;  // room for a part of two strips
  int i = 0;
  for (const TiledMatrix& m : w) {
    const int tiles = group_tiles(m.tile), bytes = tiles * tile_bytes(m.tile);
    to[i] = {.p = m.p,
             .matrix_bytes = m.matrix_bytes(),
             .strip_bytes = int(m.strip_bytes()),
             .piece_bytes = bytes,
             .n_piece = (m.n_tile() + tiles - 1) / tiles,
             .strip0 = i * up_strip,
             .n_tile = m.n_tile(),
             .tile = m.tile};
    // Tiles of a piece lie anywhere in their lines.
    stage_bytes = std::max(
        stage_bytes, tiles > 1 ? WarpRing::lines(bytes + WarpRing::kLine - 16) : WarpRing::stage_bytes_for(bytes));
    CHECK(is_float(m.tile) == (in == Input::kBf16) && m.n_in == w.begin()->n_in,
          "gate and up of types that do not go together");
    ++i;
  }
  return in;
}

// acc += pieces [i0, i1) of a strip times x; pop gives the next one.
template <class Acts, class Pop>
__device__ __forceinline__ void multiply_pieces(const ExpertTiles& w, const Acts& x, int lane, int i0, int i1,
                                                float (&acc)[Acts::kTiles][4], Pop&& pop) {
  with_product(w.tile, x, lane, [&](auto&& product, auto kind) {
    constexpr int kEach = group_tiles(kind()), kBytes = tile_bytes(kind());
#pragma unroll 1
    for (int i = i0; i < i1; ++i) {
      const uint8_t* tile = pop();
      if (kEach == 1 || (i + 1) * kEach <= w.n_tile) {
#pragma unroll
        for (int k = 0; k < kEach; ++k) product(tile + k * kBytes, i * kEach + k, acc);
      } else {
#pragma unroll 1
        for (int k = 0; k < w.n_tile - i * kEach; ++k) product(tile + k * kBytes, i * kEach + k, acc);
      }
    }
  });
}

// moe_small_batch for one token.
void moe_decode(cudaStream_t, const MoeExperts&, Mat e, const MoeBuffers&, bool routed);

}  // namespace facet::cuda
