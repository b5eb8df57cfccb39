#pragma once
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <tuple>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "base/recent.h"

namespace facet::cuda {

// Products of many rows: weights as a bf16 panel, cuBLASLt.
class Gemm {
 public:
  static constexpr int64_t kWorkspace = int64_t(64) << 20;
  explicit Gemm(Device& device) : device_(device) {}
  ~Gemm();
  Gemm(const Gemm&) = delete;

  void reserve(int64_t panel_elements, int64_t second_elements);
  // Whether such a matrix fits; before reserve(): none does.
  bool fits(int64_t n_out, int64_t n_in) const { return panel_ && n_out * n_in <= panel_elements_; }
  // y[t] = w x[t], f32 sums.
  void multiply(float* y, int64_t y_stride, const __nv_bfloat16* x, int64_t x_stride, int n_row, const TiledMatrix& w);
  float* second() const { return second_; }  // room for the up projection of gated FFNs

 private:
  struct Plan {
    cublasLtMatmulDesc_t op = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulAlgo_t algo{};
  };
  static void drop(Plan& p);

  Device& device_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  __nv_bfloat16* panel_ = nullptr;
  float* second_ = nullptr;
  int64_t panel_elements_ = 0;
  // Keyed by rows, n_out, n_in and strides. A model has a handful of shapes, but many lengths of chunks.
  Recent<std::tuple<int, int, int, int64_t, int64_t>, Plan> plans_{128};
};

}  // namespace facet::cuda
