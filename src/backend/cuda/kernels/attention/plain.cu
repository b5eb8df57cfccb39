// attend, plain -- every head width, every pair of types
//
//   o[t] = softmax(q[t] . K * scale) V over the rows that t sees
//
// Shapes     q [T, Hq * E] f32, E 64..512; K, V rows as cached (device_kv_layout.cuh)
// Bytes      each visible row once per query row: for the small heads of drafters, and as a check of the fast kernels
// Launch     one block of 128 threads per (query head, token); a padding row gets zeros. p.ahead: only the tokens of
//            pictures that see others behind them, over what a kernel that is causal has written
// Order      E / 16 lanes are a group; group w of n takes the positions r with r mod n = w in ascending order, and the
//            groups are merged in order: a row's bits depend on it and the rows it sees alone
// Reference  CpuRef::attend
// Test       tests/kernels/cuda_attention_test.cpp
// Bench      bench/verbs/cuda_attention_bench.cu
#include "backend/cuda/kernels/attention/tree.cuh"
#include "backend/cuda/kernels/attention/values.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/launch.cuh"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4;

// Long: one warp's walk over the rows and the merge of the warps behind it, on the same registers.
__global__ void __launch_bounds__(kWarps * 32, 5) attend_plain_kernel(const __grid_constant__ AttendParams p) {
  __shared__ float query[512], out[kWarps * 512], tops[kWarps * 8], sums[kWarps * 8];
  pdl_wait();
  pdl_trigger();
  const int E = p.kv.head_dim, hq = blockIdx.x, t = p.t_begin + blockIdx.y, head = hq / p.group;
  const int tid = threadIdx.x, rotation = E < 128 ? E : 128;
  const int seq = p.step.seq[t], ahead = p.ahead ? p.step.ahead[t] : 0;
  if (p.ahead && ahead == 0) return;
  float* o = p.o + t * p.o_stride + int64_t(hq) * E;
  __nv_bfloat16* o_bf = p.o_bf ? p.o_bf + t * p.o_bf_stride + int64_t(hq) * E : nullptr;
  if (seq < 0) {
    for (int d = tid; d < E; d += kWarps * 32) {
      o[d] = 0;
      if (o_bf) o_bf[d] = __float2bfloat16(0.f);
    }
    return;
  }
  const bool shared = p.kv.shared;  // one row of 640: K's values are its first, V's its last
  for (int d = tid; d < E; d += kWarps * 32)
    query[d] = p.q[t * p.q_stride + int64_t(hq) * E + (shared ? shared_channel(d, true) : d)];
  if (device_kv_has_scales(p.kv.k_type)) block_rotate(query, E, rotation, false);
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
  const int cols = shared ? kSharedCols : E, first_v = cols - E;
  const int k_head = device_kv_bytes(p.kv.k_type, cols), v_head = device_kv_bytes(p.kv.v_type, cols);

  const int lanes = E / kDims, groups = 32 / lanes * kWarps, group = tid / lanes, d = tid % lanes * kDims;
  float q[kDims], acc[kDims] = {}, top = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kDims; ++i) q[i] = query[d + i];
  for (int base = first / groups * groups; base < end; base += groups) {
    const int row = base + group;
    const bool sees = row >= first && row < end && (sees_position(p, s, pos, row) || (row > pos && row <= pos + ahead));
    KvRow at{};
    float x = 0;
    if (sees) {
      at = kv_row(p.kv, p.step, seq, tree && row >= s.len ? s.len + nth_bit(p.step.ancestor[t], row - s.len) : row);
      float k[kDims];
      load_values(k, p.kv.k_type, at.k + head * k_head, d, cols);
#pragma unroll
      for (int i = 0; i < kDims; ++i) x = fmaf(q[i], k[i], x);
    }
    for (int m = lanes / 2; m > 0; m /= 2) x += __shfl_xor_sync(~0u, x, m);
    if (!sees) continue;  // no shuffle follows in this round
    x *= p.scale;
    float v[kDims];
    load_values(v, p.kv.v_type, (shared ? at.k : at.v) + head * v_head, first_v + d, cols);
    const float next = fmaxf(top, x), alpha = expf(top - next), weight = expf(x - next);
    sum = fmaf(sum, alpha, weight);
    top = next;
#pragma unroll
    for (int i = 0; i < kDims; ++i) acc[i] = fmaf(weight, v[i], acc[i] * alpha);
  }
#pragma unroll
  for (int i = 0; i < kDims; ++i) out[group * E + d + i] = acc[i];
  if (d == 0) tops[group] = top, sums[group] = sum;
  __syncthreads();
  float most = -INFINITY, total = 0;
  for (int i = 0; i < groups; ++i) most = fmaxf(most, tops[i]);
  auto weight_of = [&](int i) { return tops[i] == -INFINITY ? 0.f : expf(tops[i] - most); };
  for (int i = 0; i < groups; ++i) total += weight_of(i) * sums[i];
  const float inv = total > 0 ? 1.f / total : 0.f;
  for (int j = tid; j < E; j += kWarps * 32) {
    float v = 0;
    for (int i = 0; i < groups; ++i) v += weight_of(i) * out[i * E + j];
    query[j] = v * inv;
  }
  if (device_kv_has_scales(p.kv.v_type)) block_rotate(query, E, rotation, true);
  for (int j = tid; j < E; j += kWarps * 32) {
    const int at = shared ? shared_channel(j, false) : j;
    o[at] = query[j];
    if (o_bf) o_bf[at] = __float2bfloat16(query[j]);
  }
}

}  // namespace

void attend_plain(cudaStream_t stream, const AttendParams& p) {
  launch(attend_plain_kernel, dim3(unsigned(p.n_q_head), unsigned(p.t_end - p.t_begin)), dim3(kWarps * 32), 0, stream,
         p);
}

}  // namespace facet::cuda
