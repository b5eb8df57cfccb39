#pragma once
#include <cublasLt.h>
#include <cuda_bf16.h>

#include <span>
#include <tuple>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/common/mat.h"
#include "backend/cuda/kernels/matmul/gemm.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "base/recent.h"

namespace facet::cuda {

// Products of many rows. On Hopper (DeviceInfo::gemm) those of some rows go straight from codes (gemm_codes.cu), others
// by way of a bf16 panel of the weights and gemm.cu; elsewhere by way of a panel and cuBLASLt.
class Gemm {
 public:
  static constexpr int64_t kWorkspace = int64_t(64) << 20;
  explicit Gemm(Device& device) : device_(device) {}
  ~Gemm();
  Gemm(const Gemm&) = delete;

  // For matrices of at most n_weight elements, n_tok rows and n_col columns.
  void reserve(int64_t n_weight, int64_t n_tok, int64_t n_col);
  static int64_t bytes(const DeviceInfo&, int64_t n_weight, int64_t n_tok, int64_t n_col);
  // For benches: products of few enough rows go straight from codes, or all by a panel.
  void use_codes(bool on) { use_codes_ = on; }
  // Whether products with it may be asked for: a panel of it fits. Before reserve(): none does.
  bool fits(const TiledMatrix& w) const;
  // y[t] = w x[t], f32 sums; also: a second copy of y, if wanted. Of at most kMost matrices.
  static constexpr int kMost = 3;
  struct Product {
    Mat y;
    TiledMatrix w;
    Mat also = {};
  };
  void multiply(std::span<const Product>, const __nv_bfloat16* x, int64_t x_stride);
  // y[t] = act(gate x[t]) * (up x[t]), and in bf16; rounded: nobody reads the f32.
  void multiply_gated(Mat y, const __nv_bfloat16* x, int64_t x_stride, const TiledMatrix& gate, const TiledMatrix& up,
                      Act act, bool rounded = false);

 private:
  struct Plan {
    cublasLtMatmulDesc_t op = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
    cublasLtMatmulAlgo_t algo{};
  };
  static void drop(Plan& p);
  static int64_t panel_elements(const DeviceInfo&, int64_t n_weight, int64_t n_tok, int64_t n_col);
  bool takes_codes(int n_tok, int64_t n_weight, const TiledMatrix&) const;
  void by_library(float* y, int64_t y_stride, const __nv_bfloat16* x, int64_t x_stride, int n_row,
                  const TiledMatrix& w);

  Device& device_;
  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  __nv_bfloat16* panel_ = nullptr;  // or what products from codes need: gemm_codes_room()
  float* second_ = nullptr;         // the library's: of up
  int64_t n_weight_ = 0;
  bool use_codes_ = true;
  // Keyed by rows, n_out, n_in and strides. A model has a handful of shapes, but many lengths of chunks.
  Recent<std::tuple<int, int, int, int64_t, int64_t>, Plan> plans_{128};
};

}  // namespace facet::cuda
