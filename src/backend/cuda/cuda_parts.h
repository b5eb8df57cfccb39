#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <tuple>
#include <vector>

#include "backend/cpu/sampler.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/sample.h"

// Parts of the Cuda backend that its header does not show.
#define CUDA_OK(expr) FACET_CUDA_CHECK(expr)

namespace facet {

// A step's arrays: packed in pinned memory, copied in one piece. Small steps have a place of their own, so that graphs
// find them at fixed addresses and little is copied.
struct Cuda::StepArrays {
  static constexpr int kSmall = kGraphRows, kRing = 8;
  struct Place {
    int cap = 0;
    std::byte* device = nullptr;
    std::array<std::byte*, kRing> host{};
    int next = 0;
    int unread = 0,
        later = 0;  // of host that the device may still have to read; of those, since the newest results were asked for
  };
  ~StepArrays();
  void create(Cuda& c, int max_tok);
  Step upload(Cuda& c, const Step& s, bool keep_tokens);  // keep_tokens: of the step before
  void results_asked_for() { small.later = large.later = 0; }
  void results_there() { small.unread = small.later, large.unread = large.later; }
  Place small, large;
  int32_t* token = nullptr;  // of the newest step
};

struct Cuda::Sampler {
  ~Sampler();
  std::vector<void*> pinned;
  bool pending = false;  // ids are on their way to the host
  bool drawing = false;  // host may still be read
  cuda::Done done;       // of the newest results
  int max_row = 0, max_adjust = 0;
  std::byte *host = nullptr, *device = nullptr;  // rows, then adjustments
  size_t max_mask = 0;                           // words
  uint32_t *host_masks = nullptr, *masks = nullptr;
  uint64_t* candidates = nullptr;
  int64_t n_candidate = 0;
  float2* part_sums = nullptr;  // of top_k: largest logit and sum of exponentials of a part
  cuda::TopK unpicked;          // parts of next_tokens' rows; n_row 0: none are left
  SamplerScratch scratch;
  std::vector<cuda::Adjust> adjust;
  std::vector<int32_t> recent;
};

// Weights on their way to the device: two pinned buffers in turn.
struct Cuda::Loader {
  static constexpr size_t kPiece = size_t(32) << 20;
  ~Loader();
  struct Buffer {
    std::byte* host = nullptr;
    uint8_t* device = nullptr;
    cudaEvent_t free = nullptr;
  };
  std::array<Buffer, 2> buffer;
  int next = 0;
  std::vector<float> row;
};

// Products of many rows: weights as a bf16 panel, cuBLASLt.
struct Cuda::Gemm {
  static constexpr int64_t kWorkspace = int64_t(64) << 20;
  ~Gemm();
  void create(Cuda& c, int64_t panel_elements, int64_t second_elements);
  bool fits(std::span<const Weight> w) const;
  // y[t] = panel x[t]: panel [n_out, n_in], f32 sums.
  void multiply(cudaStream_t, float* y, int64_t y_stride, const __nv_bfloat16* x, int64_t x_stride, int n_row,
                int n_out, int n_in);
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  __nv_bfloat16* panel = nullptr;
  float* second = nullptr;  // the up projection of gated FFNs
  int64_t panel_elements = 0;
  struct Plan {
    cublasLtMatmulDesc_t op = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulAlgo_t algo{};
  };
  static void drop(Plan& p);
  // By rows, n_out, n_in and strides. A model has a handful of shapes; lengths of chunks are many.
  Recent<std::tuple<int, int, int, int64_t, int64_t>, Plan> plans{128};
};

}  // namespace facet
