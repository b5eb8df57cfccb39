// skinny -- matrix products with at most 16 rows of activations: decode, verification, small batches
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     x [T, n_in] bf16, T <= 16; W tiled (layout.h); y [T, n_out] f32 and, if wanted, bf16
// Bytes      the weights, once; activations live in shared memory
// Launch     one block a multiprocessor, several groups of 4 or 8 warps each; a group takes a strip of 16 rows, its warps
//            split the columns; weights stream through a ring of shared memory a warp, and the ring is full before the
//            kernel waits for its input. Where the activations of all columns do not fit in shared memory, blocks form
//            sets that each take some of the columns, and the last set to finish a strip adds up. Depends on shapes alone
// Order      columns in parts of at most kSkinnyCols, a part in 4 or 8 slices, a slice in tiles from the left; slices are
//            summed in order, then parts. None of it depends on T: the same bits for T = 1 and 16
// Reference  CpuRef::matmul, qkv, gate_up    Test tests/kernels/cuda_matmul_test.cpp    Bench bench/verbs/cuda_matmul_bench.cpp
#include <algorithm>

#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/ring.cuh"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/matmul/tile_product.cuh"

namespace facet::cuda {
namespace {

constexpr int kMaxSlices = 8, kMaxWarps = 24;  // of a block: with one row; more rows need more registers
constexpr int kMaxParts = 16;
constexpr int kFewStrips = 528;
constexpr int kOwnShared = 1536;  // bytes of shared memory that the kernel declares itself, at most

struct Range {
  int16_t begin, end;
};

struct SkinnyArgs {
  Range range[3][kMaxParts][kMaxSlices];  // tiles of every matrix, part and slice
  SkinnyMatrix m[3];
  int first_job[4];          // of each matrix
  int n_job;
  int n_matrix, n_sub;       // n_sub: strips that one job multiplies, 2 with glu
  Act act;
  const __nv_bfloat16* x;
  int64_t x_stride;
  int n_tok, n_in;
  int n_part, part_unit;     // parts start at multiples of part_unit columns
  int n_set, set_cols;       // blocks that share the parts of a strip; most columns of one
  int n_stage, slot;         // ring of a warp: stages and bytes of one
  int64_t strip_bytes[3];
  int n_group;
  int red;                   // floats of a group's sums
  float* partial;            // [job][part][sub][16][16]
  unsigned* counter;         // [job]
};

__host__ __device__ int part_begin(int part, int n_part, int n_in, int unit) { return (n_in + unit - 1) / unit * part / n_part * unit; }
__host__ __device__ int set_begin(int set, int n_set, int n_part) { return n_part * set / n_set; }

// Where a warp is in its sequence of tiles: jobs, the strips of a job, the parts of its set, the tiles of its slice.
struct Cursor {
  int job, sub, part, matrix, tile, end, bytes;
  const uint8_t* strip;
  const uint8_t* p;
};

struct Warp {
  int lane, slice, part0, part1, n_groups;
};

__device__ __forceinline__ void open_strip(Cursor& c, const SkinnyArgs& a) {
  if (c.job >= a.n_job) return;
  int strip = c.job;
  c.matrix = c.sub;
  if (a.n_sub == 1) {
    c.matrix = c.job < a.first_job[1] ? 0 : c.job < a.first_job[2] ? 1 : 2;
    strip -= a.first_job[c.matrix];
  }
  c.strip = a.m[c.matrix].w.p + strip * a.strip_bytes[c.matrix];
}
__device__ __forceinline__ void open_part(Cursor& c, const SkinnyArgs& a, int slice) {
  const Range r = a.range[c.matrix][c.part][slice];
  c.tile = r.begin, c.end = r.end;
  c.bytes = tile_bytes(a.m[c.matrix].w.tile);
  c.p = c.strip + r.begin * c.bytes;
}

// Starts to fetch the next tile, if there is one.
__device__ __forceinline__ void fetch(Cursor& c, const SkinnyArgs& a, const Warp& w, WarpRing& ring) {
  const int n_job = a.n_job;
  while (c.tile == c.end && c.job < n_job) {
    if (++c.part == w.part1) {
      c.part = w.part0;
      if (++c.sub == a.n_sub) c.sub = 0, c.job += w.n_groups;
      open_strip(c, a);
    }
    if (c.job < n_job) open_part(c, a, w.slice);
  }
  const bool some = c.job < n_job;
  ring.fill(some ? c.p : nullptr, c.bytes);
  c.p += c.bytes;
  ++c.tile;
}

template <int kSlices>
__device__ __forceinline__ void group_sync(int group) { asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kSlices * 32) : "memory"); }

constexpr int max_warps(int n) { return n == 1 ? kMaxWarps : n == 8 ? 16 : 12; }

