#pragma once
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"
#include "backend/cuda/kernels/encoder/attention_tile.cuh"

// encoder_attend for Hopper: scores and values by warpgroup products
//
// Shapes     as encoder_attend's (attention.cu), heads of at most 80 columns
// Bytes      q once, k and v once for 128 queries (from L2), o once
// Launch     a block of two warpgroups per 128 queries, head and picture: each has 64 queries, both read a tile of 64
//            keys; two blocks an SM, so that one's products run beside the other's exponentials
// Order      as encoder_attend's
// Reference  CpuRef::encoder_attend
// Test       tests/kernels/cuda_encoder_test.cpp
namespace facet::cuda {

// Rows in shared memory: panels of 64 columns, 128 bytes a row, chunks of 16 bytes exchanged (common/wgmma.cuh).
template <int EP>
struct EncoderWgmma {
  static constexpr int kThreads = 256, kQueries = 128;
  static constexpr int kPanels = (EP + 63) / 64;
  static constexpr int kQueryPanel = kQueries * 128, kKeyPanel = kTile * 128;
  static constexpr int kKeys = kPanels * kKeyPanel;                  // a tile of keys, or of values
  static constexpr int kShared = kPanels * kQueryPanel + 4 * kKeys;  // two of each
};

#if defined(FACET_WGMMA)
// Rows [first, first + kRows) of a picture's n, of one head; zeros behind them.
template <int kRows>
__device__ void load_panels(uint8_t* to, const EncoderRows& x, int64_t begin, int first, int n, int at, int E) {
  const int per_row = E / 8;
  for (int i = int(threadIdx.x); i < kRows * per_row; i += int(blockDim.x)) {
    const int r = i / per_row, c = i % per_row;
    const bool is = first + r < n;
    copy16_async_or_zero(to + c / 8 * kRows * 128 + r * 128 + ((c % 8 ^ r % 8) << 4),
                         x.p + (begin + (is ? first + r : 0)) * x.stride + at + c * 8, is);
  }
}
// Columns [E, EP) of rows, which pad a head.
template <int EP, int kRows>
__device__ void clear_padding(uint8_t* to, int E) {
  for (int r = int(threadIdx.x); r < kRows; r += int(blockDim.x))
    for (int c = E / 8; c < EP / 8; ++c)
      *reinterpret_cast<uint4*>(to + c / 8 * kRows * 128 + r * 128 + ((c % 8 ^ r % 8) << 4)) = uint4{};
}
#endif

template <int EP>
__global__ void __launch_bounds__(256, 2)
    encoder_attend_wgmma_kernel(Mat o, EncoderRows q, EncoderRows k, EncoderRows v, Step s, int E, float scale) {
#if defined(FACET_WGMMA)
  using Shape = EncoderWgmma<EP>;
  extern __shared__ __align__(1024) uint8_t panels[];
  uint8_t* const tq = panels;
  uint8_t* const tk = tq + Shape::kPanels * Shape::kQueryPanel;
  uint8_t* const tv = tk + 2 * Shape::kKeys;
  const int begin = s.q_begin[blockIdx.z], n = s.q_begin[blockIdx.z + 1] - begin;
  const int first = int(blockIdx.x) * Shape::kQueries, at = int(blockIdx.y) * E;
  const int warp = int(threadIdx.x) / 32, t = int(threadIdx.x) % 4, n_tile = (n + kTile - 1) / kTile;
  if (first >= n) return pdl_wait();
  clear_padding<EP, Shape::kQueries>(tq, E);
  for (int i = 0; i < 4; ++i) clear_padding<EP, kTile>(tk + i * Shape::kKeys, E);
  pdl_wait();
  pdl_trigger();

  auto load_keys = [&](int tile) {
    load_panels<kTile>(tk + tile % 2 * Shape::kKeys, k, begin, tile * kTile, n, at, E);
    load_panels<kTile>(tv + tile % 2 * Shape::kKeys, v, begin, tile * kTile, n, at, E);
    copies_commit();
  };
  load_panels<Shape::kQueries>(tq, q, begin, first, n, at, E);
  load_keys(0);

  const float to_log2 = scale * 1.4426950408889634f;
  const uint64_t a = rows_operand(tq + warp / 4 * 64 * 128);
  float acc[EP / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
#pragma unroll 1
  for (int tile = 0; tile < n_tile; ++tile) {
    if (tile + 1 < n_tile) {
      load_keys(tile + 1);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    publish_to_products();
    __syncthreads();

    float p[kTile / 8][4] = {};
    const uint64_t b = rows_operand(tk + tile % 2 * Shape::kKeys);
    wgmma_begin(p);
#pragma unroll
    for (int e = 0; e < EP / 16; ++e)
      wgmma_bf16(p, a + (e / 4 * Shape::kQueryPanel + e % 4 * 32) / 16,
                 b + (e / 4 * Shape::kKeyPanel + e % 4 * 32) / 16, e > 0);
    wgmma_commit();
    wgmma_wait(p);
    mask_tile(p, n - tile * kTile, t);
    tile_softmax<EP>(p, top, sum, acc, to_log2);

    const uint64_t values = columns_operand(tv + tile % 2 * Shape::kKeys, Shape::kKeyPanel);
    uint32_t x[kTile / 16][4];
#pragma unroll
    for (int j = 0; j < kTile / 16; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j][i] = pack_bf16(p[2 * j + i / 2][i % 2 * 2], p[2 * j + i / 2][i % 2 * 2 + 1]);
    wgmma_begin(acc);
#pragma unroll
    for (int j = 0; j < kTile / 16; ++j) wgmma_bf16_columns(acc, x[j], values + j * 2048 / 16);
    wgmma_commit();
    wgmma_wait(acc);
#pragma unroll
    for (int j = 0; j < kTile / 16; ++j)  // read until now by products
      asm volatile("" ::"r"(x[j][0]), "r"(x[j][1]), "r"(x[j][2]), "r"(x[j][3]));
    __syncthreads();
  }
  write_rows<EP>(o, acc, sum, begin, first + warp * 16, n, at, E);
#endif
}

}  // namespace facet::cuda
