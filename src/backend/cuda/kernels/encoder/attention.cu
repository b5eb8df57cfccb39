// encoder_attend -- attention of every patch of a picture to all of them, by tiles, with running maxima
//
// Shapes     q, k, v bf16 [T, H * E], E a multiple of 8 up to 128, rows 16-byte aligned; o [T, H * E] f32, and bf16 if
//            wanted; a step's sequences are the pictures
// Bytes      q once, k and v once for the queries of a block (from L2), o once; from shared memory a key once a warp
// Launch     a block of four warps per 128 queries (64 where a head is wider than 80), head and picture; a warp has two
//            (one) times 16 queries, so that what it reads of keys and values is used twice
// Order      scores and sums by keys in order of 64; a row's bits depend on its picture alone
// Reference  CpuRef::encoder_attend
// Test       tests/kernels/cuda_encoder_test.cpp
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/encoder/attention_tile.cuh"
#include "backend/cuda/kernels/encoder/attention_wgmma.cuh"

namespace facet::cuda {
namespace {

constexpr int kWarps = 4;

// Times 16 queries of a warp: as many as registers hold.
template <int EP>
constexpr int kM = EP <= 80 ? 2 : 1;
template <int EP>
constexpr int kQueries = kWarps * 16 * kM<EP>;
// Rows of a tile in shared memory are an odd number of 16 bytes apart.
template <int EP>
constexpr int kStride = EP + 8;
template <int EP>
constexpr int kSharedRows = kQueries<EP> + 4 * kTile;
template <int EP>
constexpr size_t kShared = size_t(kSharedRows<EP>) * kStride<EP> * sizeof(bf16);

// Rows [first, first + kRows) of a picture's n, of one head; zeros behind them.
template <int EP, int kRows>
__device__ void load_tile(bf16* to, const EncoderRows& x, int64_t begin, int first, int n, int at, int E) {
  const int per_row = E / 8;
  for (int i = int(threadIdx.x); i < kRows * per_row; i += kWarps * 32) {
    const int r = i / per_row, c = i % per_row * 8;
    const bool is = first + r < n;
    copy16_async_or_zero(to + r * kStride<EP> + c, x.p + (begin + (is ? first + r : 0)) * x.stride + at + c, is);
  }
}

// A warp's queries against a tile of keys, of which `left` are there: p [kM, 16, 64], as mma leaves it.
template <int EP>
__device__ __forceinline__ void tile_scores(float (&p)[kM<EP>][kTile / 8][4], const uint32_t (&fq)[kM<EP>][EP / 16][4],
                                            const bf16* keys, int left) {
  const int lane = int(threadIdx.x) % 32, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTile / 16; ++j)
#pragma unroll
    for (int e = 0; e < EP / 16; ++e) {
      uint32_t b[4];
      ldmatrix4(b, keys + (j * 16 + lane / 16 * 8 + lane % 8) * kStride<EP> + e * 16 + lane / 8 % 2 * 8);
#pragma unroll
      for (int m = 0; m < kM<EP>; ++m) {
        mma_bf16(p[m][2 * j], fq[m][e], b[0], b[1]);
        mma_bf16(p[m][2 * j + 1], fq[m][e], b[2], b[3]);
      }
    }
#pragma unroll
  for (int m = 0; m < kM<EP>; ++m) mask_tile(p[m], left, t);
}

// acc += p * values
template <int EP>
__device__ __forceinline__ void tile_values(float (&acc)[kM<EP>][EP / 8][4], const float (&p)[kM<EP>][kTile / 8][4],
                                            const bf16* values) {
  const int lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kTile / 16; ++j) {
    uint32_t a[kM<EP>][4];
#pragma unroll
    for (int m = 0; m < kM<EP>; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        a[m][i] = pack_bf16(p[m][2 * j + i / 2][i % 2 * 2], p[m][2 * j + i / 2][i % 2 * 2 + 1]);
#pragma unroll
    for (int e = 0; e < EP / 16; ++e) {
      uint32_t b[4];
      ldmatrix4_transposed(
          b, shared_address(values + (j * 16 + lane / 8 % 2 * 8 + lane % 8) * kStride<EP> + e * 16 + lane / 16 * 8));
#pragma unroll
      for (int m = 0; m < kM<EP>; ++m) {
        mma_bf16(acc[m][2 * e], a[m], b[0], b[1]);
        mma_bf16(acc[m][2 * e + 1], a[m], b[2], b[3]);
      }
    }
  }
}

template <int EP>
__global__ void __launch_bounds__(kWarps * 32, 2)
    encoder_attend_kernel(Mat o, EncoderRows q, EncoderRows k, EncoderRows v, Step s, int E, float scale) {
  extern __shared__ __align__(16) uint8_t memory[];
  bf16* const tq = reinterpret_cast<bf16*>(memory);
  bf16* const tk = tq + kQueries<EP> * kStride<EP>;  // two of them
  bf16* const tv = tk + 2 * kTile * kStride<EP>;     // two of them
  const int begin = s.q_begin[blockIdx.z], n = s.q_begin[blockIdx.z + 1] - begin;
  const int first = int(blockIdx.x) * kQueries<EP>;
  const int at = int(blockIdx.y) * E, warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int n_tile = (n + kTile - 1) / kTile;
  if (first >= n) return pdl_wait();
  for (int i = int(threadIdx.x); i < kSharedRows<EP>; i += kWarps * 32)  // columns that pad a head
    for (int c = E; c < EP; c += 8) *reinterpret_cast<uint4*>(tq + i * kStride<EP> + c) = uint4{};
  pdl_wait();
  pdl_trigger();

  auto load_keys = [&](int tile) {
    load_tile<EP, kTile>(tk + tile % 2 * kTile * kStride<EP>, k, begin, tile * kTile, n, at, E);
    load_tile<EP, kTile>(tv + tile % 2 * kTile * kStride<EP>, v, begin, tile * kTile, n, at, E);
    copies_commit();
  };
  load_tile<EP, kQueries<EP>>(tq, q, begin, first, n, at, E);
  load_keys(0);

  const float to_log2 = scale * 1.4426950408889634f;
  uint32_t fq[kM<EP>][EP / 16][4];
  float acc[kM<EP>][EP / 8][4] = {}, top[kM<EP>][2], sum[kM<EP>][2] = {};
#pragma unroll
  for (int m = 0; m < kM<EP>; ++m) top[m][0] = top[m][1] = -INFINITY;
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
      for (int m = 0; m < kM<EP>; ++m)
#pragma unroll
        for (int e = 0; e < EP / 16; ++e)
          ldmatrix4(fq[m][e], tq + ((warp * kM<EP> + m) * 16 + lane % 16) * kStride<EP> + e * 16 + lane / 16 * 8);
    const bf16* const keys = tk + tile % 2 * kTile * kStride<EP>;
    const bf16* const values = tv + tile % 2 * kTile * kStride<EP>;

    float p[kM<EP>][kTile / 8][4] = {};
    tile_scores<EP>(p, fq, keys, n - tile * kTile);
#pragma unroll
    for (int m = 0; m < kM<EP>; ++m) tile_softmax<EP>(p[m], top[m], sum[m], acc[m], to_log2);
    tile_values<EP>(acc, p, values);
    __syncthreads();
  }
#pragma unroll
  for (int m = 0; m < kM<EP>; ++m) write_rows<EP>(o, acc[m], sum[m], begin, first + (warp * kM<EP> + m) * 16, n, at, E);
}

template <int EP>
void launch_padded(cudaStream_t stream, Mat o, EncoderRows q, EncoderRows k, EncoderRows v, const Step& s, int E,
                   float scale) {
  if constexpr (EP == 64 || EP == 80) {
    if (has_warpgroups(encoder_attend_wgmma_kernel<EP>)) {
      using Shape = EncoderWgmma<EP>;
      allow_shared(encoder_attend_wgmma_kernel<EP>, Shape::kShared);
      return launch(encoder_attend_wgmma_kernel<EP>,
                    dim3(unsigned((s.shape.longest + Shape::kQueries - 1) / Shape::kQueries), unsigned(o.cols / E),
                         unsigned(s.shape.n_seq)),
                    dim3(Shape::kThreads), Shape::kShared, stream, o, q, k, v, s, E, scale);
    }
  }
  allow_shared(encoder_attend_kernel<EP>, kShared<EP>);
  launch(encoder_attend_kernel<EP>,
         dim3(unsigned((s.shape.longest + kQueries<EP> - 1) / kQueries<EP>), unsigned(o.cols / E),
              unsigned(s.shape.n_seq)),
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
