#include "backend/cuda/kernels/matmul/prompt.cuh"

namespace facet::cuda {
template void launch_prompt<true>(cudaStream_t, Tile, PromptArgs&);
}  // namespace facet::cuda
