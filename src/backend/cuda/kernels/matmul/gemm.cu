// gemm -- matrix products of many rows in bf16 by warpgroup products
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     any n_out and T, n_in a multiple of 8; W as rows of bf16 (unpack_bf16), of W0 and W1 interleaved
// Bytes      from memory weights once for 1,024 rows and rows once for some 4,000 outputs; from L2 weights once for 128
//            rows, rows once for kFeat outputs
// Flops      2 T n_out n_in, in m64 n kFeat k16
// Launch     one persistent block per multiprocessor has 128 rows and kFeat outputs at a time. A lane of the last
//            warpgroup feeds a ring of stages of 64 columns by tensor maps, the other two multiply 64 rows each. 128
//            sums a thread in f32, which go to memory as they lie, whole sectors at a time
// Order      columns in order, 16 at a time. A row's bits do not depend on other rows, nor on how many there are
// Reference  CpuRef::matmul, gate_up
// Test       tests/kernels/cuda_gemm_test.cpp
// Bench      bench/verbs/cuda_matmul_bench.cu
#include "backend/cuda/kernels/matmul/gemm.h"

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/common/tensor_load.cuh"
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"
#include "backend/cuda/kernels/matmul/put_results.cuh"
#include "backend/cuda/tensor_map.h"

namespace facet::cuda {
namespace {

constexpr int kGemmTok = 128;   // rows of a block
constexpr int kGemmBeside = 8;  // blocks of rows that share outputs at a time

// Shared memory of a block that has kFeat outputs: stages, barriers.
template <int kFeat>
struct GemmTile {
  static constexpr int kSixteens = kFeat / 16;
  static constexpr int kRowBytes = kGemmTok * 128, kStage = kRowBytes + kFeat * 128;  // of 64 columns
  static constexpr int kStages = kFeat > 192 ? 4 : 5;
  static constexpr int kAtBars = kStages * kStage, kBytes = kAtBars + kStages * 16;
  static constexpr int kThreads = 384;  // three warpgroups, for the split of registers
};

struct GemmArgs {
  CUtensorMap x, w;
  float *y, *y_also;
  __nv_bfloat16* y_bf;
  int64_t y_stride, y_bf_stride;
  int n_tok, n_out;
  int n_high, n_wide, n_block;  // blocks of rows, of outputs, of 64 columns
  bool wide;                    // outputs: for four at once
  Act act;
};

#if defined(FACET_WGMMA)
// kOuts results of rows tok and tok + 8 from `out` on, of which a lane has 8 n + 2 (lane % 4) and the next one: v[n].
template <int kOuts>
__device__ __forceinline__ void put_sums(const GemmArgs& a, float (&v)[kOuts / 8][4], int tok, int out) {
  const int pair = int(threadIdx.x) % 4 * 2;
  const bool odd = pair & 2, whole = a.wide && out + kOuts <= a.n_out;
#pragma unroll 1
  for (int h = 0; h < 2; ++h) {
    const bool there = tok + 8 * h < a.n_tok;
    const int64_t at = (tok + 8 * h) * a.y_stride + out, at_bf = (tok + 8 * h) * a.y_bf_stride + out;
    float r[kOuts / 8][2];
#pragma unroll
    for (int n = 0; n < kOuts / 8; ++n) r[n][0] = h == 0 ? v[n][0] : v[n][2], r[n][1] = h == 0 ? v[n][1] : v[n][3];
    if (!whole) {
#pragma unroll
      for (int n = 0; n < kOuts / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int c = 8 * n + pair + e;
          if (!there || out + c >= a.n_out) continue;
          if (a.y) a.y[at + c] = r[n][e];
          if (a.y_also) a.y_also[at + c] = r[n][e];
          if (a.y_bf) a.y_bf[at_bf + c] = __float2bfloat16_rn(r[n][e]);
        }
      continue;
    }
    const auto put = [&](float* to) {
#pragma unroll
      for (int n = 0; n < kOuts / 8; ++n)
        *reinterpret_cast<float2*>(to + at + 8 * n + pair) = make_float2(r[n][0], r[n][1]);
    };
    if (there && a.y) put(a.y);
    if (there && a.y_also) put(a.y_also);
    // Lanes change halves of two blocks of eight, so that each has four results that are adjacent.
    if (!a.y_bf) continue;
#pragma unroll
    for (int n = 0; n < kOuts / 8; n += 2) {
      const uint32_t own[2] = {pack_bf16(r[n][0], r[n][1]), pack_bf16(r[n + 1][0], r[n + 1][1])};
      const uint32_t other = __shfl_xor_sync(~0u, odd ? own[0] : own[1], 1);
      const uint2 four = odd ? make_uint2(other, own[1]) : make_uint2(own[0], other);
      if (there) *reinterpret_cast<uint2*>(a.y_bf + at_bf + 8 * n + (odd ? 6 + pair : pair)) = four;
    }
  }
}

// A warp's 16 rows go where they belong.
template <int kFeat, bool kGated>
__device__ __forceinline__ void gemm_store(const GemmArgs& a, float (&d)[kFeat / 8][4], int tok0, int feat) {
  const int tok = tok0 + int(threadIdx.x) % 32 / 4;
  if constexpr (kGated) {
    float v[kFeat / 16][4];
    const auto join = [&](auto&& of) {
#pragma unroll
      for (int n = 0; n < kFeat / 16; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) v[n][i] = of(d[2 * n][i], d[2 * n + 1][i]);
    };
    if (a.y)
      join([&](float g, float u) { return activate(g, a.act) * u; });
    else
      join([&](float g, float u) { return gated(g, u, a.act); });
    put_sums<kFeat / 2>(a, v, tok, feat * (kFeat / 2));
  } else {
    put_sums<kFeat>(a, d, tok, feat * kFeat);
  }
}

// The lane that brings stages in.
template <int kFeat>
__device__ __forceinline__ void gemm_feed(const GemmArgs& a, char* shared, uint64_t* full, uint64_t* empty) {
  using T = GemmTile<kFeat>;
  RingPosition ring;
  for (int i = int(blockIdx.x); i < a.n_high * a.n_wide; i += int(gridDim.x)) {
    const WorkPlace place(kGemmBeside, a.n_high, a.n_wide, i);
    for (int kb = 0; kb < a.n_block; ++kb) {
      barrier_wait(empty + ring.stage, ring.phase ^ 1);
      char* const at = shared + ring.stage * T::kStage;
      barrier_arrive_expecting(full + ring.stage, unsigned(T::kStage));
      tensor_load(at, &a.x, place.high * kGemmTok, kb * 64, full + ring.stage);
      tensor_load(at + T::kRowBytes, &a.w, place.wide * kFeat, kb * 64, full + ring.stage);
      ring.advance(T::kStages);
    }
  }
}

template <int kFeat, bool kGated>
__device__ __forceinline__ void gemm_multiply(const GemmArgs& a, char* shared, uint64_t* full, uint64_t* empty) {
  using T = GemmTile<kFeat>;
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), group = warp / 4, lane = int(threadIdx.x) % 32;
  RingPosition ring;
  for (int i = int(blockIdx.x); i < a.n_high * a.n_wide; i += int(gridDim.x)) {
    float d[2 * T::kSixteens][4] = {};
    int before = 0;
    for (int kb = 0; kb < a.n_block; ++kb) {
      barrier_wait(full + ring.stage, ring.phase);
      const char* const at = shared + ring.stage * T::kStage;
      const uint64_t x = rows_operand(at + group * 8192), w = rows_operand(at + T::kRowBytes);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_bf16(d, x + k * 2, w + k * 2, kb > 0 || k > 0);
      wgmma_commit();
      if (kb > 0) {
        wgmma_wait_older();
        if (lane == 0) barrier_arrive(empty + before);
      }
      before = ring.stage;
      ring.advance(T::kStages);
    }
    wgmma_wait(d);
    if (lane == 0) barrier_arrive(empty + before);
    const WorkPlace place(kGemmBeside, a.n_high, a.n_wide, i);
    gemm_store<kFeat, kGated>(a, d, place.high * kGemmTok + warp * 16, place.wide);
  }
}
#endif

template <int kFeat, bool kGated>
__global__ void __launch_bounds__(GemmTile<kFeat>::kThreads, 1) gemm_kernel(const __grid_constant__ GemmArgs a) {
#if defined(FACET_WGMMA)
  using T = GemmTile<kFeat>;
  extern __shared__ __align__(1024) char shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + T::kAtBars);
  uint64_t* const empty = full + T::kStages;
  if (threadIdx.x == 0) {
    tensor_prefetch(&a.x), tensor_prefetch(&a.w);
    for (int i = 0; i < T::kStages; ++i) barrier_init(full + i, 1), barrier_init(empty + i, 8);
    barriers_publish();
  }
  __syncthreads();
  pdl_wait();
  pdl_trigger();
  if (threadIdx.x >= 256) {
    give_registers<40>();
    if (threadIdx.x == 256) gemm_feed<kFeat>(a, shared, full, empty);
  } else {
    take_registers<232>();
    gemm_multiply<kFeat, kGated>(a, shared, full, empty);
  }
#endif
}

