#pragma once
#include "backend/cuda/kernels/matmul/skinny.cuh"
#include "backend/cuda/kernels/matmul/wide.h"

// The kernel of wide.cu; its instances are compiled apart from each other.
namespace facet::cuda {

// The strips that a block multiplies side by side, in pairs that share what is read of the activations: two strips of a
// matrix, or one of gate and one of up. A matrix with an odd number of them has one twice.
struct WidePairs {
  const DenseJobs& jobs;
  int job0, job1, count = 0;
  __device__ WidePairs(const DenseJobs& j, int from, int to) : jobs(j), job0(from), job1(to) {
    for (int i = 0; i < jobs.a.n_matrix; ++i) count += of_matrix(i);
  }
  __device__ int of_matrix(int i) const {
    const int n = min(job1, jobs.a.first_job[i + 1]) - max(job0, jobs.a.first_job[i]);
    return n <= 0 ? 0 : jobs.a.n_sub == 2 ? n : (n + 1) / 2;
  }
  // Job of strip `half` of pair p; `last`: of the one before, if there is no other.
  struct At {
    int job[2];
  };
  __device__ At at(int p) const {
    if (jobs.a.n_sub == 2) return {{job0 + p, job0 + p}};
    int i = 0;
    for (; i + 1 < jobs.a.n_matrix && p >= of_matrix(i); ++i) p -= of_matrix(i);
    const int first = max(job0, jobs.a.first_job[i]) + 2 * p;
    return {{first, min(first + 1, min(job1, jobs.a.first_job[i + 1]) - 1)}};
  }
};

// A step is 256 columns of `pairs` pairs; a stage of shared memory holds it: the image, then the strips' tiles, each at
// its place in its lines of 128 bytes.
struct WideSource {
  const uint8_t* p = nullptr;
  int step = 0, left = 0;  // bytes of a step, and of the strip in these columns
  __device__ int bytes() const { return min(step, left); }
  __device__ void go_on() { p += step, left -= step; }
};
// Strip i of the block's round.
__device__ __forceinline__ WideSource wide_source(const WidePairs& pairs, int first_pair, int n, int i) {
  WideSource s;
  if (i >= 2 * n || first_pair + i / 2 >= pairs.count) return s;
  const WidePairs::At at = pairs.at(first_pair + i / 2);
  if (i % 2 == 1 && pairs.jobs.a.n_sub == 1 && at.job[0] == at.job[1]) return s;
  const SkinnyArgs& a = pairs.jobs.a;
  const Strip strip = pairs.jobs.strip(at.job[i % 2], a.n_sub == 2 ? i % 2 : 0);
  s.p = strip.p, s.left = strip.n_tile * strip.bytes;
  s.step = a.tiles[a.n_sub == 2 ? i % 2 : pairs.jobs.matrix(at.job[0])].per_block * strip.bytes;
  return s;
}

// Where the sums of a strip are cut: at the tiles where a run of the kernels for few rows begins (stream.cuh). Warps.
struct WideCuts {
  unsigned rest = 0;
  int mark = 0, next = 1 << 30;  // the lane's run's first tile, in tiles of the strip; the next cut
  bool any = false;
  __device__ void go_on() {
    next = 1 << 30;
    const int from = __ffs(int(rest)) - 1, tile = __shfl_sync(~0u, mark, max(from, 0));
    if (from >= 0) next = tile;
    rest &= rest - 1;
  }
};
__device__ __forceinline__ WideCuts wide_cuts(const DenseJobs& jobs, TilePlace mark, int run_warps, int job, int sub,
                                              int lane) {
  const int before = sub == 1 ? jobs.n_tile(0) : 0;
  const Strip s = jobs.strip(job, sub);
  WideCuts c;
  c.mark = mark.tile - before;
  c.rest = __ballot_sync(~0u, lane < run_warps && mark.job == job && c.mark > 0 && c.mark < s.n_tile);
  // Several runs may begin at one place.
  const int prior = __shfl_up_sync(~0u, c.mark, 1);
  c.rest &= ~__ballot_sync(~0u, lane > 0 && (c.rest >> (lane - 1) & 1) && prior == c.mark);
  if (s.grouped) c.mark *= group_tiles(s.tile);
  c.go_on();
  return c;
}

// Rows of an image's 256 columns in shared memory.
template <bool kTwo>
struct WideActs {
  static constexpr int kParts = kTwo ? 2 : 1;
  const uint8_t* p;  // the lane's: codes of row g of the group
  int rows;
  __device__ uint4 codes(int j, int n, int part) const {
    return shared16(p + ((j * kParts + part) * rows + 8 * n) * 64);
  }
};

// The sums of a warp's two strips and kGroup rows, [strip][eight rows][lane's four].
template <int kGroup>
struct WideSums {
  float v[2][kGroup / 8][4];
  __device__ void clear(int s) {
#pragma unroll
    for (int n = 0; n < kGroup / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[s][n][i] = 0;
  }
  // A run ends: its sum is added to those before it.
  __device__ void cut(int s, float* total, bool first, int lane) {
#pragma unroll
    for (int n = 0; n < kGroup / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* const to = total + ((s * (kGroup / 8) + n) * 4 + i) * 32 + lane;
        *to = first ? v[s][n][i] : *to + v[s][n][i];
      }
    clear(s);
  }
  __device__ void join(int s, const float* total, int lane) {
#pragma unroll
    for (int n = 0; n < kGroup / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) v[s][n][i] = total[((s * (kGroup / 8) + n) * 4 + i) * 32 + lane] + v[s][n][i];
  }
};

// acc += the tiles of 256 columns of two strips, w, times kGroup rows. at: of the step's first tile; n_group: groups of 64
// columns that there are. cut(s) is called before a tile at which the sum of strip s is cut.
template <class Type, bool kTwo, int kGroup, class Cut>
__device__ __forceinline__ void wide_product(const uint8_t* const (&w)[2], int tile_bytes, const uint8_t* acts,
                                             int rows, int row0, int at, int n_group, int lane, WideSums<kGroup>& acc,
                                             Cut&& cut) {
  constexpr int kTiles = kGroup / 8, kParts = kTwo ? 2 : 1;
  const int g = lane / 4, t = lane % 4;
  const WideActs<kTwo> x{acts + (row0 + g) * 64 + t * 16, rows};
  const uint8_t* const sums = acts + rows * (kActBlock * kParts) + ((row0 + g) * 4 + t) * 8;
  const uint8_t* const scales = acts + rows * (kActBlock * kParts + 32) + (row0 + 2 * t) * 4;
  auto add_group = [&](const uint8_t* const(&tile)[2], const typename Type::Head(&head)[2], int j, int in_tile,
                       float(&to)[2][kTiles][4]) {
    typename Type::Group group[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) group[s] = Type::group(tile[s], head[s], in_tile, lane);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint4 b = x.codes(j, n, 0);
      uint4 second = {};
      if (kTwo) second = x.codes(j, n, 1);
      const float2 scale = *reinterpret_cast<const float2*>(scales + (j * rows + 8 * n) * 4);
#pragma unroll
      for (int s = 0; s < 2; ++s) Type::template add<kTwo>(group[s], b, second, scale, to[s][n]);
    }
  };
  if constexpr (Type::kPerTile) {
    cut(at);
    float part[2][kTiles][4] = {};
    const typename Type::Head head[2] = {Type::head(w[0], lane), Type::head(w[1], lane)};
#pragma unroll
    for (int j = 0; j < 4; ++j) add_group(w, head, j, j, part);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const typename Type::Tail tail = Type::tail(w[s], lane);
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        Type::add_tail(tail, *reinterpret_cast<const uint2*>(sums + n * 256), part[s][n], acc.v[s][n]);
    }
  } else {
#pragma unroll 1
    for (int j = 0; j < n_group; ++j) {
      cut(at + j);
      const uint8_t* const tile[2] = {w[0] + j * tile_bytes, w[1] + j * tile_bytes};
      const typename Type::Head head[2] = {Type::head(tile[0], lane), Type::head(tile[1], lane)};
      add_group(tile, head, j, 0, acc.v);
    }
  }
}

