// permute -- operands of grouped products (moe.h): experts' weights in bf16, tokens' rows by expert; results by token
//
//   weights  block [128 rows, 64 columns] of M tile m: gate and up rows 16 s + i (+ 8 for up) are rows 64 m + 8 s + i
//   rows     N tile's block [width, 64 columns]: row p is the row of a token; for products straight from codes in f16
//            and their order of columns
//   combine  y[t] = sum of weight * out, in rank order
//
// Shapes     e, y [T, D]; weights [N, F or D, D or F] tiled; panels as moe.h has them
// Bytes      weights: the tiles once, two bytes per weight written; gather: D * 2 * (n_used + 1) per token; combine: as
//            gather
// Launch     weights: a warp per tile of 256 columns, or per four of 64; blocks of experts without tokens return at
//            once. gather, combine: a block per token
// Order      combine: ranks in order, in f32; the rest are copies and conversions: of rows to f16 exact but for what is
//            below 2^-14, where they miss 2^-25, and above 65504, which they become
// Reference  CpuRef::moe
// Test       tests/kernels/cuda_moe_test.cpp
// Bench      bench/verbs/cuda_moe_bench.cu
#include <algorithm>

#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/tile_values.cuh"
#include "backend/cuda/kernels/moe/moe.h"
#include "backend/cuda/kernels/moe/panel_rows.cuh"

namespace facet::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kBlockElements = kMoeStrip * 64;

struct PanelArgs {
  __nv_bfloat16* to;
  TiledMatrix w;
  int strip0, n_row;    // the sub-matrix's strips and rows
  bool paired, second;  // paired: gate or (second) up
  int n_m, n_block;     // M tiles of an expert, blocks of 64 columns
  int expert0;
  const int32_t* tile_first;
};

template <Tile T>
__global__ void __launch_bounds__(kWarps * 32) panel_kernel(const PanelArgs a) {
  pdl_wait();
  pdl_trigger();
  const int local = int(blockIdx.y), expert = a.expert0 + local;
  if (a.tile_first[expert] == a.tile_first[expert + 1]) return;
  constexpr int kTiles = tile_cols(T) == 64 ? 4 : 1;  // of a warp
  const int n_tile = a.w.n_tile(), groups = (n_tile + kTiles - 1) / kTiles;
  const int i = int(blockIdx.x) * kWarps + int(threadIdx.x) / 32, strip = i / groups, lane = int(threadIdx.x) % 32,
            g = lane / 4, t = lane % 4;
  if (strip * kTileRows >= a.n_m * (a.paired ? kMoeStrip / 2 : kMoeStrip)) return;
  // Rows 16 strip.. are rows `row0`.. of M tile `m`; the second eight come `apart` later.
  const int per_m = (a.paired ? kMoeStrip / 2 : kMoeStrip) / kTileRows, m = strip / per_m, apart = a.paired ? 16 : 8;
  const int row0 = strip % per_m * (a.paired ? 32 : 16) + (a.second ? 8 : 0);
  __nv_bfloat16* const to = a.to + (int64_t(local) * a.n_m + m) * a.n_block * kBlockElements;
  const bool exists = strip * kTileRows < a.n_row;
  const uint8_t* const from = a.w.strip(expert, a.strip0 + strip);
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    const int tile = i % groups * kTiles + k;
    if (tile >= n_tile) break;
    auto put = [&](int j, int h, int row, const float(&v)[8]) {
      const int block = tile * (tile_cols(T) / 64) + j;
      if (tile_cols(T) > 64 && block >= a.n_block) return;
      const int r = row0 + row * apart + g;
      __nv_bfloat16* const line = to + block * kBlockElements + r * 64;
      const uint4 w = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
      if (!is_float(T)) {  // four columns, and four 16 further
        const int c = 32 * h + 4 * t;
        __stcg(reinterpret_cast<uint2*>(line + ((c / 8) ^ (r % 8)) * 8 + c % 8), make_uint2(w.x, w.y));
        __stcg(reinterpret_cast<uint2*>(line + ((c / 8 + 2) ^ (r % 8)) * 8 + c % 8), make_uint2(w.z, w.w));
      } else {
        __stcg(reinterpret_cast<uint4*>(line + ((4 * h + t) ^ (r % 8)) * 8), w);  // (an assignment becomes four stores)
      }
    };
    if (exists) {
      each_value<T>(from + int64_t(tile) * tile_bytes(T), lane, put);
    } else {
      const float zeros[8] = {};
      for (int j = 0; j < tile_cols(T) / 64; ++j)
        for (int h = 0; h < 2; ++h) put(j, h, 0, zeros), put(j, h, 1, zeros);
    }
  }
}

template <Tile T>
void unpack(cudaStream_t stream, const PanelArgs& a, int n_expert) {
  constexpr int kTiles = tile_cols(T) == 64 ? 4 : 1;
  const int strips = a.n_m * (a.paired ? kMoeStrip / 2 : kMoeStrip) / kTileRows;
  const int warps = strips * ((a.w.n_tile() + kTiles - 1) / kTiles);
  launch(panel_kernel<T>, dim3(unsigned((warps + kWarps - 1) / kWarps), unsigned(n_expert)), dim3(kWarps * 32), 0,
         stream, a);
}
void unpack(cudaStream_t stream, const PanelArgs& a, int n_expert) {
  switch (a.w.tile) {
    case Tile::kQ4_K:
      return unpack<Tile::kQ4_K>(stream, a, n_expert);
    case Tile::kQ5_K:
      return unpack<Tile::kQ5_K>(stream, a, n_expert);
    case Tile::kQ6_K:
      return unpack<Tile::kQ6_K>(stream, a, n_expert);
    case Tile::kQ4_0:
      return unpack<Tile::kQ4_0>(stream, a, n_expert);
    case Tile::kQ5_0:
      return unpack<Tile::kQ5_0>(stream, a, n_expert);
    case Tile::kQ8_0:
      return unpack<Tile::kQ8_0>(stream, a, n_expert);
    case Tile::kBF16:
      return unpack<Tile::kBF16>(stream, a, n_expert);
    case Tile::kF16:
      return unpack<Tile::kF16>(stream, a, n_expert);
  }
}

