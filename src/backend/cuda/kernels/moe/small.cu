// moe_small -- the chosen experts of at most 16 tokens
//
//   hidden[p] = act(Wg e) * (Wu e)     p: pair of token and expert
//   out[slot] = Wd hidden[p]
//   y[t]      = sum over ranks of weight * out
//
// Shapes     e [T, D] bf16; gate, up [N, F, D], down [N, D, F] tiled; y [T, D] f32
// Bytes      the weights of the distinct experts, once
// Launch     blocks walk over (active expert, kGroups strips); how many there are is read from device memory, so the
//            launch depends on shapes alone. A group of kSlices warps multiplies a strip with all the expert's tokens
// Order      columns in kSlices slices, tiles from the left; slices in order; experts in rank order. None of it depends
//            on the other tokens: the same bits for T = 1 and 16
// Reference  CpuRef::moe    Test tests/kernels/cuda_moe_test.cpp    Bench bench/verbs/cuda_matmul_bench.cpp
#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/tile_product.cuh"
#include "backend/cuda/kernels/moe/moe.h"

namespace facet::cuda {
namespace {

constexpr int kSlices = 4, kGroups = 4, kMaxStages = 6;

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

__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kSlices * 32) : "memory"); }

// Item i: an active expert and a strip block; the strip of this warp's group, or -1.
__device__ __forceinline__ int strip_of(const ExpertArgs& a, int item, int group) {
  const int s = item % ((a.n_strip + kGroups - 1) / kGroups) * kGroups + group;
  return s < a.n_strip ? s : -1;
}
__device__ __forceinline__ int active_of(const ExpertArgs& a, int item) { return item / ((a.n_strip + kGroups - 1) / kGroups); }

__device__ void open_strip(Cursor& c, const ExpertArgs& a, int n_item, int group, int slice) {
  c.tile = c.tile_end = 0;
  if (c.item >= n_item) return;
  const int strip = strip_of(a, c.item, group);
  if (strip < 0) return;
  const TiledMatrix& w = a.w[c.sub];
  c.tile = w.n_tile() * slice / kSlices;
  c.tile_end = w.n_tile() * (slice + 1) / kSlices;
  c.bytes = tile_bytes(w.tile);
  c.p = w.strip(a.r.active[active_of(a, c.item)], a.strip0[c.sub] + strip) + int64_t(c.tile) * c.bytes;
}
__device__ void fetch(Cursor& c, const ExpertArgs& a, int n_item, int group, int slice, uint8_t* stage, int lane) {
  while (c.item < n_item && c.tile == c.tile_end) {
    if (++c.sub == a.n_sub) c.sub = 0, c.item += int(gridDim.x);
    open_strip(c, a, n_item, group, slice);
  }
  if (c.item < n_item) {
    for (int i = lane * 16; i < c.bytes; i += 512) copy16_async(stage + i, c.p + i);
    c.p += c.bytes;
    ++c.tile;
  }
  copies_commit();
}

