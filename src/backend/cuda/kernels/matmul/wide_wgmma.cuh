#pragma once
#include "backend/cuda/kernels/matmul/wide.cuh"
#include "backend/cuda/kernels/matmul/wide_tiles.cuh"

// The kernel of wide.cu where there are warpgroups. Four warps take a strip each and the same rows, so that a product
// is one instruction of the four, with the weights' codes in registers and the rows' in shared memory: the instructions
// that are left are those of scales.
namespace facet::cuda {

#if defined(FACET_WGMMA)

constexpr int kGroupWarps = 4, kGroupThreads = kGroupWarps * 32;

// The strips of a warpgroup, a warp each: four of a matrix, or two of gate, each before its strip of up. Where there are
// fewer, the last one several times.
struct WideQuads {
  const DenseJobs& jobs;
  int job0, job1, count = 0;
  __device__ WideQuads(const DenseJobs& j, int from, int to) : jobs(j), job0(from), job1(to) {
    for (int i = 0; i < jobs.a.n_matrix; ++i) count += of_matrix(i);
  }
  __device__ int each() const { return jobs.a.n_sub == 2 ? 2 : 4; }  // jobs
  __device__ int of_matrix(int i) const {
    const int n = min(job1, jobs.a.first_job[i + 1]) - max(job0, jobs.a.first_job[i]);
    return n <= 0 ? 0 : (n + each() - 1) / each();
  }
  struct At {
    int job, sub;
    bool spare;
  };
  __device__ At at(int q, int warp) const {
    const SkinnyArgs& a = jobs.a;
    int i = 0;
    for (; i + 1 < a.n_matrix && q >= of_matrix(i); ++i) q -= of_matrix(i);
    const int job = max(job0, a.first_job[i]) + q * each() + (a.n_sub == 2 ? warp / 2 : warp),
              last = min(job1, a.first_job[i + 1]) - 1;
    return {min(job, last), a.n_sub == 2 ? warp % 2 : 0, job > last};
  }
};
// Strip i of the block's round.
__device__ __forceinline__ WideSource wide_source(const WideQuads& quads, int first, int n, int i) {
  WideSource s;
  const int q = first + i / kGroupWarps;
  if (i >= kGroupWarps * n || q >= quads.count) return s;
  const WideQuads::At at = quads.at(q, i % kGroupWarps);
  if (at.spare) return s;
  const DenseJobs& jobs = quads.jobs;
  const Strip strip = jobs.strip(at.job, at.sub);
  s.p = strip.p, s.left = strip.n_tile * strip.bytes;
  s.step = jobs.a.tiles[jobs.a.n_sub == 2 ? at.sub : jobs.matrix(at.job)].per_block * strip.bytes;
  return s;
}

// The sums of a warp's strip, [eight rows][lane's four].
template <int N>
struct GroupSums {
  float v[N][4];
  __device__ void clear() {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[n][i] = 0;
  }
  __device__ void cut(float* total, bool first, int lane) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* const to = total + (n * 4 + i) * 32 + lane;
        *to = first ? v[n][i] : *to + v[n][i];
      }
    clear();
  }
  __device__ void join(const float* total, int lane) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[n][i] = total[(n * 4 + i) * 32 + lane] + v[n][i];
  }
};

// sums += the tiles of 256 columns of the warp's strip, w, times its rows. As wide_product.
template <class Type, class Wide, int N, class Cut>
__device__ __forceinline__ void group_product(const uint8_t* w, int tile_bytes, const uint8_t* acts, int rows, int row0,
                                              int at, int n_group, int lane, GroupSums<N>& sums, Cut&& cut) {
  const int g = lane / 4, t = lane % 4;
  const uint64_t codes = pieces_operand(acts + row0 * 16, rows * 16);
  const uint8_t* const scales = acts + rows * (kActBlock + 32) + (row0 + 2 * t) * 4;
  auto columns = [&](int j) {
    return WideRows64{codes + uint64_t(j * rows * 4), uint32_t(rows * 2), scales + j * rows * 4};
  };
  if constexpr (Type::kPerTile) {
    cut(at);
    float part[N][4] = {};
    const typename Type::Head head = Type::head(w, lane);
#pragma unroll 1
    for (int j = 0; j < 4; ++j) Wide::add(Type::group(w, head, j, lane), columns(j), part);
    const typename Type::Tail tail = Type::tail(w, lane);
    const uint8_t* const of = acts + rows * kActBlock + ((row0 + g) * 4 + t) * 8;
#pragma unroll
    for (int n = 0; n < N; ++n)
      Type::add_tail(tail, *reinterpret_cast<const uint2*>(of + n * 256), part[n], sums.v[n]);
  } else {
#pragma unroll 1
    for (int j = 0; j < n_group; ++j) {
      cut(at + j);
      const uint8_t* const tile = w + j * tile_bytes;
      Wide::add(Type::group(tile, Type::head(tile, lane), 0, lane), columns(j), sums.v);
    }
  }
}

