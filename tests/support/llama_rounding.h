#pragma once
#include <cmath>

#include "backend/cpu/cpu_ref.h"
#include "base/half.h"

namespace facet::test {

// CpuRef with the two roundings that llama.cpp makes even on a file of F32 weights, for comparison with logits that it
// computed: GELU goes through a table of 16-bit floats, and a BF16 matrix (per_layer_model_proj is never quantised, so
// a dequantised file still holds it) is multiplied by activations rounded to bf16.
struct LlamaRounding : CpuRef {
  using CpuRef::CpuRef;

  void matmul(Rows y, Rows x, Weight w) {
    if (w.type != DType::kBF16) return CpuRef::matmul(y, x, w);
    const Rows z = scratch_rows(0, x.rows, x.cols);
    for (int t = 0; t < x.rows; ++t)
      for (int i = 0; i < x.cols; ++i) z.row(t)[i] = bf16_to_f32(f32_to_bf16(x.row(t)[i]));
    CpuRef::matmul(y, z, w);
  }
  void gate_up(Rows y, Rows h, Weight gate, Weight up, Act) {
    const Rows u = scratch_rows(1, y.rows, y.cols);
    CpuRef::matmul(u, h, up);
    CpuRef::matmul(y, h, gate);
    multiply(y, y, u);
  }
  void act_mul(Rows y, Rows g, Rows u, Act) { multiply(y, g, u); }
  // The experts' GELU is inside CpuRef::moe and stays exact.

 private:
  static float gelu16(float x) {
    if (x <= -10.f) return 0.f;
    if (x >= 10.f) return x;
    x = f16_to_f32(f32_to_f16(x));
    return f16_to_f32(f32_to_f16(.5f * x * (1.f + std::tanh(.79788456f * x * (1.f + .044715f * x * x)))));
  }
  static void multiply(Rows y, Rows g, Rows u) {
    for (int t = 0; t < y.rows; ++t)
      for (int i = 0; i < y.cols; ++i) y.row(t)[i] = gelu16(g.row(t)[i]) * u.row(t)[i];
  }
  Rows scratch_rows(int which, int rows, int cols) {
    if (!spare_[which]) spare_[which] = new_rows(256, 4096);
    return spare_[which].view(rows, cols);
  }
  Rows spare_[2];
};

}  // namespace facet::test
