// Instantiates attention/prefill.cuh, where the kernel and its header are.
#include <algorithm>

#include "backend/cuda/kernels/attention/prefill.cuh"

namespace facet::cuda {
template bool attend_prefill<KvType::kF16, KvType::kF16>(cudaStream_t, const AttendParams&);
}  // namespace facet::cuda
