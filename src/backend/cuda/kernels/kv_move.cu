// kv_move -- the rows of an accepted tree path, moved together
//
// Shapes     rows of K and of V of every layer, as many bytes as a cache row has; at most kMaxMoves moves
// Bytes      each moved row once in, once out, per layer and side
// Launch     a block per layer and side; moves run one after the other, since a row may be read before it is
//            overwritten
// Order      the order of the moves; bytes are copied as they are
// Reference  HostKvCache::move_row
// Test       tests/kernels/cuda_kv_move_test.cpp
#include "backend/cuda/kernels/kv_move.h"

#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {
namespace {

__global__ void kv_move_kernel(const KvLayer* layers, int slot, KvMoves m) {
  const KvLayer& l = layers[blockIdx.x];
  const bool v = blockIdx.y == 1;
  if (v && l.shared) return;
  const int64_t bytes = v ? l.v_row : l.k_row;
  for (int i = 0; i < m.n; ++i) {
    const KvRow a = kv_ring_row(l, slot, m.from[i]), b = kv_ring_row(l, slot, m.to[i]);
    const uint16_t* from = reinterpret_cast<const uint16_t*>(v ? a.v : a.k);
    uint16_t* to = reinterpret_cast<uint16_t*>(v ? b.v : b.k);
    for (int64_t j = threadIdx.x; j < bytes / 2; j += blockDim.x) to[j] = from[j];
    __syncthreads();
  }
}

}  // namespace

void kv_move(cudaStream_t stream, const KvLayer* layers, int n_layer, int slot, const KvMoves& moves) {
  kv_move_kernel<<<dim3(unsigned(n_layer), 2), 256, 0, stream>>>(layers, slot, moves);
  FACET_CUDA_CHECK(cudaGetLastError());
}

}  // namespace facet::cuda
