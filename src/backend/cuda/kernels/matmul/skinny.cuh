#pragma once
#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/skinny_args.h"
#include "backend/cuda/kernels/matmul/stream.cuh"
#include "backend/cuda/kernels/route/route.cuh"

// The kernel of skinny.cu; its instances are compiled apart from each other.
namespace facet::cuda {

struct DenseJobs {
  const SkinnyArgs& a;
  int block0, block1;  // of the set, in blocks of kActBlock columns
  __device__ int n_sub() const { return a.n_sub; }
  __device__ int matrix(int job) const {
    return a.n_sub == 2 ? 0 : int(job >= a.first_job[1]) + int(job >= a.first_job[2]);
  }
  __device__ int first_tile(int i) const { return min(block0 * a.tiles[i].per_block, a.tiles[i].n_tile); }
  __device__ int n_tile(int i) const { return min(block1 * a.tiles[i].per_block, a.tiles[i].n_tile) - first_tile(i); }
  __device__ Strip strip(int job, int sub) const {
    const int i = a.n_sub == 2 ? sub : matrix(job), s = a.n_sub == 2 ? job : job - a.first_job[i];
    const SkinnyArgs::Tiles& w = a.tiles[i];
    return {w.p + int64_t(s) * w.strip_bytes + first_tile(i) * w.tile_bytes, w.tile, n_tile(i), w.tile_bytes,
            w.grouped};
  }
};

// Where sums go: row r of a job's strip, of row n of activations; v1 of the last matrix, v0 of gate.
struct SkinnyOutput {
  const SkinnyArgs& a;
  const DenseJobs& jobs;
  __device__ __forceinline__ void store(int job, int r, int n, float v0, float v1) const {
    const int i = jobs.matrix(job);
    const SkinnyMatrix& m = a.m[i];
    const int row = (a.n_sub == 2 ? job : job - a.first_job[i]) * 16 + r;
    if (n >= a.n_tok || row >= m.w.n_out) return;
    const float v = a.n_sub == 2 ? activate(v0, a.act) * v1 : v1;
    if (m.y) m.y[n * m.y_stride + row] = v;
    if (m.y_also) m.y_also[n * m.y_stride + row] = v;
    if (m.y_bf) m.y_bf[n * m.y_bf_stride + row] = __float2bfloat16_rn(v);
  }
  __device__ __forceinline__ void store4(int job, int r, int n, float4 v0, float4 v1) const {
    const int i = jobs.matrix(job);
    const SkinnyMatrix& m = a.m[i];
    const int row = (a.n_sub == 2 ? job : job - a.first_job[i]) * 16 + r;
    const float x0[4] = {v0.x, v0.y, v0.z, v0.w}, x1[4] = {v1.x, v1.y, v1.z, v1.w};
    if (!a.wide[i]) {
#pragma unroll
      for (int k = 0; k < 4; ++k) store(job, r + k, n, x0[k], x1[k]);
      return;
    }
    if (n >= a.n_tok || row >= m.w.n_out) return;
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = a.n_sub == 2 ? activate(x0[k], a.act) * x1[k] : x1[k];
    const float4 all = {v[0], v[1], v[2], v[3]};
    if (m.y) *reinterpret_cast<float4*>(m.y + n * m.y_stride + row) = all;
    if (m.y_also) *reinterpret_cast<float4*>(m.y_also + n * m.y_stride + row) = all;
    if (m.y_bf)
      *reinterpret_cast<uint2*>(m.y_bf + n * m.y_bf_stride + row) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
  }
};

// Lane l of a warp: where run l of n_warp of a block's jobs [job0, job1) begins; lanes from n_warp on: the end.
__device__ __forceinline__ TilePlace run_begin(const DenseJobs& jobs, int job0, int job1, int n_warp, int lane) {
  const SkinnyArgs& a = jobs.a;
  if (lane >= n_warp) return {job1, 0};
  const int i = jobs.matrix(job0);
  if (a.even && i == jobs.matrix(job1 - 1)) {
    const int each = jobs.n_tile(i) * a.n_sub, tile = (job1 - job0) * each * lane >> (31 - __clz(n_warp)),
              job = fast_div(tile, each);
    return {job0 + job, tile - job * each};
  }
  JobCosts costs{};
  costs.n_kind = a.n_sub == 2 ? 1 : a.n_matrix;
  costs.n_job = a.n_job;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    costs.first_job[k] = a.first_job[k];
    costs.n_tile[k][0] = jobs.n_tile(k), costs.tile[k][0] = a.tiles[k].tile_bytes / 4;
  }
  if (a.n_sub == 2) costs.n_tile[0][1] = costs.n_tile[1][0], costs.tile[0][1] = costs.tile[1][0];
  const int cost0 = costs.before(job0), cost1 = costs.before(job1);
  if (lane == 0) return {job0, 0};
  return costs.at(cost0 + int(float(cost1 - cost0) * (float(lane) / float(n_warp))));
}

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

