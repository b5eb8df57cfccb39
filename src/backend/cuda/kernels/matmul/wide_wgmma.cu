#include "backend/cuda/kernels/matmul/wide_wgmma.cuh"

namespace facet::cuda {

bool wide_has_warpgroups() { return has_warpgroups(wide_wgmma_kernel<32>); }

void launch_wide_wgmma(cudaStream_t stream, const WideArgs& w, int n_warp, int group) {
  auto* const kernel = group == 64 ? wide_wgmma_kernel<64> : wide_wgmma_kernel<32>;
  allow_shared(kernel, size_t(device().shared - kOwnShared));
  launch(kernel, dim3(unsigned(w.a.blocks * w.a.n_set)), dim3(unsigned(n_warp * 32)),
         size_t(w.a.at_rings + w.a.n_stage * w.stage), stream, w);
}

}  // namespace facet::cuda
