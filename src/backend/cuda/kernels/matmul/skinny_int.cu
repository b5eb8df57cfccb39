#include "backend/cuda/kernels/matmul/skinny.cuh"

namespace facet::cuda {
template void launch_skinny<1, false, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<1, false, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, false, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, false, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, false, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, false, true>(cudaStream_t, SkinnyArgs&, int);
}  // namespace facet::cuda
