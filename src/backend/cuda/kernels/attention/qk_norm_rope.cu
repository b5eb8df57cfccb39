// head_norm_rope, head_norm, head_rope, kv_append, norm_rope_append -- everything between the projections and attention
//
//   x = rms(x) * gain; pairs (i, i + E/2) rotated by pos * freq[i]; rows of k and v encoded into the cache
//   rms(v) = v / sqrt(mean(v*v) + eps), in f32
//
// Shapes     q [T, Hq * E], k, v [T, Hk * E] f32, rows 16-byte aligned; gain [E] f32; freqs [E/2] f64; E 64..512
// Bytes      reads and writes each vector once; an appended vector writes its codes and scales alone
// Launch     one warp per head vector, four warps a block; with many rows and heads of at most 256 a block per token
// Order      a vector's bits depend on that vector alone. Angles are reduced in double: f32 angles are off by 0.06 rad
//            at a million tokens
// Reference  CpuRef::head_norm_rope, head_norm, kv_append
// Test       tests/kernels/cuda_attention_test.cpp
// Bench      bench/verbs/cuda_attention_bench.cu
#include "backend/cuda/kernels/attention.h"
#include "backend/cuda/kernels/attention/head_rows.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4, kManyWarps = 8, kManyRows = 257;

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
  int n_row = 0;
  bool append = false;  // parts 1 and 2 go to the cache; of shared rows as one job, part 1's
  __host__ __device__ int vectors() const { return part[0].n_head + part[1].n_head + part[2].n_head; }  // of a token
};

// The values 8 lane .. of a row, so that two lanes together fill the 32 bytes that memory takes at a time: the even
// lane's eight values, then the odd one's.
__device__ __forceinline__ void store_in_sectors(float* row, const float (&x)[8], int lane) {
  const bool odd = lane % 2;
  const float4 lo = {x[0], x[1], x[2], x[3]}, hi = {x[4], x[5], x[6], x[7]}, own = odd ? hi : lo, give = odd ? lo : hi;
  const auto exchanged = [](float v) { return __shfl_xor_sync(~0u, v, 1); };
  const float4 got = {exchanged(give.x), exchanged(give.y), exchanged(give.z), exchanged(give.w)};
  float* const to = row + lane / 2 * 16 + 4 * odd;
  *reinterpret_cast<float4*>(to) = odd ? got : own;
  *reinterpret_cast<float4*>(to + 8) = odd ? own : got;
}

// A head vector of the token, in the order of q, k, v.
struct Vector {
  int which, head;
  __device__ Vector(const QkNormRopeArgs& w, int i) : which(0), head(i) {
    while (which < 2 && head >= w.part[which].n_head) head -= w.part[which++].n_head;
  }
};
// Where the token's rows go in the cache.
struct Destination {
  int seq = -1;  // -1: nowhere
  KvRow row{};
  __device__ Destination(const QkNormRopeArgs& w, int t, bool any) {
    if (!w.append || !any) return;
    seq = w.step.seq[t];
    if (seq >= 0 && w.step.mask[seq] == Mask::kPast) seq = -1;
    if (seq >= 0) row = kv_row(w.kv, w.step, seq, int64_t(w.step.kv_len[seq]) + t - w.step.q_begin[seq]);
  }
};

// x: vector v of token t, as it was read.
template <int E>
__device__ __forceinline__ void finish_vector(const QkNormRopeArgs& w, int t, const Vector& v, const Destination& to,
                                              float (&x)[E / 32], const float (&gain)[E / 32],
                                              const float* rope_cos_sin, uint8_t* codes, int lane) {
  constexpr int V = E / 32;
  const HeadPart& part = w.part[v.which];
  const bool append = w.append && v.which > 0;
  if (append && to.seq < 0 && !part.write) return;
  if (part.norm) norm_head<E>(x, w.eps);
  if (part.gain) {
#pragma unroll
    for (int i = 0; i < V; ++i) x[i] *= gain[i];
  }
  if (part.rope) apply_rope<E>(x, rope_cos_sin, lane);
  if (part.write) {
    float* const row = part.p + t * part.stride + v.head * E;
    if constexpr (V == 8)
      store_in_sectors(row, x, lane);
    else
      store_values<V>(row + lane * V, x);
    if (part.bf) {
      bf16* b = part.bf + t * part.bf_stride + v.head * E + lane * V;
#pragma unroll
      for (int i = 0; i < V; i += 2) *reinterpret_cast<__nv_bfloat162*>(b + i) = __floats2bfloat162_rn(x[i], x[i + 1]);
    }
  }
  if (!append) return;
  const KvType type = v.which == 1 ? w.kv.k_type : w.kv.v_type;
  std::byte* const dst =
      (v.which == 1 ? to.row.k : to.row.v) + v.head * device_kv_bytes(type, E == 512 && w.kv.shared ? kSharedCols : E);
  if constexpr (E == 512) {
    if (w.kv.shared) {
      const HeadPart& values = w.part[2];
      float y[V];
      load_values<V>(y, values.p + t * values.stride + v.head * E + lane * V);
      if (values.norm) norm_head<E>(y, w.eps);
      if (to.seq >= 0) encode_shared(type, x, y, codes, dst, lane);
      return;
    }
  }
  if (to.seq >= 0) encode<E>(type, x, codes, dst, lane);
}