template <int N, Input in, bool kShort>
__global__ void __launch_bounds__(stream_warps(kShort) * 32, kShort ? 2 : 1)
    skinny_kernel(const __grid_constant__ SkinnyArgs a) {
  using Acts = ActsOf<N, in>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t bars[stream_warps(kShort)][WarpRing::kMaxStages];
  __shared__ TilePlace place[stream_warps(kShort) + 1];
  __shared__ bool is_last;
  __shared__ uint64_t image_bar;
  constexpr int kPart = kPartFloats<N>;
  if (kShort && a.ahead) pdl_trigger();
  int at = int(blockIdx.x);
  if constexpr (kShort && in != Input::kBf16) {
    if (unsigned(at - a.beside_at) < unsigned(a.beside_blocks))
      return route_block<N == 1>(a.beside, at - a.beside_at, shared, a.beside_rows);
    if (a.beside_at == 0) at -= a.beside_blocks;
  }
  // The shuffle tells the compiler that a warp's lanes agree: fewer registers. Long products and single rows are not
  // faster.
  const int lane = int(threadIdx.x) % 32,
            warp = kShort && N > 1 ? __shfl_sync(~0u, int(threadIdx.x) / 32, 0) : int(threadIdx.x) / 32,
            n_warp = int(blockDim.x) / 32;
  const int block = fast_div(at, a.n_set), set = at - block * a.n_set;
  // A block has the same jobs in every set; its warps share the tiles of the set's columns.
  const DenseJobs jobs{a, fast_div(a.n_block * set, a.n_set), fast_div(a.n_block * (set + 1), a.n_set)};
  uint8_t* const rings = shared + a.at_rings;
  WarpRing ring(rings + warp * a.n_stage * a.slot, bars[warp], a.n_stage, a.slot, lane, a.keep_place);
  const int job0 = a.block_job[block], job1 = a.block_job[block + 1];
  const TilePlace mark = run_begin(jobs, job0, job1, n_warp, lane);
  const TilePlace begin{__shfl_sync(~0u, mark.job, warp), __shfl_sync(~0u, mark.tile, warp)};
  const TilePlace end{__shfl_sync(~0u, mark.job, warp + 1), __shfl_sync(~0u, mark.tile, warp + 1)};
  TileCursor<DenseJobs> next(jobs, begin, end);
#pragma unroll 1
  for (int i = 0; i + 1 < a.n_stage; ++i) next.fetch(ring);

  if (N > 1 && warp == 0 && lane <= n_warp) place[lane] = mark;
  float* const parts = reinterpret_cast<float*>(shared + a.at_parts);
  auto part = [&](int w) { return parts + w * a.n_sub * kPart; };
  const int col0 = jobs.block0 * kActBlock, cols = (jobs.block1 - jobs.block0) * kActBlock;
  const Acts x{hold_shared(shared)};

  const SkinnyOutput out{a, jobs};
  auto store = [&](int job, int r, int n, float v0, float v1) { out.store(job, r, n, v0, v1); };
  auto store4 = [&](int job, int r, int n, float4 v0, float4 v1) { out.store4(job, r, n, v0, v1); };
  auto partial_of = [&](int job, int sub) {
    return a.partial + ((int64_t(set) * a.n_job + job) * a.n_sub + sub) * kPart;
  };
  auto emit = [&](int job, int r, int n, float v0, float v1) {
    if (a.n_set == 1) return store(job, r, n, v0, v1);
    if (a.n_sub == 2) __stcg(partial_of(job, 0) + n * 16 + r, v0);
    __stcg(partial_of(job, a.n_sub - 1) + n * 16 + r, v1);
  };
  auto emit4 = [&](int job, int r, int n, float4 v0, float4 v1) {
    if (a.n_set == 1) return store4(job, r, n, v0, v1);
    if (a.n_sub == 2) __stcg(reinterpret_cast<float4*>(partial_of(job, 0) + n * 16 + r), v0);
    __stcg(reinterpret_cast<float4*>(partial_of(job, a.n_sub - 1) + n * 16 + r), v1);
  };

  // Of one row, what can be known before it is there: which job the warp adds up, a row a lane (of the last strip;
  // lanes from 16 on of the first), where that goes, and where its own columns of the input are.
  struct {
    bool adds = false, there = false, gated = false;
    unsigned later = 0;                            // runs after this one that have a part, from the next one on
    const float *mine = nullptr, *next = nullptr;  // this run's part, the next one's
    float *y = nullptr, *also = nullptr;
    __nv_bfloat16* bf = nullptr;
  } only;
  auto last = [&](int w) { return reinterpret_cast<const float*>(rings + w * a.n_stage * a.slot); };
  if constexpr (N == 1) {
    const TilePlace mark_end{__shfl_down_sync(~0u, mark.job, 1), __shfl_down_sync(~0u, mark.tile, 1)};
    only.adds = runs_that_add(mark, mark_end, n_warp, lane) >> warp & 1;
    const JobParts parts_of_job = parts_of(mark, mark_end, n_warp, warp, lane);
    only.later = hold_in_register(parts_of_job.later >> 1 >> warp);
    only.mine = hold_shared((parts_of_job.whole_run ? part(warp) : last(warp)) + lane);
    only.next = hold_shared(part(warp + 1) + lane);
    only.gated = a.n_set == 1 && a.n_sub == 2;
    if (only.adds) {
      const int job = parts_of_job.job, i = jobs.matrix(job), r = lane % 16;
      if (a.n_set > 1) {
        only.y = partial_of(job, lane < 16 ? a.n_sub - 1 : 0) + r, only.there = lane < 16 * a.n_sub;
      } else {
        const SkinnyMatrix& m = a.m[i];
        const int row = (a.n_sub == 2 ? job : job - a.first_job[i]) * 16 + r;
        only.there = lane < 16 && row < m.w.n_out;
        if (m.y) only.y = m.y + row;
        if (m.y_also) only.also = m.y_also + row;
        if (m.y_bf) only.bf = m.y_bf + row;
      }
    }
  }
  const StripPart head = first_part(jobs, begin, end);
  const uint32_t after = hold_in_register(uint32_t(a.late) | uint32_t(a.n_set > 1 && !a.leave) << 1);
  using Early = std::conditional_t<N == 1 && in != Input::kBf16, RowStage<in == Input::kTwoBytes>, NoStage>;
  Early early(a.x, a.n_in, col0, cols, warp, n_warp, lane);

  if (kShort && a.early) pdl_trigger();
  if (!a.late) pdl_wait();
  if constexpr (!std::is_same_v<Early, NoStage>) early.load();
  pdl_trigger();
  if constexpr (!std::is_same_v<Early, NoStage>) {
    early.write(shared);
  } else {
    if (in != Input::kBf16 && a.image)
      copy_in(shared, a.image + int64_t(col0 / kActBlock) * Acts::bytes(kActBlock), Acts::bytes(cols), &image_bar);
    else
      stage(
          x, [&](int n) { return a.x + n * a.x_stride; }, a.n_tok, a.n_in, col0, cols, warp, n_warp, lane);
  }
  __syncthreads();
  run_tiles<N>(jobs, begin, end, head, next, ring, x, part(warp), ring.memory(), lane, emit);
  __syncthreads();
  if constexpr (N > 1) {
    join_columns<N>(place, n_warp, a.n_sub, part, last, warp, lane, a.n_tok, emit4);
  } else if (only.adds) {
    float v = *only.mine;
    const float* p = only.next;
    const int each = a.n_sub * kPart;
#pragma unroll 1
    for (unsigned rest = only.later; rest != 0;
         rest >>= 4, p += 4 * each) {  // behind the last part there are the rings
      const float u[4] = {p[0], p[each], p[2 * each], p[3 * each]};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (rest >> i & 1) v += u[i];
    }
    if (only.gated) v = activate(__shfl_down_sync(~0u, v, 16), a.act) * v;
    if (only.there) {
      if (only.y) *only.y = v;
      if (only.also) *only.also = v;
      if (only.bf) *only.bf = __float2bfloat16_rn(v);
    }
  }
  if (after & 1) pdl_wait();
  if (!(after & 2)) return;

  // The last set to finish these jobs adds up, in the order of columns.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(a.counter + block, 1u) == unsigned(a.n_set - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  constexpr int kRows = N == 1 ? 1 : 4;  // at a time
  using V = std::conditional_t<N == 1, float, float4>;
  const int each = 16 / kRows * a.n_tok;  // of a job
  for (int i = int(threadIdx.x); i < (job1 - job0) * each; i += int(blockDim.x)) {
    const int job = job0 + i / each, at = i % each * kRows;
    V v[2] = {};
    for (int sub = 0; sub < a.n_sub; ++sub)
#pragma unroll 4
      for (int s = 0; s < a.n_set; ++s) {
        const V u =
            __ldcg(reinterpret_cast<const V*>(a.partial + ((int64_t(s) * a.n_job + job) * a.n_sub + sub) * kPart + at));
        if constexpr (N == 1)
          v[sub] += u;
        else
          v[sub] = sum4(v[sub], u);
      }
    if constexpr (N == 1)
      store(job, at, 0, v[0], a.n_sub == 2 ? v[1] : v[0]);
    else
      store4(job, at % 16, at / 16, v[0], a.n_sub == 2 ? v[1] : v[0]);
  }
  if (threadIdx.x == 0) a.counter[block] = 0;
}

