// encoder_attend -- attention of every patch of a picture to all of them, by tiles, with running maxima
//
// Shapes     q, k, v bf16 [T, H * E], E a multiple of 8 up to 128, rows 16-byte aligned; o [T, H * E] f32, and bf16 if
//            wanted; a step's sequences are the pictures
// Bytes      q once, k and v once for 64 queries (from L2), o once
// Launch     a block of four warps per 64 queries, head and picture; a warp has 16 queries
// Order      scores and sums by keys in order of 64; a row's bits depend on its picture alone
// Reference  CpuRef::encoder_attend
// Test       tests/kernels/cuda_encoder_test.cpp
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/encoder/encoder.h"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4, kTile = 64;

// Rows of a tile in shared memory are an odd number of 16 bytes apart.
template <int EP>
constexpr int kStride = EP + 8;
template <int EP>
constexpr size_t kShared = size_t(5) * kTile* kStride<EP> * sizeof(bf16);

// Rows [first, first + 64) of a picture's n, of one head; zeros behind them.
template <int EP>
__device__ void load_tile(bf16* to, const EncoderRows& x, int64_t begin, int first, int n, int at, int E) {
  const int per_row = E / 8;
  for (int i = int(threadIdx.x); i < kTile * per_row; i += kWarps * 32) {
    const int r = i / per_row, c = i % per_row * 8;
    const bool is = first + r < n;
    copy16_async_or_zero(to + r * kStride<EP> + c, x.p + (begin + (is ? first + r : 0)) * x.stride + at + c, is);
  }
}

// A warp's 16 queries against a tile of keys, of which `left` are there: p [16, 64], as mma leaves it.
template <int EP>
__device__ __forceinline__ void tile_scores(float (&p)[kTile / 8][4], const uint32_t (&fq)[EP / 16][4],
                                            const bf16* keys, int left) {
  const int lane = int(threadIdx.x) % 32, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTile / 16; ++j)
#pragma unroll
    for (int e = 0; e < EP / 16; ++e) {
      uint32_t b[4];
      ldmatrix4(b, keys + (j * 16 + lane / 16 * 8 + lane % 8) * kStride<EP> + e * 16 + lane / 8 % 2 * 8);
      mma_bf16(p[2 * j], fq[e], b[0], b[1]);
      mma_bf16(p[2 * j + 1], fq[e], b[2], b[3]);
    }
  if (left < kTile)
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (j * 8 + 2 * t + i % 2 >= left) p[j][i] = -INFINITY;
}

// p = exp(scale * (p - top)); what was summed before is scaled to the new maxima.
template <int EP>
__device__ __forceinline__ void tile_softmax(float (&p)[kTile / 8][4], float (&top)[2], float (&sum)[2],
                                             float (&acc)[EP / 8][4], float to_log2) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {  // rows g and g + 8
    float most = top[r];
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j) most = fmaxf(most, fmaxf(p[j][2 * r], p[j][2 * r + 1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float rescale = exp2f((top[r] - most) * to_log2), base = most * to_log2;
    top[r] = most;
    float own = 0;
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) own += p[j][i] = exp2f(p[j][i] * to_log2 - base);
    sum[r] = sum[r] * rescale + own;
#pragma unroll
    for (int e = 0; e < EP / 8; ++e) acc[e][2 * r] *= rescale, acc[e][2 * r + 1] *= rescale;
  }
}

// acc += p * values
template <int EP>
__device__ __forceinline__ void tile_values(float (&acc)[EP / 8][4], const float (&p)[kTile / 8][4],
                                            const bf16* values) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kTile / 16; ++j) {
    const uint32_t a[4] = {pack_bf16(p[2 * j][0], p[2 * j][1]), pack_bf16(p[2 * j][2], p[2 * j][3]),
                           pack_bf16(p[2 * j + 1][0], p[2 * j + 1][1]), pack_bf16(p[2 * j + 1][2], p[2 * j + 1][3])};
#pragma unroll
    for (int e = 0; e < EP / 16; ++e) {
      uint32_t b[4];
      ldmatrix4_transposed(
          b, shared_address(values + (j * 16 + lane / 8 % 2 * 8 + lane % 8) * kStride<EP> + e * 16 + lane / 16 * 8));
      mma_bf16(acc[2 * e], a, b[0], b[1]);
      mma_bf16(acc[2 * e + 1], a, b[2], b[3]);
    }
  }
}

