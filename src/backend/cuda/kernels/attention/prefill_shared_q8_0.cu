// Instantiates attention/prefill_shared.cuh, where the kernel and its header are.
#include "backend/cuda/kernels/attention/prefill_shared.cuh"

namespace facet::cuda {
template bool attend_prefill_shared<KvType::kQ8_0>(cudaStream_t, const AttendParams&);
}  // namespace facet::cuda
