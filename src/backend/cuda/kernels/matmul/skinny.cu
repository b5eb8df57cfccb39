// skinny -- matrix products with at most 16 rows of activations: decode, verification, small batches
//
//   y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//
// Shapes     x [T, n_in] bf16, T <= 16; W tiled (layout.h); y [T, n_out] f32 and, if wanted, bf16
// Bytes      the weights, once; activations live in shared memory, for quantised weights in one or two bytes (acts.cuh)
// Launch     one block a multiprocessor. A block has an equal share of the strips, its warps equal runs of their
//            tiles (stream.cuh), small ones of narrow matrices in groups (layout.h); weights stream through a ring
//            of shared memory a warp, and the ring is full before the kernel waits for its input. Where that divides
//            better, or the columns do not fit, blocks form sets that each take some of the columns, and the last
//            set to finish adds up. Beside few weights there is room for blocks that route tokens to experts
//            (route.cuh). Depends on shapes alone
// Order      a run's tiles from the left, runs in order, then sets. None of it depends on T: the same bits for
//            T = 1 and 16
// Reference  CpuRef::matmul, qkv, gate_up
// Test       tests/kernels/cuda_matmul_test.cpp
// Bench      bench/verbs/cuda_matmul_bench.cu
#include <algorithm>
#include <utility>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/small_model.h"
#include "backend/cuda/kernels/matmul/skinny_args.h"
#include "backend/cuda/kernels/matmul/stream.cuh"
#include "backend/cuda/kernels/matmul/wide.h"
#include "backend/cuda/kernels/route/route.cuh"

