// attend, plain -- every head width, every pair of types, one row at a time
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * E] f32, E 64..512; K, V rows as cached (planar.cuh)
// Bytes      each visible row once per query row: for small heads, and as the fast kernels' second opinion
// Launch     one block of 128 threads per (query head, token); a padding row gets zeros
// Order      warp w takes the positions r with r mod 4 = w in ascending order, the four are merged in order: a row's bits
//            depend on it and the rows it sees alone
// Reference  CpuRef::attend    Test tests/kernels/cuda_attend_test.cpp
#include "backend/cuda/kernels/attend/tree.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4, kMostPerLane = 16;

// Value d of a head vector, in the rotated domain if its type is.
__device__ __noinline__ float planar_value(KvType t, const std::byte* p, int d, int E) {
  if (t == KvType::kF32) return reinterpret_cast<const float*>(p)[d];
  if (t == KvType::kF16) return __half2float(reinterpret_cast<const __half*>(p)[d]);
  const float scale = __half2float(reinterpret_cast<const __half*>(p + planar_code_bytes(t, E))[d / 32]);
  const int code = planar_code(t, reinterpret_cast<const uint8_t*>(p), d, E);
  if (t == KvType::kQ8_0) return scale * float(code - 128);
  if (t == KvType::kQ4_0) return scale * float(code - 8);
  const int m = code < 4 ? 3 - code : code - 4;
  const float c = m == 0 ? 0.021460f : m == 1 ? 0.065717f : m == 2 ? 0.117832f : 0.190685f;
  return scale * (code < 4 ? -c : c);
}

// Nine blocks a multiprocessor: 56 registers a thread.
__global__ void __launch_bounds__(kWarps * 32, 9) attend_plain_kernel(const __grid_constant__ AttendParams p) {
  __shared__ float query[512], out[kWarps][512], tops[kWarps], sums[kWarps];
  wait_for_previous();
  let_next_start();
  const int E = p.kv.head_dim, hq = blockIdx.x, t = p.t_begin + blockIdx.y, head = hq / p.group;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rotation = E < 128 ? E : 128;
  const int seq = p.step.seq[t];
  float* o = p.o + t * p.o_stride + int64_t(hq) * E;
  __nv_bfloat16* o_bf = p.o_bf ? p.o_bf + t * p.o_bf_stride + int64_t(hq) * E : nullptr;
  if (seq < 0) {
    for (int d = tid; d < E; d += kWarps * 32) {
      o[d] = 0;
      if (o_bf) o_bf[d] = __float2bfloat16(0.f);
    }
    return;
  }
  for (int d = tid; d < E; d += kWarps * 32) query[d] = p.q[t * p.q_stride + int64_t(hq) * E + d];
  if (planar_scaled(p.kv.k_type)) block_rotate(query, E, rotation, false);
  __syncthreads();

  SeqRows s{};
  s.begin = p.step.q_begin[seq];
  s.n = p.step.q_begin[seq + 1] - s.begin;
  s.len = p.step.kv_len[seq];
  s.mask = p.step.mask[seq];
  s.in_step = s.mask == Mask::kPast ? 0 : s.n;
  const int pos = p.step.pos[t];
  const bool tree = s.mask == Mask::kTree;
  const int first = p.window > 0 ? max(0, min(s.len, pos - p.window + 1)) : 0, end = tree ? pos + 1 : s.len + s.in_step;
  const int k_head = planar_bytes(p.kv.k_type, E), v_head = planar_bytes(p.kv.v_type, E);

  float acc[kMostPerLane] = {}, top = -INFINITY, sum = 0;
  for (int row = first / kWarps * kWarps + warp; row < end; row += kWarps) {
    if (row < first || !sees_position(p, s, pos, row)) continue;
    const KvRow at = kv_row(p.kv, p.step, seq, tree && row >= s.len ? s.len + nth_bit(p.step.ancestor[t], row - s.len) : row);
    float dot = 0;
    for (int i = 0; i * 32 < E; ++i) dot += query[lane + 32 * i] * planar_value(p.kv.k_type, at.k + head * k_head, lane + 32 * i, E);
    for (int m = 16; m > 0; m /= 2) dot += __shfl_xor_sync(~0u, dot, m);
    const float x = dot * p.scale, next = fmaxf(top, x), alpha = expf(top - next), weight = expf(x - next);
    sum = sum * alpha + weight;
    top = next;
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i)
      if (i * 32 < E) acc[i] = acc[i] * alpha + weight * planar_value(p.kv.v_type, at.v + head * v_head, lane + 32 * i, E);
  }
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i)
    if (i * 32 < E) out[warp][lane + 32 * i] = acc[i];
  if (lane == 0) tops[warp] = top, sums[warp] = sum;
  __syncthreads();
  float most = -INFINITY, total = 0, w[kWarps];
  for (int i = 0; i < kWarps; ++i) most = fmaxf(most, tops[i]);
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    w[i] = tops[i] == -INFINITY ? 0.f : expf(tops[i] - most);
    total += w[i] * sums[i];
  }
  const float inv = total > 0 ? 1.f / total : 0.f;
  for (int d = tid; d < E; d += kWarps * 32) {
    float v = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) v += w[i] * out[i][d];
    query[d] = v * inv;
  }
  if (planar_scaled(p.kv.v_type)) block_rotate(query, E, rotation, true);
  for (int d = tid; d < E; d += kWarps * 32) {
    o[d] = query[d];
    if (o_bf) o_bf[d] = __float2bfloat16(query[d]);
  }
}

}  // namespace

void attend_plain(cudaStream_t stream, const AttendParams& p) {
  launch(attend_plain_kernel, dim3(unsigned(p.n_q_head), unsigned(p.t_end - p.t_begin)), dim3(kWarps * 32), 0, stream, p);
}

}  // namespace facet::cuda
