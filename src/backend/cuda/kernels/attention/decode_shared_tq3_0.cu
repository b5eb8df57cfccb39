// Instantiates attention/decode.cuh, where the kernel and its header are.
#include "backend/cuda/kernels/attention/decode.cuh"

namespace facet::cuda {
template bool attend_decode_shared<KvType::kTQ3_0>(cudaStream_t, const AttendParams&, int);
}  // namespace facet::cuda
