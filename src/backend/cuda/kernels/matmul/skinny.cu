// skinny -- matrix products with at most 16 rows of activations: decode, verification, small batches
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     x [T, n_in] bf16, T <= 16; W tiled (layout.h); y [T, n_out] f32 and, if wanted, bf16
// Bytes      the weights, once; activations live in shared memory
// Launch     one block a multiprocessor, several groups of kSlices warps each; a group takes a strip of 16 rows, its warps
//            split the columns; weights stream through a ring of shared memory a warp, and the ring is full before the
//            kernel waits for its input. Depends on shapes alone.
// Order      columns in parts of at most kSkinnyCols, a part in kSlices slices, a slice in tiles from the left; slices are
//            summed in order, then parts. None of it depends on T: the same bits for T = 1 and 16
// Reference  CpuRef::matmul, qkv, gate_up    Test tests/kernels/cuda_matmul_test.cpp    Bench bench/verbs/cuda_matmul_bench.cpp
#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/matmul/tile_product.cuh"

namespace facet::cuda {
namespace {

constexpr int kSlices = 4;
constexpr int kMaxGroups = 4;
constexpr int kMaxStages = 6;

struct SkinnyArgs {
  SkinnyMatrix m[3];
  int first_job[4];          // of each matrix; [n_matrix] is their number
  int n_matrix, n_sub;       // n_sub: strips that one job multiplies, 2 with glu
  Act act;
  const __nv_bfloat16* x;
  int64_t x_stride;
  int n_tok, n_in;
  int n_part, part_unit;     // parts start at multiples of part_unit columns
  int n_stage, slot;         // ring of a warp: stages and bytes of one
  int n_group;
  int part_cols;             // widest part
  float* partial;            // [job][part][sub][16][16]
  unsigned* counter;         // [job]
};

__host__ __device__ int part_begin(int part, int n_part, int n_in, int unit) {
  const int n_unit = (n_in + unit - 1) / unit;
  return int(int64_t(n_unit) * part / n_part) * unit;
}

// Where a warp is in its sequence of tiles: jobs, the strips of a job, the tiles of its slice.
struct Cursor {
  int job, sub, tile, tile_end, bytes;
  const uint8_t* p;
};

__device__ void open_strip(Cursor& c, const SkinnyArgs& a, int part, int slice) {
  if (c.job >= a.first_job[a.n_matrix]) return;
  int i = c.sub;
  int strip = c.job;
  if (a.n_sub == 1) {
    i = 0;
    while (c.job >= a.first_job[i + 1]) ++i;
    strip -= a.first_job[i];
  }
  const TiledMatrix& w = a.m[i].w;
  const int cols = tile_cols(w.tile);
  const int begin = part_begin(part, a.n_part, a.n_in, a.part_unit) / cols;
  const int end = min((part_begin(part + 1, a.n_part, a.n_in, a.part_unit) + cols - 1) / cols, w.n_tile());
  c.tile = begin + (end - begin) * slice / kSlices;
  c.tile_end = begin + (end - begin) * (slice + 1) / kSlices;
  c.bytes = tile_bytes(w.tile);
  c.p = w.strip(a.m[i].stack, strip) + int64_t(c.tile) * c.bytes;
}

// Fetches the next tile into a stage, if there is one.
__device__ void fetch(Cursor& c, const SkinnyArgs& a, int part, int slice, int n_groups, uint8_t* stage, int lane) {
  while (c.job < a.first_job[a.n_matrix] && c.tile == c.tile_end) {
    if (++c.sub == a.n_sub) c.sub = 0, c.job += n_groups;
    open_strip(c, a, part, slice);
  }
  if (c.job < a.first_job[a.n_matrix]) {
    for (int i = lane * 16; i < c.bytes; i += 512) copy16_async(stage + i, c.p + i);
    c.p += c.bytes;
    ++c.tile;
  }
  copies_commit();
}

__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kSlices * 32) : "memory"); }

