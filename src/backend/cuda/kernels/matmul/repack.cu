// repack -- matrices from the order of files into tiles (layout.h), and back to rows of bf16
//
// Bytes      one read, one write
// Launch     a warp a tile
// Reference  dequantize_row    Test tests/kernels/cuda_matmul_test.cpp    Bench bench/verbs/cuda_ops_bench.cu
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/matmul.h"
#include "backend/cuda/kernels/matmul/tile_values.cuh"

namespace facet::cuda {
namespace {

__device__ int code_half(const uint8_t* qs, int i) { return (qs[i % 16] >> (i / 16 * 4)) & 15; }
__device__ uint16_t u16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// A tile whose 16 rows start at raw, row_bytes apart; n_row of them exist, and n_col of its columns.
__device__ void repack_tile(uint8_t* to, Tile tile, const uint8_t* raw, int64_t row_bytes, int n_row, int n_col,
                            int lane) {
  const int g = lane / 4, t = lane % 4;
  auto row = [&](int r) { return raw + r * row_bytes; };
  auto put = [&](int at, uint32_t v) { *reinterpret_cast<uint32_t*>(to + at) = v; };
  // Four columns of row g + 8 (e % 2), 16 (e / 2) + 4 t..: a byte each of code(row's bytes, column).
  auto bytes = [&](int e, auto&& code) {
    const int r = g + 8 * (e % 2);
    uint32_t v = 0;
    if (r < n_row)
      for (int i = 0; i < 4; ++i) v |= uint32_t(code(row(r), 16 * (e / 2) + 4 * t + i) & 255) << (8 * i);
    return v;
  };
  switch (tile) {
    case Tile::kQ4_K:
    case Tile::kQ5_K: {
      const bool five = tile == Tile::kQ5_K;
      const int qs = five ? 48 : 16;
      for (int j = 0; j < 4; ++j) {
        uint32_t f = 0;
        for (int e = 0; e < 4; ++e) {
          put(j * 512 + lane * 16 + e * 4, bytes(e, [&](const uint8_t* b, int c) { return b[qs + 32 * j + c]; }));
          if (five)
            f |= bytes(e, [&](const uint8_t* b,
                              int c) { return ((b[16 + c] >> (2 * j)) & 1) | ((b[16 + c] >> (2 * j + 1)) & 1) << 4; })
                 << e;
        }
        if (five) put(2048 + lane * 16 + j * 4, f);
      }
      if (lane >= 16) return;
      uint8_t* s = to + (five ? 2560 : 2048) + lane * 16;
      if (lane >= n_row) {
        for (int i = 0; i < 16; ++i) s[i] = 0;
        return;
      }
      const uint8_t* b = row(lane);
      for (int i = 0; i < 4; ++i) s[i] = b[i];
      uint8_t scale[8], min[8];
      for (int i = 0; i < 8; ++i) {
        const uint8_t* q = b + 4;
        scale[i] = i < 4 ? q[i] & 63 : uint8_t((q[i + 4] & 15) | (q[i - 4] >> 6) << 4);
        min[i] = i < 4 ? q[i + 4] & 63 : uint8_t((q[i + 4] >> 4) | (q[i] >> 6) << 4);
      }
      for (int i = 0; i < 4; ++i) s[4 + i] = uint8_t((min[i] & 15) | (min[i + 4] & 15) << 4);
      for (int i = 0; i < 8; ++i) s[8 + i] = uint8_t(scale[i] | (min[i] >> 4) << 6);
      return;
    }
    case Tile::kQ6_K: {
      auto code = [](const uint8_t* b, int i) {
        const int h = i / 128, l = i % 32, quarter = i % 128 / 32;
        return ((b[64 * h + quarter % 2 * 32 + l] >> (quarter / 2 * 4)) & 15) |
               ((b[128 + 32 * h + l] >> (2 * quarter)) & 3) << 4;
      };
      for (int j = 0; j < 4; ++j) {
        for (int e = 0; e < 4; ++e)
          put(j * 512 + lane * 16 + e * 4, bytes(e, [&](const uint8_t* b, int c) {
                return (code(b, 64 * j + c) & 15) | (code(b, 64 * j + 32 + c) & 15) << 4;
              }));
        for (int rr = 0; rr < 2; ++rr) {
          uint32_t top = 0;
          for (int s = 0; s < 4; ++s)
            top |= bytes(rr, [&](const uint8_t* b, int c) { return code(b, 64 * j + 16 * s + c) >> 4 ^ 2; }) << (2 * s);
          put(2048 + (j / 2) * 512 + lane * 16 + (j % 2) * 8 + rr * 4, top);
        }
      }
      if (lane >= 16) return;
      for (int i = 0; i < 16; ++i) to[3072 + lane * 16 + i] = lane < n_row ? row(lane)[192 + i] : 0;
      *reinterpret_cast<uint16_t*>(to + 3328 + lane * 2) = lane < n_row ? u16(row(lane) + 208) : 0;
      return;
    }
    case Tile::kQ4_0:
    case Tile::kQ5_0: {
      const bool five = tile == Tile::kQ5_0;
      const int block = five ? 22 : 18;
      uint32_t f = 0;
      // Beyond the matrix d is zero, whatever the codes stand for.
      for (int e = 0; e < 4; ++e) {
        put(lane * 16 + e * 4, bytes(e, [&](const uint8_t* b, int c) {
              int v = 0;
              for (int h = 0; h < 2; ++h)
                if (32 * h < n_col) v |= (code_half(b + h * block + (five ? 6 : 2), c) ^ (five ? 0 : 8)) << (4 * h);
              return v;
            }));
        if (five)
          f |= bytes(e,
                     [&](const uint8_t* b, int c) {
                       int v = 0;
                       for (int h = 0; h < 2; ++h)
                         if (32 * h < n_col) v |= (~b[h * block + 2 + c / 8] >> (c % 8) & 1) << (4 * h);
                       return v;
                     })
               << e;
      }
      if (five) put(512 + lane * 4, f);
      *reinterpret_cast<uint16_t*>(to + (five ? 640 : 512) + lane * 2) =
          lane / 2 < n_row && 32 * (lane % 2) < n_col ? u16(row(lane / 2) + lane % 2 * block) : 0;
      return;
    }
    case Tile::kQ8_0: {
      for (int h = 0; h < 2; ++h)
        for (int e = 0; e < 4; ++e)
          put(h * 512 + lane * 16 + e * 4,
              32 * h < n_col ? bytes(e, [&](const uint8_t* b, int c) { return b[h * 34 + 2 + c]; }) : 0);
      *reinterpret_cast<uint16_t*>(to + 1024 + lane * 2) =
          lane / 2 < n_row && 32 * (lane % 2) < n_col ? u16(row(lane / 2) + lane % 2 * 34) : 0;
      return;
    }
    case Tile::kBF16:
    case Tile::kF16: {
      for (int h = 0; h < 2; ++h)
        for (int rr = 0; rr < 2; ++rr)
          for (int i = 0; i < 8; ++i) {
            const int r = g + 8 * rr, c = 32 * h + 8 * t + i;
            *reinterpret_cast<uint16_t*>(to + h * 1024 + rr * 512 + lane * 16 + i * 2) =
                r < n_row && c < n_col ? u16(row(r) + 2 * c) : 0;
          }
      return;
    }
  }
}

constexpr int kWarps = 4;

__global__ void repack_kernel(TiledMatrix m, const uint8_t* raw, int64_t row_bytes, int tile_row_bytes) {
  wait_for_previous();
  const int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int n_tile = m.n_tile(), n_strip = m.n_strip();
  if (i >= int64_t(n_tile) * n_strip * m.n_stack) return;
  const int tile = int(i % n_tile), strip = int(i / n_tile % n_strip);
  const int64_t stack = i / n_tile / n_strip;
  uint8_t* to = const_cast<uint8_t*>(m.strip(stack, strip)) + int64_t(tile) * tile_bytes(m.tile);
  const uint8_t* from = raw + (stack * m.n_out + strip * kTileRows) * row_bytes + int64_t(tile) * tile_row_bytes;
  repack_tile(to, m.tile, from, row_bytes, m.n_out - strip * kTileRows, m.n_in - tile * tile_cols(m.tile),
              threadIdx.x % 32);
}

__global__ void __launch_bounds__(kWarps * 32)
    unpack_kernel(__nv_bfloat16* to, TiledMatrix m, int64_t stack, int first_strip, int n_strip) {
  wait_for_previous();
  let_next_start();
  const int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int n_tile = m.n_tile(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (i >= int64_t(n_tile) * n_strip) return;
  const int tile = int(i % n_tile), strip = int(i / n_tile), cols = tile_cols(m.tile);
  const uint8_t* w = m.strip(stack, first_strip + strip) + int64_t(tile) * tile_bytes(m.tile);
  for (int j = 0; j < cols / 64; ++j)
    for (int h = 0; h < 2; ++h)
      for (int rr = 0; rr < 2; ++rr) {
        const int r = g + 8 * rr;
        if ((first_strip + strip) * kTileRows + r >= m.n_out || tile * cols + 64 * j + 32 * h >= m.n_in) continue;
        float v[8];
        tile_values(v, m.tile, w, lane, rr, j, h);
        __nv_bfloat16* out = to + (int64_t(strip) * kTileRows + r) * m.n_in + tile * cols;
        const uint2 a = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])},
                    b = {pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7])};
        *reinterpret_cast<uint2*>(out + tile_column(m.tile, j, h, t, 0)) = a;
        *reinterpret_cast<uint2*>(out + tile_column(m.tile, j, h, t, 4)) = b;
      }
}

unsigned blocks_of(int64_t warps) { return unsigned((warps + kWarps - 1) / kWarps); }

}  // namespace

void repack(cudaStream_t stream, const TiledMatrix& to, const uint8_t* raw, DType type) {
  const int64_t tiles = int64_t(to.n_tile()) * to.n_strip() * to.n_stack;
  launch(repack_kernel, dim3(blocks_of(tiles)), dim3(kWarps * 32), 0, stream, to, raw,
         int64_t(row_bytes(type, to.n_in)), int(row_bytes(type, tile_cols(to.tile))));
}

void unpack_bf16(cudaStream_t stream, __nv_bfloat16* to, const TiledMatrix& w, int64_t stack, int first, int n) {
  CHECK(first % kTileRows == 0 && w.n_in % 4 == 0, "rows from {}, {} columns", first, w.n_in);
  const int strips = (n + kTileRows - 1) / kTileRows;
  launch(unpack_kernel, dim3(blocks_of(int64_t(w.n_tile()) * strips)), dim3(kWarps * 32), 0, stream, to, w, stack,
         first / kTileRows, strips);
}

}  // namespace facet::cuda