template <int N, int kSlices>
__global__ void __launch_bounds__(max_warps(N) * 32, 1) skinny_kernel(const __grid_constant__ SkinnyArgs a) {
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int last[kMaxWarps / kSlices];
  __shared__ uint64_t bars[kMaxWarps][WarpRing::kMaxStages];
  constexpr int kTiles = Acts<N>::kTiles, kOut = N == 1 ? 1 : kTiles * 8;
  const int warp = threadIdx.x / 32, group = warp / kSlices;
  const int set = blockIdx.x % a.n_set;
  const Warp w{.lane = int(threadIdx.x % 32), .slice = warp % kSlices, .part0 = set_begin(set, a.n_set, a.n_part),
               .part1 = set_begin(set + 1, a.n_set, a.n_part), .n_groups = int(gridDim.x / a.n_set) * a.n_group};
  const int n_job = a.n_job;
  const int col0 = part_begin(w.part0, a.n_part, a.n_in, a.part_unit);

  uint8_t* const b = shared;
  float* const sum = reinterpret_cast<float*>(b + Acts<N>::bytes(a.set_cols));
  uint32_t* const hl = reinterpret_cast<uint32_t*>(sum + acts_sums(N, a.set_cols));
  float* const red = reinterpret_cast<float*>(hl + a.set_cols / 32 * N) + group * a.red;  // [sub][part][slice][16][kOut]
  WarpRing ring(shared + (acts_bytes(N, a.set_cols) + a.n_group * a.red * 4 + 127) / 128 * 128 + warp * a.n_stage * a.slot, bars[warp], a.n_stage, a.slot,
                w.lane);

  const Cursor start{.job = int(blockIdx.x / a.n_set) * a.n_group + group, .sub = 0, .part = w.part0, .matrix = 0, .tile = 0, .end = 0, .bytes = 0, .strip = nullptr, .p = nullptr};
  Cursor next = start;
  open_strip(next, a);
  if (next.job < n_job) open_part(next, a, w.slice);
  for (int i = 0; i + 1 < a.n_stage; ++i) fetch(next, a, w, ring);

  wait_for_previous();
  let_next_start();
  {
    const int end = min(part_begin(w.part1, a.n_part, a.n_in, a.part_unit), (a.n_in + 63) / 64 * 64);
    stage_acts<N>(b, sum, hl, [&](int n) { return a.x + n * a.x_stride; }, a.n_tok, a.n_in, col0, min((end - col0 + 63) / 64 * 64, a.set_cols),
                  threadIdx.x, blockDim.x);
  }
  __syncthreads();
  const Acts<N> x{b, sum, hl};

  const int thread = w.slice * 32 + w.lane, n_my = w.part1 - w.part0;
  auto slices = [&](int sub, int part, int i) {
    const float* r = red + (sub * n_my + part) * kSlices * 16 * kOut + i;
    float v = r[0];
#pragma unroll
    for (int k = 1; k < kSlices; ++k) v += r[k * 16 * kOut];
    return v;
  };
  auto store = [&](int job, int matrix, int i, float v0, float v1) {
    const SkinnyMatrix& m = a.m[matrix];
    const int row = (job - (a.n_sub == 1 ? a.first_job[matrix] : 0)) * 16 + i / kOut, n = i % kOut;
    if (n >= a.n_tok || row >= m.w.n_out) return;
    const float v = a.n_sub == 2 ? activate(v0, a.act) * v1 : v0;
    if (m.y) m.y[n * m.y_stride + row] = v;
    if (m.y_also) m.y_also[n * m.y_stride + row] = v;
    if (m.y_bf) m.y_bf[n * m.y_bf_stride + row] = __float2bfloat16_rn(v);
  };
  // Every set's partial sums of a strip are in memory: adds up the parts, in order.
  auto add_parts = [&](int job, int matrix) {
    __threadfence();
    for (int i = thread; i < 16 * kOut; i += kSlices * 32) {
      float v[2] = {};
      for (int sub = 0; sub < a.n_sub; ++sub) {
        const float* p = a.partial + (int64_t(job) * a.n_part * a.n_sub + sub) * 256 + i;
        v[sub] = __ldcg(p);
        for (int k = 1; k < a.n_part; ++k) v[sub] += __ldcg(p + int64_t(k) * a.n_sub * 256);
      }
      store(job, matrix, i, v[0], v[1]);
    }
    if (thread == 0) a.counter[job] = 0;
  };

  int before = -1, before_matrix = 0;  // before: the job whose partial sums were written last
  Cursor at = start;
  for (; at.job < n_job; at.job += w.n_groups) {
    for (at.sub = 0; at.sub < a.n_sub; ++at.sub) {
      at.matrix = at.sub;
      if (a.n_sub == 1) at.matrix = at.job < a.first_job[1] ? 0 : at.job < a.first_job[2] ? 1 : 2;
      const Tile tile = a.m[at.matrix].w.tile;
      const int wide = tile_cols(tile) / 8;
      for (at.part = w.part0; at.part < w.part1; ++at.part) {
        const Range r = a.range[at.matrix][at.part][w.slice];
        float acc[kTiles][4] = {};
        int chunk = r.begin * wide - col0 / 8;
        for (int i = r.begin; i < r.end; ++i, chunk += wide) {
          const uint8_t* weights = ring.wait();
          fetch(next, a, w, ring);
          tile_product<N>(tile, weights, x, chunk, w.lane, acc);
        }
        float* const to = red + ((at.sub * n_my + at.part - w.part0) * kSlices + w.slice) * 16 * kOut;
        const int g = w.lane / 4, t = w.lane % 4;
        if (N == 1) {
          if (t == 0) to[g] = acc[0][0], to[g + 8] = acc[0][2];
        } else {
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            *reinterpret_cast<float2*>(to + g * kOut + n * 8 + 2 * t) = {acc[n][0], acc[n][1]};
            *reinterpret_cast<float2*>(to + (g + 8) * kOut + n * 8 + 2 * t) = {acc[n][2], acc[n][3]};
          }
        }
      }
    }
    group_sync<kSlices>(group);
    const int matrix = a.n_sub == 2 ? 0 : at.matrix;
    if (a.n_set == 1) {
      for (int i = thread; i < 16 * kOut; i += kSlices * 32) {
        float v[2] = {};
        for (int sub = 0; sub < a.n_sub; ++sub) {
          v[sub] = slices(sub, 0, i);
          for (int k = 1; k < n_my; ++k) v[sub] += slices(sub, k, i);
        }
        store(at.job, matrix, i, v[0], v[1]);
      }
    } else {
      if (before >= 0 && last[group]) add_parts(before, before_matrix);
      for (int sub = 0; sub < a.n_sub; ++sub)
        for (int k = 0; k < n_my; ++k) {
          float* to = a.partial + ((int64_t(at.job) * a.n_part + w.part0 + k) * a.n_sub + sub) * 256;
          for (int i = thread; i < 16 * kOut; i += kSlices * 32) __stcg(to + i, slices(sub, k, i));
        }
      before = at.job, before_matrix = matrix;
    }
    group_sync<kSlices>(group);
    if (a.n_set > 1 && thread == 0) {  // seen by the others at the next synchronisation: nobody waits for it here
      __threadfence();
      last[group] = atomicAdd(a.counter + at.job, 1u) == unsigned(a.n_set - 1);
    }
  }
  if (before >= 0) {
    group_sync<kSlices>(group);
    if (last[group]) add_parts(before, before_matrix);
  }
}

