// head_norm_rope, head_norm, head_rope, kv_append, norm_rope_append -- everything between the projections and attention
//
//   x = rms(x) * gain; pairs (i, i + E/2) rotated by pos * freq[i]; rows of k and v encoded into the cache
//   rms(v) = v / sqrt(mean(v*v) + eps), in f32
//
// Shapes     q [T, Hq * E], k, v [T, Hk * E] f32, rows 16-byte aligned; gain [E] f32; freqs [E/2] f64; E 64..512
// Bytes      reads and writes each vector once; an appended vector writes its codes and scales alone
// Launch     one warp per head vector, four warps of a token a block; geometry from the number of rows
// Order      a vector's bits depend on that vector alone. Angles are reduced in double: f32 angles are off by 0.06 rad
//            at a million tokens
// Reference  CpuRef::head_norm_rope, head_norm, kv_append
// Test       tests/kernels/cuda_attention_test.cpp
// Bench      bench/verbs/cuda_attention_bench.cu
#include <type_traits>

#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/attention/head_rows.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4, kFewRows = 256;

struct HeadPart {
  float* p = nullptr;
  bf16* bf = nullptr;
  int64_t stride = 0, bf_stride = 0;
  int n_head = 0;
  const float* gain = nullptr;
  bool norm = false, rope = false, write = false;
};
struct QkNormRopeArgs {
  HeadPart part[3];  // q, k, v
  Step step;
  KvLayer kv;
  const double* freqs = nullptr;
  float eps = 0;
  int n_row = 0, token_blocks = 0;  // token_blocks: of a token
  bool append = false;              // parts 1 and 2 go to the cache; of shared rows as one job, part 1's
};

// The values lane * V .. of a row, so that two lanes together fill the 32 bytes that memory takes at a time.
template <int V>
__device__ __forceinline__ void store_in_sectors(float* row, const float (&x)[V], int lane) {
  const bool odd = lane % 2;
  float* const pair = row + lane / 2 * 2 * V;
#pragma unroll
  for (int i = 0; i < V; i += 8) {
    float4 own, other;
    float* const o = &other.x;
    own = odd ? make_float4(x[i + 4], x[i + 5], x[i + 6], x[i + 7]) : make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
#pragma unroll
    for (int k = 0; k < 4; ++k) o[k] = __shfl_xor_sync(~0u, odd ? x[i + k] : x[i + 4 + k], 1);
    // The even lane's eight values, then the odd one's.
    *reinterpret_cast<float4*>(pair + i + 4 * odd) = odd ? other : own;
    *reinterpret_cast<float4*>(pair + V + i + 4 * odd) = odd ? own : other;
  }
}

