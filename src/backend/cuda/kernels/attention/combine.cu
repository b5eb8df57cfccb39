// attend, second pass -- the partial results of a row's splits into its output
//
//   o[t, h] = sum_s w_s o_s / sum_s w_s,  w_s = l_s 2^(m_s - max m); rotated back if V is cached rotated
//
// Shapes     part_o [tokens, Hq, n_split, E] f16, part_ml [tokens, Hq, n_split]; o [T, Hq * E] f32 and, if wanted, bf16
//            and int8 activations
// Bytes      the partial results, once
// Launch     one block of 256 threads per (group of 128 values, query head, token)
// Order      split s goes to thread group s mod 16 by its absolute number, in ascending order; groups are added in
//            order: a row's bits do not depend on how many splits the grid has
// Reference  CpuRef::attend
// Test       tests/kernels/cuda_attention_test.cpp
// Bench      bench/verbs/cuda_attention_bench.cu
#include "backend/cuda/kernels/attention/params.cuh"
#include "backend/cuda/kernels/common/hadamard.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"

namespace facet::cuda {
namespace {

constexpr int kThreads = 256, kGroups = 16;

// Long: three passes over the splits of a row, between barriers, on the same shared arrays.
template <bool kWarmIcache>
__global__ void __launch_bounds__(kThreads) attend_combine_kernel(const __grid_constant__ AttendParams p) {
  __shared__ float values[kGroups][128 + 8], weights[kGroups], tops[kThreads / 32];
  pdl_trigger();
  const int E = p.kv.head_dim, part = blockIdx.x, hq = blockIdx.y, t = p.t_begin + blockIdx.z;
  const int tid = threadIdx.x, lane = tid % 32, group = tid / 16, sub = tid % 16;
  const int seq = p.step.seq[t];
  const SeqRows s = seq_rows(p, seq);
  const KvSplitPolicy policy = policy_of(p.kv.k_type, p.window, p.kv.n_head);
  // In a tree the splits beyond the token's own position were computed for other paths.
  const int end = s.mask == Mask::kTree ? p.step.pos[t] + 1 : s.len + s.in_step, split0 = split_index(policy, s.first);
  const int n_seen = s.first < end ? split_index(policy, end - 1) - split0 + 1 : 0;
  const int64_t at = (int64_t(t - p.t_begin) * p.n_q_head + hq) * p.n_split;
  // Where the output goes is computed before the wait, which hides the misses of the kernel's arguments.
  // The channel of value d of the 128.
  const auto channel = [&](int d) { return p.kv.shared ? shared_channel(part * 128 + d, false) : part * 128 + d; };
  const int first_col = hq * E, col = first_col + channel(lane * 4);
  const bool rotated = device_kv_has_scales(p.kv.v_type);
  float* const to = p.o + t * p.o_stride + col;
  __nv_bfloat16* const to_bf = p.o_bf ? p.o_bf + t * p.o_bf_stride + col : nullptr;
  uint8_t* const image = p.o_image;
  const int n_image = p.n_image;

  warm_icache<kWarmIcache>([&](bool real) {
    const int n = real ? n_seen : 0;
    // The first two splits of the group are on their way while the maximum is found.
    const int i0 = (group - split0 % kGroups + kGroups) % kGroups;
    const __half* from = p.part_o + at * E + part * 128 + sub * 8;
    float2 ml[2];
    uint4 part_o[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      ml[j] = make_float2(-INFINITY, 0), part_o[j] = make_uint4(0, 0, 0, 0);
      if (i0 + j * kGroups < n) {
        ml[j] = p.part_ml[at + i0 + j * kGroups];
        part_o[j] = *reinterpret_cast<const uint4*>(from + int64_t(i0 + j * kGroups) * E);
      }
    }
    float top = -INFINITY;
    for (int i = tid; i < n; i += kThreads) top = fmaxf(top, p.part_ml[at + i].x);
    for (int m = 16; m > 0; m /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, m));
    if (lane == 0) tops[tid / 32] = top;
    __syncthreads();
    for (int i = 0; i < kThreads / 32; ++i) top = fmaxf(top, tops[i]);
    if (top == -INFINITY) top = 0;

    float sum[8] = {}, weight = 0;
    auto add = [&](float2 of, uint4 u) {
      const float w = __fmul_rn(of.y, exp2_approx(__fsub_rn(of.x, top)));
      const uint32_t words[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&words[j]));
        sum[2 * j] = __fmaf_rn(w, f.x, sum[2 * j]), sum[2 * j + 1] = __fmaf_rn(w, f.y, sum[2 * j + 1]);
      }
      weight += w;
    };
    if (i0 < n) add(ml[0], part_o[0]);
    if (i0 + kGroups < n) add(ml[1], part_o[1]);
#pragma unroll 4
    for (int i = i0 + 2 * kGroups; i < n; i += kGroups)
      add(p.part_ml[at + i], *reinterpret_cast<const uint4*>(from + int64_t(i) * E));
#pragma unroll
    for (int j = 0; j < 8; ++j) values[group][sub * 8 + j] = sum[j];
    if (sub == 0) weights[group] = weight;
    __syncthreads();
    if (tid >= 32) return;
    float x[4] = {}, total = 0;
    for (int i = 0; i < kGroups; ++i) {
      total += weights[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] += values[i][lane * 4 + j];
    }
    const float inv = total > 0 ? __fdividef(1.f, total) : 0.f;
#pragma unroll
    for (float& e : x) e = __fmul_rn(e, inv);
    if (rotated) warp_rotate<4>(x, lane, true);
    const uint32_t lo = pack_bf16(x[0], x[1]), hi = pack_bf16(x[2], x[3]);
    if (real) {
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
      if (to_bf) *reinterpret_cast<uint2*>(to_bf) = make_uint2(lo, hi);
    }
    if (!image) return;
    // Half of a block of the image: 16 lanes take eight columns each.
    const int pair = lane % 16 * 2, at_col = first_col + channel(lane % 16 * 8), block = at_col / kActBlock,
              as = at_col % kActBlock / 8;
    const uint4 v = {__shfl_sync(~0u, lo, pair), __shfl_sync(~0u, hi, pair), __shfl_sync(~0u, lo, pair + 1),
                     __shfl_sync(~0u, hi, pair + 1)};
    quantize_block_among(n_image, image, block, v, t, as, lane < 16 && real);
  });
}

}  // namespace

void attend_combine(cudaStream_t stream, const AttendParams& p) {
  const dim3 grid(unsigned(p.kv.head_dim / 128), unsigned(p.n_q_head), unsigned(p.t_end - p.t_begin));
  launch(grid.z == 1 ? attend_combine_kernel<true> : attend_combine_kernel<false>, grid, dim3(kThreads), 0, stream, p);
}

}  // namespace facet::cuda
