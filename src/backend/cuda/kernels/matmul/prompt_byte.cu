#include "backend/cuda/kernels/matmul/prompt.cuh"

namespace facet::cuda {
template void launch_prompt<false>(cudaStream_t, Tile, PromptArgs&);
}  // namespace facet::cuda
