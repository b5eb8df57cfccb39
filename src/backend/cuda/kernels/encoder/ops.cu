// encoder verbs -- the light ones: positions, norms with RoPE in two dimensions, pooling, convolutions, relative attention
//
// Shapes     rows of f32, a multiple of 4 columns, 16-byte aligned; heads of at most 128 columns (relative_attend: 512
//            and at most 32 keys)
// Bytes      each row once in, once out; conv2d reads a row of x for each of 3 rows of y that it reaches
// Launch     four columns a thread over a grid of the elements; a warp per head vector or slice; the grid depends on
//            shapes alone
// Order      a row's sums depend on the row, or on its picture or sound, alone
// Reference  CpuRef's verbs
// Test       tests/kernels/cuda_encoder_test.cpp
#include "backend/cuda/kernels/common/each4.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/embed_row.cuh"
#include "backend/cuda/kernels/encoder/encoder.h"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4;

// f(item, lane) by one warp each.
template <class F>
__global__ void __launch_bounds__(kWarps * 32) each_warp_kernel(int64_t n, F f) {
  pdl_wait();
  pdl_trigger();
  const int64_t item = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item < n) f(item, int(threadIdx.x) % 32);
}
template <class F>
void each_warp(cudaStream_t stream, int64_t n, F f) {
  if (n == 0) return;
  launch(each_warp_kernel<F>, dim3(unsigned((n + kWarps - 1) / kWarps)), dim3(kWarps * 32), 0, stream, n, f);
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) v += __shfl_xor_sync(~0u, v, m);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, m));
  return v;
}
__device__ __forceinline__ float silu_of(float x) { return x / (1.f + __expf(-x)); }
__device__ __forceinline__ float clamped(float x, float low, float high) {  // NaN stays
  return x < low ? low : x > high ? high : x;
}

__global__ void add_positions_kernel(Mat x, TiledMatrix m, Step s) {
  pdl_wait();
  pdl_trigger();
  const int t = int(blockIdx.x), id[2] = {s.token[t], m.n_out / 2 + s.pos[t]};
  const int cols = tile_cols(m.tile), n_item = m.n_tile() * cols / 8;
  for (int i = int(threadIdx.x); i < n_item; i += int(blockDim.x)) {
    const int tile = i / (cols / 8), r = i % (cols / 8), j = r / 8, h = r / 4 % 2, lane_t = r % 4;
    if (tile * cols + 64 * j + 32 * h >= m.n_in) continue;
    float v[2][8];
    for (int axis = 0; axis < 2; ++axis) {
      const int row = id[axis] % kTileRows;
      tile_values(v[axis], m.tile, m.strip(0, id[axis] / kTileRows) + int64_t(tile) * tile_bytes(m.tile),
                  row % 8 * 4 + lane_t, row / 8, j, h);
    }
    for (int k = 0; k < 8; k += 4) {
      const int c = tile * cols + tile_column(m.tile, j, h, lane_t, k);
      if (c >= m.n_in) continue;
      const float4 e = get(x, t, c);
      put(x, t, c,
          {e.x + (v[0][k] + v[1][k]), e.y + (v[0][k + 1] + v[1][k + 1]), e.z + (v[0][k + 2] + v[1][k + 2]),
           e.w + (v[0][k + 3] + v[1][k + 3])});
    }
  }
}

// A lane has pairs i of a head, lane, lane + 32, ...: (i, i + quarter) of the first half, then of the second.
__device__ void norm_rope_head(const Mat& x, int64_t item, int lane, int E, const float* gain, const double* freqs,
                               const Step& s, float eps) {
  constexpr int kMost = kMaxEncoderHead / 64;
  const int n_head = x.cols / E, quarter = E / 4, t = int(item / n_head), at = int(item % n_head) * E;
  float* const row = x.p + t * x.stride + at;
  float a[kMost], b[kMost], square = 0;
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int i = lane + 32 * k, place = i < quarter ? i : i + quarter;
    a[k] = i < E / 2 ? row[place] : 0.f, b[k] = i < E / 2 ? row[place + quarter] : 0.f;
    square += a[k] * a[k] + b[k] * b[k];
  }
  const float r = rsqrtf(warp_sum(square) / float(E) + eps);
#pragma unroll
  for (int k = 0; k < kMost; ++k) {
    const int i = lane + 32 * k, place = i < quarter ? i : i + quarter;
    if (i >= E / 2) continue;
    float u = a[k] * r * (gain ? gain[place] : 1.f), v = b[k] * r * (gain ? gain[place + quarter] : 1.f);
    if (freqs) {
      constexpr double kTwoPi = 6.283185307179586;
      double angle = double(i < quarter ? s.token[t] : s.pos[t]) * freqs[i % quarter];
      angle -= kTwoPi * rint(angle / kTwoPi);
      float sn, c;
      sincosf(float(angle), &sn, &c);
      const float w = u * c - v * sn;
      v = v * c + u * sn, u = w;
    }
    row[place] = u, row[place + quarter] = v;
    if (x.bf) {
      bf16* const to = x.bf + t * x.bf_stride + at;
      to[place] = __float2bfloat16_rn(u), to[place + quarter] = __float2bfloat16_rn(v);
    }
  }
}

