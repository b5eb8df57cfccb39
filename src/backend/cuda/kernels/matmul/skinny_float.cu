#include "backend/cuda/kernels/matmul/skinny.cuh"

namespace facet::cuda {
template void launch_skinny<1, true, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<1, true, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, true, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, true, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, true, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, true, true>(cudaStream_t, SkinnyArgs&, int);
}  // namespace facet::cuda