__device__ __forceinline__ void group_meets(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupThreads) : "memory");
}

// kRows of a warpgroup: 32 or 64. Long: as wide_kernel.
template <int kRows>
__global__ void __launch_bounds__(kWideWarps * 32, 1) wide_wgmma_kernel(const __grid_constant__ WideArgs w) {
  constexpr int N = kRows / 8;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t full[kWideStages], empty[kWideStages];
  const SkinnyArgs& a = w.a;
  const int lane = int(threadIdx.x) % 32, warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0),
            n_warp = int(blockDim.x) / 32;
  const int block = quick_div(int(blockIdx.x), a.n_set), set = int(blockIdx.x) - block * a.n_set;
  const DenseJobs jobs{a, quick_div(a.n_block * set, a.n_set), quick_div(a.n_block * (set + 1), a.n_set)};
  const int job0 = a.block_job[block], job1 = a.block_job[block + 1];
  const WideQuads quads(jobs, job0, job1);
  const int n_round = (quads.count + w.units - 1) / w.units, each = n_round ? (quads.count + n_round - 1) / n_round : 0;
  const int n_step = jobs.block1 - jobs.block0;  // of a round
  uint8_t* const stages = shared + a.at_rings;
  auto tiles_at = [&](int stage, int i, const uint8_t* from) {
    return stages + stage * w.stage + w.act_bytes + i * a.slot +
           (uint32_t(reinterpret_cast<uintptr_t>(from)) & (WarpRing::kLine - 1));
  };
  const uint8_t* const image = a.image + int64_t(jobs.block0) * w.act_bytes;

  if (threadIdx.x == 0) {
    for (int i = 0; i < a.n_stage; ++i) barrier_init(full + i, 1), barrier_init(empty + i, unsigned(n_warp));
    barriers_publish();
  }
  __syncthreads();
  // The last warp brings in weights, a strip a lane, and the image: all stages at first, then the stage of the step
  // before, which all warps are done with or soon will be.
  const bool brings = warp == n_warp - 1;
  int to = 0, to_step = 0, to_round = 0;
  WideSource from;
  auto bring = [&](bool image_too) {
    if (to_round == n_round) return;
    if (to_step == 0) from = wide_source(quads, to_round * each, each, lane);
    const int bytes = from.bytes(), all = __reduce_add_sync(~0u, bytes);
    if (lane == 0) barrier_arrive_expecting(full + to, unsigned(all + w.act_bytes));
    __syncwarp();
    if (bytes > 0) bulk_load_once(const_cast<uint8_t*>(tiles_at(to, lane, from.p)), from.p, unsigned(bytes), full + to);
    if (image_too && lane == 0)
      bulk_load(stages + to * w.stage, image + int64_t(to_step) * w.act_bytes, unsigned(w.act_bytes), full + to);
    from.go_on();
    if (++to == a.n_stage) to = 0;
    if (++to_step == n_step) to_step = 0, ++to_round;
  };
  if (brings)
    for (int i = 0; i < a.n_stage; ++i) bring(false);
  wait_for_previous();
  let_next_start();
  if (brings && lane == 0)
    for (int i = 0; i < min(a.n_stage, n_round * n_step); ++i)
      bulk_load(stages + i * w.stage, image + int64_t(i % n_step) * w.act_bytes, unsigned(w.act_bytes), full + i);

  int stage = 0, q = 0;
  uint32_t phase = 0;
  auto step_in = [&] {  // the step's data are there
    if (brings && q > 0 && to_round < n_round) {  // `to` is the stage of the step before
      barrier_wait(empty + to, to <= stage ? phase : phase ^ 1);
      bring(true);
    }
    barrier_wait(full + stage, phase);
  };
  auto step_done = [&] {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage);
    ++q;
    if (++stage == a.n_stage) stage = 0, phase ^= 1;
  };

  const TilePlace mark = run_begin(jobs, job0, job1, w.run_warps, lane);
  const int group = warp / kGroupWarps, mine = warp % kGroupWarps;
  const int quad_of = quick_div(group, w.n_group), row0 = (group - quad_of * w.n_group) * kRows;
  float* const total = reinterpret_cast<float*>(shared) + warp * kWideTotal;
  const SkinnyOutput out{a, jobs};