namespace facet::cuda {
namespace {

constexpr int kQuantizeWarps = 4;

template <int N, bool kTwo>
__global__ void __launch_bounds__(kQuantizeWarps * 32)
    quantize_kernel(uint8_t* image, const __nv_bfloat16* x, int64_t x_stride, int n_tok, int n_in) {
  pdl_wait();
  pdl_trigger();
  const int i = int(blockIdx.x) * kQuantizeWarps + int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int block = fast_div(i, n_tok), n = i - block * n_tok, col = block * kActBlock + lane * 8;
  if (block >= (n_in + kActBlock - 1) / kActBlock) return;
  const uint4 v = col < n_in ? *reinterpret_cast<const uint4*>(x + n * x_stride + col) : uint4{};
  quantize_block<N, kTwo>(image + int64_t(block) * ActsInt<N, kTwo>::kStride, v, n, lane);
}

// What a block can hold: GPUs with about 100 KB of shared memory take fewer warps and columns, and eight rows
// at a time.
struct Room {
  int long_warps, short_warps, byte_cols, wide_cols, rows;  // wide: of inputs in two bytes or bf16
};
Room room(const DeviceInfo& d) {
  return d.shared >= kMuchShared ? Room{kLongWarps, kShortWarps, 5632, 2816, 16}
                                 : Room{kLongWarps / 2, kShortWarps, 2560, 1280, 8};
}
// Bytes of weights a multiprocessor, up to which a kernel is short.
constexpr int kShortShare = 96 * 1024;

int64_t many_strips(const DeviceInfo& d) { return 32 * d.n_sm; }
int act_blocks(int64_t n_in) { return int((n_in + kActBlock - 1) / kActBlock); }

// As many sets as the columns need, or up to kUsualSets where that divides better.
constexpr int kUsualSets = 16;
int most_act_blocks(const DeviceInfo& d, Input in) {
  return (in == Input::kByte ? room(d).byte_cols : room(d).wide_cols) / kActBlock;
}
int least_sets(const DeviceInfo& d, int n_block, Input in) {
  return (n_block + most_act_blocks(d, in) - 1) / most_act_blocks(d, in);
}

// Sets of blocks for so many jobs of n_block blocks of 256 columns: the least time of the slowest block, in
// tiles. Adding up sets is taken to cost as much as 30 tiles, and 4 a set; 4 and 2 where the reader of the output may
// do it.
int choose_sets(const DeviceInfo& d, int64_t n_job, int n_sub, int n_block, Input in, bool one_matrix) {
  int best = 0;
  int64_t least = 0;
  const int first = least_sets(d, n_block, in);
  for (int s = first; s <= std::max(first, std::min({kUsualSets, n_block, d.n_sm})); ++s) {
    const int64_t blocks = d.n_sm / s, jobs = (n_job + blocks - 1) / blocks;
    const int64_t time = jobs * n_sub * ((n_block + s - 1) / s) + (s == 1 ? 0 : one_matrix ? 4 + 2 * s : 30 + 4 * s);
    if (best == 0 || time < least) best = s, least = time;
    if (n_job > many_strips(d)) break;  // they divide well enough, and their partial sums would be large
  }
  CHECK(best <= kMaxSets && best <= d.n_sm, "{} columns in at most {} sets", n_block * kActBlock, kMaxSets);
  return best;
}

template <Input in, bool kShort>
void launch_for(cudaStream_t stream, SkinnyArgs& a, int n_warp) {
  a.n_tok == 1   ? launch_skinny<1, in, kShort>(stream, a, n_warp)
  : a.n_tok <= 8 ? launch_skinny<8, in, kShort>(stream, a, n_warp)
                 : launch_skinny<16, in, kShort>(stream, a, n_warp);
}
template <bool kShort>
void launch_for(cudaStream_t stream, SkinnyArgs& a, Input in, int n_warp) {
  switch (in) {
    case Input::kByte:
      return launch_for<Input::kByte, kShort>(stream, a, n_warp);
    case Input::kTwoBytes:
      return launch_for<Input::kTwoBytes, kShort>(stream, a, n_warp);
    case Input::kBf16:
      return launch_for<Input::kBf16, kShort>(stream, a, n_warp);
  }
}

// The blocks, sets and jobs of a product: all but its rows follows from shapes.
SkinnyArgs lay_out(const DeviceInfo& d, const SkinnyMatrix* m, int n_matrix, bool glu, Act act, const __nv_bfloat16* x,
                   int64_t x_stride, int n_tok, const SkinnyWork& work, Input in, int64_t all) {
  SkinnyArgs a{};
  a.n_matrix = glu ? 1 : n_matrix;
  a.n_sub = glu ? 2 : 1;
  a.n_in = m[0].w.n_in;
  a.bytes = all;
  a.slot = 1024;  // with at least two stages room for a part of two strips of 16 rows
  for (int i = 0; i < n_matrix; ++i) {
    a.m[i] = m[i];
    CHECK(m[i].w.n_in == a.n_in && is_float(m[i].w.tile) == (in == Input::kBf16),
          "{} and {} columns, types that do not go together", m[i].w.n_in, a.n_in);
    const Tile tile = m[i].w.tile;
    const int group =
        is_small_model(m[i].w.n_in, m[i].w.n_out) && m[i].w.n_tile() % group_tiles(tile) == 0 ? group_tiles(tile) : 1;
    a.tiles[i] = {.p = m[i].w.strip(m[i].stack, 0),
                  .strip_bytes = int(m[i].w.strip_bytes()),
                  .tile_bytes = group * tile_bytes(tile),
                  .n_tile = m[i].w.n_tile() / group,
                  .per_block = kActBlock / (group * tile_cols(tile)),
                  .tile = tile,
                  .grouped = group > 1};
    auto aligned = [](const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
    a.wide[i] = m[i].w.n_out % 4 == 0 && m[i].y_stride % 4 == 0 && m[i].y_bf_stride % 4 == 0 && aligned(m[i].y, 16) &&
                aligned(m[i].y_also, 16) && aligned(m[i].y_bf, 8);
    a.slot = std::max(a.slot, a.tiles[i].tile_bytes);
    if (!glu || i == 0) a.first_job[i + 1] = a.first_job[i] + m[i].w.n_strip();
  }
  a.n_job = a.first_job[a.n_matrix];
  for (int i = a.n_matrix; i < 4; ++i) a.first_job[i] = 1 << 30;  // no job belongs to what is not there
  a.even = a.n_sub == 1 || m[0].w.tile == m[1].w.tile;
  const int n_block = a.n_block = act_blocks(a.n_in);
  const bool alone =
      work.late && least_sets(d, n_block, in) == 1;  // partial sums would need memory that the product before may use
  a.n_set = alone ? 1 : choose_sets(d, a.n_job, a.n_sub, n_block, in, n_matrix == 1);
  a.late = alone && n_tok <= 8;  // of more rows, an image comes first
  a.blocks = d.n_sm / a.n_set;
  for (int s = 0; s < a.n_set; ++s)
    a.set_cols = std::max(a.set_cols, (n_block * (s + 1) / a.n_set - n_block * s / a.n_set) * kActBlock);
  a.act = act;
  a.x = x, a.x_stride = x_stride, a.n_tok = n_tok;
  a.leave = work.leave && a.n_set > 1 && n_matrix == 1;
  a.partial = work.partial, a.counter = work.counter;
  // Blocks share the jobs by cost.
  CHECK(a.blocks <= kMaxBlocks, "{} blocks", a.blocks);
  auto job_cost = [&](int i) { return int64_t(m[i].w.n_tile()) * tile_bytes(m[i].w.tile); };
  for (int b = 0; b < a.blocks; ++b) {
    int64_t c = all * b / a.blocks;
    for (int i = 0; i < a.n_matrix; ++i) {
      const int64_t each = job_cost(i) + (glu ? job_cost(1) : 0), jobs = m[i].w.n_strip();
      a.block_job[b] = a.first_job[i] + int(std::min(jobs, (c + each / 2) / each));
      if (c < each * jobs) break;
      c -= each * jobs;
    }
  }
  a.block_job[a.blocks] = a.n_job;
  int most_jobs = 0, most_tiles = 0;
  for (int b = 0; b < a.blocks; ++b) most_jobs = std::max(most_jobs, a.block_job[b + 1] - a.block_job[b]);
  for (int i = 0; i < n_matrix; ++i) most_tiles = std::max(most_tiles, a.tiles[i].n_tile);
  CHECK(int64_t(most_jobs) * most_tiles * a.n_sub < kFastDivMost, "{} jobs of {} tiles a block", most_jobs, most_tiles);
  a.run_tiles = most_jobs * most_tiles * a.n_sub / a.n_set;
  return a;
}

}  // namespace

int64_t skinny_partials(const DeviceInfo& d, const TiledMatrix& m) {
  const int least = least_sets(d, act_blocks(m.n_in), input_of(m));
  if (m.n_strip() > many_strips(d)) return least == 1 ? 0 : int64_t(least) * m.n_strip() * 256;
  return int64_t(std::max(least, kUsualSets)) * m.n_strip() * 256;
}
int64_t skinny_most_cols(const DeviceInfo& d, Input in) {
  return int64_t(std::min(kMaxSets, d.n_sm)) * most_act_blocks(d, in) * kActBlock;
}
int skinny_counters(const DeviceInfo& d) { return d.n_sm; }
int64_t wide_partials(const DeviceInfo& d, const TiledMatrix& m) {
  if (input_of(m) == Input::kBf16) return 0;
  const int n_set = choose_sets(d, m.n_strip(), 1, act_blocks(m.n_in), input_of(m), true);
  return n_set == 1 ? 0 : int64_t(n_set) * m.n_strip() * kTileRows * kWideRows;
}
int64_t skinny_image_bytes(int64_t n_in) {
  static_assert(wide_rows(Input::kByte) >= 2 * wide_rows(Input::kTwoBytes) && wide_rows(Input::kTwoBytes) > 16);
  return int64_t(act_blocks(n_in)) * wide_rows(Input::kByte) * ActsInt<1>::kStride;
}

Partials skinny(cudaStream_t stream, const SkinnyMatrix* m, int n_matrix, bool glu, Act act, const __nv_bfloat16* x,
                int64_t x_stride, int n_tok, SkinnyWork work) {
  const DeviceInfo& d = device();
  const Room have = room(d);
  int64_t all = 0;
  for (int i = 0; i < n_matrix; ++i) all += int64_t(m[i].w.n_tile()) * tile_bytes(m[i].w.tile) * m[i].w.n_strip();
  const bool is_short = all <= int64_t(kShortShare) * d.n_sm;
  if (work.beside && (!is_short || is_float(m[0].w.tile)))
    route(stream, *std::exchange(work.beside, nullptr));  // no room for other blocks
  Input in = input_of(m[0].w);
  if (glu) in = std::max(in, input_of(m[1].w));
  if (!glu)  // the inputs of one launch are alike
    for (int i = 1; i < n_matrix; ++i)
      if (input_of(m[i].w) != in) {
        skinny(stream, m, i, glu, act, x, x_stride, n_tok, work);
        work.beside = nullptr;
        return skinny(stream, m + i, n_matrix - i, glu, act, x, x_stride, n_tok, work);
      }
  if (n_tok > have.rows) {
    if (work.beside) route(stream, *std::exchange(work.beside, nullptr));
    // Many at a time read the weights once; else as many as the kernels below take.
    const int run_warps = is_short ? have.short_warps : have.long_warps;
    int n = std::min(n_tok, wide_rows(in));
    for (; n > have.rows; n = (n - 1) / kWideGroup * kWideGroup) {
      SkinnyWork some = work;
      some.image_ready &= n == n_tok && n > kSkinnyRows, some.leave &= n == n_tok;
      Partials left;
      if (wide(stream, lay_out(d, m, n_matrix, glu, act, x, x_stride, n, some, in, all), in, run_warps, some, left)) {
        if (n == n_tok) return left;
        break;
      }
    }
    work.image_ready = work.leave = false;  // its rows lie otherwise
    if (n <= have.rows) n = have.rows, skinny(stream, m, n_matrix, glu, act, x, x_stride, n, work);
    SkinnyMatrix rest[3];
    for (int i = 0; i < n_matrix; ++i) {
      rest[i] = m[i];
      if (m[i].y) rest[i].y += n * m[i].y_stride;
      if (m[i].y_also) rest[i].y_also += n * m[i].y_stride;
      if (m[i].y_bf) rest[i].y_bf += n * m[i].y_bf_stride;
    }
    return skinny(stream, rest, n_matrix, glu, act, x + n * x_stride, x_stride, n_tok - n, work);
  }
  CHECK(n_tok >= 1 && n_tok <= kSkinnyRows, "{} rows", n_tok);
  SkinnyArgs a = lay_out(d, m, n_matrix, glu, act, x, x_stride, n_tok, work, in, all);
  if (in == Input::kByte && n_tok > 1 && work.image_ready) {
    a.image = work.image;
  } else if (in != Input::kBf16 && n_tok > 8) {  // every block would round the same many rows
    a.image = work.image;
    const dim3 grid(unsigned((a.n_block * n_tok + kQuantizeWarps - 1) / kQuantizeWarps));
    launch(in == Input::kByte ? quantize_kernel<16, false> : quantize_kernel<16, true>, grid, dim3(kQuantizeWarps * 32),
           0, stream, work.image, x, x_stride, n_tok, a.n_in);
  }
  const int n_warp = is_short ? have.short_warps : have.long_warps;
  a.run_tiles = (a.run_tiles + n_warp - 1) / n_warp + 1;
  a.thirds = work.thirds;
  a.ahead = work.ahead;
  a.early = is_short && !work.in_turn && is_small_model(a.n_in, m[0].w.n_out);
  if (is_short && work.beside) {
    static_assert(kShortWarps * 32 == kRouteThreads * kRouteGroups);
    a.beside = *work.beside, a.beside_blocks = route_blocks(a.beside);
    // Behind the others beside one row: in front, some multiprocessors would have two of those, and blocks of the
    // kernels that follow would gather where these have none. Rows to route take longer, and go first.
    a.beside_at = n_tok == 1 ? a.blocks * a.n_set : 0;
  }
  is_short ? launch_for<true>(stream, a, in, n_warp) : launch_for<false>(stream, a, in, n_warp);
  if (!a.leave) return {};
  return {.p = a.partial, .n_set = a.n_set, .n_job = a.n_job, .width = n_tok == 1 ? 1 : n_tok <= 8 ? 8 : 16};
}

}  // namespace facet::cuda