// Long: roles of warps that share barriers, registers and the shared memory laid out at its top; cut up, each part
// would take all of that as arguments.
template <bool kTwo, int kGroup>
__global__ void __launch_bounds__(kWideWarps * 32, 1) wide_kernel(const __grid_constant__ WideArgs w) {
  extern __shared__ __align__(128) uint8_t shared[];
#if __CUDA_ARCH__ >= 900
  __shared__ uint64_t full[kWideStages], empty[kWideStages];
#endif
  __shared__ bool is_last;
  const SkinnyArgs& a = w.a;
  // The shuffle tells the compiler that a warp's lanes agree.
  const int lane = int(threadIdx.x) % 32, warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0),
            n_warp = int(blockDim.x) / 32;
  const int block = fast_div(int(blockIdx.x), a.n_set), set = int(blockIdx.x) - block * a.n_set;
  const DenseJobs jobs{a, fast_div(a.n_block * set, a.n_set), fast_div(a.n_block * (set + 1), a.n_set)};
  const int job0 = a.block_job[block], job1 = a.block_job[block + 1];
  const WidePairs pairs(jobs, job0, job1);
  const int n_round = (pairs.count + w.pairs - 1) / w.pairs, each = n_round ? (pairs.count + n_round - 1) / n_round : 0;
  const int n_step = jobs.block1 - jobs.block0;  // of a round
  uint8_t* const stages = shared + a.at_rings;
  auto tiles_at = [&](int stage, int i, const uint8_t* from) {
    return stages + stage * w.stage + w.act_bytes + i * a.slot +
           (uint32_t(reinterpret_cast<uintptr_t>(from)) & (WarpRing::kLine - 1));
  };
  const uint8_t* const image = a.image + int64_t(jobs.block0) * w.act_bytes;

