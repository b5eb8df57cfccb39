// gemm -- matrix products of many rows in bf16 by warpgroup products
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     any n_out and T, n_in a multiple of 8; W as rows of bf16 (unpack_bf16), of W0 and W1 interleaved
// Bytes      from memory weights once for 2,048 rows and rows once for some 2,000 outputs; from L2 weights once for 256
//            rows, rows once for kFeat outputs
// Flops      2 T n_out n_in, in m64 n kFeat k16
// Launch     persistent clusters of two blocks. A cluster has 256 rows and kFeat outputs at a time, a block 128 of the
//            rows; either block brings half of the weights to both. A warp's lane feeds a ring of stages of 64 columns
//            by tensor maps, two warpgroups multiply 64 rows each. 128 sums a thread in f32
// Order      columns in order, 16 at a time. A row's bits do not depend on other rows, nor on how many there are
// Reference  CpuRef::matmul, gate_up
// Test       tests/kernels/cuda_gemm_test.cpp
// Bench      bench/verbs/cuda_matmul_bench.cu
#include "backend/cuda/kernels/matmul/gemm.h"

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/cluster.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"
#include "backend/cuda/kernels/matmul/put_results.cuh"
#include "backend/cuda/tensor_map.h"

namespace facet::cuda {
namespace {

constexpr int kGemmTok = 128;   // rows of a block
constexpr int kGemmBeside = 8;  // pairs of blocks of rows that share outputs at a time

// Shared memory of a block that has kFeat outputs: stages, room for each warp's results, barriers.
template <int kFeat>
struct GemmTile {
  static constexpr int kSixteens = kFeat / 16;
  static constexpr int kRowBytes = kGemmTok * 128, kHalfBytes = kFeat / 2 * 128;  // of 64 columns
  static constexpr int kStage = kRowBytes + 2 * kHalfBytes;
  static constexpr int kStages = kFeat > 192 ? 4 : 5;
  static constexpr int kPitch = 40, kOwnBytes = 16 * kPitch * 4;  // 16 rows of 32 results, without conflicts
  static constexpr int kAtOwn = kStages * kStage, kAtBars = kAtOwn + 8 * kOwnBytes;
  static constexpr int kBytes = kAtBars + kStages * 16;
  static constexpr int kThreads = 288;
  static_assert(kHalfBytes % 1024 == 0);
};

struct GemmArgs {
  CUtensorMap x, w;
  float *y, *y_also;
  __nv_bfloat16* y_bf;
  int64_t y_stride, y_bf_stride;
  int n_tok, n_out;
  int n_pair, n_feat, n_block;  // pairs of blocks of rows, blocks of outputs, blocks of 64 columns
  bool wide;                    // outputs: for four at once
  bool times;                   // y has the activation's input: results are its activation times them
  Act act;
};

#if defined(FACET_WGMMA)
// A warp's 16 rows go where they belong, 32 results of each at a time, by way of its own part of shared memory.
template <int kFeat, bool kGated>
__device__ __forceinline__ void gemm_store(const GemmArgs& a, const float (&d)[kFeat / 8][4], int tok0, int feat,
                                           float* own, int lane) {
  constexpr int kPitch = GemmTile<kFeat>::kPitch, kResults = kGated ? kFeat / 2 : kFeat;
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int c = 0; c < kResults / 32; ++c) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int b = 4 * c + n;
        if constexpr (kGated)
          v[i] = activate(d[2 * b][i], a.act) * d[2 * b + 1][i];
        else
          v[i] = d[b][i];
      }
      float* const to = own + g * kPitch + 8 * n + 2 * t;
      *reinterpret_cast<float2*>(to) = {v[0], v[1]};
      *reinterpret_cast<float2*>(to + 8 * kPitch) = {v[2], v[3]};
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 8 + 4 * i, r = lane % 8 * 4;
      const int tok = tok0 + row, out = feat * kResults + 32 * c + r;
      if (tok < a.n_tok && out < a.n_out)
        put_results(a, tok, out, *reinterpret_cast<const float4*>(own + row * kPitch + r));
    }
  }
}

// The lane that brings stages in.
template <int kFeat>
__device__ __forceinline__ void gemm_feed(const GemmArgs& a, char* shared, uint64_t* full, uint64_t* empty) {
  using T = GemmTile<kFeat>;
  const int rank = int(cluster_rank()), n_work = a.n_pair * a.n_feat;
  RingPosition ring;
  for (int i = int(blockIdx.x) / 2; i < n_work; i += int(gridDim.x) / 2) {
    const WorkPlace place(kGemmBeside, a.n_pair, a.n_feat, i);
    const int tok = (2 * place.high + rank) * kGemmTok, row = place.wide * kFeat + rank * (kFeat / 2);
    for (int kb = 0; kb < a.n_block; ++kb) {
      barrier_wait(empty + ring.stage, ring.phase ^ 1);  // both blocks have read it
      char* const at = shared + ring.stage * T::kStage;
      barrier_arrive_expecting(full + ring.stage, unsigned(T::kStage));
      tensor_load(at, &a.x, tok, kb * 64, full + ring.stage);
      tensor_load_to(at + T::kRowBytes + rank * T::kHalfBytes, &a.w, row, kb * 64, full + ring.stage, 3);
      ring.advance(T::kStages);
    }
  }
}

