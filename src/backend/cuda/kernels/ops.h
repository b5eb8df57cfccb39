#pragma once
#include <cuda_runtime.h>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/cuda/kernels/moe/panel_rows.h"

// Launchers of the verbs that are one light pass over activations. Each means what CpuRef's verb of that name does;
// a Mat with bf set is also written in bf16.
namespace facet::cuda {

void embed(cudaStream_t, Mat x, const TiledMatrix& table, const int32_t* token, float scale);
// x[t] = soft[row[t]] where row[t] is not -1
void embed_soft(cudaStream_t, Mat x, Mat soft, const int32_t* row);
// y[t] = [embed(t), x[t]]
void embed_concat(cudaStream_t, Mat y, const TiledMatrix& table, const int32_t* token, float scale, Mat x);
// If left.p is set, the input is the sum of these partial sums, and x, unless it is y, gets that sum.
void rms_norm(cudaStream_t, Mat y, Mat x, Partials left, const float* gain, float eps);
// If left.p is set, y is not read: the branch is the sum of these partial sums.
void residual_norm(cudaStream_t, Mat x, Mat h, Mat y, Partials left, const float* post, const float* next,
                   float out_scale, float eps);
// residual_norm, and both inputs of a mixture of experts from the new x: r = rms(x) * router_gain, e = rms(x) *
// expert_gain.
struct MoeInputs {
  Mat r, e;
  const float *router_gain = nullptr, *expert_gain = nullptr;
};
void residual_norm_moe(cudaStream_t, Mat x, Mat h, Mat y, Partials left, const float* post, const float* next,
                       float out_scale, float eps, const MoeInputs&);
void act_mul(cudaStream_t, Mat y, Mat g, Mat u, facet::Act act);
void ple_combine(cudaStream_t, Mat p, Mat c, const float* gain, int n_gain, float in_scale, float out_scale, float eps);
void block_conv(cudaStream_t, Mat y, Mat x, Mat delta, const float* base, int taps, const Step&);
void add(cudaStream_t, Mat y, Mat a, Mat b);
void sum_partials(cudaStream_t, Mat y, Partials left);
void copy_cols(cudaStream_t, Mat y, int at, Mat x);           // y[t][at + i] = x[t][i]
void gather(cudaStream_t, Mat y, Mat x, const int32_t* row);  // y[i] = x[row[i]]
void softcap(cudaStream_t, Mat x, float cap);
// A copy of a few KB from page-locked memory of the host, by a kernel; bytes: a multiple of 16.
void fetch(cudaStream_t, void* to, const void* host, size_t bytes);
void to_bf16(cudaStream_t, Mat x);  // x.bf from x.p

// residual_norm of the branch rms(y) * shared_post + rms(o) * routed_post. With slots.out or panels.rows, o is not read:
// it is the sum over ranks of weight * out.
struct MoeSlots {  // [T n_used] rows
  const float *out = nullptr, *weight = nullptr;
  int n_used = 0;
};
struct MoeJoin {
  const float *shared_post = nullptr, *routed_post = nullptr, *post = nullptr, *next = nullptr;
  float out_scale = 1.f, eps = 1e-6f;
  MoeSlots slots;
  MoePanelRows panels;
};
void moe_join(cudaStream_t, Mat x, Mat h, Mat y, Mat o, const MoeJoin&);

}  // namespace facet::cuda
