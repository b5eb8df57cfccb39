#pragma once
#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/skinny_args.h"
#include "backend/cuda/kernels/matmul/stream.cuh"
#include "backend/cuda/kernels/moe/route.cuh"

// The kernel of skinny.cu; its instances are compiled apart from each other.
namespace facet::cuda {

struct DenseJobs {
  const SkinnyArgs& a;
  int set;
  __device__ int n_sub() const { return a.n_sub; }
  __device__ Strip strip(int job, int sub) const {
    const int i = a.n_sub == 2 ? sub : int(job >= a.first_job[1]) + int(job >= a.first_job[2]);
    const int s = a.n_sub == 2 ? job : job - a.first_job[i];
    const Tile tile = a.m[i].w.tile;
    const int from = a.set_tile[i][set];
    return {a.m[i].w.p + s * a.strip_bytes[i] + from * tile_bytes(tile), tile, a.set_tile[i][set + 1] - from};
  }
};

// `bytes` of global into shared memory; every thread waits until they are there.
__device__ __forceinline__ void copy_in(uint8_t* to, const uint8_t* from, int bytes, uint64_t* bar) {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x == 0) {
    barrier_init(bar, 1);
    WarpRing::release();
    barrier_arrive_expecting(bar, unsigned(bytes));
    bulk_load(to, from, unsigned(bytes), bar);
  }
  __syncthreads();
  barrier_wait(bar, 0);
#else
  for (int i = int(threadIdx.x) * 16; i < bytes; i += int(blockDim.x) * 16)
    *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(from + i);
#endif
}

