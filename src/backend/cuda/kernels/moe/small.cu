// moe_small -- the chosen experts of at most 16 tokens
//
//   hidden[p] = act(Wg e) * (Wu e)     p: pair of token and expert
//   out[slot] = Wd hidden[p]
//   y[t]      = sum over ranks of weight * out
//
// Shapes     e [T, D] bf16; gate, up [N, F, D], down [N, D, F] tiled; y [T, D] f32
// Bytes      the weights of the distinct experts, once
// Launch     blocks walk over (active expert, some strips); how many there are is read from device memory, so the
//            launch depends on shapes alone. A group of warps multiplies a strip with all the expert's tokens
// Order      columns in kUpSlices or kDownSlices slices, tiles from the left; slices in order; experts in rank order. None of it depends
//            on the other tokens: the same bits for T = 1 and 16
// Reference  CpuRef::moe    Test tests/kernels/cuda_moe_test.cpp    Bench bench/verbs/cuda_matmul_bench.cpp
#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/ring.cuh"
#include "backend/cuda/kernels/matmul/tile_product.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {
namespace {

// Slices of gate and up are short, so that every multiprocessor's warps have some; down's rows are short already.
constexpr int kUpSlices = 8, kDownSlices = 4;
constexpr int warps_of(int n) { return n == 1 ? 24 : 16; }  // of a block; more rows need more registers

struct ExpertArgs {
  TiledMatrix w[2];
  int strip0[2];           // of each sub-matrix in its stack's matrix
  int n_sub, n_strip;      // strips of the output
  const __nv_bfloat16* x;  // gate_up: rows by token; down: by place in `pair`
  int64_t x_stride;
  bool by_token;
  int n_used, n_expert;
  Routing r;
  __nv_bfloat16* hidden;   // gate_up's output
  float* out;              // down's
  int n_out;
  Act act;
  int slot, n_stage;       // of a warp's ring: bytes of a stage, stages
  int cols;                // a multiple of 64
};

struct Cursor {
  int item, sub, tile, tile_end, bytes;
  const uint8_t* p;
};

template <int kSlices>
__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kSlices * 32) : "memory"); }

// Item i: an active expert and a strip block; the strip of this warp's group, or -1.
template <int kGroups>
__device__ __forceinline__ int strip_of(const ExpertArgs& a, int item, int group) {
  const int s = item % ((a.n_strip + kGroups - 1) / kGroups) * kGroups + group;
  return s < a.n_strip ? s : -1;
}
template <int kGroups>
__device__ __forceinline__ int active_of(const ExpertArgs& a, int item) { return item / ((a.n_strip + kGroups - 1) / kGroups); }

template <int kSlices, int kGroups>
__device__ __forceinline__ void open_strip(Cursor& c, const ExpertArgs& a, int n_item, int group, int slice) {
  c.tile = c.tile_end = 0;
  if (c.item >= n_item) return;
  const int strip = strip_of<kGroups>(a, c.item, group);
  if (strip < 0) return;
  const TiledMatrix& w = a.w[c.sub];
  c.tile = w.n_tile() * slice / kSlices;
  c.tile_end = w.n_tile() * (slice + 1) / kSlices;
  c.bytes = tile_bytes(w.tile);
  c.p = w.strip(a.r.active[active_of<kGroups>(a, c.item)], a.strip0[c.sub] + strip) + int64_t(c.tile) * c.bytes;
}
template <int kSlices, int kGroups>
__device__ __forceinline__ void fetch(Cursor& c, const ExpertArgs& a, int n_item, int group, int slice, WarpRing& ring) {
  while (c.item < n_item && c.tile == c.tile_end) {
    if (++c.sub == a.n_sub) c.sub = 0, c.item += int(gridDim.x);
    open_strip<kSlices, kGroups>(c, a, n_item, group, slice);
  }
  ring.fill(c.item < n_item ? c.p : nullptr, c.bytes);
  c.p += c.bytes;
  ++c.tile;
}