template <int kFeat, bool kGated>
void launch_gemm(cudaStream_t stream, const GemmWork& g, int64_t rows, GemmArgs& a) {
  using T = GemmTile<kFeat>;
  a.n_wide = int((rows + kFeat - 1) / kFeat);
  a.x = tensor_map_bf16(g.x, g.n_tok, g.n_in, g.x_stride, kGemmTok);
  a.w = tensor_map_bf16(g.w, rows, g.n_in, g.n_in, kFeat);
  allow_shared(gemm_kernel<kFeat, kGated>, size_t(T::kBytes));
  const int blocks = std::min(device().n_sm, a.n_high * a.n_wide);
  launch(gemm_kernel<kFeat, kGated>, dim3(unsigned(blocks)), dim3(T::kThreads), size_t(T::kBytes), stream, a);
}

// Time of all turns of the blocks with so many outputs at a time, in outputs.
int64_t turns(int n_high, int64_t rows, int feat) {
  const int64_t n = int64_t(n_high) * ((rows + feat - 1) / feat), blocks = device().n_sm;
  return (n + blocks - 1) / blocks * feat;
}

}  // namespace

void gemm(cudaStream_t stream, const GemmWork& g) {
  CHECK(g.n_in % 8 == 0 && g.n_tok > 0, "{} rows of {} columns", g.n_tok, g.n_in);
  const int64_t rows = g.gated ? interleaved_rows(g.n_out) : g.n_out;
  GemmArgs a{};
  a.y = g.y, a.y_also = g.y_also, a.y_bf = g.y_bf, a.y_stride = g.y_stride, a.y_bf_stride = g.y_bf_stride;
  a.n_tok = g.n_tok, a.n_out = g.n_out, a.act = g.act;
  a.n_high = (g.n_tok + kGemmTok - 1) / kGemmTok, a.n_block = (g.n_in + 63) / 64;
  auto aligned = [](const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  a.wide =
      g.y_stride % 4 == 0 && g.y_bf_stride % 4 == 0 && aligned(g.y, 16) && aligned(g.y_also, 16) && aligned(g.y_bf, 8);
  const bool narrow = turns(a.n_high, rows, 192) * 21 < turns(a.n_high, rows, 256) * 20;
  if (g.gated)
    narrow ? launch_gemm<192, true>(stream, g, rows, a) : launch_gemm<256, true>(stream, g, rows, a);
  else
    narrow ? launch_gemm<192, false>(stream, g, rows, a) : launch_gemm<256, false>(stream, g, rows, a);
}

}  // namespace facet::cuda
