// attend, long chunks over shared rows: K and V are the first and the last 512 of a row's 640 values
#pragma once
#include "backend/cuda/kernels/attention/prefill_mma.cuh"
#include "backend/cuda/kernels/attention/prefill_shared_wgmma.cuh"

namespace facet::cuda {

template <KvType T>
bool attend_prefill_shared(cudaStream_t stream, const AttendParams& p) {
  return attend_prefill_shared_wgmma<T>(stream, p) || launch_prefill_mma<T, T, kSharedHead, true>(stream, p);
}

}  // namespace facet::cuda