// One slice of a row by all threads of a block, kThreads of them.
template <int kThreads>
__device__ float group_sum(float v) {
  v = warp_sum(v);
  if constexpr (kThreads > 32) {
    __shared__ float part[kThreads / 32];
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < kThreads / 32; ++i) v += part[i];
  }
  return v;
}
template <int kThreads>
__device__ void norm_slice(const Mat& y, const Mat& x, int64_t slice, int lane, const float* gain, const float* bias,
                           int n, float eps) {
  const int per_row = x.cols / n, t = int(slice / per_row), at = int(slice % per_row) * n;
  const float* const from = x.p + t * x.stride + at;
  float sum = 0, square = 0;
  for (int i = lane; i < n; i += kThreads) sum += from[i];
  const float mean = group_sum<kThreads>(sum) / float(n);
  for (int i = lane; i < n; i += kThreads) square += (from[i] - mean) * (from[i] - mean);
  const float r = rsqrtf(group_sum<kThreads>(square) / float(n) + eps);
  for (int i = lane; i < n; i += kThreads) {
    const float e = (from[i] - mean) * r * gain[i] + (bias ? bias[i] : 0.f);
    y.p[t * y.stride + at + i] = e;
    if (y.bf) y.bf[t * y.bf_stride + at + i] = __float2bfloat16_rn(e);
  }
}
__global__ void __launch_bounds__(256)
    layer_norm_kernel(Mat y, Mat x, const float* gain, const float* bias, int n, float eps) {
  pdl_wait();
  pdl_trigger();
  norm_slice<256>(y, x, blockIdx.x, int(threadIdx.x), gain, bias, n, eps);
}

// A lane keeps the score of key `first + lane`.
__device__ void relative_attend_head(const Mat& o, const Mat& q, const Mat& k, const Mat& v, const Mat& rel,
                                     const Step& s, int64_t item, int lane, int E, int n_key, float cap) {
  const int n_head = o.cols / E, t = int(item / n_head), at = int(item % n_head) * E;
  const int first = max(s.q_begin[s.seq[t]], t - n_key + 1);
  float mine = -INFINITY;
  for (int j = first; j <= t; ++j) {
    float dot = 0;
    for (int e = lane; e < E; e += 32)
      dot += q.p[t * q.stride + at + e] * (k.p[j * k.stride + at + e] + rel.p[(t - j) * rel.stride + at + e]);
    dot = warp_sum(dot);
    if (j - first == lane) mine = cap * tanhf(dot / cap);
  }
  const float p = __expf(mine - warp_max(mine)), inverse = 1.f / warp_sum(p);
  for (int e0 = 0; e0 < E; e0 += 32) {  // all lanes take part in each shuffle
    const int e = e0 + lane;
    float sum = 0;
    for (int j = first; j <= t; ++j) {
      const float w = __shfl_sync(~0u, p, j - first);
      if (e < E) sum += w * v.p[j * v.stride + at + e];
    }
    if (e >= E) continue;
    o.p[t * o.stride + at + e] = sum * inverse;
    if (o.bf) o.bf[t * o.bf_stride + at + e] = __float2bfloat16_rn(sum * inverse);
  }
}

__global__ void conv2d_kernel(Mat y, Mat x, const float* kernel, int c_in, int c_out) {
  pdl_wait();
  pdl_trigger();
  const int width = x.cols / c_in;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < int64_t(y.rows) * y.cols;
       i += int64_t(gridDim.x) * blockDim.x) {
    const int r = int(i / y.cols), c = int(i % y.cols), w = c / c_out, o = c % c_out;
    float sum = 0;
    for (int a = 0; a < 3; ++a)
      for (int b = 0; b < 3; ++b) {
        const int row = 2 * r + a - 1, col = 2 * w + b - 1;
        if (row < 0 || row >= x.rows || col < 0 || col >= width) continue;
        const float* const from = x.p + row * x.stride + col * c_in;
        const float* const weight = kernel + int64_t(3 * a + b) * c_in * c_out + o;
        for (int j = 0; j < c_in; ++j) sum += from[j] * weight[j * c_out];
      }
    y.p[r * y.stride + c] = sum;
  }
}

}  // namespace

