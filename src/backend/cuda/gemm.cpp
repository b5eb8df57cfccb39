#include "backend/cuda/gemm.h"

#include <algorithm>

#include "backend/cuda/kernels/matmul/gemm_codes.h"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/ops.h"

namespace facet::cuda {
namespace {

GemmWork work_of(const Mat& y, const __nv_bfloat16* x, int64_t x_stride, const TiledMatrix& w, Act act) {
  return {.x = x,
          .x_stride = x_stride,
          .n_tok = y.rows,
          .n_out = w.n_out,
          .n_in = w.n_in,
          .act = act,
          .y = y.p,
          .y_bf = y.bf,
          .y_stride = y.stride,
          .y_bf_stride = y.bf_stride};
}

// From so many rows on a product of a panel wins more than unpacking it costs: later where matrices are large, because
// their codes occupy all multiprocessors.
constexpr int kPanelRows = 768;
constexpr int panel_rows(int64_t n_weight) { return n_weight >= int64_t(1) << 25 ? kPanelRows : kPanelRows / 2; }
int64_t weights_of(const TiledMatrix& w) { return int64_t(w.n_out) * w.n_in; }

}  // namespace

int64_t Gemm::panel_elements(const DeviceInfo& d, int64_t n_weight, int64_t n_tok, int64_t n_col) {
  if (!d.gemm) return n_weight;
  const int64_t rows = std::min<int64_t>(n_tok, kPanelRows - 1);
  return std::max(2 * n_weight + kTileRows * n_col,  // gate and up at once
                  gemm_codes_room(d.n_sm, rows, n_col) / 2);
}
int64_t Gemm::bytes(const DeviceInfo& d, int64_t n_weight, int64_t n_tok, int64_t n_col) {
  return panel_elements(d, n_weight, n_tok, n_col) * 2 + (d.gemm ? 0 : n_tok * n_col * 4 + kWorkspace);
}
void Gemm::reserve(int64_t n_weight, int64_t n_tok, int64_t n_col) {
  const DeviceInfo& d = device_.info();
  grow(device_, panel_, size_t(panel_elements(d, n_weight, n_tok, n_col)), "weights of a long product");
  n_weight_ = n_weight;
  if (d.gemm) return;
  if (!handle_) {
    if (cublasLtCreate(&handle_) != CUBLAS_STATUS_SUCCESS) device_.fail("cuBLASLt", size_t(kWorkspace));
    workspace_ = device_.allocate(size_t(kWorkspace), "cuBLASLt");
  }
  grow(device_, second_, size_t(n_tok * n_col), "results of a long product");
}
Gemm::~Gemm() {
  plans_.clear(drop);
  if (handle_) cublasLtDestroy(handle_);
}
void Gemm::drop(Plan& p) {
  cublasLtMatrixLayoutDestroy(p.a), cublasLtMatrixLayoutDestroy(p.b), cublasLtMatrixLayoutDestroy(p.c);
  cublasLtMatmulDescDestroy(p.op);
}
bool Gemm::fits(const TiledMatrix& w) const {
  if (device_.info().gemm && w.n_in % 8 != 0) return false;
  return panel_ && int64_t(w.n_out) * w.n_in <= n_weight_;
}
bool Gemm::takes_codes(int n_tok, int64_t n_weight, const TiledMatrix& w) const {
  return use_codes_ && device_.info().gemm && !is_float(w.tile) && n_tok < panel_rows(n_weight);
}
void Gemm::multiply(std::span<const Product> all, const __nv_bfloat16* x, int64_t x_stride) {
  CHECK(all.size() <= kMost, "{} matrices", all.size());
  CodesProduct code[kMost];
  size_t n_code = 0;
  int64_t n_weight = 0;
  for (const auto& [y, w, also] : all) n_weight += weights_of(w);
  for (const auto& [y, w, also] : all) {
    CHECK(!also.p || also.stride == y.stride, "rows of {} and {}", y.stride, also.stride);
    if (!takes_codes(y.rows, n_weight, w)) continue;
    CodesProduct& c = code[n_code++];
    c.to = work_of(y, x, x_stride, w, Act::kGelu), c.w = w;
    c.to.y_also = also.p;
  }
  if (n_code > 0) gemm_codes(device_.stream(), {code, n_code}, panel_);
  for (const auto& [y, w, also] : all) {
    if (takes_codes(y.rows, n_weight, w)) continue;
    if (!device_.info().gemm) {
      by_library(y.p, y.stride, x, x_stride, y.rows, w);
      if (also.p) copy_cols(device_.stream(), also, 0, y);
      continue;
    }
    unpack_bf16(device_.stream(), panel_, w, 0, 0, w.n_out);
    GemmWork g = work_of(y, x, x_stride, w, Act::kGelu);
    g.w = panel_, g.y_also = also.p;
    gemm(device_.stream(), g);
  }
}
void Gemm::multiply_gated(Mat y, const __nv_bfloat16* x, int64_t x_stride, const TiledMatrix& gate,
                          const TiledMatrix& up, Act act, bool rounded) {
  if (!device_.info().gemm) {
    by_library(y.p, y.stride, x, x_stride, y.rows, gate);
    by_library(second_, y.cols, x, x_stride, y.rows, up);
    return act_mul(device_.stream(), y, y, {.p = second_, .rows = y.rows, .cols = y.cols, .stride = y.cols}, act);
  }
  GemmWork g = work_of(y, x, x_stride, gate, act);
  if (rounded && g.y_bf) g.y = nullptr;
  if (takes_codes(y.rows, 2 * weights_of(gate), gate) && up.tile == gate.tile) {
    const CodesProduct both{.to = g, .w = gate, .up = &up};
    return gemm_codes(device_.stream(), {&both, 1}, panel_);
  }
  unpack_bf16(device_.stream(), panel_, gate, 0, 0, gate.n_out, 0);
  unpack_bf16(device_.stream(), panel_, up, 0, 0, up.n_out, 1);
  g.w = panel_, g.gated = true;
  gemm(device_.stream(), g);
}
void Gemm::by_library(float* y, int64_t y_stride, const __nv_bfloat16* x, int64_t x_stride, int n_row,
                      const TiledMatrix& w) {
  const int n_out = w.n_out, n_in = w.n_in;
  unpack_bf16(device_.stream(), panel_, w, 0, 0, n_out);
  auto ok = [](cublasStatus_t s) { CHECK(s == CUBLAS_STATUS_SUCCESS, "cuBLASLt: status {}", int(s)); };
  Plan& p = plans_.at({n_row, n_out, n_in, y_stride, x_stride}, drop);
  if (!p.op) {  // column-major: y^T [n_out, rows] = panel^T^T [n_out, n_in] x^T [n_in, rows]
    ok(cublasLtMatmulDescCreate(&p.op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    ok(cublasLtMatmulDescSetAttribute(p.op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    ok(cublasLtMatrixLayoutCreate(&p.a, CUDA_R_16BF, uint64_t(n_in), uint64_t(n_out), n_in));
    ok(cublasLtMatrixLayoutCreate(&p.b, CUDA_R_16BF, uint64_t(n_in), uint64_t(n_row), x_stride));
    ok(cublasLtMatrixLayoutCreate(&p.c, CUDA_R_32F, uint64_t(n_out), uint64_t(n_row), y_stride));
    cublasLtMatmulPreference_t want = nullptr;
    ok(cublasLtMatmulPreferenceCreate(&want));
    const uint64_t bytes = uint64_t(kWorkspace);
    ok(cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    cublasLtMatmulHeuristicResult_t found{};
    int n = 0;
    ok(cublasLtMatmulAlgoGetHeuristic(handle_, p.op, p.a, p.b, p.c, p.c, want, 1, &found, &n));
    CHECK(n == 1, "cuBLASLt has no way to multiply [{}, {}] by [{}, {}]", n_out, n_in, n_in, n_row);
    p.algo = found.algo;
    cublasLtMatmulPreferenceDestroy(want);
  }
  const float one = 1, zero = 0;
  ok(cublasLtMatmul(handle_, p.op, &one, panel_, p.a, x, p.b, &zero, y, p.c, y, p.c, &p.algo, workspace_,
                    size_t(kWorkspace), device_.stream()));
}

}  // namespace facet::cuda