int parts_of(int n_in) {
  const int unit = n_in % 256 == 0 ? 256 : 64, n_unit = (n_in + unit - 1) / unit, most = kSkinnyCols / unit;
  return (n_unit + most - 1) / most;
}

template <int N, int kSlices>
void run(cudaStream_t stream, SkinnyArgs& a) {
  const int out = N == 1 ? 1 : Acts<N>::kTiles * 8;
  a.slot = 0;
  for (int i = 0; i < std::max(a.n_matrix, a.n_sub); ++i) a.slot = std::max(a.slot, tile_bytes(a.m[i].w.tile));
  const int n_job = a.n_job, shared = device().shared - kOwnShared;
  auto cols_of = [&](int sets) {
    int most = 0;
    for (int s = 0; s < sets; ++s)
      most = std::max(most, part_begin(set_begin(s + 1, sets, a.n_part), a.n_part, a.n_in, a.part_unit) -
                                part_begin(set_begin(s, sets, a.n_part), a.n_part, a.n_in, a.part_unit));
    return most;
  };
  auto red_of = [&](int sets) { return a.n_sub * ((a.n_part + sets - 1) / sets) * kSlices * 16 * out; };
  auto stages = [&](int sets, int groups) {
    const int fixed = acts_bytes(N, cols_of(sets)) + groups * red_of(sets) * 4 + 128;
    return (shared - fixed) / (groups * kSlices * a.slot);
  };
  // As few sets as leave room for three stages; then as many groups as do.
  const int usual = (N == 1 ? kMaxWarps : 12) / kSlices;
  for (int i = 0; i < std::max(a.n_matrix, a.n_sub); ++i) {
    const int cols = tile_cols(a.m[i].w.tile), most = a.m[i].w.n_tile();
    for (int p = 0; p < a.n_part; ++p) {
      const int begin = part_begin(p, a.n_part, a.n_in, a.part_unit) / cols;
      const int end = std::min((part_begin(p + 1, a.n_part, a.n_in, a.part_unit) + cols - 1) / cols, most);
      for (int k = 0; k < kSlices; ++k)
        a.range[i][p][k] = {int16_t(begin + (end - begin) * k / kSlices), int16_t(begin + (end - begin) * (k + 1) / kSlices)};
    }
  }
  a.n_set = 1;
  while (a.n_set < a.n_part && stages(a.n_set, usual) < 3) ++a.n_set;
  a.n_group = usual;
  while (a.n_group > 1 && stages(a.n_set, a.n_group) < 3) --a.n_group;
  // Few strips: fewer groups a block, so that every multiprocessor has some.
  while (a.n_group > 1 && (n_job + a.n_group - 1) / a.n_group * a.n_set < device().n_sm) --a.n_group;
  a.set_cols = cols_of(a.n_set), a.red = red_of(a.n_set);
  a.n_stage = std::min(stages(a.n_set, a.n_group), WarpRing::kMaxStages);
  CHECK(a.n_stage >= 2, "{} bytes of shared memory are too few for {} columns", device().shared, a.set_cols);
  const size_t fixed = size_t(acts_bytes(N, a.set_cols) + a.n_group * a.red * 4 + 128);
  const size_t bytes = fixed + size_t(a.n_group) * kSlices * size_t(a.n_stage) * size_t(a.slot);
  const int blocks = std::min(device().n_sm / a.n_set, (n_job + a.n_group - 1) / a.n_group);
  static const bool once = (allow_shared(skinny_kernel<N, kSlices>, size_t(device().shared - kOwnShared)), true);
  (void)once;
  launch(skinny_kernel<N, kSlices>, dim3(unsigned(std::max(blocks, 1) * a.n_set)), dim3(unsigned(a.n_group * kSlices * 32)), bytes, stream, a);
}