template <int EP>
__global__ void __launch_bounds__(kWarps * 32)
    encoder_attend_kernel(Mat o, EncoderRows q, EncoderRows k, EncoderRows v, Step s, int E, float scale) {
  extern __shared__ __align__(16) uint8_t memory[];
  bf16* const tq = reinterpret_cast<bf16*>(memory);
  bf16* const tk = tq + kTile * kStride<EP>;      // two of them
  bf16* const tv = tk + 2 * kTile * kStride<EP>;  // two of them
  const int begin = s.q_begin[blockIdx.z], n = s.q_begin[blockIdx.z + 1] - begin, first = int(blockIdx.x) * kTile;
  const int at = int(blockIdx.y) * E, warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int g = lane / 4, t = lane % 4, n_tile = (n + kTile - 1) / kTile;
  if (first >= n) return pdl_wait();
  for (int i = int(threadIdx.x); i < 5 * kTile; i += kWarps * 32)  // columns that pad a head
    for (int c = E; c < EP; c += 8) *reinterpret_cast<uint4*>(tq + i * kStride<EP> + c) = uint4{};
  pdl_wait();
  pdl_trigger();

  auto load_keys = [&](int tile) {
    load_tile<EP>(tk + tile % 2 * kTile * kStride<EP>, k, begin, tile * kTile, n, at, E);
    load_tile<EP>(tv + tile % 2 * kTile * kStride<EP>, v, begin, tile * kTile, n, at, E);
    copies_commit();
  };
  load_tile<EP>(tq, q, begin, first, n, at, E);
  load_keys(0);

  const float to_log2 = scale * 1.4426950408889634f;
  uint32_t fq[EP / 16][4];
  float acc[EP / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int tile = 0; tile < n_tile; ++tile) {
    if (tile + 1 < n_tile) {
      load_keys(tile + 1);
      copies_wait<1>();
    } else {
      copies_wait<0>();
    }
    __syncthreads();
    if (tile == 0)
#pragma unroll
      for (int e = 0; e < EP / 16; ++e)
        ldmatrix4(fq[e], tq + (warp * 16 + lane % 16) * kStride<EP> + e * 16 + lane / 16 * 8);
    const bf16* const keys = tk + tile % 2 * kTile * kStride<EP>;
    const bf16* const values = tv + tile % 2 * kTile * kStride<EP>;

    float p[kTile / 8][4] = {};
    tile_scores<EP>(p, fq, keys, n - tile * kTile);
    tile_softmax<EP>(p, top, sum, acc, to_log2);
    tile_values<EP>(acc, p, values);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float all = sum[r];
    all += __shfl_xor_sync(~0u, all, 1);
    all += __shfl_xor_sync(~0u, all, 2);
    const float inverse = 1.f / all;
    const int row = first + warp * 16 + g + 8 * r;
    if (row >= n) continue;
#pragma unroll
    for (int e = 0; e < EP / 8; ++e) {
      const int c = e * 8 + 2 * t;
      if (c >= E) continue;
      const float2 y = {acc[e][2 * r] * inverse, acc[e][2 * r + 1] * inverse};
      *reinterpret_cast<float2*>(o.p + (begin + row) * o.stride + at + c) = y;
      if (o.bf) *reinterpret_cast<uint32_t*>(o.bf + (begin + row) * o.bf_stride + at + c) = pack_bf16(y.x, y.y);
    }
  }
}

template <int EP>
void launch_padded(cudaStream_t stream, Mat o, EncoderRows q, EncoderRows k, EncoderRows v, const Step& s, int E,
                   float scale) {
  allow_shared(encoder_attend_kernel<EP>, kShared<EP>);
  launch(encoder_attend_kernel<EP>,
         dim3(unsigned((s.shape.longest + kTile - 1) / kTile), unsigned(o.cols / E), unsigned(s.shape.n_seq)),
         dim3(kWarps * 32), kShared<EP>, stream, o, q, k, v, s, E, scale);
}

}  // namespace

void encoder_attend(cudaStream_t stream, Mat o, EncoderRows q, EncoderRows k, EncoderRows v, const Step& s,
                    int head_dim, float scale) {
  CHECK(head_dim % 8 == 0 && head_dim <= kMaxEncoderHead && o.cols % head_dim == 0, "heads of {} in {} columns",
        head_dim, o.cols);
  if (head_dim <= 32)
    launch_padded<32>(stream, o, q, k, v, s, head_dim, scale);
  else if (head_dim <= 64)
    launch_padded<64>(stream, o, q, k, v, s, head_dim, scale);
  else if (head_dim <= 80)
    launch_padded<80>(stream, o, q, k, v, s, head_dim, scale);
  else
    launch_padded<128>(stream, o, q, k, v, s, head_dim, scale);
}

}  // namespace facet::cuda