template <int N, bool kFloat, bool kShort>
__global__ void __launch_bounds__(stream_warps(kShort) * 32, kShort ? 2 : 1)
    skinny_kernel(const __grid_constant__ SkinnyArgs a) {
  using Acts = ActsOf<N, kFloat>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t bars[stream_warps(kShort)][WarpRing::kMaxStages];
  __shared__ TilePlace place[stream_warps(kShort) + 1];
  __shared__ bool is_last;
  __shared__ uint64_t image_bar;
  constexpr int kPart = kPartFloats<N>;
  int at = int(blockIdx.x);
  if constexpr (kShort && !kFloat) {
    // The first blocks: what they read is on its way before the weights of the others.
    if (at < a.beside_blocks) return route_block(a.beside, at, 1, *reinterpret_cast<RouteScratch*>(shared));
    at -= a.beside_blocks;
  }
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warp = int(blockDim.x) / 32;
  const int set = at % a.n_set, block = at / a.n_set;
  const DenseJobs jobs{a, set};
  float* const parts = reinterpret_cast<float*>(shared + Acts::bytes(a.set_cols));
  uint8_t* const rings = reinterpret_cast<uint8_t*>(parts + n_warp * a.n_sub * kPart);
  WarpRing ring(rings + warp * a.n_stage * a.slot, bars[warp], a.n_stage, a.slot, lane);
  auto part = [&](int w) { return parts + w * a.n_sub * kPart; };

  // A block has the same jobs in every set; its warps share the tiles of the set's columns.
  JobCosts costs{};
  costs.n_kind = a.n_sub == 2 ? 1 : a.n_matrix;
  costs.n_job = a.n_job;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    costs.first_job[i] = a.first_job[i];
    costs.n_tile[i][0] = a.set_tile[i][set + 1] - a.set_tile[i][set],
    costs.tile[i][0] = tile_cost(a.m[i].w.tile);
  }
  if (a.n_sub == 2) costs.n_tile[0][1] = costs.n_tile[1][0], costs.tile[0][1] = costs.tile[1][0];
  // Sets begin at multiples of 256 columns.
  const int col0 = a.set_tile[0][set] * tile_cols(a.m[0].w.tile),
            cols = a.set_tile[0][set + 1] * tile_cols(a.m[0].w.tile) - col0;
  const Acts x{shared};

  auto store = [&](int job, int r, int n, float v0, float v1) {
    const int i = a.n_sub == 2 ? 0 : int(job >= a.first_job[1]) + int(job >= a.first_job[2]);
    const SkinnyMatrix& m = a.m[i];
    const int row = (a.n_sub == 2 ? job : job - a.first_job[i]) * 16 + r;
    if (n >= a.n_tok || row >= m.w.n_out) return;
    const float v = a.n_sub == 2 ? activate(v0, a.act) * v1 : v1;
    if (m.y) m.y[n * m.y_stride + row] = v;
    if (m.y_also) m.y_also[n * m.y_stride + row] = v;
    if (m.y_bf) m.y_bf[n * m.y_bf_stride + row] = __float2bfloat16_rn(v);
  };
  auto emit = [&](int job, int r, int n, float v0, float v1) {
    if (a.n_set == 1) return store(job, r, n, v0, v1);
    float* to = a.partial + (int64_t(set) * a.n_job + job) * a.n_sub * kPart + r * N + n;
    if (a.n_sub == 2) __stcg(to, v0), to += kPart;
    __stcg(to, v1);
  };

  const int job0 = a.block_job[block], job1 = a.block_job[block + 1];
  const int cost0 = costs.before(job0), cost1 = costs.before(job1);
  // Lane l: where run l begins.
  const TilePlace mark = lane >= n_warp ? TilePlace{job1, 0}
                         : lane == 0
                             ? TilePlace{job0, 0}
                             : costs.at(cost0 + int(float(cost1 - cost0) * (float(lane) / float(n_warp))));
  const TilePlace begin{__shfl_sync(~0u, mark.job, warp), __shfl_sync(~0u, mark.tile, warp)};
  const TilePlace end{__shfl_sync(~0u, mark.job, warp + 1), __shfl_sync(~0u, mark.tile, warp + 1)};
  if (warp == 0 && lane <= n_warp) place[lane] = mark;
  TileCursor<DenseJobs> next(jobs, begin, end);
  for (int i = 0; i + 1 < a.n_stage; ++i) next.fetch(ring);
  wait_for_previous();
  let_next_start();
  auto stage_here = [&] {
    stage(
        x, [&](int n) { return a.x + n * a.x_stride; }, a.n_tok, a.n_in, col0, cols, warp, n_warp, lane);
  };
  if constexpr (!kFloat && N > 1) {
    if (a.image)
      copy_in(shared, a.image + int64_t(col0 / kActBlock) * Acts::kStride, Acts::bytes(cols), &image_bar);
    else
      stage_here();
  } else {
    stage_here();
  }
  __syncthreads();
  run_tiles<N>(jobs, begin, end, next, ring, x, part(warp), ring.memory(), lane, emit);
  __syncthreads();
  join_parts<N>(place, warp, n_warp, a.n_sub, part, ring.memory(), lane, emit);
  if (a.n_set == 1) return;

  // The last set to finish these jobs adds up, in the order of columns.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(a.counter + block, 1u) == unsigned(a.n_set - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int i = int(threadIdx.x); i < (job1 - job0) * kPart; i += int(blockDim.x)) {
    const int job = job0 + i / kPart, at = i % kPart;
    if (at % N >= a.n_tok) continue;
    float v[2] = {};
    for (int sub = 0; sub < a.n_sub; ++sub)
      for (int s = 0; s < a.n_set; ++s)
        v[sub] += __ldcg(a.partial + ((int64_t(s) * a.n_job + job) * a.n_sub + sub) * kPart + at);
    store(job, at / N, at % N, v[0], a.n_sub == 2 ? v[1] : v[0]);
  }
  if (threadIdx.x == 0) a.counter[block] = 0;
}

constexpr int kAheadBytes = 32 * 1024;  // of a multiprocessor

template <int N, bool kFloat, bool kShort>
void launch_skinny(cudaStream_t stream, SkinnyArgs& a, int n_warp) {
  static const bool once =
      (allow_shared(skinny_kernel<N, kFloat, kShort>, size_t(device().shared - kOwnShared)), true);
  (void)once;
  const int fixed = ActsOf<N, kFloat>::bytes(a.set_cols) + n_warp * a.n_sub * kPartFloats<N> * 4,
            stage = n_warp * a.slot;
  a.n_stage = ring_stages(fixed, stage, kShort);
  // More bytes on their way than memory needs to be busy make it slower.
  if (!kShort) a.n_stage = std::min(a.n_stage, std::max(2, 1 + (kAheadBytes + stage - 1) / stage));
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.set_cols);
  launch(skinny_kernel<N, kFloat, kShort>, dim3(unsigned(a.beside_blocks + a.blocks * a.n_set)), dim3(unsigned(n_warp * 32)),
         std::max(size_t(fixed + n_warp * a.n_stage * a.slot), sizeof(RouteScratch)), stream, a);
}

}  // namespace facet::cuda