template <int N, int kSlices>
__global__ void __launch_bounds__(warps_of(N) * 32, 1) expert_kernel(const __grid_constant__ ExpertArgs a) {
  constexpr int kWarps = warps_of(N), kGroups = kWarps / kSlices;
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kTiles = Acts<N>::kTiles, kOut = N == 1 ? 1 : kTiles * 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % kSlices, group = warp / kSlices;
  uint8_t* const b = shared;
  float* const sum = reinterpret_cast<float*>(b + Acts<N>::bytes(a.cols));
  uint32_t* const hl = reinterpret_cast<uint32_t*>(sum + acts_sums(N, a.cols));
  float* const red = reinterpret_cast<float*>(hl + a.cols / 32 * N) + group * (2 * kSlices * 16 * kOut);
  __shared__ uint64_t bars[kWarps][WarpRing::kMaxStages];
  WarpRing ring(shared + (acts_bytes(N, a.cols) + kWarps * 2 * 16 * kOut * 4 + 127) / 128 * 128 + warp * a.n_stage * a.slot, bars[warp], a.n_stage,
                a.slot, lane);
  const Acts<N> x{b, sum, hl};

  wait_for_previous();
  let_next_start();
  const int n_item = a.r.active[a.n_expert] * ((a.n_strip + kGroups - 1) / kGroups);
  Cursor next{.item = int(blockIdx.x), .sub = 0, .tile = 0, .tile_end = 0, .bytes = 0, .p = nullptr};
  open_strip<kSlices, kGroups>(next, a, n_item, group, slice);
  for (int i = 0; i + 1 < a.n_stage; ++i) fetch<kSlices, kGroups>(next, a, n_item, group, slice, ring);

  int staged = -1;
  for (int item = int(blockIdx.x); item < n_item; item += int(gridDim.x)) {
    const int active = active_of<kGroups>(a, item), first = a.r.first[active], n_pair = a.r.first[active + 1] - first;
    if (active != staged) {
      __syncthreads();
      stage_acts<N>(b, sum, hl,
                    [&](int n) { return a.x + int64_t(a.by_token ? a.r.pair[first + n] / a.n_used : first + n) * a.x_stride; }, n_pair,
                    a.w[0].n_in, 0, a.cols, int(threadIdx.x), int(blockDim.x));
      __syncthreads();
      staged = active;
    }
    const int strip = strip_of<kGroups>(a, item, group);
    if (strip < 0) continue;
    for (int sub = 0; sub < a.n_sub; ++sub) {
      const TiledMatrix& w = a.w[sub];
      const int end = w.n_tile() * (slice + 1) / kSlices, wide = tile_cols(w.tile) / 8;
      float acc[kTiles][4] = {};
      for (int tile = w.n_tile() * slice / kSlices; tile < end; ++tile) {
        const uint8_t* weights = ring.wait();
        fetch<kSlices, kGroups>(next, a, n_item, group, slice, ring);
        tile_product<N>(w.tile, weights, x, tile * wide, lane, acc);
      }
      float* const r = red + (sub * kSlices + slice) * 16 * kOut;
      const int g = lane / 4, t = lane % 4;
      if (N == 1) {
        if (t == 0) r[g] = acc[0][0], r[g + 8] = acc[0][2];
      } else {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          *reinterpret_cast<float2*>(r + g * kOut + n * 8 + 2 * t) = {acc[n][0], acc[n][1]};
          *reinterpret_cast<float2*>(r + (g + 8) * kOut + n * 8 + 2 * t) = {acc[n][2], acc[n][3]};
        }
      }
    }
    group_sync<kSlices>(group);
    for (int i = slice * 32 + lane; i < 16 * kOut; i += kSlices * 32) {
      const int row = strip * 16 + i / kOut, n = i % kOut;
      if (n >= n_pair || row >= a.n_out) continue;
      auto slices = [&](int sub) {
        const float* r = red + sub * kSlices * 16 * kOut + i;
        float v = r[0];
#pragma unroll
        for (int k = 1; k < kSlices; ++k) v += r[k * 16 * kOut];
        return v;
      };
      if (a.n_sub == 2)
        a.hidden[int64_t(first + n) * a.n_out + row] = __float2bfloat16_rn(activate(slices(0), a.act) * slices(1));
      else
        a.out[int64_t(a.r.pair[first + n]) * a.n_out + row] = slices(0);
    }
    group_sync<kSlices>(group);
  }
}