template <int N>
__global__ void __launch_bounds__(kMaxGroups* kSlices * 32, 1) skinny_kernel(const __grid_constant__ SkinnyArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  constexpr int kTiles = Acts<N>::kTiles, kOut = N == 1 ? 1 : kTiles * 8;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slice = warp % kSlices, group = warp / kSlices;
  const int part = blockIdx.x % a.n_part;
  const int n_groups = (gridDim.x / a.n_part) * a.n_group, first = (blockIdx.x / a.n_part) * a.n_group + group;

  uint8_t* const b = shared;
  float* const sum = reinterpret_cast<float*>(b + Acts<N>::bytes(a.part_cols));
  uint32_t* const hl = reinterpret_cast<uint32_t*>(sum + a.part_cols / 32 * N);
  float* const red = reinterpret_cast<float*>(hl + a.part_cols / 32 * N) + group * (2 * kSlices * 16 * kOut);  // [sub][slice][16][kOut]
  int* const last = reinterpret_cast<int*>(reinterpret_cast<float*>(hl + a.part_cols / 32 * N) + a.n_group * (2 * kSlices * 16 * kOut)) + group;
  uint8_t* const ring = shared + ((reinterpret_cast<uint8_t*>(last - group + kMaxGroups) - shared + 127) / 128 * 128) + warp * a.n_stage * a.slot;

  Cursor next{.job = first, .sub = 0, .tile = 0, .tile_end = 0, .bytes = 0, .p = nullptr};
  open_strip(next, a, part, slice);
  for (int i = 0; i + 1 < a.n_stage; ++i) fetch(next, a, part, slice, n_groups, ring + i * a.slot, lane);

  wait_for_previous();
  let_next_start();
  const int col0 = part_begin(part, a.n_part, a.n_in, a.part_unit);
  const int cols = min(part_begin(part + 1, a.n_part, a.n_in, a.part_unit), (a.n_in + 63) / 64 * 64) - col0;
  const int staged = min((cols + 63) / 64 * 64, a.part_cols);
  stage_acts<N>(b, sum, hl, [&](int n) { return a.x + n * a.x_stride; }, a.n_tok, a.n_in, col0, staged, threadIdx.x, blockDim.x);
  __syncthreads();
  const Acts<N> x{b, sum, hl};

  int stage = 0;
  Cursor at{.job = first, .sub = 0, .tile = 0, .tile_end = 0, .bytes = 0, .p = nullptr};
  for (; at.job < a.first_job[a.n_matrix]; at.job += n_groups) {
    int matrix = 0;
    if (a.n_sub == 1)
      while (at.job >= a.first_job[matrix + 1]) ++matrix;
    for (at.sub = 0; at.sub < a.n_sub; ++at.sub) {
      open_strip(at, a, part, slice);
      const Tile tile = a.m[a.n_sub == 1 ? matrix : at.sub].w.tile;
      const int wide = tile_cols(tile) / 8;
      float acc[kTiles][4] = {};
      for (; at.tile < at.tile_end; ++at.tile) {
        copies_wait(a.n_stage - 2);
        __syncwarp();
        // The stage that was read before this one is free.
        fetch(next, a, part, slice, n_groups, ring + (stage == 0 ? a.n_stage - 1 : stage - 1) * a.slot, lane);
        tile_product<N>(tile, ring + stage * a.slot, x, at.tile * wide - col0 / 8, lane, acc);
        stage = stage + 1 == a.n_stage ? 0 : stage + 1;
      }
      float* const r = red + (at.sub * kSlices + slice) * 16 * kOut;
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

    const int strip = at.job - (a.n_sub == 1 ? a.first_job[matrix] : 0);
    const SkinnyMatrix& m = a.m[a.n_sub == 1 ? matrix : 0];
    const int thread = slice * 32 + lane;
    auto slices = [&](int sub, int i) {
      const float* r = red + sub * kSlices * 16 * kOut + i;
      float s = r[0];
#pragma unroll
      for (int k = 1; k < kSlices; ++k) s += r[k * 16 * kOut];
      return s;
    };
    auto store = [&](int i, float v0, float v1) {
      const int row = strip * 16 + i / kOut, n = i % kOut;
      if (n >= a.n_tok || row >= m.w.n_out) return;
      const float v = a.n_sub == 2 ? activate(v0, a.act) * v1 : v0;
      if (m.y) m.y[n * m.y_stride + row] = v;
      if (m.y_also) m.y_also[n * m.y_stride + row] = v;
      if (m.y_bf) m.y_bf[n * m.y_bf_stride + row] = __float2bfloat16_rn(v);
    };
    if (a.n_part == 1) {
      for (int i = thread; i < 16 * kOut; i += kSlices * 32) store(i, slices(0, i), a.n_sub == 2 ? slices(1, i) : 0.f);
      group_sync(group);
      continue;
    }
    float* const mine = a.partial + (int64_t(at.job) * a.n_part + part) * a.n_sub * 256;
    for (int sub = 0; sub < a.n_sub; ++sub)
      for (int i = thread; i < 16 * kOut; i += kSlices * 32) __stcg(mine + sub * 256 + i, slices(sub, i));
    __threadfence();
    group_sync(group);
    if (thread == 0) *last = atomicAdd(a.counter + at.job, 1u) == unsigned(a.n_part - 1);
    group_sync(group);
    if (*last) {  // every part is in memory: add them up, in order
      __threadfence();
      auto parts = [&](int sub, int i) {
        const float* p = a.partial + (int64_t(at.job) * a.n_part * a.n_sub + sub) * 256 + i;
        float s = __ldcg(p);
        for (int k = 1; k < a.n_part; ++k) s += __ldcg(p + int64_t(k) * a.n_sub * 256);
        return s;
      };
      for (int i = thread; i < 16 * kOut; i += kSlices * 32) store(i, parts(0, i), a.n_sub == 2 ? parts(1, i) : 0.f);
      if (thread == 0) a.counter[at.job] = 0;
    }
  }
}

int parts_of(int n_in) {
  const int unit = n_in % 256 == 0 ? 256 : 64, n_unit = (n_in + unit - 1) / unit, most = kSkinnyCols / unit;
  return (n_unit + most - 1) / most;
}

template <int N>
void run(cudaStream_t stream, SkinnyArgs& a) {
  const int out = N == 1 ? 1 : Acts<N>::kTiles * 8;
  a.part_cols = 0;
  for (int p = 0; p < a.n_part; ++p) {
    const int begin = part_begin(p, a.n_part, a.n_in, a.part_unit), end = part_begin(p + 1, a.n_part, a.n_in, a.part_unit);
    a.part_cols = std::max(a.part_cols, end - begin);
  }
  a.slot = 0;
  for (int i = 0; i < std::max(a.n_matrix, a.n_sub); ++i) a.slot = std::max(a.slot, tile_bytes(a.m[i].w.tile));
  const int n_job = a.first_job[a.n_matrix];
  const int per_group = 2 * kSlices * 16 * out * 4;
  auto fixed = [&](int groups) { return acts_bytes(N, a.part_cols) + groups * per_group + kMaxGroups * 4 + 128; };
  a.n_group = N == 16 ? 3 : 4;
  // Few strips: fewer groups a block, so that every multiprocessor has some.
  while (a.n_group > 1 && (n_job + a.n_group - 1) / a.n_group * a.n_part < device().n_sm) --a.n_group;
  auto stages = [&] { return (device().shared - fixed(a.n_group)) / (a.n_group * kSlices * a.slot); };
  while (a.n_group > 1 && stages() < 3) --a.n_group;
  a.n_stage = std::min(stages(), kMaxStages);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.part_cols);
  const size_t bytes = size_t(fixed(a.n_group)) + size_t(a.n_group) * kSlices * size_t(a.n_stage) * size_t(a.slot);
  const int blocks = std::min(device().n_sm / a.n_part, (n_job + a.n_group - 1) / a.n_group);
  static const bool once = (allow_shared(skinny_kernel<N>, size_t(device().shared)), true);
  (void)once;
  launch(skinny_kernel<N>, dim3(unsigned(std::max(blocks, 1) * a.n_part)), dim3(unsigned(a.n_group * kSlices * 32)), bytes, stream, a);
}

}  // namespace