void add_positions(cudaStream_t stream, Mat x, const TiledMatrix& table, const Step& s) {
  launch(add_positions_kernel, dim3(unsigned(x.rows)), dim3(128), 0, stream, x, table, s);
}
void grid_norm_rope(cudaStream_t stream, Mat x, int head_dim, const float* gain, const double* freqs, const Step& s,
                    float eps) {
  CHECK(head_dim % 4 == 0 && head_dim <= kMaxEncoderHead && x.cols % head_dim == 0, "heads of {} in {} columns",
        head_dim, x.cols);
  each_warp(stream, int64_t(x.rows) * (x.cols / head_dim),
            [=] __device__(int64_t item, int lane) { norm_rope_head(x, item, lane, head_dim, gain, freqs, s, eps); });
}
void clamp(cudaStream_t stream, Mat y, Mat x, float low, float high) {
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    const float4 v = get(x, t, c);
    put(y, t, c, {clamped(v.x, low, high), clamped(v.y, low, high), clamped(v.z, low, high), clamped(v.w, low, high)});
  });
}
void pool(cudaStream_t stream, Mat y, Mat x, const Step& s, int size, float scale) {
  const int area = size * size;
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    int seq = 0;
    while (seq + 1 < s.shape.n_seq && t >= s.q_begin[seq + 1] / area) ++seq;
    const int begin = s.q_begin[seq], width = s.token[s.q_begin[seq + 1] - 1] + 1, across = width / size;
    const int block = t - begin / area, first = begin + block / across * size * width + block % across * size;
    float4 sum = {};
    for (int i = 0; i < area; ++i) {
      const float4 v = get(x, first + i / size * width + i % size, c);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    const float n = float(area);
    put(y, t, c, {sum.x / n * scale, sum.y / n * scale, sum.z / n * scale, sum.w / n * scale});
  });
}
void shift_scale(cudaStream_t stream, Mat x, const float* shift, const float* scale, int n) {
  each4(stream, x.rows, x.cols, [=] __device__(int t, int c) {
    const float4 v = get(x, t, c);
    float e[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 4; ++i) e[i] = (e[i] - (shift ? shift[(c + i) % n] : 0.f)) * (scale ? scale[(c + i) % n] : 1.f);
    put(x, t, c, {e[0], e[1], e[2], e[3]});
  });
}
void layer_norm(cudaStream_t stream, Mat y, Mat x, const float* gain, const float* bias, int n, float eps) {
  const int64_t slices = int64_t(x.rows) * (x.cols / n);
  constexpr int kWarpMost = 1024;
  if (n > kWarpMost) {
    launch(layer_norm_kernel, dim3(unsigned(slices)), dim3(256), 0, stream, y, x, gain, bias, n, eps);
    return;
  }
  each_warp(stream, slices,
            [=] __device__(int64_t slice, int lane) { norm_slice<32>(y, x, slice, lane, gain, bias, n, eps); });
}
void silu(cudaStream_t stream, Mat x) {
  each4(stream, x.rows, x.cols, [=] __device__(int t, int c) {
    const float4 v = get(x, t, c);
    put(x, t, c, {silu_of(v.x), silu_of(v.y), silu_of(v.z), silu_of(v.w)});
  });
}
void glu(cudaStream_t stream, Mat y, Mat u) {
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    const float4 a = get(u, t, c), b = get(u, t, y.cols + c);
    put(y, t, c,
        {a.x / (1.f + __expf(-b.x)), a.y / (1.f + __expf(-b.y)), a.z / (1.f + __expf(-b.z)),
         a.w / (1.f + __expf(-b.w))});
  });
}
void conv2d(cudaStream_t stream, Mat y, Mat x, const float* kernel, int c_in, int c_out) {
  const int64_t n = int64_t(y.rows) * y.cols;
  launch(conv2d_kernel, dim3(unsigned(std::min<int64_t>((n + 255) / 256, 65536))), dim3(256), 0, stream, y, x, kernel,
         c_in, c_out);
}
void causal_conv(cudaStream_t stream, Mat y, Mat x, const float* kernel, int n_tap, const Step& s) {
  each4(stream, y.rows, y.cols, [=] __device__(int t, int c) {
    const int begin = s.q_begin[s.seq[t]];
    float sum[4] = {};
    for (int j = max(0, begin - (t - n_tap + 1)); j < n_tap; ++j) {
      const float4 v = get(x, t - n_tap + 1 + j, c);
      const float e[4] = {v.x, v.y, v.z, v.w};
      for (int i = 0; i < 4; ++i) sum[i] += kernel[(c + i) * n_tap + j] * e[i];
    }
    put(y, t, c, {sum[0], sum[1], sum[2], sum[3]});
  });
}
void relative_attend(cudaStream_t stream, Mat o, Mat q, Mat k, Mat v, Mat rel, const Step& s, int head_dim, int n_key,
                     float cap) {
  CHECK(n_key <= 32 && o.cols % head_dim == 0, "{} keys, heads of {} in {} columns", n_key, head_dim, o.cols);
  each_warp(stream, int64_t(o.rows) * (o.cols / head_dim), [=] __device__(int64_t item, int lane) {
    relative_attend_head(o, q, k, v, rel, s, item, lane, head_dim, n_key, cap);
  });
}

}  // namespace facet::cuda
