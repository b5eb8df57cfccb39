#include "backend/cuda/kernels/attend/decode.cuh"

namespace facet::cuda {
template void attend_decode<KvType::kQ8_0, KvType::kQ8_0>(cudaStream_t, AttendParams, int);
}  // namespace facet::cuda
