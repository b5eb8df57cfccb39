#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "backend/cuda/kernels/common/mat.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/step.h"

// Launchers of the verbs of encoders. Each means what CpuRef's verb of that name does; a Mat with bf set is also written
// in bf16. Steps are the device's.
namespace facet::cuda {

constexpr int kMaxEncoderHead = 128;  // columns of a head

void add_positions(cudaStream_t, Mat x, const TiledMatrix& table, const Step& s);
// freqs null: norms alone; gain null: ones.
void grid_norm_rope(cudaStream_t, Mat x, int head_dim, const float* gain, const double* freqs, const Step& s,
                    float eps);
struct EncoderRows {
  const __nv_bfloat16* p = nullptr;
  int64_t stride = 0;
};
void encoder_attend(cudaStream_t, Mat o, EncoderRows q, EncoderRows k, EncoderRows v, const Step& s, int head_dim,
                    float scale);
void clamp(cudaStream_t, Mat y, Mat x, float low, float high);
void pool(cudaStream_t, Mat y, Mat x, const Step& s, int size, float scale);
void shift_scale(cudaStream_t, Mat x, const float* shift, const float* scale, int n);
void layer_norm(cudaStream_t, Mat y, Mat x, const float* gain, const float* bias, int n, float eps);
void silu(cudaStream_t, Mat x);
void glu(cudaStream_t, Mat y, Mat u);
void conv2d(cudaStream_t, Mat y, Mat x, const float* kernel, int c_in, int c_out);
void causal_conv(cudaStream_t, Mat y, Mat x, const float* kernel, int n_tap, const Step& s);
void relative_attend(cudaStream_t, Mat o, Mat q, Mat k, Mat v, Mat rel, const Step& s, int head_dim, int n_key,
                     float cap);

}  // namespace facet::cuda