// Bytes on their way to a multiprocessor: more than memory needs to be busy make a product slower, the more so a brief
// one.
constexpr int kAheadBytes = 48 * 1024, kAheadLong = 80 * 1024, kLongShare = 384 * 1024;

template <int N, Input in, bool kShort>
void launch_skinny(cudaStream_t stream, SkinnyArgs& a, int n_warp) {
  allow_shared(skinny_kernel<N, in, kShort>, size_t(device().shared - kOwnShared));
  a.at_parts = ActsOf<N, in>::bytes(a.set_cols);
  a.at_rings = WarpRing::lines(a.at_parts + n_warp * a.n_sub * kPartFloats<N> * 4);
  const int fixed = a.at_rings, tile = a.slot;
  auto stages = [&](int slot) { return a.slot = slot, ring_stages(fixed, n_warp * slot, kShort ? a.thirds : 3); };
  a.n_stage = stages(WarpRing::stage_bytes_for(tile));
  a.keep_place = a.n_stage >= 2;
  if (!a.keep_place) a.n_stage = stages(tile);
  a.n_stage = std::min(a.n_stage, std::max(2, a.run_tiles + 1));  // one is at hand
  const int stage = n_warp * a.slot, ahead = a.bytes > int64_t(kLongShare) * device().n_sm ? kAheadLong : kAheadBytes;
  if (!kShort) a.n_stage = std::min(a.n_stage, std::max(2, 1 + (ahead + stage - 1) / stage));
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.set_cols);
  int bytes = fixed + a.n_stage * stage;
  if (a.beside_blocks > 0) {
    bytes = std::max(bytes, kRouteRowsAt + a.n_in * 4);
    a.beside_rows = route_rows(bytes, a.n_in, a.n_tok);
  }
  launch(skinny_kernel<N, in, kShort>, dim3(unsigned(a.beside_blocks + a.blocks * a.n_set)),
         dim3(unsigned(n_warp * 32)), size_t(bytes), stream, a);
}

}  // namespace facet::cuda
