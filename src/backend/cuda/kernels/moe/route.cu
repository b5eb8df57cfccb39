// route -- which experts a token uses: router product, top-k, softmax over the chosen, and the pairs sorted by expert
//
// Shapes     r [T, D] f32, router [N, D] f32, N <= 256, n_used <= 16; T <= 16 (more: route_many.cu)
// Launch     a block an expert, up to four of them for several tokens, for the product; the last block to finish does the rest.
//            Or as blocks beside a matrix product that needs nothing of it (skinny.cuh)
// Order      a logit's sum depends on D only
// Reference  CpuRef::moe    Test tests/kernels/cuda_moe_test.cpp    Bench bench/verbs/cuda_ops_bench.cu
#include <algorithm>

#include "backend/cuda/kernels/moe/route.cuh"

namespace facet::cuda {
namespace {

__global__ void __launch_bounds__(kRouteThreads) route_kernel(const __grid_constant__ RouteJob j, int n_share) {
  __shared__ RouteScratch scratch;
  route_block(j, int(blockIdx.x), n_share, scratch);
}

}  // namespace

RouteJob route_job(const MoeExperts& m, Mat r, int n_tok, const Routing& o) {
  CHECK(m.n_expert <= kMaxExperts && m.n_used <= kMaxUsed && r.cols % 4 == 0 && r.cols <= kMaxRouterCols, "{} experts, {} used, {} columns", m.n_expert, m.n_used, r.cols);
  CHECK(n_tok <= kMoeRows, "{} tokens", n_tok);
  return {.router = m.router, .scale = m.scale, .n_expert = m.n_expert, .n_used = m.n_used, .n_tok = n_tok, .r = r, .o = o};
}
void route(cudaStream_t stream, const RouteJob& j) {
  const int n_share = std::min(j.n_tok, 4);
  launch(route_kernel, dim3(unsigned(j.n_expert * n_share)), dim3(kRouteThreads), 0, stream, j, n_share);
}

}  // namespace facet::cuda