constexpr int kRowThreads = 128;

// Chunk c of a row in f16, whose every 16 columns have the even ones first, then the odd ones.
__device__ __forceinline__ uint4 f16_chunk(const __nv_bfloat16* row, int cols, int c) {
  uint4 v[2] = {};  // of 16 columns
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (int at = c / 2 * 16 + 8 * i; at < cols) v[i] = *reinterpret_cast<const uint4*>(row + at);
  const auto column = [&](uint32_t two) { return __uint_as_float(c % 2 ? two & 0xFFFF0000u : two << 16); };
  return {pack_f16(column(v[0].x), column(v[0].y)), pack_f16(column(v[0].z), column(v[0].w)),
          pack_f16(column(v[1].x), column(v[1].y)), pack_f16(column(v[1].z), column(v[1].w))};
}
template <bool kF16>
__global__ void __launch_bounds__(kRowThreads) gather_kernel(Mat e, MoeLargeBatch b, int n_used, int n_block) {
  __shared__ int4 tile[kMaxUsed];
  __shared__ int row[kMaxUsed];
  pdl_wait();
  pdl_trigger();
  const int t = int(blockIdx.x), k = int(threadIdx.x);
  if (k < n_used) {
    const int2 p = b.place[t * n_used + k];
    tile[k] = b.tile[p.x], row[k] = p.y;
  }
  __syncthreads();
  const __nv_bfloat16* const from = e.bf + t * e.bf_stride;
  for (int c = k; c < n_block * 8; c += kRowThreads) {
    uint4 v{};
    if (kF16)
      v = f16_chunk(from, e.cols, c);
    else if (c * 8 < e.cols)
      v = *reinterpret_cast<const uint4*>(from + c * 8);
    for (int i = 0; i < n_used; ++i) *reinterpret_cast<uint4*>(b.rows + chunk_at(tile[i], row[i], n_block, c)) = v;
  }
}

__global__ void __launch_bounds__(kRowThreads) combine_kernel(Mat y, MoePanelRows b) {
  __shared__ int4 tile[kMaxUsed];
  __shared__ int row[kMaxUsed];
  __shared__ float weight[kMaxUsed];
  pdl_wait();
  pdl_trigger();
  const int t = int(blockIdx.x), k = int(threadIdx.x);
  if (k < b.n_used) {
    const int2 p = b.place[t * b.n_used + k];
    tile[k] = b.tile[p.x], row[k] = p.y, weight[k] = b.weight[t * b.n_used + k];
  }
  __syncthreads();
  for (int c = k; c * 8 < y.cols; c += kRowThreads) {
    float s[8] = {};
#pragma unroll 8
    for (int i = 0; i < b.n_used; ++i) {
      const uint4 v = *reinterpret_cast<const uint4*>(b.rows + chunk_at(tile[i], row[i], b.n_block, c));
      const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 f = __bfloat1622float2(as_bf16x2(word[j]));
        s[2 * j] += weight[i] * f.x, s[2 * j + 1] += weight[i] * f.y;
      }
    }
    float4* const to = reinterpret_cast<float4*>(y.p + t * y.stride + c * 8);
    to[0] = make_float4(s[0], s[1], s[2], s[3]), to[1] = make_float4(s[4], s[5], s[6], s[7]);
  }
}

}  // namespace

void moe_unpack_up(cudaStream_t stream, const MoePass& p, int expert0, int n) {
  for (int second = 0; second < 2; ++second) {
    const TiledMatrix& w = second ? p.w.up : p.w.gate;
    unpack(stream,
           {.to = p.b.weights,
            .w = w,
            .strip0 = second ? p.w.up_strip : 0,
            .n_row = p.w.d_expert,
            .paired = true,
            .second = second == 1,
            .n_m = p.f_blocks(),
            .n_block = p.d_blocks(),
            .expert0 = expert0,
            .tile_first = p.b.tile_first},
           n);
  }
}
void moe_unpack_down(cudaStream_t stream, const MoePass& p, int expert0, int n) {
  unpack(stream,
         {.to = p.b.weights,
          .w = p.w.down,
          .strip0 = 0,
          .n_row = p.w.down.n_out,
          .paired = false,
          .second = false,
          .n_m = (p.d_blocks() + 1) / 2,
          .n_block = p.f_blocks(),
          .expert0 = expert0,
          .tile_first = p.b.tile_first},
         n);
}
void moe_gather(cudaStream_t stream, const MoePass& p, Mat e) {
  CHECK(e.cols % 8 == 0 && e.bf_stride % 8 == 0, "rows of {} columns, {} apart", e.cols, e.bf_stride);
  launch(moe_takes_codes(p.w) ? gather_kernel<true> : gather_kernel<false>, dim3(unsigned(p.n_tok)), dim3(kRowThreads),
         0, stream, e, p.b, p.w.n_used, p.d_blocks());
}
void moe_combine(cudaStream_t stream, const MoePanelRows& rows, Mat y) {
  CHECK(y.cols % 8 == 0 && y.stride % 4 == 0, "rows of {} columns, {} apart", y.cols, y.stride);
  launch(combine_kernel, dim3(unsigned(y.rows)), dim3(kRowThreads), 0, stream, y, rows);
}

}  // namespace facet::cuda