template <int N>
__global__ void __launch_bounds__(kGroups* kSlices * 32, 1) expert_kernel(const __grid_constant__ ExpertArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kTiles = Acts<N>::kTiles, kOut = N == 1 ? 1 : kTiles * 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % kSlices, group = warp / kSlices;
  uint8_t* const b = shared;
  float* const sum = reinterpret_cast<float*>(b + Acts<N>::bytes(a.cols));
  uint32_t* const hl = reinterpret_cast<uint32_t*>(sum + a.cols / 32 * N);
  float* const red = reinterpret_cast<float*>(hl + a.cols / 32 * N) + group * (2 * kSlices * 16 * kOut);
  uint8_t* const ring = shared + (acts_bytes(N, a.cols) + kGroups * 2 * kSlices * 16 * kOut * 4 + 127) / 128 * 128 + warp * a.n_stage * a.slot;
  const Acts<N> x{b, sum, hl};

  wait_for_previous();
  let_next_start();
  const int n_item = a.r.active[a.n_expert] * ((a.n_strip + kGroups - 1) / kGroups);
  Cursor next{.item = int(blockIdx.x), .sub = 0, .tile = 0, .tile_end = 0, .bytes = 0, .p = nullptr};
  open_strip(next, a, n_item, group, slice);
  for (int i = 0; i + 1 < a.n_stage; ++i) fetch(next, a, n_item, group, slice, ring + i * a.slot, lane);

  int stage = 0, staged = -1;
  for (int item = int(blockIdx.x); item < n_item; item += int(gridDim.x)) {
    const int active = active_of(a, item), first = a.r.first[active], n_pair = a.r.first[active + 1] - first;
    if (active != staged) {
      __syncthreads();
      stage_acts<N>(b, sum, hl,
                    [&](int n) { return a.x + int64_t(a.by_token ? a.r.pair[first + n] / a.n_used : first + n) * a.x_stride; }, n_pair,
                    a.w[0].n_in, 0, a.cols, int(threadIdx.x), int(blockDim.x));
      __syncthreads();
      staged = active;
    }
    const int strip = strip_of(a, item, group);
    if (strip < 0) continue;
    for (int sub = 0; sub < a.n_sub; ++sub) {
      const TiledMatrix& w = a.w[sub];
      const int end = w.n_tile() * (slice + 1) / kSlices, wide = tile_cols(w.tile) / 8;
      float acc[kTiles][4] = {};
      for (int tile = w.n_tile() * slice / kSlices; tile < end; ++tile) {
        copies_wait(a.n_stage - 2);
        __syncwarp();
        fetch(next, a, n_item, group, slice, ring + (stage == 0 ? a.n_stage - 1 : stage - 1) * a.slot, lane);
        tile_product<N>(w.tile, ring + stage * a.slot, x, tile * wide, lane, acc);
        stage = stage + 1 == a.n_stage ? 0 : stage + 1;
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
    group_sync(group);
    for (int i = slice * 32 + lane; i < 16 * kOut; i += kSlices * 32) {
      const int row = strip * 16 + i / kOut, n = i % kOut;
      if (n >= n_pair || row >= a.n_out) continue;
      auto slices = [&](int sub) {
        const float* r = red + sub * kSlices * 16 * kOut + i;
        return ((r[0] + r[16 * kOut]) + r[2 * 16 * kOut]) + r[3 * 16 * kOut];
      };
      if (a.n_sub == 2)
        a.hidden[int64_t(first + n) * a.n_out + row] = __float2bfloat16_rn(activate(slices(0), a.act) * slices(1));
      else
        a.out[int64_t(a.r.pair[first + n]) * a.n_out + row] = slices(0);
    }
    group_sync(group);
  }
}
static_assert(kSlices == 4);

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

template <int N>
void run(cudaStream_t stream, ExpertArgs a, int most_items) {
  const int out = N == 1 ? 1 : Acts<N>::kTiles * 8;
  const int fixed = acts_bytes(N, a.cols) + kGroups * 2 * kSlices * 16 * out * 4 + 128, stage = kGroups * kSlices * a.slot;
  a.n_stage = std::min((device().shared - fixed) / stage, kMaxStages);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.cols);
  static const bool once = (allow_shared(expert_kernel<N>, size_t(device().shared)), true);
  (void)once;
  launch(expert_kernel<N>, dim3(unsigned(std::min(device().n_sm, most_items))), dim3(kGroups * kSlices * 32), size_t(fixed + a.n_stage * stage), stream, a);
}
void run_for(cudaStream_t stream, const ExpertArgs& a, int n_tok) {
  const int items = std::min(n_tok * a.n_used, a.n_expert) * ((a.n_strip + kGroups - 1) / kGroups);
  n_tok == 1 ? run<1>(stream, a, items) : n_tok <= 8 ? run<8>(stream, a, items) : run<16>(stream, a, items);
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
  run_for(stream, a, n_tok);

  ExpertArgs d = a;
  d.w[0] = m.down, d.n_sub = 1, d.n_strip = m.down.n_strip();
  d.x = b.hidden, d.x_stride = m.d_expert, d.by_token = false;
  d.out = b.out, d.n_out = y.cols;
  d.slot = tile_bytes(m.down.tile), d.cols = (m.d_expert + 63) / 64 * 64;
  run_for(stream, d, n_tok);

  launch(combine_kernel, dim3(unsigned((n_tok * (y.cols / 4) + 127) / 128)), dim3(128), 0, stream, Mat{.p = y.p, .rows = n_tok, .cols = y.cols, .stride = y.stride}, b.out, b.routing.weight, m.n_used);
}

}  // namespace facet::cuda
