// Instantiates matmul/skinny.cuh, where the kernel and its header are.
#include "backend/cuda/kernels/matmul/skinny.cuh"

namespace facet::cuda {
template void launch_skinny<1, Input::kByte, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<1, Input::kByte, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, Input::kByte, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<8, Input::kByte, true>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, Input::kByte, false>(cudaStream_t, SkinnyArgs&, int);
template void launch_skinny<16, Input::kByte, true>(cudaStream_t, SkinnyArgs&, int);
}  // namespace facet::cuda