template <int kFeat, bool kGated>
__device__ __forceinline__ void gemm_multiply(const GemmArgs& a, char* shared, uint64_t* full, uint64_t* empty) {
  using T = GemmTile<kFeat>;
  const int rank = int(cluster_rank()), n_work = a.n_pair * a.n_feat, lane = int(threadIdx.x) % 32;
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), group = warp / 4;
  float* const own = reinterpret_cast<float*>(shared + T::kAtOwn + warp * T::kOwnBytes);
  RingPosition ring;
  for (int i = int(blockIdx.x) / 2; i < n_work; i += int(gridDim.x) / 2) {
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
        if (lane < 2) barrier_arrive_of(empty + before, uint32_t(lane));
      }
      before = ring.stage;
      ring.advance(T::kStages);
    }
    wgmma_wait(d);
    if (lane < 2) barrier_arrive_of(empty + before, uint32_t(lane));
    const WorkPlace place(kGemmBeside, a.n_pair, a.n_feat, i);
    gemm_store<kFeat, kGated>(a, d, (2 * place.high + rank) * kGemmTok + warp * 16, place.wide, own, lane);
  }
}
#endif

template <int kFeat, bool kGated>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(GemmTile<kFeat>::kThreads, 1)
    gemm_kernel(const __grid_constant__ GemmArgs a) {
#if defined(FACET_WGMMA)
  using T = GemmTile<kFeat>;
  extern __shared__ __align__(1024) char shared[];
  uint64_t* const full = reinterpret_cast<uint64_t*>(shared + T::kAtBars);
  uint64_t* const empty = full + T::kStages;
  if (threadIdx.x == 0) {
    tensor_prefetch(&a.x), tensor_prefetch(&a.w);
    for (int i = 0; i < T::kStages; ++i) barrier_init(full + i, 1), barrier_init(empty + i, 16);
    barriers_publish();
  }
  cluster_sync();
  pdl_wait();
  pdl_trigger();
  if (threadIdx.x >= 256) {
    if (threadIdx.x == 256) gemm_feed<kFeat>(a, shared, full, empty);
    __syncwarp();
  } else {
    gemm_multiply<kFeat, kGated>(a, shared, full, empty);
  }
  cluster_sync();  // the other block's last arrivals come to this one's barriers
#endif
}

template <int kFeat, bool kGated>
void launch_gemm(cudaStream_t stream, const GemmWork& g, int64_t rows, GemmArgs& a) {
  using T = GemmTile<kFeat>;
  a.n_feat = int((rows + kFeat - 1) / kFeat);
  a.x = tensor_map_bf16(g.x, g.n_tok, g.n_in, g.x_stride, kGemmTok);
  a.w = tensor_map_bf16(g.w, rows, g.n_in, g.n_in, kFeat / 2);
  allow_shared(gemm_kernel<kFeat, kGated>, size_t(T::kBytes));
  const int clusters = std::min(device().n_sm / 2, a.n_pair * a.n_feat);
  launch(gemm_kernel<kFeat, kGated>, dim3(unsigned(2 * clusters)), dim3(T::kThreads), size_t(T::kBytes), stream, a);
}

// Time of all turns of the clusters with so many outputs at a time, in outputs.
int64_t turns(int n_pair, int64_t rows, int feat) {
  const int64_t n = int64_t(n_pair) * ((rows + feat - 1) / feat), clusters = device().n_sm / 2;
  return (n + clusters - 1) / clusters * feat;
}

}  // namespace

void gemm(cudaStream_t stream, const GemmWork& g) {
  CHECK(g.n_in % 8 == 0 && g.n_tok > 0, "{} rows of {} columns", g.n_tok, g.n_in);
  const int64_t rows = g.gated ? interleaved_rows(g.n_out) : g.n_out;
  GemmArgs a{};
  a.y = g.y, a.y_also = g.y_also, a.y_bf = g.y_bf, a.y_stride = g.y_stride, a.y_bf_stride = g.y_bf_stride;
  a.n_tok = g.n_tok, a.n_out = g.n_out, a.act = g.act, a.times = g.times;
  a.n_pair = (g.n_tok + 2 * kGemmTok - 1) / (2 * kGemmTok), a.n_block = (g.n_in + 63) / 64;
  auto aligned = [](const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  a.wide =
      g.y_stride % 4 == 0 && g.y_bf_stride % 4 == 0 && aligned(g.y, 16) && aligned(g.y_also, 16) && aligned(g.y_bf, 8);
  const bool narrow = turns(a.n_pair, rows, 192) * 21 < turns(a.n_pair, rows, 256) * 20;
  if (g.gated)
    narrow ? launch_gemm<192, true>(stream, g, rows, a) : launch_gemm<256, true>(stream, g, rows, a);
  else
    narrow ? launch_gemm<192, false>(stream, g, rows, a) : launch_gemm<256, false>(stream, g, rows, a);
}

}  // namespace facet::cuda
