// Instantiates attention/prefill.cuh, where the kernel and its header are.
#include <algorithm>

#include "backend/cuda/kernels/attention/prefill.cuh"

namespace facet::cuda {
template bool attend_prefill<KvType::kQ8_0, KvType::kQ4_0>(cudaStream_t, const AttendParams&);
}  // namespace facet::cuda