template <int E>
__device__ __forceinline__ void load_gain(float (&gain)[E / 32], const HeadPart& part, int lane) {
#pragma unroll
  for (float& e : gain) e = 1;
  if (part.gain) load_values<E / 32>(gain, part.gain + lane * (E / 32));
}
template <int E>
__device__ __forceinline__ void read_vector(float (&x)[E / 32], const HeadPart& part, int t, int head, int lane) {
  load_values<E / 32>(x, part.p + t * part.stride + head * E + lane * (E / 32));
}

// A warp per vector. What does not depend on the kernel before is done ahead of the wait for it.
template <int E>
__global__ void __launch_bounds__(kWarps * 32) qk_norm_rope_kernel(const __grid_constant__ QkNormRopeArgs w) {
  __shared__ __align__(16) uint8_t codes[kWarps][E == 512 ? kSharedCols : E];
  __shared__ __align__(16) float rope_cos_sin[kWarps][E];  // cosines, then sines, of the pairs
  pdl_trigger();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = w.vectors();
  const int job = blockIdx.x * kWarps + warp, t = job / n;
  if (t >= w.n_row) return;
  const Vector v(w, job % n);
  const HeadPart& part = w.part[v.which];
  const Destination to(w, t, v.which > 0);
  float x[E / 32], gain[E / 32];
  load_gain<E>(gain, part, lane);
  if (part.rope) {
#pragma unroll
    for (int i = lane; i < E / 2; i += 32) compute_rope<E>(rope_cos_sin[warp], i, w.freqs[i], w.step.pos[t]);
    __syncwarp();
  }
  pdl_wait();
  read_vector<E>(x, part, t, v.head, lane);
  finish_vector<E>(w, t, v, to, x, gain, rope_cos_sin[warp], codes[warp], lane);
}

// A block has all vectors of a token, with one table of angles; a warp reads its next vector while it has this one.
template <int E>
__global__ void __launch_bounds__(kManyWarps * 32) qk_norm_rope_many_kernel(const __grid_constant__ QkNormRopeArgs w) {
  __shared__ __align__(16) uint8_t codes[kManyWarps][E];
  __shared__ __align__(16) float rope_cos_sin[E];
  pdl_wait();
  pdl_trigger();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = w.vectors(), t = int(blockIdx.x);
  float x[E / 32], next[E / 32], gain[E / 32];
  const auto read_next = [&](int i) {
    if (i >= n) return;
    const Vector v(w, i);
    read_vector<E>(next, w.part[v.which], t, v.head, lane);
  };
  read_next(warp);
  if (w.part[0].rope || w.part[1].rope) {
    for (int pair = int(threadIdx.x); pair < E / 2; pair += kManyWarps * 32)
      compute_rope<E>(rope_cos_sin, pair, w.freqs[pair], w.step.pos[t]);
    __syncthreads();
  }
  const Destination to(w, t, true);
  for (int i = warp; i < n; i += kManyWarps) {
    const Vector v(w, i);
    load_gain<E>(gain, w.part[v.which], lane);
#pragma unroll
    for (int k = 0; k < E / 32; ++k) x[k] = next[k];
    read_next(i + kManyWarps);
    finish_vector<E>(w, t, v, to, x, gain, rope_cos_sin, codes[warp], lane);
    __syncwarp();  // all have read the codes
  }
}

template <int E>
void launch_of_width(cudaStream_t stream, const QkNormRopeArgs& w) {
  if constexpr (E <= 256)
    if (w.n_row >= kManyRows)
      return launch(qk_norm_rope_many_kernel<E>, dim3(unsigned(w.n_row)), dim3(kManyWarps * 32), 0, stream, w);
  const int64_t n_job = int64_t(w.n_row) * w.vectors();
  launch(qk_norm_rope_kernel<E>, dim3(unsigned((n_job + kWarps - 1) / kWarps)), dim3(kWarps * 32), 0, stream, w);
}

void run(cudaStream_t stream, int E, const QkNormRopeArgs& w) {
  if (w.n_row == 0 || w.vectors() == 0) return;
  for (const HeadPart& part : w.part)
    CHECK(part.n_head == 0 || (part.stride % 4 == 0 && reinterpret_cast<uintptr_t>(part.p) % 16 == 0),
          "rows of stride {} at {}", part.stride, static_cast<const void*>(part.p));
  switch (E) {
    case 64:
      return launch_of_width<64>(stream, w);
    case 128:
      return launch_of_width<128>(stream, w);
    case 256:
      return launch_of_width<256>(stream, w);
    case 512:
      return launch_of_width<512>(stream, w);
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
