// route -- which experts a token uses: router product, top-k, softmax over the chosen, and the pairs sorted by expert
//
// Shapes     r [T, D] f32, router [N, D] f32, N <= 256, n_used <= 16; T <= 16 (more tokens: moe/route_small_batch.cu,
//            moe/route_large_batch.cu)
// Bytes      the router once, for all tokens; r once per two experts, from L2
// Launch     a block per two experts for the product, and one block that chooses; or as blocks beside a matrix product
//            that needs nothing of it (matmul/skinny.cuh)
// Order      a logit's sum depends on D alone
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_ops_bench.cu
#include <algorithm>

#include "backend/cuda/kernels/route/route.cuh"

namespace facet::cuda {
namespace {

__global__ void __launch_bounds__(kRouteThreads* kRouteGroups)
    route_kernel(const __grid_constant__ RouterArgs j, int n_row) {
  extern __shared__ __align__(16) uint8_t shared[];
  route_block<false>(j, int(blockIdx.x), shared, n_row);
}

}  // namespace

int route_blocks(const RouterArgs& j) { return 1 + (j.n_expert + kRouteGroups - 1) / kRouteGroups; }
void route(cudaStream_t stream, const RouterArgs& j) {
  constexpr int kShared = 48 * 1024;
  const int n_row = route_rows(kShared, j.r.cols, j.n_tok);
  launch(route_kernel, dim3(unsigned(route_blocks(j))), dim3(kRouteThreads * kRouteGroups),
         size_t(kRouteRowsAt + n_row * j.r.cols * 4), stream, j, n_row);
}

}  // namespace facet::cuda
