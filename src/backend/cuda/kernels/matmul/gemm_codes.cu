// gemm_codes, f16_rows -- matrix products of many rows straight from codes, on sm_90a
//
//   gemm_codes  y[t] = W x[t], or act(W0 x[t]) * (W1 x[t])
//   f16_rows    x's rows in f16, each times a power of two
//
// Shapes     any n_out and T, n_in a multiple of 8; W in tiles of codes, W0 and W1 of one type
// Bytes      from memory weights once for 2,048 rows and rows once for some 2,000 outputs; from L2 weights once for 256
//            rows, rows once for 128 outputs
// Flops      2 T n_out n_in, in m64 n256 k16 or narrower
// Launch     one persistent block per multiprocessor. A lane of the last warpgroup brings rows in by a tensor map, 64
//            columns a stage, and codes into the L2 before. A block has 128 rows of weights, or 64 of either matrix; a
//            warp of the other two warpgroups a strip of them (codes_loop.cuh). Sums go out by way of shared memory,
//            whole lines of 64 outputs. Matrices with few rows: several blocks share their columns, the last one adds
//            up. f16_rows: a block per row
// Order      columns in order, 16 at a time, of each share of them; then shares in order, as many as the matrices'
//            shapes say. A row's bits do not depend on other rows, nor on how many there are. f16_rows: the largest
//            finite number of a row comes to lie in [2^13, 2^14), exactly; what is 2^-27 of it or less misses 2^-39
// Reference  CpuRef::matmul, gate_up
// Test       tests/kernels/cuda_gemm_test.cpp
// Bench      bench/verbs/cuda_matmul_bench.cu
#include <algorithm>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/codes_loop.cuh"
#include "backend/cuda/kernels/matmul/gemm_codes.h"
#include "backend/cuda/kernels/matmul/tiles/all.cuh"
#include "backend/cuda/tensor_map.h"

namespace facet::cuda {
namespace {

constexpr int kRowThreads = 256;

struct RowsArgs {
  const __nv_bfloat16* x;
  int64_t x_stride;
  int n_in, n_sixteen;  // columns; sixteens that are written
  uint4* rows;
  float* unit;
  unsigned* counter;  // become zeros
  int n_counter;
};

// Magnitudes of two numbers, zero where one is not finite.
__device__ __forceinline__ uint32_t finite_magnitudes(uint32_t two) {
  const uint32_t m = two & 0x7FFF7FFF;
  return m & __vcmpltu2(m, 0x7F807F80);
}
__global__ void __launch_bounds__(kRowThreads) f16_rows_kernel(const RowsArgs a) {
  __shared__ uint32_t of_warp[kRowThreads / 32];
  pdl_wait();
  pdl_trigger();
  const int row = int(blockIdx.x), thread = int(threadIdx.x);
  for (int i = row * kRowThreads + thread; i < a.n_counter; i += int(gridDim.x) * kRowThreads) a.counter[i] = 0;
  const __nv_bfloat16* const x = a.x + row * a.x_stride;
  uint32_t most = 0;
#pragma unroll 4
  for (int c = thread * 8; c < a.n_in; c += kRowThreads * 8) {
    const uint4 v = *reinterpret_cast<const uint4*>(x + c);
    most = __vmaxu2(most, __vmaxu2(__vmaxu2(finite_magnitudes(v.x), finite_magnitudes(v.y)),
                                   __vmaxu2(finite_magnitudes(v.z), finite_magnitudes(v.w))));
  }
  most = __reduce_max_sync(~0u, max(most & 0xFFFF, most >> 16));
  if (thread % 32 == 0) of_warp[thread / 32] = most;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kRowThreads / 32; ++i) most = max(most, of_warp[i]);
  // 2^(exponent - 127) is the largest power below the row's magnitude; below 2^-113 what it becomes is less.
  const int exponent = int(most >> 7), power = most ? min(13 + 127 - exponent, 126) : 0;
  const float scale = __uint_as_float(uint32_t(127 + power) << 23);
  if (thread == 0) a.unit[row] = __uint_as_float(uint32_t(127 - power) << 23);
  const auto low = [&](uint32_t two) { return __uint_as_float(two << 16) * scale; };
  const auto high = [&](uint32_t two) { return __uint_as_float(two & 0xFFFF0000u) * scale; };
  const auto pack = [](float p, float q) { return as_word(__floats2half2_rn(p, q)); };  // infinite, NaN: as they are
  uint4* const to = a.rows + int64_t(row) * a.n_sixteen * 2;
#pragma unroll 2
  for (int i = thread; i < a.n_sixteen; i += kRowThreads) {
    uint4 v[2] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (const int c = 16 * i + 8 * h; c < a.n_in) v[h] = *reinterpret_cast<const uint4*>(x + c);
    // Even columns, then odd ones: expand_tiles.cuh.
    to[2 * i] = {pack(low(v[0].x), low(v[0].y)), pack(low(v[0].z), low(v[0].w)), pack(low(v[1].x), low(v[1].y)),
                 pack(low(v[1].z), low(v[1].w))};
    to[2 * i + 1] = {pack(high(v[0].x), high(v[0].y)), pack(high(v[0].z), high(v[0].w)),
                     pack(high(v[1].x), high(v[1].y)), pack(high(v[1].z), high(v[1].w))};
  }
}

// What `room` has: rows, then their units, partial sums, counters.
struct Room {
  int64_t at_unit, at_partial, at_counter, bytes;
  int n_counter;
  Room(int n_sm, int64_t n_tok, int64_t n_in)
      : at_unit(n_tok * ((n_in + 63) / 64) * 128),
        at_partial(at_unit + (n_tok * 4 + 127) / 128 * 128),
        at_counter(at_partial + int64_t(n_sm) * kPartBytes),
        bytes(at_counter + int64_t(n_sm) * kPartHigh * 4),
        n_counter(n_sm * kPartHigh) {}
};

int wide_of(const CodesProduct& p) { return (p.w.n_out + (p.up ? 63 : 127)) / (p.up ? 64 : 128); }

// To how many blocks columns go, so that matrices of few rows occupy all multiprocessors.
int parts(int n_wide, int n_block) {
  constexpr int kMost = 4, kLeast = 16;  // shares; blocks of 64 columns of each
  return std::max(1, std::min({kMost, device().n_sm / n_wide, n_block / kLeast}));
}

// Rows of a block with which all turns of the blocks take the least time: tensor cores four clocks a row, but codes
// of 64 columns take what some rows do (codes_loop.cuh); and some for the way in and out.
int share_rows(int n_tok, int n_item) {
  constexpr int kBeside = 8;
  int64_t least = 0;
  int n_high = 1;
  for (int tok = kCodesTok; tok >= 32; tok -= 32) {
    const int high = (n_tok + tok - 1) / tok;
    const int64_t turns = (int64_t(high) * n_item + device().n_sm - 1) / device().n_sm;
    const int64_t time = turns * (std::max(tok, tok <= 128 ? 75 : 130) + kBeside);
    if (least == 0 || time < least) least = time, n_high = high;
  }
  return ((n_tok + n_high - 1) / n_high + 31) / 32 * 32;
}

GemmCodesArgs args_of(const CodesProduct& p) {
  const GemmWork& g = p.to;
  const TiledMatrix& w = p.w;
  GemmCodesArgs a{};
  a.w[0] = w.strip(0, 0), a.w[1] = p.up ? p.up->strip(0, 0) : a.w[0], a.strip_bytes = w.strip_bytes();
  a.n_strip = w.n_strip(), a.n_block = (w.n_in + 63) / 64, a.n_out = w.n_out, a.n_wide = wide_of(p);
  a.act = g.act, a.y_stride = g.y_stride, a.y_bf_stride = g.y_bf_stride;
  auto aligned = [](const void* p, size_t to) { return reinterpret_cast<uintptr_t>(p) % to == 0; };
  a.wide =
      g.y_stride % 4 == 0 && g.y_bf_stride % 4 == 0 && aligned(g.y, 16) && aligned(g.y_also, 16) && aligned(g.y_bf, 8);
  return a;
}

}  // namespace

