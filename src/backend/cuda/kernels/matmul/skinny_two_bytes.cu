// Instantiates matmul/skinny.cuh, where the kernel and its header are.
#include "backend/cuda/kernels/matmul/skinny.cuh"

namespace facet::cuda {
template void launch_skinny<1, Input::kTwoBytes, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<1, Input::kTwoBytes, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, Input::kTwoBytes, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, Input::kTwoBytes, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, Input::kTwoBytes, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, Input::kTwoBytes, true>(cudaStream_t, SkinnyArgs&, int);
}  // namespace facet::cuda
