#pragma once
#include <type_traits>

#include "backend/cuda/kernels/matmul/tiles/tile_float.cuh"
#include "backend/cuda/kernels/matmul/tiles/tile_q45_0.cuh"
#include "backend/cuda/kernels/matmul/tiles/tile_q45_k.cuh"
#include "backend/cuda/kernels/matmul/tiles/tile_q6_k.cuh"
#include "backend/cuda/kernels/matmul/tiles/tile_q8_0.cuh"

namespace facet::cuda {

template <Tile tile>
using TileKind = std::integral_constant<Tile, tile>;

// f(TileKind of the tile): of any, of those that integer tensor cores take, of bf16 and f16.
template <class F>
__host__ __device__ __forceinline__ auto with_code_tile(Tile tile, F&& f) {
  switch (tile) {
    case Tile::kQ4_K:
      return f(TileKind<Tile::kQ4_K>{});
    case Tile::kQ5_K:
      return f(TileKind<Tile::kQ5_K>{});
    case Tile::kQ6_K:
      return f(TileKind<Tile::kQ6_K>{});
    case Tile::kQ4_0:
      return f(TileKind<Tile::kQ4_0>{});
    case Tile::kQ5_0:
      return f(TileKind<Tile::kQ5_0>{});
    default:
      return f(TileKind<Tile::kQ8_0>{});
  }
}
template <class F>
__host__ __device__ __forceinline__ auto with_float_tile(Tile tile, F&& f) {
  return tile == Tile::kBF16 ? f(TileKind<Tile::kBF16>{}) : f(TileKind<Tile::kF16>{});
}
template <class F>
__host__ __device__ __forceinline__ auto with_tile(Tile tile, F&& f) {
  return is_float(tile) ? with_float_tile(tile, f) : with_code_tile(tile, f);
}

}  // namespace facet::cuda