// kMany: rows are on their way while the rest is looked up; with few, that is done before the wait.
template <int E, bool kMany>
__global__ void __launch_bounds__(kWarps * 32) qk_norm_rope_kernel(const __grid_constant__ QkNormRopeArgs w) {
  constexpr int V = E / 32;
  __shared__ __align__(16) uint8_t codes[kWarps][E == 512 ? kSharedCols : E];
  __shared__ __align__(16) float rope_cos_sin[E];  // of the token: cosines, then sines, of the pairs
  // The step's arrays, gains and frequencies are the host's: what depends on them alone is done before the wait.
  pdl_trigger();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (kMany) pdl_wait();
  const int t = int(blockIdx.x) / w.token_blocks, first = int(blockIdx.x) % w.token_blocks * kWarps;
  int h = first + warp, which = 0;
  while (which < 3 && h >= w.part[which].n_head) h -= w.part[which++].n_head;
  const bool there = which < 3;
  const HeadPart& part = w.part[there ? which : 0];
  float* const p = part.p + t * part.stride + h * E + lane * V;
  float x[V];
  if (kMany && there) load_values<V>(x, p);
  const auto rotated = [&](int which) { return w.part[which].rope ? w.part[which].n_head : 0; };
  if (first < rotated(0) || (rotated(1) && first < w.part[0].n_head + rotated(1))) {
    for (int i = int(threadIdx.x); i < E / 2; i += kWarps * 32)
      compute_rope<E>(rope_cos_sin, i, w.freqs[i], w.step.pos[t]);
    __syncthreads();
  }
  if (!there) return;
  const bool append = w.append && which > 0;
  int seq = 0;
  std::byte* dst = nullptr;
  const KvType type = which == 1 ? w.kv.k_type : w.kv.v_type;
  if (append) {
    seq = w.step.seq[t];
    if (seq >= 0 && w.step.mask[seq] == Mask::kPast) seq = -1;
    if (seq >= 0) {
      const KvRow to = kv_row(w.kv, w.step, seq, int64_t(w.step.kv_len[seq]) + t - w.step.q_begin[seq]);
      dst = (which == 1 ? to.k : to.v) + h * device_kv_bytes(type, E == 512 && w.kv.shared ? kSharedCols : E);
    }
  }
  float gain[V];
#pragma unroll
  for (float& e : gain) e = 1;
  if (part.gain) load_values<V>(gain, part.gain + lane * V);

  if (!kMany) pdl_wait();
  if (append && seq < 0 && !part.write) return;
  if (!kMany) load_values<V>(x, p);
  if (part.norm) norm_head<E>(x, w.eps);
  if (part.gain) {
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] *= gain[i];
  }
  if (part.rope) apply_rope<E>(x, rope_cos_sin, lane);
  if (part.write) {
    if constexpr (V >= 8)
      store_in_sectors<V>(p - lane * V, x, lane);
    else
      store_values<V>(p, x);
    if (part.bf) {
      bf16* b = part.bf + t * part.bf_stride + h * E + lane * V;
#pragma unroll
      for (int i = 0; i < V; i += 2) *reinterpret_cast<__nv_bfloat162*>(b + i) = __floats2bfloat162_rn(x[i], x[i + 1]);
    }
  }
  if constexpr (E == 512) {
    if (append && w.kv.shared) {
      const HeadPart& values = w.part[2];
      float v[V];
      load_values<V>(v, values.p + t * values.stride + h * E + lane * V);
      if (values.norm) norm_head<E>(v, w.eps);
      if (seq >= 0) encode_shared(type, x, v, codes[warp], dst, lane);
      return;
    }
  }
  if (append && seq >= 0) encode<E>(type, x, codes[warp], dst, lane);
}

void run(cudaStream_t stream, int E, QkNormRopeArgs w) {
  const int n_head = w.part[0].n_head + w.part[1].n_head + w.part[2].n_head;
  if (w.n_row == 0 || n_head == 0) return;
  w.token_blocks = (n_head + kWarps - 1) / kWarps;
  const dim3 grid(unsigned(w.n_row) * unsigned(w.token_blocks)), block(kWarps * 32);
  for (const HeadPart& part : w.part)
    CHECK(part.n_head == 0 || (part.stride % 4 == 0 && reinterpret_cast<uintptr_t>(part.p) % 16 == 0),
          "rows of stride {} at {}", part.stride, static_cast<const void*>(part.p));
  const auto of_width = [&](auto e) {
    launch(w.n_row > kFewRows ? qk_norm_rope_kernel<e(), true> : qk_norm_rope_kernel<e(), false>, grid, block, 0,
           stream, w);
  };
  switch (E) {
    case 64:
      return of_width(std::integral_constant<int, 64>{});
    case 128:
      return of_width(std::integral_constant<int, 128>{});
    case 256:
      return of_width(std::integral_constant<int, 256>{});
    case 512:
      return of_width(std::integral_constant<int, 512>{});
  }
  CHECK(false, "a head width of {}; 64, 128, 256 and 512 are built", E);
}

HeadPart part_of(Mat x, int E) {
  CHECK(x.cols % E == 0, "{} columns in heads of {}", x.cols, E);
  return {.p = x.p, .bf = x.bf, .stride = x.stride, .bf_stride = x.bf_stride, .n_head = x.cols / E};
}

// Layers keep rows side by side in bytes of the same types; every row has to be aligned for the loads of attend.
void check_layer(const KvLayer& kv) {
  if (kv.shared) {
    CHECK(kv.head_dim == kSharedHead && kv.window == 0 &&
              kv.k_row == int64_t(kv.n_head) * device_kv_bytes(kv.k_type, kSharedCols),
          "shared rows of {} bytes for {} heads of {}", kv.k_row, kv.n_head, kv.head_dim);
    return;
  }
  CHECK(kv.k_row == int64_t(kv.n_head) * int64_t(kv_row_bytes(kv.k_type, kv.head_dim)) &&
            kv.v_row == int64_t(kv.n_head) * int64_t(kv_row_bytes(kv.v_type, kv.head_dim)),
        "rows of {} and {} bytes for {} heads of {}", kv.k_row, kv.v_row, kv.n_head, kv.head_dim);
}

