// attend, second pass -- the partial results of a row's splits into its output
//
//   o[t, h] = sum_s w_s o_s / sum_s w_s,  w_s = l_s 2^(m_s - max m); rotated back if V is cached rotated
//
// Shapes     part_o [tokens, Hq, n_split, E] f16, part_ml [tokens, Hq, n_split]; o [T, Hq * E] f32 and, if wanted, bf16
//            and int8 activations
// Bytes      the partial results, once
// Launch     one block of 256 threads per (group of 128 values, query head, token); of at most 32 splits a warp each
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

// 128 values of a query head of a token, of which a lane has four. All of it is computed before the wait, which hides
// the misses of the kernel's arguments.
struct Output {
  int part, first_col, n_image, t, split0, n_seen;
  int64_t at;  // of its first split
  bool shared, rotated;
  float* to;
  __nv_bfloat16* to_bf;
  uint8_t* image;

  __device__ __forceinline__ Output(const AttendParams& p, int of_head, int hq, int token, int lane)
      : part(of_head),
        first_col(hq * p.kv.head_dim),
        n_image(p.n_image),
        t(token),
        shared(p.kv.shared),
        rotated(device_kv_has_scales(p.kv.v_type)),
        image(p.o_image) {
    const SeqRows s = seq_rows(p, p.step.seq[t]);
    const KvSplitPolicy policy = policy_of(p.kv.k_type, p.window, p.kv.n_head);
    // In a tree the splits beyond the token's own position were computed for other paths.
    const int end = s.mask == Mask::kTree ? p.step.pos[t] + 1 : s.len + s.in_step;
    split0 = split_index(policy, s.first);
    n_seen = s.first < end ? split_index(policy, end - 1) - split0 + 1 : 0;
    at = (int64_t(t - p.t_begin) * p.n_q_head + hq) * p.n_split;
    const int col = first_col + channel(lane * 4);
    to = p.o + t * p.o_stride + col, to_bf = p.o_bf ? p.o_bf + t * p.o_bf_stride + col : nullptr;
  }
  // The channel of value d of the 128.
  __device__ __forceinline__ int channel(int d) const {
    return shared ? shared_channel(part * 128 + d, false) : part * 128 + d;
  }
  // A warp: x, the sums of the lane's values, divided by `total`.
  __device__ __forceinline__ void put(float (&x)[4], float total, int lane, bool real) const {
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
  }
};
__device__ __forceinline__ float weight_of(float2 of, float top) {
  return __fmul_rn(of.y, exp2_approx(__fsub_rn(of.x, top)));
}
__device__ __forceinline__ float4 four_of(uint2 u) {
  const float2 a = __half22float2(*reinterpret_cast<const __half2*>(&u.x)),
               b = __half22float2(*reinterpret_cast<const __half2*>(&u.y));
  return make_float4(a.x, a.y, b.x, b.y);
}

// Long: three passes over the splits of a row, between barriers, on the same shared arrays.
template <bool kWarmIcache>
__global__ void __launch_bounds__(kThreads) attend_combine_kernel(const __grid_constant__ AttendParams p) {
  __shared__ float values[kGroups][128 + 8], weights[kGroups], tops[kThreads / 32];
  pdl_trigger();
  const int E = p.kv.head_dim, tid = threadIdx.x, lane = tid % 32, group = tid / 16, sub = tid % 16;
  const Output out(p, int(blockIdx.x), int(blockIdx.y), p.t_begin + int(blockIdx.z), lane);
  const int64_t at = out.at;

  warm_icache<kWarmIcache>([&](bool real) {
    const int n = real ? out.n_seen : 0;
    // The first two splits of the group are on their way while the maximum is found.
    const int i0 = (group - out.split0 % kGroups + kGroups) % kGroups;
    const __half* from = p.part_o + at * E + out.part * 128 + sub * 8;
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
      const float w = weight_of(of, top);
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
    out.put(x, total, lane, real);
  });
}

// A warp for 128 values of one of several tokens: of at most 32 splits, whose weights are a lane's each.
constexpr int kFewSplits = 32, kFewWarps = 4;
__global__ void __launch_bounds__(kFewWarps * 32) attend_combine_few_kernel(const __grid_constant__ AttendParams p) {
  pdl_trigger();
  const int E = p.kv.head_dim, parts = E / 128, lane = int(threadIdx.x) % 32,
            i = int(blockIdx.x) * kFewWarps + int(threadIdx.x) / 32, hq = i / parts;
  if (hq >= p.n_q_head) return pdl_wait();
  const Output out(p, i - hq * parts, hq, p.t_begin + int(blockIdx.y), lane);
  pdl_wait();
  const int n = out.n_seen;
  const __half* const from = p.part_o + out.at * E + out.part * 128 + lane * 4;
  const float2 ml = lane < n ? p.part_ml[out.at + lane] : make_float2(-INFINITY, 0);
  const auto load = [&](int split) { return *reinterpret_cast<const uint2*>(from + int64_t(split) * E); };
  const auto first = [&](int group) { return (group - out.split0 % kGroups + kGroups) % kGroups; };
  uint2 part_o[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) part_o[g] = first(g) < n ? load(first(g)) : uint2{};
  float top = ml.x;
  for (int m = 16; m > 0; m /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, m));
  if (top == -INFINITY) top = 0;
  const float weight = weight_of(ml, top);
  float x[4] = {}, total = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int s = first(g);
    const float w = __shfl_sync(~0u, weight, s), second = __shfl_sync(~0u, weight, s + kGroups);
    if (s >= n) continue;
    const float4 f = four_of(part_o[g]);
    float sum[4] = {__fmul_rn(w, f.x), __fmul_rn(w, f.y), __fmul_rn(w, f.z), __fmul_rn(w, f.w)}, of_group = w;
    if (s + kGroups < n) {
      const float4 more = four_of(load(s + kGroups));
      sum[0] = __fmaf_rn(second, more.x, sum[0]), sum[1] = __fmaf_rn(second, more.y, sum[1]);
      sum[2] = __fmaf_rn(second, more.z, sum[2]), sum[3] = __fmaf_rn(second, more.w, sum[3]);
      of_group += second;
    }
    total += of_group;
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = __fadd_rn(x[j], sum[j]);
  }
  out.put(x, total, lane, true);
}

}  // namespace

void attend_combine(cudaStream_t stream, const AttendParams& p) {
  const int parts = p.kv.head_dim / 128;
  const unsigned n_tok = unsigned(p.t_end - p.t_begin);
  if (n_tok > 1 && p.n_split <= kFewSplits) {
    const dim3 grid(unsigned((parts * p.n_q_head + kFewWarps - 1) / kFewWarps), n_tok);
    launch(attend_combine_few_kernel, grid, dim3(kFewWarps * 32), 0, stream, p);
    return;
  }
  launch(n_tok == 1 ? attend_combine_kernel<true> : attend_combine_kernel<false>,
         dim3(unsigned(parts), unsigned(p.n_q_head), n_tok), dim3(kThreads), 0, stream, p);
}

}  // namespace facet::cuda