#if __CUDA_ARCH__ >= 900
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
    if (to_step == 0) from = wide_source(pairs, to_round * each, each, lane);
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
  pdl_wait();
  pdl_trigger();
  if (brings && lane == 0)
    for (int i = 0; i < min(a.n_stage, n_round * n_step); ++i)
      bulk_load(stages + i * w.stage, image + int64_t(i % n_step) * w.act_bytes, unsigned(w.act_bytes), full + i);
#else
  // Every thread brings in a share of a step, a commit group each.
  auto fetch = [&](int q) {
    const int round = fast_div(q, n_step), step = q - round * n_step, stage = q % a.n_stage;
    if (round < n_round) {
      for (int i = warp; i < 2 * each; i += n_warp) {
        WideSource from = wide_source(pairs, round * each, each, i);
        from.p += step * from.step, from.left -= step * from.step;
        uint8_t* const to = const_cast<uint8_t*>(tiles_at(stage, i, from.p));
        for (int k = lane * 16; k < from.bytes(); k += 512) copy16_async(to + k, from.p + k);
      }
      for (int k = int(threadIdx.x) * 16; k < w.act_bytes; k += int(blockDim.x) * 16)
        copy16_async(stages + stage * w.stage + k, image + int64_t(step) * w.act_bytes + k);
    }
    copies_commit();
  };
  for (int q = 0; q + 1 < a.n_stage; ++q) fetch(q);
