#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/backend.h"
#include "backend/cuda/kernels/common/mat.h"

// Launchers of everything between the projections of an attention block: norms, RoPE, cache rows, attention. The
// meaning of each is CpuRef's verb of the same name. Every pointer is device memory (a Step's arrays and a KvLayer's
// areas too; Step::shape is read on the host). Launches depend on shapes alone, so they may be captured.
namespace facet::cuda {

struct RopeFreqs {
  const double* p = nullptr;
  int n = 0;  // pairs: half the head width
};

void head_norm_rope(cudaStream_t, Mat x, const float* gain, RopeFreqs, const Step&, float eps);
void head_rope(cudaStream_t, Mat x, RopeFreqs, const Step&);
void head_norm(cudaStream_t, Mat x, int head_dim, float eps);
void kv_append(cudaStream_t, const KvLayer&, Mat k, Mat v, const Step&);
void kv_settle(cudaStream_t, const KvLayer&, const Step&);

// All of a layer's work on q, k and v before attention in one launch: q = rope(norm(q)), k = rope(norm(k)), v = norm(v)
// if norm_v, and the step's rows of k and v appended. q is written back; k and v are left undefined.
struct NormRopeAppend {
  const float *q_gain = nullptr, *k_gain = nullptr;
  RopeFreqs freqs;
  bool norm_v = true;
  float eps = 1e-6f;
};
void norm_rope_append(cudaStream_t, const KvLayer&, Mat q, Mat k, Mat v, const Step&, const NormRopeAppend&);

// Device memory that attend needs for partial results and copies, allocated once; depends on the limits alone. copied:
// shared rows of a quantised type that a long chunk may see, where there are wgmma products; 0: none.
struct AttendScratch {
  void* p = nullptr;
  size_t bytes = 0;
};
size_t attend_scratch_bytes(const BackendLimits&, int n_q_head, int max_head_dim, int64_t copied = 0);
// A norm_rope_append that is deferred to attend, which saves short steps a launch; k.p == nullptr: a head_norm_rope
// of q.
struct PendingQkNormRope {
  Mat k, v;
  NormRopeAppend work;
};
void run_qk_norm_rope(cudaStream_t, const KvLayer&, Mat q, const Step&, const PendingQkNormRope&);

// Width of the heads for which there are shared rows.
constexpr int kSharedHead = 512;
// Pairs of K and V types that every head width has kernels for; heads below 256 take any.
constexpr bool attend_takes(KvType k, KvType v) {
  return k == v || (k == KvType::kQ8_0 && (v == KvType::kQ4_0 || v == KvType::kTQ3_0));
}
struct SelectBuffers;  // attention/select.h
// The lists of the last select_blocks, and the step on the host.
struct Selection {
  const SelectBuffers* lists = nullptr;  // null: none
  const Step* host = nullptr;
};
// o [T, Hq * E], o.bf too when it is set. Tokens [0, n_small) of the step take kernels whose bits depend on the row
// alone; the others may take prefill kernels. With `pending`, q, k and v are the projections' and undefined afterwards.
// Returns whether o.image was written, too.
bool attend(cudaStream_t, Mat o, Mat q, const KvLayer&, const Step&, const AttnSpec&, AttendScratch,
            const PendingQkNormRope* pending = nullptr, const Selection& selection = {});

// Bytes of one head vector as the device keeps it, the same number as kv_row_bytes: the codes first, then the scales
// of its blocks. Host conversions, for tests and for caches saved to disk. head_dim 640: a shared row of heads of 512.
void kv_device_from_blocks(KvType, const std::byte* blocks, std::byte* device_row, int head_dim);
void kv_blocks_from_device(KvType, const std::byte* device_row, std::byte* blocks, int head_dim);

}  // namespace facet::cuda
