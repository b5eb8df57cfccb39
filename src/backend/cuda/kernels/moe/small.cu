// moe_small -- the chosen experts of at most 16 tokens
//
//   hidden[p] = act(Wg e) * (Wu e)     p: pair of token and expert
//   out[slot] = Wd hidden[p]
//   y[t]      = sum over ranks of weight * out
//
// Shapes     e [T, D] bf16; gate, up [N, F, D], down [N, D, F] tiled; y [T, D] f32
// Bytes      the weights of the distinct experts, once
// Launch     a block a multiprocessor; blocks share the strips of the active experts, warps a block's tiles. How many
//            experts there are is read from device memory, so the launch depends on shapes alone
// Order      columns of a strip in kUpSlices or kDownSlices slices, tiles from the left; slices in order; experts in
//            rank order. None of it depends on the other tokens: the same bits for T = 1 and 16
// Reference  CpuRef::moe    Test tests/kernels/cuda_moe_test.cpp    Bench bench/verbs/cuda_matmul_bench.cu
#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/stream.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {
namespace {

constexpr int kUpSlices = 6, kDownSlices = 4;
constexpr int sub_matrices(int slices) { return slices == kUpSlices ? 2 : 1; }
constexpr int kRows = 8;  // of an expert at a time, when there are several tokens
constexpr int kWarps = 12;

struct ExpertArgs {
  TiledMatrix w[2];
  int strip0[2];           // of each sub-matrix in its stack's matrix
  int n_tile[2], tile_bytes[2], strip_bytes[2];
  int64_t matrix_bytes[2];  // of an expert's
  int n_strip;             // strips of the output
  const __nv_bfloat16* x;  // gate_up: rows by token; down: by place in `pair`
  int64_t x_stride;
  bool by_token;
  int n_used, n_expert;
  Routing r;
  __nv_bfloat16* hidden;  // gate_up's output
  float* out;             // down's
  int n_out;
  Act act;
  int slot, n_stage;  // of a warp's ring: bytes of a stage, stages
  bool list_ready;    // the kernel before this one had waited for the routing before it let this one start
};

// The strips of one expert: a job is a strip, or one of each matrix.
template <int kSub>
struct ExpertJobs {
  const ExpertArgs& a;
  int expert;
  __device__ static constexpr int n_sub() { return kSub; }
  __device__ Strip strip(int job, int sub) const {
    return {a.w[sub].p + expert * a.matrix_bytes[sub] + int64_t(a.strip0[sub] + job) * a.strip_bytes[sub], a.w[sub].tile, a.n_tile[sub], a.tile_bytes[sub]};
  }
};

template <int N, int kSlices, bool kFloat>
__global__ void __launch_bounds__(kWarps * 32, N == 1 ? 2 : 1)
    expert_kernel(const __grid_constant__ ExpertArgs a) {
  using Acts = ActsOf<N, kFloat>;
  constexpr int kTiles = Acts::kTiles, kPart = kPartFloats<N>;
  constexpr int kSub = sub_matrices(kSlices), kUnits = kSub * kSlices;  // of a job: slices of its strips
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint64_t bars[kWarps][WarpRing::kMaxStages];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warp = int(blockDim.x) / 32;
  const Acts x{shared};
  float* const parts = reinterpret_cast<float*>(shared + Acts::bytes(a.w[0].n_in));  // [warp][unit of a job]
  uint8_t* const rings = shared + WarpRing::lines(Acts::bytes(a.w[0].n_in) + n_warp * kUnits * kPart * 4);
  WarpRing ring(rings + warp * a.n_stage * a.slot, bars[warp], a.n_stage, a.slot, lane, true);

  bool waited = !a.list_ready;
  if (waited) {
    wait_for_previous();
    let_next_start();
  }
  const int n_active = a.r.active[a.n_expert], grid = int(gridDim.x), all = n_active * a.n_strip;
  // A block has strips of one expert, unless an equal share of all strips takes clearly less time.
  const int blocks = grid / n_active, even = (all + grid - 1) / grid;
  int job0, job1;
  if (blocks > 0 && (a.n_strip + blocks - 1) / blocks <= even + 2) {
    const int e = int(blockIdx.x) / blocks, i = int(blockIdx.x) % blocks;
    if (e >= n_active) return;
    job0 = e * a.n_strip + a.n_strip * i / blocks, job1 = e * a.n_strip + a.n_strip * (i + 1) / blocks;
  } else {
    job0 = int(int64_t(all) * int(blockIdx.x) / grid), job1 = int(int64_t(all) * int(blockIdx.x + 1) / grid);
  }

  bool again = false;
  for (int job = job0; job < job1;) {
    const int active = job / a.n_strip, strip0 = job - active * a.n_strip,
              strip1 = min(a.n_strip, strip0 + job1 - job);
    job += strip1 - strip0;
    const int first = a.r.first[active], n_all = a.r.first[active + 1] - first;
    const ExpertJobs<kSub> jobs{a, a.r.active[active]};
    const int n_tile[2] = {a.n_tile[0], a.n_tile[1]};
    // Units are counted from the first of strip0; run w has units unit_at(w)..
    const int units = (strip1 - strip0) * kUnits;
    const int per_warp = units / n_warp, left = units - per_warp * n_warp;
    auto unit_at = [&](int w) { return per_warp * w + left * w / n_warp; };
    auto tile_of = [&](int in_job) {
      return in_job < kSlices ? n_tile[0] * in_job / kSlices
                              : n_tile[0] + n_tile[1] * (in_job - kSlices) / kSlices;
    };
    auto place_of = [&](int unit) { return TilePlace{strip0 + unit / kUnits, tile_of(unit % kUnits)}; };
    const int unit0 = unit_at(warp), unit1 = unit_at(warp + 1);

    for (int pair0 = 0; pair0 < n_all; pair0 += N) {
      const int n_pair = min(N, n_all - pair0);
      if (again) {  // shared memory is used again, by the copy engine as well
        WarpRing::release();
        __syncthreads();
      }
      again = true;
      TileCursor<ExpertJobs<kSub>> next(jobs, place_of(unit0), place_of(unit1));
      for (int i = 0; i + 1 < a.n_stage; ++i) next.fetch(ring);
      if (!waited) {
        waited = true;
        wait_for_previous();
        let_next_start();
      }
      stage(
          x,
          [&](int n) {
            return a.x + int64_t(a.by_token ? a.r.pair[first + pair0 + n] / a.n_used : first + pair0 + n) *
                             a.x_stride;
          },
          n_pair, a.w[0].n_in, 0, (a.w[0].n_in + 63) / 64 * 64, warp, n_warp, lane);
      __syncthreads();

      auto emit = [&](int strip, int r, int n, float v0, float v1) {
        const int row = strip * 16 + r, p = first + pair0 + n;
        if (n >= n_pair || row >= a.n_out) return;
        if (kSub == 2)
          a.hidden[int64_t(p) * a.n_out + row] = __float2bfloat16_rn(activate(v0, a.act) * v1);
        else
          a.out[int64_t(a.r.pair[p]) * a.n_out + row] = v1;
      };
      float* const last = ring.memory();
      float total[kTiles][4] = {},
            other[kTiles][4] = {};  // of the strip at hand, of the one before it in the same job
      for (int unit = unit0; unit < unit1; ++unit) {
        const int in_job = unit % kUnits, sub = in_job / kSlices, strip = strip0 + unit / kUnits;
        const int before = sub ? n_tile[0] : 0, i0 = tile_of(in_job) - before,
                  i1 = (in_job + 1 == kUnits ? n_tile[0] + (kSub == 2 ? n_tile[1] : 0)
                                             : tile_of(in_job + 1)) -
                       before;
        float acc[kTiles][4] = {};
        const Strip s = jobs.strip(strip, sub);
        uint32_t from = uint32_t(reinterpret_cast<uintptr_t>(s.p)) + uint32_t(i0 * s.bytes);
        with_product<N>(s.tile, x, lane, [&](auto&& product) {
#pragma unroll 1
          for (int i = i0; i < i1; ++i, from += uint32_t(s.bytes)) {
            const uint8_t* w = ring.pop(from);
            next.fetch(ring);
            product(w, i, acc);
          }
        });
        if (unit - in_job < unit0) {  // another run has the strip's beginning
          keep_part<N, Acts>(parts + (warp * kUnits + in_job) * kPart, acc, lane);
          continue;
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (in_job == kSlices) other[n][i] = total[n][i];
            total[n][i] = in_job % kSlices == 0 ? acc[n][i] : total[n][i] + acc[n][i];
          }
        if (in_job + 1 == kUnits) {
          const int g = lane / 4, t = lane % 4;
#pragma unroll
          for (int n = 0; n < kTiles; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              if (N > 1 || (t == 0 && i % 2 == 0))
                emit(strip, g + i / 2 * 8, N == 1 ? 0 : 8 * n + 2 * t + i % 2, other[n][i], total[n][i]);
        } else if (unit + 1 == unit1) {
          keep_part<N, Acts>(last, total, lane);
          keep_part<N, Acts>(last + kPart, other, lane);
        }
      }
      __syncthreads();
      // Jobs that several runs had units of: the run with the first unit adds up, in the order of units.
      const int done = unit1 % kUnits;
      if (unit0 == unit1 || done == 0 || unit1 - done < unit0) continue;
      for (int i = lane; i < kPart; i += 32) {
        const int n = i / 16, at = part_at(n, i % 16);
        float v = last[at], v0 = last[kPart + at];
        int owner = warp + 1, owner_end = unit_at(owner + 1), rest = units * (owner + 1) - owner_end * n_warp;
        for (int in_job = done; in_job < kUnits; ++in_job) {
          while (owner_end <= unit1 - done + in_job) {
            ++owner, owner_end += per_warp, rest += left;
            if (rest >= n_warp) ++owner_end, rest -= n_warp;
          }
          const float u = parts[(owner * kUnits + in_job) * kPart + at];
          if (in_job == kSlices) v0 = v;
          v = in_job % kSlices == 0 ? u : v + u;
        }
        emit(strip0 + unit1 / kUnits, i % 16, n, v0, v);
      }
    }
  }
}

__global__ void combine_kernel(Mat y, const float* out, const float* weight, int n_used) {
  wait_for_previous();
  let_next_start();
  const int per_row = y.cols / 4, i = int(blockIdx.x * blockDim.x + threadIdx.x), t = i / per_row,
            c = i % per_row * 4;
  if (t >= y.rows) return;
  float4 s = {};
  for (int k = 0; k < n_used; ++k) {
    const int slot = t * n_used + k;
    const float4 v = *reinterpret_cast<const float4*>(out + int64_t(slot) * y.cols + c);
    const float w = weight[slot];
    s.x += w * v.x, s.y += w * v.y, s.z += w * v.z, s.w += w * v.w;
  }
  *reinterpret_cast<float4*>(y.p + t * y.stride + c) = s;
}

template <int N, int kSlices, bool kFloat>
void run(cudaStream_t stream, ExpertArgs a) {
  const int n_warp = device().shared >= kMuchShared ? kWarps : kWarps / 3;
  const int fixed = WarpRing::lines(ActsOf<N, kFloat>::bytes(a.w[0].n_in) + n_warp * sub_matrices(kSlices) * kSlices * kPartFloats<N> * 4);
  a.n_stage = ring_stages(fixed, n_warp * a.slot, N == 1);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.w[0].n_in);
  static const bool once = (allow_shared(expert_kernel<N, kSlices, kFloat>, size_t(device().shared - kOwnShared)), true);
  (void)once;
  launch(expert_kernel<N, kSlices, kFloat>, dim3(unsigned(device().n_sm)), dim3(unsigned(n_warp * 32)),
         size_t(fixed + n_warp * a.n_stage * a.slot), stream, a);
}
template <int kSlices>
void run_for(cudaStream_t stream, ExpertArgs a, int n_tok) {
  a.slot = 1024;  // room for a part of two strips in two stages
  for (int i = 0; i < 2; ++i)
    a.n_tile[i] = a.w[i].n_tile(), a.tile_bytes[i] = tile_bytes(a.w[i].tile), a.strip_bytes[i] = int(a.w[i].strip_bytes()), a.matrix_bytes[i] = a.w[i].matrix_bytes();
  for (int i = 0; i < sub_matrices(kSlices); ++i) a.slot = std::max(a.slot, WarpRing::slot_for(tile_bytes(a.w[i].tile)));
  const bool is_bf = a.w[0].tile >= Tile::kBF16;
  CHECK(sub_matrices(kSlices) == 1 || (a.w[1].tile >= Tile::kBF16) == is_bf,
        "gate and up of types that do not go together");
  if (n_tok == 1)
    is_bf ? run<1, kSlices, true>(stream, a) : run<1, kSlices, false>(stream, a);
  else
    is_bf ? run<kRows, kSlices, true>(stream, a) : run<kRows, kSlices, false>(stream, a);
}

}  // namespace