#pragma unroll 1
  for (int round = 0; round < n_round; ++round) {
    const int p = round * each + quad_of;
    if (quad_of >= each || p >= quads.count) {
#pragma unroll 1
      for (int step = 0; step < n_step; ++step) step_in(), step_done();
      continue;
    }
    const WideQuads::At at = quads.at(p, mine);
    WideCuts cuts = wide_cuts(jobs, mark, w.run_warps, at.job, at.sub, lane);
    const int matrix = a.n_sub == 2 ? at.sub : jobs.matrix(at.job);
    const uint8_t* const first = jobs.strip(at.job, at.sub).p;
    const SkinnyArgs::Tiles& tiles = a.tiles[matrix];  // all are alike
    const int step_bytes = tiles.per_block * tiles.tile_bytes;
    // One that is there several times lies where the first of them is.
    int slot = mine;
    if (at.spare)
      for (slot = 0; slot + 1 < kGroupWarps; ++slot) {
        const WideQuads::At other = quads.at(p, slot);
        if (other.job == at.job && other.sub == at.sub) break;
      }
    GroupSums<N> sums;
    sums.clear();
    with_code_tile(tiles.tile, [&](auto kind) {
      using Type = TileTraits<decltype(kind)::value>;
      constexpr int kPer = kActBlock / tile_cols(kind()), kBytes = tile_bytes(kind());
      const int n_tile = jobs.n_tile(matrix) * (tiles.grouped ? group_tiles(kind()) : 1);
#pragma unroll 1
      for (int step = 0; step < n_step; ++step) {
        step_in();
        const uint8_t* const tile = tiles_at(stage, kGroupWarps * quad_of + slot, first + uint32_t(step * step_bytes));
        group_product<Type, WideTile<decltype(kind)::value>>(
            tile, kBytes, stages + stage * w.stage, w.rows, row0, step * kPer, min(kPer, n_tile - step * kPer), lane,
            sums, [&](int i) {
              if (i == cuts.next) {
                sums.cut(total, !cuts.any, lane);
                cuts.any = true;
                cuts.go_on();
              }
              __syncwarp();
            });
        step_done();
      }
    });
    if (cuts.any) sums.join(total, lane);
    __syncwarp();
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        total[part_at(8 * n + 2 * (lane % 4) + i % 2, lane / 4 + i / 2 * 8)] = sums.v[n][i];
    group_meets(group);
    // Four of a strip's rows a lane. A strip of gate and its strip of up share the outputs where these are made here.
    const bool gated = a.n_set == 1 && a.n_sub == 2;
    const float* const one = total - (gated && at.sub == 1 ? kWideTotal : 0);
#pragma unroll 1
    for (int i = lane + (gated ? at.sub * 32 : 0); i < 4 * kRows && !at.spare; i += gated ? 64 : 32) {
      const int n = i / 4, r = i % 4 * 4, row = row0 + n;
      if (row >= a.n_tok) break;
      const float4 v = *reinterpret_cast<const float4*>(one + part_at(n, r));
      if (a.n_set > 1) {
        const int64_t strip = (int64_t(set) * a.n_job + at.job) * a.n_sub + at.sub;
        __stcg(reinterpret_cast<float4*>(a.partial + strip * (16 * w.rows) + row * 16 + r), v);
      } else if (gated) {
        out.store4(at.job, r, row, v, *reinterpret_cast<const float4*>(one + kWideTotal + part_at(n, r)));
      } else {
        out.store4(at.job, r, row, {}, v);
      }
    }
    group_meets(group);
  }
  wide_add_sets(w, jobs, block, job0, job1);
}

#else
template <int kRows>
__global__ void wide_wgmma_kernel(const __grid_constant__ WideArgs) {}
#endif

}  // namespace facet::cuda