// The last rows of a staged sequence, from the staging area to the ring. One block per token of the step.
__global__ void __launch_bounds__(256)
    kv_settle_kernel(const __grid_constant__ KvLayer kv, const __grid_constant__ Step s) {
  pdl_wait();
  pdl_trigger();
  const int t = blockIdx.x, q = s.seq[t];
  if (q < 0 || s.mask[q] == Mask::kPast) return;
  const int begin = s.q_begin[q], n = s.q_begin[q + 1] - begin, j = t - begin;
  if (!kv_staged(kv, n) || j < n - kv.cap) return;
  const int64_t row = int64_t(s.kv_len[q]) + j;
  const KvRow from = kv_row(kv, s, q, row), to = kv_ring_row(kv, s.slot[q], row);
  for (int64_t i = threadIdx.x; i < (kv.k_row + kv.v_row) / 4; i += blockDim.x) {
    const bool is_k = i < kv.k_row / 4;
    const int64_t at = is_k ? i : i - kv.k_row / 4;
    reinterpret_cast<uint32_t*>(is_k ? to.k : to.v)[at] = reinterpret_cast<const uint32_t*>(is_k ? from.k : from.v)[at];
  }
}

}  // namespace

void head_norm_rope(cudaStream_t stream, Mat x, const float* gain, RopeFreqs freqs, const Step& s, float eps) {
  const int E = 2 * freqs.n;
  QkNormRopeArgs w{.step = s, .freqs = freqs.p, .eps = eps, .n_row = x.rows};
  w.part[0] = part_of(x, E);
  w.part[0].gain = gain;
  w.part[0].norm = w.part[0].rope = w.part[0].write = true;
  run(stream, E, w);
}

void head_rope(cudaStream_t stream, Mat x, RopeFreqs freqs, const Step& s) {
  const int E = 2 * freqs.n;
  QkNormRopeArgs w{.step = s, .freqs = freqs.p, .n_row = x.rows};
  w.part[0] = part_of(x, E);
  w.part[0].rope = w.part[0].write = true;
  run(stream, E, w);
}

void head_norm(cudaStream_t stream, Mat x, int head_dim, float eps) {
  QkNormRopeArgs w{.eps = eps, .n_row = x.rows};
  w.part[0] = part_of(x, head_dim);
  w.part[0].norm = w.part[0].write = true;
  run(stream, head_dim, w);
}

void kv_append(cudaStream_t stream, const KvLayer& kv, Mat k, Mat v, const Step& s) {
  check_layer(kv);
  QkNormRopeArgs w{.step = s, .kv = kv, .n_row = s.shape.n_tok, .append = true};
  w.part[1] = part_of(k, kv.head_dim);
  w.part[2] = part_of(v, kv.head_dim);
  if (kv.shared) w.part[2].n_head = 0;
  run(stream, kv.head_dim, w);
}

void norm_rope_append(cudaStream_t stream, const KvLayer& kv, Mat q, Mat k, Mat v, const Step& s,
                      const NormRopeAppend& a) {
  check_layer(kv);
  CHECK(2 * a.freqs.n == kv.head_dim, "{} pairs for a head width of {}", a.freqs.n, kv.head_dim);
  QkNormRopeArgs w{.step = s, .kv = kv, .freqs = a.freqs.p, .eps = a.eps, .n_row = s.shape.n_tok, .append = true};
  w.part[0] = part_of(q, kv.head_dim);
  w.part[0].gain = a.q_gain;
  w.part[0].norm = w.part[0].rope = w.part[0].write = true;
  w.part[1] = part_of(k, kv.head_dim);
  w.part[1].gain = a.k_gain;
  w.part[1].norm = w.part[1].rope = true;
  w.part[2] = part_of(v, kv.head_dim);
  w.part[2].norm = a.norm_v;
  if (kv.shared) w.part[2].n_head = 0;
  run(stream, kv.head_dim, w);
}

void kv_settle(cudaStream_t stream, const KvLayer& kv, const Step& s) {
  check_layer(kv);
  if (kv.window == 0 || !s.shape.staged || s.shape.n_tok == 0) return;
  launch(kv_settle_kernel, dim3(unsigned(s.shape.n_tok)), dim3(256), 0, stream, kv, s);
}

}  // namespace facet::cuda