__global__ void combine_kernel(Mat y, const float* out, const float* weight, int n_used) {
  wait_for_previous();
  let_next_start();
  const int per_row = y.cols / 4, i = int(blockIdx.x * blockDim.x + threadIdx.x), t = i / per_row, c = i % per_row * 4;
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

constexpr int kOwnShared = 1536;  // bytes of shared memory that the kernel declares itself, at most

template <int N, int kSlices>
void run(cudaStream_t stream, ExpertArgs a, int n_expert_most) {
  constexpr int kWarps = warps_of(N), kGroups = kWarps / kSlices;
  const int out = N == 1 ? 1 : Acts<N>::kTiles * 8;
  const int fixed = acts_bytes(N, a.cols) + kWarps * 2 * 16 * out * 4 + 128, stage = kWarps * a.slot;
  a.n_stage = std::min((device().shared - kOwnShared - fixed) / stage, WarpRing::kMaxStages);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.cols);
  static const bool once = (allow_shared(expert_kernel<N, kSlices>, size_t(device().shared - kOwnShared)), true);
  (void)once;
  const int items = n_expert_most * ((a.n_strip + kGroups - 1) / kGroups);
  launch(expert_kernel<N, kSlices>, dim3(unsigned(std::min(device().n_sm, items))), dim3(kWarps * 32), size_t(fixed + a.n_stage * stage), stream, a);
}
template <int kSlices>
void run_for(cudaStream_t stream, const ExpertArgs& a, int n_tok) {
  const int n = std::min(n_tok * a.n_used, a.n_expert);
  n_tok == 1 ? run<1, kSlices>(stream, a, n) : n_tok <= 8 ? run<8, kSlices>(stream, a, n) : run<16, kSlices>(stream, a, n);
}

}  // namespace

void moe_small(cudaStream_t stream, const MoeSmall& m, Mat y, Mat e, int n_tok, const MoeBuffers& b) {
  CHECK(n_tok <= kMoeRows && y.cols == m.down.n_out && e.cols == m.gate.n_in, "{} tokens, {} columns", n_tok, e.cols);
  ExpertArgs a{};
  a.w[0] = m.gate, a.w[1] = m.up;
  a.strip0[1] = m.up_strip;
  a.n_sub = 2, a.n_strip = m.d_expert / kTileRows;
  a.x = e.bf, a.x_stride = e.bf_stride, a.by_token = true;
  a.n_used = m.n_used, a.n_expert = m.n_expert, a.r = b.routing;
  a.hidden = b.hidden, a.n_out = m.d_expert, a.act = m.act;
  a.slot = std::max(tile_bytes(m.gate.tile), tile_bytes(m.up.tile)), a.cols = (e.cols + 63) / 64 * 64;
  run_for<kUpSlices>(stream, a, n_tok);

  ExpertArgs d = a;
  d.w[0] = m.down, d.n_sub = 1, d.n_strip = m.down.n_strip();
  d.x = b.hidden, d.x_stride = m.d_expert, d.by_token = false;
  d.out = b.out, d.n_out = y.cols;
  d.slot = tile_bytes(m.down.tile), d.cols = (m.d_expert + 63) / 64 * 64;
  run_for<kDownSlices>(stream, d, n_tok);

  launch(combine_kernel, dim3(unsigned((n_tok * (y.cols / 4) + 127) / 128)), dim3(128), 0, stream, Mat{.p = y.p, .rows = n_tok, .cols = y.cols, .stride = y.stride}, b.out, b.routing.weight, m.n_used);
}

}  // namespace facet::cuda