#endif

  int stage = 0, q = 0;
  uint32_t phase = 0;
  (void)phase;
  auto step_in = [&] {  // the step's data are there
#if __CUDA_ARCH__ >= 900
    if (brings && q > 0 && to_round < n_round) {  // `to` is the stage of the step before
      barrier_wait(empty + to, to <= stage ? phase : phase ^ 1);
      bring(true);
    }
    barrier_wait(full + stage, phase);
#else
    copies_wait(a.n_stage - 2);
    __syncthreads();
    fetch(q + a.n_stage - 1);
#endif
  };
  auto step_done = [&] {
#if __CUDA_ARCH__ >= 900
    __syncwarp();
    if (lane == 0) barrier_arrive(empty + stage);
#endif
    ++q;
    if (++stage == a.n_stage) stage = 0, phase ^= 1;
  };

  {
    const TilePlace mark = run_begin(jobs, job0, job1, w.run_warps, lane);
    const int pair_of = fast_div(warp, w.n_group), row0 = (warp - pair_of * w.n_group) * kGroup;
    float* const total = reinterpret_cast<float*>(shared) + warp * kWideTotal;
    const SkinnyOutput out{a, jobs};
#pragma unroll 1
    for (int round = 0; round < n_round; ++round) {
      const int p = round * each + pair_of;
      if (pair_of >= each || p >= pairs.count) {
#pragma unroll 1
        for (int step = 0; step < n_step; ++step) step_in(), step_done();
        continue;
      }
      const WidePairs::At at = pairs.at(p);
      const bool alone = a.n_sub == 1 && at.job[0] == at.job[1];  // the second strip is the first
      const int sub[2] = {0, a.n_sub - 1};
      WideCuts cuts[2];
      const uint8_t* from[2];
      int matrix[2];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        cuts[s] = wide_cuts(jobs, mark, w.run_warps, at.job[s], sub[s], lane);
        matrix[s] = a.n_sub == 2 ? s : jobs.matrix(at.job[0]);
        from[s] = jobs.strip(at.job[s], sub[s]).p;
      }
      const SkinnyArgs::Tiles& tiles = a.tiles[matrix[0]];  // both are alike
      const int step_bytes = tiles.per_block * tiles.tile_bytes;
      WideSums<kGroup> acc;
      acc.clear(0), acc.clear(1);
      with_code_tile(tiles.tile, [&](auto kind) {
        using Type = TileTraits<decltype(kind)::value>;
        constexpr int kPer = kActBlock / tile_cols(kind()), kBytes = tile_bytes(kind());
        const int n_tile = jobs.n_tile(matrix[0]) * (tiles.grouped ? group_tiles(kind()) : 1);
#pragma unroll 1
        for (int step = 0; step < n_step; ++step) {
          step_in();
          const uint32_t ahead = uint32_t(step * step_bytes);
          const uint8_t* tile[2];
#pragma unroll
          for (int s = 0; s < 2; ++s) tile[s] = tiles_at(stage, 2 * pair_of + (alone ? 0 : s), from[s] + ahead);
          wide_product<Type, kTwo, kGroup>(tile, kBytes, stages + stage * w.stage, w.rows, row0, step * kPer,
                                           min(kPer, n_tile - step * kPer), lane, acc, [&](int i) {
#pragma unroll
                                             for (int s = 0; s < 2; ++s)
                                               if (i == cuts[s].next) {
                                                 acc.cut(s, total, !cuts[s].any, lane);
                                                 cuts[s].any = true;
                                                 cuts[s].go_on();
                                               }
                                           });
          step_done();
        }
      });
#pragma unroll
      for (int s = 0; s < 2; ++s)
        if (cuts[s].any) acc.join(s, total, lane);
      __syncwarp();
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int n = 0; n < kGroup / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            total[s * 16 * kGroup + part_at(8 * n + 2 * (lane % 4) + i % 2, lane / 4 + i / 2 * 8)] = acc.v[s][n][i];
      __syncwarp();
      // Four of a strip's rows a lane.
#pragma unroll 1
      for (int i = lane; i < 4 * kGroup; i += 32) {
        const int n = i / 4, r = i % 4 * 4, row = row0 + n;
        if (row >= a.n_tok) break;
        const float4 v0 = *reinterpret_cast<const float4*>(total + part_at(n, r)),
                     v1 = *reinterpret_cast<const float4*>(total + 16 * kGroup + part_at(n, r));
        auto put = [&](int s, float4 v) {
          const int64_t strip = (int64_t(set) * a.n_job + at.job[s]) * a.n_sub + sub[s];
          __stcg(reinterpret_cast<float4*>(a.partial + strip * (16 * w.rows) + row * 16 + r), v);
        };
        if (a.n_set > 1) {
          put(0, v0);
          if (!alone) put(1, v1);
        } else if (a.n_sub == 2) {
          out.store4(at.job[0], r, row, v0, v1);
        } else {
          out.store4(at.job[0], r, row, {}, v0);
          if (!alone) out.store4(at.job[1], r, row, {}, v1);
        }
      }
      __syncwarp();
    }
  }
  if (a.n_set == 1 || a.leave) return;

  // The last set to finish these jobs adds up, in the order of columns.
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(a.counter + block, 1u) == unsigned(a.n_set - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const SkinnyOutput out{a, jobs};
  const int per_job = 4 * a.n_tok;
  for (int i = int(threadIdx.x); i < (job1 - job0) * per_job; i += int(blockDim.x)) {
    const int job = job0 + i / per_job, at = i % per_job * 4;
    float4 v[2] = {};
    for (int sub = 0; sub < a.n_sub; ++sub)
#pragma unroll 4
      for (int s = 0; s < a.n_set; ++s)
        v[sub] = sum4(v[sub], __ldcg(reinterpret_cast<const float4*>(
                                  a.partial + ((int64_t(s) * a.n_job + job) * a.n_sub + sub) * (16 * w.rows) + at)));
    out.store4(job, at % 16, at / 16, v[0], a.n_sub == 2 ? v[1] : v[0]);
  }
  if (threadIdx.x == 0) a.counter[block] = 0;
}

template <bool kTwo>
void launch_wide(cudaStream_t stream, const WideArgs& w, int n_warp) {
  const auto go = [&]<int kGroup>(std::integral_constant<int, kGroup>) {
    allow_shared(wide_kernel<kTwo, kGroup>, size_t(device().shared - kOwnShared));
    launch(wide_kernel<kTwo, kGroup>, dim3(unsigned(w.a.blocks * w.a.n_set)), dim3(unsigned(n_warp * 32)),
           size_t(w.a.at_rings + w.a.n_stage * w.stage), stream, w);
  };
  if (w.group == kWideGroup) return go(std::integral_constant<int, kWideGroup>{});
  w.group == 16 ? go(std::integral_constant<int, 16>{}) : go(std::integral_constant<int, 8>{});
}

}  // namespace facet::cuda
