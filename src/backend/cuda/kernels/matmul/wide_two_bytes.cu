// Instantiates matmul/wide.cuh, where the kernel and its header are.
#include "backend/cuda/kernels/matmul/wide.cuh"

namespace facet::cuda {
template void launch_wide<true>(cudaStream_t, const WideArgs&, int);
}  // namespace facet::cuda
