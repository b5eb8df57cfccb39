// ops -- the verbs that are one light pass over activations: embed, sums, products of elements, copies
//
// Shapes     rows of f32, a multiple of 4 columns, 16-byte aligned
// Bytes      each row once in, once out; few rows stay in L2, where a verb costs latency and no bandwidth
// Launch     a grid over the elements; it depends on shapes alone
// Order      a row's sums depend on its columns alone: the same bits whatever else is in the step
// Reference  CpuRef's verbs
// Test       tests/kernels/cuda_ops_test.cpp
// Bench      bench/verbs/cuda_ops_bench.cu
#include "backend/cuda/kernels/ops.h"

#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/each4.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/embed_row.cuh"

namespace facet::cuda {
namespace {

// Rows of `beside`, if there are any, are put behind the embeddings by blocks of their own.
__global__ void embed_kernel(Mat x, TiledMatrix m, const int32_t* token, float scale_by, Mat beside) {
  if (beside.p) pdl_trigger();  // a drafter's: the next kernel is one of a small model
  pdl_wait();
  pdl_trigger();
  const int t = int(blockIdx.x);
  if (blockIdx.y > 0) {
    return copy_row(x, m.n_in, beside, t);
  }
  embed_row(x, m, t, token[t], scale_by);
}

// Starts when everything before it is done, and is not overlapped by what waits for it.
__global__ void fetch_kernel(uint4* to, const uint4* from, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) to[i] = from[i];
}

__global__ void __launch_bounds__(128)
    ple_combine_kernel(Mat p, Mat c, const float* gain, int n, float in_scale, float out_scale, float eps) {
  pdl_wait();
  pdl_trigger();
  const int slice = int(blockIdx.x) * 4 + int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, per_row = p.cols / n;
  if (slice >= per_row * p.rows) return;
  const int t = slice / per_row, at = slice % per_row * n;
  float* pt = p.p + t * p.stride + at;
  const float* ct = c.p + t * c.stride + at;
  float s = 0;
  for (int i = lane; i < n; i += 32) s += ct[i] * in_scale * (ct[i] * in_scale);
  for (int m = 16; m > 0; m /= 2) s += __shfl_xor_sync(~0u, s, m);
  const float r = rsqrtf(s / float(n) + eps);
  for (int i = lane; i < n; i += 32) pt[i] = (ct[i] * in_scale * r * gain[i] + pt[i]) * out_scale;
}

}  // namespace

void embed(cudaStream_t stream, Mat x, const TiledMatrix& table, const int32_t* token, float scale_by) {
  launch(embed_kernel, dim3(unsigned(x.rows)), dim3(256), 0, stream, x, table, token, scale_by, Mat{});
}
void embed_soft(cudaStream_t stream, Mat x, Mat soft, const int32_t* row) {
  each4(stream, x.rows, x.cols, [=] __device__(int t, int c) {
    if (row[t] >= 0) put(x, t, c, *reinterpret_cast<const float4*>(soft.p + row[t] * soft.stride + c));
  });
}
void embed_concat(cudaStream_t stream, Mat y, const TiledMatrix& table, const int32_t* token, float scale_by, Mat x) {
  CHECK(table.n_in % 4 == 0 && x.cols % 4 == 0, "{} columns beside {}", x.cols, table.n_in);
  launch(embed_kernel, dim3(unsigned(y.rows), 2), dim3(256), 0, stream, y, table, token, scale_by, x);
}
void sum_partials(cudaStream_t stream, Mat y, Partials left) {
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    float4 sum = {};
    for (int s = 0; s < left.n_set; ++s) {
      const float4 v = *reinterpret_cast<const float4*>(
          left.p + ((int64_t(s) * left.n_job + c / kTileRows) * left.width + t) * kTileRows + c % kTileRows);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    put(y, t, c, sum);
  });
}
void act_mul(cudaStream_t stream, Mat y, Mat g, Mat u, Act act) {
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    const float4 a = get(g, t, c), b = get(u, t, c);
    put(y, t, c,
        {activate(a.x, act) * b.x, activate(a.y, act) * b.y, activate(a.z, act) * b.z, activate(a.w, act) * b.w});
  });
}
void ple_combine(cudaStream_t stream, Mat p, Mat c, const float* gain, int n_gain, float in_scale, float out_scale,
                 float eps) {
  const int slices = p.rows * (p.cols / n_gain);
  launch(ple_combine_kernel, dim3(unsigned((slices + 3) / 4)), dim3(128), 0, stream, p, c, gain, n_gain, in_scale,
         out_scale, eps);
}
void block_conv(cudaStream_t stream, Mat y, Mat x, Mat delta, const float* base, int taps, const Step& s) {
  const int groups = delta.cols / taps, size = x.cols / groups;
  CHECK(size % 4 == 0, "groups of {} channels", size);
  const int32_t *seq = s.seq, *q_begin = s.q_begin;
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    const int first = seq[t] < 0 ? t : q_begin[seq[t]];
    float4 sum = {};
    for (int i = 0; i < taps && t - i >= first; ++i) {
      const float4 b = *reinterpret_cast<const float4*>(base + int64_t(i) * x.cols + c), v = get(x, t - i, c);
      const float d = delta.p[t * delta.stride + i * groups + c / size];
      sum.x += (b.x + d) * v.x, sum.y += (b.y + d) * v.y, sum.z += (b.z + d) * v.z, sum.w += (b.w + d) * v.w;
    }
    put(y, t, c, sum);
  });
}
void add(cudaStream_t stream, Mat y, Mat a, Mat b) {
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    const float4 v = get(a, t, c), w = get(b, t, c);
    put(y, t, c, {v.x + w.x, v.y + w.y, v.z + w.z, v.w + w.w});
  });
}
void copy_cols(cudaStream_t stream, Mat y, int at, Mat x) {
  each4(stream, x.rows, x.cols, [=] __device__(int t, int c) { put(y, t, at + c, get(x, t, c)); });
}
void gather(cudaStream_t stream, Mat y, Mat x, const int32_t* row) {
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) { put(y, t, c, get(x, row[t], c)); });
}
void softcap(cudaStream_t stream, Mat x, float cap) {
  each4(stream, x.rows, x.cols, [=] __device__(int t, int c) {
    const float4 v = get(x, t, c);
    put(x, t, c, {cap * tanhf(v.x / cap), cap * tanhf(v.y / cap), cap * tanhf(v.z / cap), cap * tanhf(v.w / cap)});
  });
}
void fetch(cudaStream_t stream, void* to, const void* host, size_t bytes) {
  CHECK(bytes % 16 == 0, "{} bytes", bytes);
  const int n = int(bytes / 16);
  fetch_kernel<<<unsigned((n + 255) / 256), 256, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(host),
                                                              n);
  FACET_CUDA_CHECK(cudaGetLastError());
}
void to_bf16(cudaStream_t stream, Mat x) {
  each4(stream, x.rows, x.cols, [=] __device__(int t, int c) { put_bf(x.bf + t * x.bf_stride + c, get(x, t, c)); });
}

}  // namespace facet::cuda