int64_t skinny_partials(int64_t n_out, int64_t n_in) {
  const int parts = parts_of(int(n_in));
  return parts == 1 ? 0 : (n_out + 15) / 16 * parts * 2 * 256;
}
int64_t skinny_counters(int64_t n_out) { return (n_out + 15) / 16; }

void skinny(cudaStream_t stream, const SkinnyMatrix* m, int n_matrix, bool glu, Act act, const __nv_bfloat16* x, int64_t x_stride, int n_tok,
            SkinnyWork work) {
  SkinnyArgs a{};
  a.n_matrix = glu ? 1 : n_matrix;
  a.n_sub = glu ? 2 : 1;
  for (int i = 0; i < n_matrix; ++i) {
    a.m[i] = m[i];
    CHECK(m[i].w.n_in == m[0].w.n_in, "{} and {} columns", m[i].w.n_in, m[0].w.n_in);
    if (!glu || i == 0) a.first_job[i + 1] = a.first_job[i] + m[i].w.n_strip();
  }
  a.act = act;
  a.x = x, a.x_stride = x_stride, a.n_tok = n_tok, a.n_in = m[0].w.n_in;
  a.part_unit = a.n_in % 256 == 0 ? 256 : 64;
  a.n_part = parts_of(a.n_in);
  a.partial = work.partial, a.counter = work.counter;
  CHECK(n_tok >= 1 && n_tok <= kSkinnyRows, "{} rows", n_tok);
  if (n_tok == 1)
    run<1>(stream, a);
  else if (n_tok <= 8)
    run<8>(stream, a);
  else
    run<16>(stream, a);
}

}  // namespace facet::cuda
