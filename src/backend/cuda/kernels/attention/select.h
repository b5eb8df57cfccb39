#pragma once
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backend/backend.h"
#include "backend/cuda/kernels/common/mat.h"
#include "backend/kv_layer.h"
#include "backend/select.h"

// Block-sparse prefill on the device (backend/select.h): buffers and launchers. Steps that select are launched one by
// one: the launches depend on what is in the step.
namespace facet::cuda {

struct SelectBuffers {
  void* memory = nullptr;
  int cap = 0;             // blocks of the longest sequence
  int most_tile = 0;       // of a step
  int64_t n_score = 0;     // floats
  __half* mean = nullptr;  // [Hk][cap * kBlockMeans][E], of one sequence, in the places of K's values
  float* score = nullptr;  // [Hk][rows of some tiles][cap]
  int32_t *count = nullptr, *index = nullptr;                // [tile][Hk], [tile][Hk][cap]
  int32_t *sample_count = nullptr, *sample_index = nullptr;  // [set][tile][Hk], [set][tile][Hk][kSampleBlocks / sets]
  int32_t* repair = nullptr;                                 // [tile][Hk]: kAllBlocks or 0
  float* lse = nullptr;                                      // [1 + sets][T][Hq]
  Selected* sum = nullptr;                                   // [slot]
};
size_t select_bytes(const BackendLimits&);  // 0 where nothing selects
SelectBuffers select_buffers(void* memory, const BackendLimits&);

// Lists for the tiles of every sequence of the step; false: there are no kernels for this layer, which is read whole.
// host: the step on the host.
bool select_blocks(cudaStream_t, const SelectBuffers&, Mat q, const KvLayer&, const Step& host, const AttnSpec&);
// Called after attention over the lists and over the samples: finds the tiles that are to be done again, and the sums.
void settle_selected(cudaStream_t, const SelectBuffers&, const KvLayer&, const Step& host, const AttnSpec&);

}  // namespace facet::cuda
