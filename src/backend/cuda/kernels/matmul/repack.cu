// repack -- matrices from the order of files into tiles (layout.h), and back to rows of bf16
//
// Shapes     a matrix [n_out, n_in] or a stack of them, of any tensor type; back: rows of bf16
// Bytes      one read, one write
// Launch     a warp per tile
// Order      bytes are moved; values are converted one by one
// Reference  dequantize_row
// Test       tests/kernels/cuda_matmul_test.cpp
// Bench      bench/verbs/cuda_ops_bench.cu
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/gemm.h"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/matmul/tile_values.cuh"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4;

__global__ void repack_kernel(TiledMatrix m, const uint8_t* raw, int64_t row_bytes, int tile_row_bytes) {
  pdl_wait();
  const int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int n_tile = m.n_tile(), n_strip = m.n_strip();
  if (i >= int64_t(n_tile) * n_strip * m.n_stack) return;
  const int tile = int(i % n_tile), strip = int(i / n_tile % n_strip);
  const int64_t stack = i / n_tile / n_strip;
  uint8_t* to = const_cast<uint8_t*>(m.strip(stack, strip)) + int64_t(tile) * tile_bytes(m.tile);
  const uint8_t* from = raw + (stack * m.n_out + strip * kTileRows) * row_bytes + int64_t(tile) * tile_row_bytes;
  const TileRepack job{.p = to,
                       .raw = from,
                       .row_bytes = row_bytes,
                       .n_row = m.n_out - strip * kTileRows,
                       .n_col = m.n_in - tile * tile_cols(m.tile),
                       .lane = int(threadIdx.x % 32)};
  with_tile(m.tile, [&](auto kind) { TileTraits<decltype(kind)::value>::repack(job); });
}

template <Tile kTile>
__global__ void __launch_bounds__(kWarps * 32)
    unpack_kernel(__nv_bfloat16* to, TiledMatrix m, int64_t stack, int first_strip, int n_strip, int which) {
  pdl_wait();
  pdl_trigger();
  const int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int n_tile = m.n_tile(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (i >= int64_t(n_tile) * n_strip) return;
  const int tile = int(i % n_tile), strip = int(i / n_tile), col0 = tile * tile_cols(kTile);
  const uint8_t* w = m.strip(stack, first_strip + strip) + int64_t(tile) * tile_bytes(kTile);
  __nv_bfloat16* out[2];  // null: a row that is not there
#pragma unroll
  for (int rr = 0; rr < 2; ++rr) {
    const int r = g + 8 * rr;
    const int64_t row = int64_t(strip) * kTileRows + r;
    const bool there = (first_strip + strip) * kTileRows + r < m.n_out;
    out[rr] = there ? to + (which < 0 ? row : interleaved_row(row, which)) * m.n_in + col0 : nullptr;
  }
  const bool whole = col0 + tile_cols(kTile) <= m.n_in && m.n_in % 8 == 0;
  each_value<kTile, true>(w, lane, [&](int j, int h, int rr, const float(&v)[8]) {
    const int ca = tile_column(kTile, j, h, t, 0), cb = tile_column(kTile, j, h, t, 4);
    const uint2 a = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])}, b = {pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
    if (whole) {
      // Two lanes have eight adjacent columns twice: each stores them once, so that four lanes fill 64 bytes of a row.
      const bool odd = t % 2;
      const uint2 give = odd ? a : b, own = odd ? b : a;
      const uint2 got = {__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1)};
      const bool apart = cb != ca + 4;
      const uint4 all = !apart ? make_uint4(a.x, a.y, b.x, b.y)
                        : odd  ? make_uint4(got.x, got.y, own.x, own.y)
                               : make_uint4(own.x, own.y, got.x, got.y);
      if (out[rr]) *reinterpret_cast<uint4*>(out[rr] + (apart && odd ? cb - 4 : ca)) = all;
      return;
    }
    if (!out[rr]) return;
    // A matrix may end within a tile; behind it is the next row.
    if (col0 + ca < m.n_in) *reinterpret_cast<uint2*>(out[rr] + ca) = a;
    if (col0 + cb < m.n_in) *reinterpret_cast<uint2*>(out[rr] + cb) = b;
  });
}

unsigned blocks_of(int64_t warps) { return unsigned((warps + kWarps - 1) / kWarps); }

}  // namespace

void repack(cudaStream_t stream, const TiledMatrix& to, const uint8_t* raw, DType type) {
  const int64_t tiles = int64_t(to.n_tile()) * to.n_strip() * to.n_stack;
  launch(repack_kernel, dim3(blocks_of(tiles)), dim3(kWarps * 32), 0, stream, to, raw,
         int64_t(row_bytes(type, to.n_in)), int(row_bytes(type, tile_cols(to.tile))));
}

void unpack_bf16(cudaStream_t stream, __nv_bfloat16* to, const TiledMatrix& w, int64_t stack, int first, int n,
                 int which) {
  CHECK(first % kTileRows == 0 && w.n_in % 4 == 0, "rows from {}, {} columns", first, w.n_in);
  const int strips = (n + kTileRows - 1) / kTileRows;
  with_tile(w.tile, [&](auto kind) {
    launch(unpack_kernel<decltype(kind)::value>, dim3(blocks_of(int64_t(w.n_tile()) * strips)), dim3(kWarps * 32), 0,
           stream, to, w, stack, first / kTileRows, strips, which);
  });
}

}  // namespace facet::cuda