template <int N>
void run(cudaStream_t stream, SkinnyArgs& a) {
  // Few and short strips: more warps on each. Depends on the matrices alone, as slices decide the order of sums.
  a.n_job < kFewStrips && a.n_part <= 2 ? run<N, 8>(stream, a) : run<N, 4>(stream, a);
}

}  // namespace

int64_t skinny_partials(int64_t n_out, int64_t n_in) {
  const int parts = parts_of(int(n_in));
  return parts == 1 ? 0 : (n_out + 15) / 16 * parts * 2 * 256;
}
int64_t skinny_counters(int64_t n_out) { return (n_out + 15) / 16; }

void skinny(cudaStream_t stream, const SkinnyMatrix* m, int n_matrix, bool glu, Act act, const __nv_bfloat16* x, int64_t x_stride, int n_tok,
            SkinnyWork work) {
  constexpr int kHalf = 8, kRoomForAll = 160 * 1024;
  if (n_tok > kHalf && device().shared < kRoomForAll) {  // 16 rows of activations do not fit beside the weights
    SkinnyMatrix rest[3];
    for (int i = 0; i < n_matrix; ++i) {
      rest[i] = m[i];
      if (m[i].y) rest[i].y += kHalf * m[i].y_stride;
      if (m[i].y_also) rest[i].y_also += kHalf * m[i].y_stride;
      if (m[i].y_bf) rest[i].y_bf += kHalf * m[i].y_bf_stride;
    }
    skinny(stream, m, n_matrix, glu, act, x, x_stride, kHalf, work);
    return skinny(stream, rest, n_matrix, glu, act, x + kHalf * x_stride, x_stride, n_tok - kHalf, work);
  }
  SkinnyArgs a{};
  a.n_matrix = glu ? 1 : n_matrix;
  a.n_sub = glu ? 2 : 1;
  for (int i = 0; i < n_matrix; ++i) {
    a.m[i] = m[i];
    CHECK(m[i].w.n_in == m[0].w.n_in, "{} and {} columns", m[i].w.n_in, m[0].w.n_in);
    a.m[i].w.p = m[i].w.strip(m[i].stack, 0);
    a.strip_bytes[i] = m[i].w.strip_bytes();
    if (!glu || i == 0) a.first_job[i + 1] = a.first_job[i] + m[i].w.n_strip();
  }
  a.n_job = a.first_job[a.n_matrix];
  for (int i = a.n_matrix; i < 4; ++i) a.first_job[i] = 1 << 30;  // no job belongs to what is not there
  a.act = act;
  a.x = x, a.x_stride = x_stride, a.n_tok = n_tok, a.n_in = m[0].w.n_in;
  a.part_unit = a.n_in % 256 == 0 ? 256 : 64;
  a.n_part = parts_of(a.n_in);
  CHECK(a.n_part <= kMaxParts, "{} columns", a.n_in);
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
