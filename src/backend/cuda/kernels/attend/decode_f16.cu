#include "backend/cuda/kernels/attend/decode.cuh"

namespace facet::cuda {
template void attend_decode<KvType::kF16, KvType::kF16>(cudaStream_t, AttendParams, int);
}  // namespace facet::cuda