int64_t gemm_codes_room(int n_sm, int64_t n_tok, int64_t n_in) { return Room(n_sm, n_tok, n_in).bytes; }

void gemm_codes(cudaStream_t stream, std::span<const CodesProduct> all, void* room) {
  const GemmWork& first = all[0].to;
  const int n_tok = first.n_tok, n_in = first.n_in, n_block = (n_in + 63) / 64;
  CHECK(n_tok > 0 && n_in % 8 == 0 && first.x_stride % 8 == 0 && reinterpret_cast<uintptr_t>(first.x) % 16 == 0,
        "{} rows of {} columns, {} apart", n_tok, n_in, first.x_stride);
  int n_wide = 0;
  for (const CodesProduct& p : all) {
    CHECK(!is_float(p.w.tile) && p.w.n_in == n_in && p.to.x == first.x && p.to.n_tok == n_tok,
          "{} rows of {} columns, a matrix of {}", n_tok, n_in, p.w.n_in);
    CHECK(!p.up || (p.up->tile == p.w.tile && p.up->n_out == p.w.n_out && p.up->n_in == n_in), "gate is not like up");
    n_wide += wide_of(p);
  }
  const Room of(device().n_sm, n_tok, n_in);
  char* const at = static_cast<char*>(room);
  auto* const unit = reinterpret_cast<float*>(at + of.at_unit);
  auto* const counter = reinterpret_cast<unsigned*>(at + of.at_counter);
  launch(f16_rows_kernel, dim3(unsigned(n_tok)), dim3(kRowThreads), 0, stream,
         RowsArgs{.x = first.x,
                  .x_stride = first.x_stride,
                  .n_in = n_in,
                  .n_sixteen = n_block * 4,
                  .rows = reinterpret_cast<uint4*>(at),
                  .unit = unit,
                  .counter = counter,
                  .n_counter = of.n_counter});
  const int n_part = parts(n_wide, n_block), step = n_part > 1 ? kPartTok : n_tok;
  for (int row = 0; row < n_tok; row += step) {
    const int n = std::min(step, n_tok - row), tok = share_rows(n, n_wide * n_part);
    const CUtensorMap rows = tensor_map_bf16(at + int64_t(row) * n_block * 128, n, n_block * 64, n_block * 64, tok);
    int before = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const GemmWork& to = all[i].to;
      GemmCodesArgs a = args_of(all[i]);
      a.x = rows, a.unit = unit + row, a.n_tok = n, a.tok = tok, a.n_high = (n + tok - 1) / tok, a.n_part = n_part;
      a.partial = reinterpret_cast<float4*>(at + of.at_partial + int64_t(before) * n_part * kPartBytes);
      a.counter = counter + before * kPartHigh;
      a.late = i > 0, a.more = i + 1 < all.size();
      a.y = to.y ? to.y + row * to.y_stride : nullptr;
      a.y_also = to.y_also ? to.y_also + row * to.y_stride : nullptr;
      a.y_bf = to.y_bf ? to.y_bf + row * to.y_bf_stride : nullptr;
      with_code_tile(all[i].w.tile,
                     [&](auto kind) { launch_gemm_codes<decltype(kind)::value>(stream, a, all[i].up != nullptr); });
      before += a.n_wide;
    }
  }
}

}  // namespace facet::cuda
