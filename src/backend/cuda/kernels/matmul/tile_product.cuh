#pragma once
#include "backend/cuda/kernels/matmul/tiles/all.cuh"

// One tile of weights (layout.h) in shared memory times up to 16 rows of activations: the inner loop of every
// matrix product with few rows. Codes times codes is exact, in integers; the scales of sub-blocks multiply
// those integers, the activations' scales their sums over 64 columns, d the sum over a tile. Minima multiply
// sums of activations. An activation row's result does not depend on the other rows.
namespace facet::cuda {

// What multiplies tiles of this kind: f(product, kind), where product(weights, place of the tile in x in tiles, acc)
// does it. The kind is looked at once for many tiles.
template <class Acts, class F>
__device__ __forceinline__ void with_product(Tile tile, const Acts& x, int lane, F&& f) {
  auto multiply = [&](auto kind) {
    f([&](const uint8_t* w, int at,
          AccOf<Acts>& acc) { TileTraits<decltype(kind)::value>::product(w, x, at, lane, acc); },
      kind);
  };
  if constexpr (Acts::kFloat)
    with_float_tile(tile, multiply);
  else
    with_code_tile(tile, multiply);
}

}  // namespace facet::cuda
