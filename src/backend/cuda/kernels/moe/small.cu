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
#include <initializer_list>

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

// What a warp needs before its first tile is on its way comes first, as in SkinnyArgs.
struct ExpertArgs {
  struct Tiles {
    const uint8_t* p;
    int64_t matrix_bytes;  // of an expert's
    int strip_bytes, tile_bytes, n_tile;
    int strip0;            // of the sub-matrix in its stack's matrix
    Tile tile;
  } tiles[2];
  const int32_t *active, *first, *pair;  // Routing's
  int n_strip;                           // strips of the output
  int n_expert, n_used, n_tok;
  int at_parts, at_rings, slot, n_stage;  // in shared memory; of a warp's ring
  bool list_ready;  // the kernel before this one had waited for the routing before it let this one start
  bool by_token;    // gate_up: rows of x by token; down: by place in `pair`
  Act act;
  const __nv_bfloat16* x;
  int64_t x_stride;
  __nv_bfloat16* hidden;  // gate_up's output
  float* out;             // down's
  int n_in, n_out;
};

// The strips of one expert: a job is a strip, or one of each matrix.
template <int kSub>
struct ExpertJobs {
  const ExpertArgs& a;
  int expert;
  __device__ static constexpr int n_sub() { return kSub; }
  __device__ Strip strip(int job, int sub) const {
    const ExpertArgs::Tiles& w = a.tiles[sub];
    return {w.p + expert * w.matrix_bytes + int64_t(w.strip0 + job) * w.strip_bytes, w.tile, w.n_tile, w.tile_bytes};
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
  __shared__ int32_t slots[N];  // of down's rows
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warp = int(blockDim.x) / 32;
  const Acts x{shared};
  float* const parts = reinterpret_cast<float*>(shared + a.at_parts);  // [warp][unit of a job]
  uint8_t* const rings = shared + a.at_rings;
  WarpRing ring(rings + warp * a.n_stage * a.slot, bars[warp], a.n_stage, a.slot, lane, true);

  bool waited = !a.list_ready;
  if (waited) {
    wait_for_previous();
    let_next_start();
  }
  // One token's experts have one pair each.
  const int n_active = a.n_tok == 1 ? a.n_used : a.active[a.n_expert], grid = int(gridDim.x), all = n_active * a.n_strip;
  // A block has strips of one expert, unless an equal share of all strips takes clearly less time.
  const int blocks = quick_div(grid, n_active), even = quick_div(all + grid - 1, grid);
  int job0, job1;
  if (blocks > 0 && quick_div(a.n_strip + blocks - 1, blocks) <= even + 2) {
    const int e = quick_div(int(blockIdx.x), blocks), i = int(blockIdx.x) - e * blocks;
    if (e >= n_active) return;
    job0 = e * a.n_strip + quick_div(a.n_strip * i, blocks), job1 = e * a.n_strip + quick_div(a.n_strip * (i + 1), blocks);
  } else {
    job0 = int(int64_t(all) * int(blockIdx.x) / grid), job1 = int(int64_t(all) * int(blockIdx.x + 1) / grid);
  }

  bool again = false;
  for (int job = job0; job < job1;) {
    const int active = quick_div(job, a.n_strip), strip0 = job - active * a.n_strip,
              strip1 = min(a.n_strip, strip0 + job1 - job);
    job += strip1 - strip0;
    const int first = a.n_tok == 1 ? active : a.first[active], n_all = a.n_tok == 1 ? 1 : a.first[active + 1] - first;
    const ExpertJobs<kSub> jobs{a, a.active[active]};
    const int n_tile[2] = {a.tiles[0].n_tile, a.tiles[1].n_tile};
    // Units are counted from the first of strip0; run w has units unit_at(w)..
    const int units = (strip1 - strip0) * kUnits;
    const int per_warp = quick_div(units, n_warp), left = units - per_warp * n_warp;
    auto unit_at = [&](int w) { return per_warp * w + quick_div(left * w, n_warp); };
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
      if (kSub == 1 && int(threadIdx.x) < n_pair) slots[threadIdx.x] = a.pair[first + pair0 + int(threadIdx.x)];
      stage(
          x,
          [&](int n) {
            const int row = !a.by_token ? first + pair0 + n : a.n_tok > 1 ? quick_div(a.pair[first + pair0 + n], a.n_used) : 0;
            return a.x + row * a.x_stride;
          },
          n_pair, a.n_in, 0, (a.n_in + 63) / 64 * 64, warp, n_warp, lane);
      __syncthreads();

      auto emit = [&](int strip, int r, int n, float v0, float v1) {
        const int row = strip * 16 + r, p = first + pair0 + n;
        if (n >= n_pair || row >= a.n_out) return;
        if (kSub == 2)
          a.hidden[int64_t(p) * a.n_out + row] = __float2bfloat16_rn(activate(v0, a.act) * v1);
        else
          a.out[int64_t(slots[n]) * a.n_out + row] = v1;
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
  constexpr bool kUp = kSlices == kUpSlices;
  const int n_warp = device().shared >= kMuchShared ? kWarps : kWarps / 3;
  a.at_parts = ActsOf<N, kFloat>::bytes(a.n_in);
  a.at_rings = WarpRing::lines(a.at_parts + n_warp * sub_matrices(kSlices) * kSlices * kPartFloats<N> * 4);
  // One token: short kernels one after another, of which up has most to fetch.
  a.n_stage = ring_stages(a.at_rings, n_warp * a.slot, N > 1 ? 3 : kUp ? 2 : 1);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.n_in);
  static const bool once = (allow_shared(expert_kernel<N, kSlices, kFloat>, size_t(device().shared - kOwnShared)), true);
  (void)once;
  launch(expert_kernel<N, kSlices, kFloat>, dim3(unsigned(device().n_sm)), dim3(unsigned(n_warp * 32)),
         size_t(a.at_rings + n_warp * a.n_stage * a.slot), stream, a);
}
// w: gate and up, or down; strip0: where each begins in its stack's matrix.
template <int kSlices>
void run_for(cudaStream_t stream, ExpertArgs a, std::initializer_list<TiledMatrix> w, int up_strip) {
  a.slot = 1024;  // room for a part of two strips in two stages
  a.n_in = w.begin()->n_in;
  const bool is_bf = w.begin()->tile >= Tile::kBF16;
  int i = 0;
  for (const TiledMatrix& m : w) {
    a.tiles[i] = {.p = m.p, .matrix_bytes = m.matrix_bytes(), .strip_bytes = int(m.strip_bytes()), .tile_bytes = tile_bytes(m.tile),
                  .n_tile = m.n_tile(), .strip0 = i * up_strip, .tile = m.tile};
    a.slot = std::max(a.slot, WarpRing::slot_for(tile_bytes(m.tile)));
    CHECK((m.tile >= Tile::kBF16) == is_bf && m.n_in == a.n_in, "gate and up of types that do not go together");
    ++i;
  }
  CHECK(i == sub_matrices(kSlices) && int64_t(a.n_expert) * a.n_strip < kQuickMost, "{} matrices, {} experts of {} strips", i, a.n_expert, a.n_strip);
  if (a.n_tok == 1)
    is_bf ? run<1, kSlices, true>(stream, a) : run<1, kSlices, false>(stream, a);
  else
    is_bf ? run<kRows, kSlices, true>(stream, a) : run<kRows, kSlices, false>(stream, a);
}

}  // namespace

void moe_small(cudaStream_t stream, const MoeExperts& m, Mat e, int n_tok, const MoeBuffers& b, bool routed) {
  CHECK(n_tok <= kMoeRows && e.cols == m.gate.n_in, "{} tokens, {} columns", n_tok, e.cols);
  ExpertArgs a{};
  a.active = b.routing.active, a.first = b.routing.first, a.pair = b.routing.pair;
  a.n_expert = m.n_expert, a.n_used = m.n_used, a.n_tok = n_tok;
  a.act = m.act;
  a.hidden = b.hidden, a.out = b.out;

  ExpertArgs up = a;
  up.n_strip = m.d_expert / kTileRows, up.n_out = m.d_expert;
  up.x = e.bf, up.x_stride = e.bf_stride, up.by_token = true;
  up.list_ready = routed;
  run_for<kUpSlices>(stream, up, {m.gate, m.up}, m.up_strip);

  ExpertArgs down = a;
  down.n_strip = m.down.n_strip(), down.n_out = m.down.n_out;
  down.x = b.hidden, down.x_stride = m.d_expert, down.by_token = false;
  down.list_ready = true;
  run_for<kDownSlices>(stream, down, {m.down}, 0);
}

void moe_small_combine(cudaStream_t stream, Mat y, const float* out, const float* weight, int n_used) {
  launch(combine_kernel, dim3(unsigned((y.rows * (y.cols / 4) + 127) / 128)), dim3(128), 0, stream, y, out,
         weight, n_used);
}

}  // namespace facet::cuda
