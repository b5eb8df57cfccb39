// Instantiates matmul/prompt.cuh, where the kernel and its header are.
#include "backend/cuda/kernels/matmul/prompt.cuh"

namespace facet::cuda {
template void launch_prompt<false>(cudaStream_t, Tile, PromptArgs&);
}  // namespace facet::cuda
