#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/kv_layer.h"

namespace facet::cuda {

constexpr int kMaxMoves = 64;
struct KvMoves {
  int n = 0;
  int32_t from[kMaxMoves], to[kMaxMoves];  // rows; done in this order
};
// Moves rows of one slot in n_layer layers (views in device memory), in the order of the stream.
void kv_move(cudaStream_t, const KvLayer* layers, int n_layer, int slot, const KvMoves& moves);

}  // namespace facet::cuda