void moe_small(cudaStream_t stream, const MoeExperts& m, Mat e, int n_tok, const MoeBuffers& b, bool routed) {
  CHECK(n_tok <= kMoeRows && e.cols == m.gate.n_in, "{} tokens, {} columns", n_tok, e.cols);
  ExpertArgs a{};
  a.w[0] = m.gate, a.w[1] = m.up;
  a.strip0[1] = m.up_strip;
  a.n_strip = m.d_expert / kTileRows;
  a.x = e.bf, a.x_stride = e.bf_stride, a.by_token = true;
  a.n_used = m.n_used, a.n_expert = m.n_expert, a.r = b.routing;
  a.hidden = b.hidden, a.n_out = m.d_expert, a.act = m.act;
  a.list_ready = routed;
  run_for<kUpSlices>(stream, a, n_tok);

  ExpertArgs d = a;
  d.w[0] = m.down, d.n_strip = m.down.n_strip();
  d.x = b.hidden, d.x_stride = m.d_expert, d.by_token = false;
  d.out = b.out, d.n_out = m.down.n_out;
  d.list_ready = true;
  run_for<kDownSlices>(stream, d, n_tok);
}

void moe_small_combine(cudaStream_t stream, Mat y, const float* out, const float* weight, int n_used) {
  launch(combine_kernel, dim3(unsigned((y.rows * (y.cols / 4) + 127) / 128)), dim3(128), 0, stream, y, out,
         weight, n_used);
}

}  // namespace facet::cuda
