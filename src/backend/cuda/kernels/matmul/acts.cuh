#pragma once
#include <type_traits>

#include "backend/cuda/kernels/common/fast_div.cuh"
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/layout.h"

// Activations as the tile products (tile_product.cuh) read them: an image of N rows (1, 8 or 16, and in
// wide.cuh more), in shared memory.
namespace facet::cuda {

constexpr int kActBlock = 256;  // columns that lie together

// Rows in 8 bits: code = rint(x / scale), scale = largest |x| of 64 columns / 127; in two bytes there is a second code,
// rint(128 (x / scale - code)). A block of 256 columns after another:
//   codes   [4 groups of 64][first, second][N][t][16 bytes]: columns 16 k + 4 t.. of the group for k = 0..3
//   sums    [N][t][2] words: scale times the sum of the codes of columns 32 (t + 4 i).., i = 0, 1, as two bf16 that add
//           up to it; of second codes a 128th
//   scales  [4 groups][N] f32
template <int N, bool kTwo = false>
struct ActsInt {
  static constexpr bool kFloat = false, kTwoBytes = kTwo;
  static constexpr int kN = N;
  static constexpr int kTiles = N == 16 ? 2 : 1;                                // of 8 rows
  static constexpr int kParts = kTwo ? 2 : 1, kCodes = N * kActBlock * kParts;  // bytes of a block
  static constexpr int kStride = kCodes + N * (32 + 16);
  const uint8_t* p;

  __device__ __forceinline__ static int row(int g, int tile) { return N == 1 ? 0 : g + 8 * tile; }
  __device__ __forceinline__ uint4 codes(unsigned group, int g, int t, int tile, int part = 0) const {
    return *reinterpret_cast<const uint4*>(p + group / 4 * kStride +
                                           (((group % 4 * kParts + part) * N + row(g, tile)) * 4 + t) * 16);
  }
  __device__ __forceinline__ uint2 sums(int block, int g, int t, int tile) const {
    return *reinterpret_cast<const uint2*>(p + block * kStride + kCodes + (row(g, tile) * 4 + t) * 8);
  }
  // Of rows 2 t and 2 t + 1; with N = 1 both are row 0's.
  __device__ __forceinline__ float2 scales(unsigned group, int t, int tile) const {
    const float* s = reinterpret_cast<const float*>(p + group / 4 * kStride + kCodes + N * 32) + group % 4 * N;
    if (N == 1) return {s[0], s[0]};
    return *reinterpret_cast<const float2*>(s + 8 * tile + 2 * t);
  }
  __host__ __device__ static constexpr int bytes(int cols) { return (cols + kActBlock - 1) / kActBlock * kStride; }
};

constexpr int kSecond = 128;  // second codes count parts of the first

// The larger magnitudes of two pairs in bf16, which compare as integers without their signs; a NaN is above all.
__device__ __forceinline__ uint32_t most_of(uint32_t a, uint32_t b) { return __vmaxu2(a & 0x7FFF7FFF, b & 0x7FFF7FFF); }
__device__ __forceinline__ uint32_t most_of(uint4 v) { return __vmaxu2(most_of(v.x, v.y), most_of(v.z, v.w)); }
// How columns are rounded whose largest magnitude is `most`, as bits of a float: as zeros below 2^-100. The inverse is
// 127 over it, the nearest float as a division's, without its branch; a quarter of it has a normal reciprocal.
struct Rounding {
  float scale, inverse = 0;
  __device__ explicit Rounding(uint32_t most) {
    constexpr uint32_t kLeast = uint32_t(127 - 100) << 23;
    const float amax = __uint_as_float(most);
    scale = amax * (1.f / 127.f);
    if (most < kLeast) return;
    const float quarter = amax * .25f;
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(quarter));
    r = __fmaf_rn(r, __fmaf_rn(-quarter, r, 1.f), r);
    const float q = __fmul_rn(127.f / 4, r);
    inverse = __fmaf_rn(r, __fmaf_rn(-quarter, q, 127.f / 4), q);
  }
};
// Four columns in bf16 as codes; second: with kTwo their second codes.
template <bool kTwo>
__device__ __forceinline__ uint32_t codes_of(uint32_t v0, uint32_t v1, float inverse, uint32_t& second) {
  constexpr float kMagic = 12582912.f;  // 1.5 * 2^23: the sum's low bits are the integer
  const float2 f0 = __bfloat1622float2(as_bf16x2(v0)), f1 = __bfloat1622float2(as_bf16x2(v1));
  const float x[4] = {f0.x, f0.y, f1.x, f1.y};
  uint32_t a[4], b[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float code = fmaf(x[k], inverse, kMagic);
    a[k] = __float_as_uint(code);
    if (kTwo) b[k] = __float_as_uint(fmaf(fmaf(x[k], inverse, kMagic - code), float(kSecond), kMagic));
  }
  auto pack = [](const uint32_t(&w)[4]) {
    return __byte_perm(__byte_perm(w[0], w[1], 0x0040), __byte_perm(w[2], w[3], 0x0040), 0x5410);
  };
  if (kTwo) second = pack(b);
  return pack(a);
}
__device__ __forceinline__ int sum_of(uint32_t codes, int sum) { return __dp4a(int(codes), 0x01010101, sum); }
// A word of an image's sums.
template <bool kTwo>
__device__ __forceinline__ uint32_t scaled_sum(float scale, int sum) {
  const float s = scale * float(sum) * (kTwo ? 1.f / kSecond : 1.f), high = __bfloat162float(__float2bfloat16_rn(s));
  return pack_bf16(high, s - high);
}

// A warp writes row n of a block of an image of N rows; v: eight columns in bf16, those of lane `lane`. Lanes that do
// not write may have any.
template <bool kTwo>
__device__ __forceinline__ void quantize_block_of(int N, uint8_t* block, uint4 v, int n, int lane, bool write) {
  uint32_t most = most_of(v);
  most = max(most << 16, most & 0xFFFF0000);
#pragma unroll
  for (int m = 1; m < 8; m *= 2) most = max(most, __shfl_xor_sync(~0u, most, m));
  const Rounding by(most);
  constexpr int kParts = ActsInt<1, kTwo>::kParts;
  const int n_code = N * kActBlock * kParts;
  uint32_t second[2] = {};
  const uint32_t q[2] = {codes_of<kTwo>(v.x, v.y, by.inverse, second[0]),
                         codes_of<kTwo>(v.z, v.w, by.inverse, second[1])};
  int sum = sum_of(q[0], sum_of(q[1], 0));
  if (kTwo) sum = sum * kSecond + sum_of(second[0], sum_of(second[1], 0));
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  if (!write) return;
  const int j = lane / 8, k = lane % 8 / 2;
  uint8_t* codes = block + ((j * kParts * N + n) * 4 + 2 * (lane % 2)) * 16 + k * 4;
  *reinterpret_cast<uint32_t*>(codes) = q[0];
  *reinterpret_cast<uint32_t*>(codes + 16) = q[1];
  if (kTwo) {
    *reinterpret_cast<uint32_t*>(codes + N * 64) = second[0];
    *reinterpret_cast<uint32_t*>(codes + N * 64 + 16) = second[1];
  }
  if (lane % 4 == 0)
    *reinterpret_cast<uint32_t*>(block + n_code + (n * 4 + lane / 4 % 4) * 8 + lane / 16 * 4) =
        scaled_sum<kTwo>(by.scale, sum);
  if (lane % 8 == 0) *reinterpret_cast<float*>(block + n_code + N * 32 + (j * N + n) * 4) = by.scale;
}
template <int N, bool kTwo = false>
__device__ __forceinline__ void quantize_block(uint8_t* block, uint4 v, int n, int lane) {
  quantize_block_of<kTwo>(N, block, v, n, lane, true);
}
// Rows of the image of so many: eight, sixteen or a multiple of 32.
__device__ __forceinline__ int image_rows(int n_row) {
  return n_row <= 8 ? 8 : n_row <= 16 ? 16 : (n_row + 31) / 32 * 32;
}
// Block i of the image of n_row rows in a byte a value.
__device__ __forceinline__ void quantize_block_among(int n_row, uint8_t* image, int i, uint4 v, int n, int lane,
                                                     bool write = true) {
  const int N = image_rows(n_row);
  quantize_block_of<false>(N, image + int64_t(i) * N * ActsInt<1>::kStride, v, n, lane, write);
}

// Rows in bf16, for weights that are: chunks of 8 columns, 16 bytes at (chunk * N + place(n, chunk)) * 16.
template <int N>
struct ActsBf16 {
  static constexpr bool kFloat = true;
  static constexpr int kN = N;
  static constexpr int kTiles = N == 16 ? 2 : 1;
  const uint8_t* p;
  __host__ __device__ static constexpr int place(int n, int chunk) {
    return N == 1 ? 0 : (n & 8) | ((n + 2 * (chunk & 3)) & 7);
  }
  __device__ __forceinline__ uint4 chunk(int i, int g, int tile) const {
    return *reinterpret_cast<const uint4*>(p + (i * N + place(g + 8 * tile, i)) * 16);
  }
  __host__ __device__ static constexpr int bytes(int cols) {
    return (cols + kActBlock - 1) / kActBlock * kActBlock * N * 2;
  }
};

template <int N, Input in>
using ActsOf = std::conditional_t<in == Input::kBf16, ActsBf16<N>, ActsInt<N, in == Input::kTwoBytes>>;

// Rows first.. of an image of at most eight as rows 0..; those beyond its end have any values.
template <int N, bool kTwo>
struct ActsIntFrom : ActsInt<N, kTwo> {
  using All = ActsInt<N, kTwo>;
  int first;
  __device__ __forceinline__ uint4 codes(unsigned group, int g, int t, int tile, int part = 0) const {
    return All::codes(group, g + first, t, tile, part);
  }
  __device__ __forceinline__ uint2 sums(int block, int g, int t, int tile) const {
    return All::sums(block, g + first, t, tile);
  }
  __device__ __forceinline__ float2 scales(unsigned group, int t, int tile) const {
    if constexpr (N == 1) return All::scales(group, t, tile);
    const float* s = reinterpret_cast<const float*>(this->p + group / 4 * All::kStride + All::kCodes + N * 32) +
                     group % 4 * N + 2 * t + first;
    return {s[0], s[1]};
  }
};
template <int N>
struct ActsBf16From : ActsBf16<N> {
  int first;
  __device__ __forceinline__ uint4 chunk(int i, int g, int tile) const {
    return ActsBf16<N>::chunk(i, (g + first) % N, tile);
  }
};
template <int N, Input in>
using ActsFrom = std::conditional_t<in == Input::kBf16, ActsBf16From<N>, ActsIntFrom<N, in == Input::kTwoBytes>>;

// Fills an image of N rows for columns [col0, col0 + cols) (both multiples of 256) of n_rows rows of n_in
// columns; row(n) gives the n-th row's first element. All warps of the block take part; the caller
// synchronises.
template <int N, bool kTwo, class RowOf>
__device__ __forceinline__ void stage(ActsInt<N, kTwo> to, RowOf&& row, int n_rows, int n_in, int col0, int cols,
                                      int warp, int n_warp, int lane) {
  static_assert(N > 1, "an only row: RowStage");
  constexpr int kAhead = 8;  // loads on their way: their latency is what this costs
  const int n_block = (cols + kActBlock - 1) / kActBlock;
  const int n_item = n_block * n_rows;
  auto row_of = [&](int item) { return fast_div(item, n_block); };
#pragma unroll 1
  for (int first = warp; first < n_item; first += kAhead * n_warp) {
    uint4 v[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int item = first + i * n_warp, n = row_of(item), col = col0 + (item - n * n_block) * kActBlock + lane * 8;
      if (item < n_item) {
        const __nv_bfloat16* from = row(n);  // by all lanes
        v[i] = col < n_in ? *reinterpret_cast<const uint4*>(from + col) : uint4{};
      }
    }
    auto round = [&](int i, uint4 u) {
      const int item = first + i * n_warp, n = row_of(item);
      if (item < n_item)
        quantize_block<N, kTwo>(const_cast<uint8_t*>(to.p) + (item - n * n_block) * to.kStride, u, n, lane);
    };
    if constexpr (N <= 8) {  // one copy of the code: fewer instruction-cache misses
#pragma unroll 1
      for (int i = 0; i < kAhead; ++i) {
        if (first + i * n_warp >= n_item) break;
        uint4 u = v[0];
#pragma unroll
        for (int k = 1; k < kAhead; ++k)
          if (k == i) u = v[k];
        round(i, u);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) round(i, v[i]);
    }
  }
}
// The same for an only row, two blocks a warp at a time, 16 columns a lane: what can be known before the row is there
// is found when this is made, load() asks for the first columns, and write() writes the image.
template <bool kTwo>
class RowStage {
 public:
  __device__ RowStage(const __nv_bfloat16* row, int n_in, int col0, int cols, int warp, int n_warp, int lane)
      : lane_(lane), n_block_((cols + kActBlock - 1) / kActBlock), block_(2 * warp + lane / 16), step_(2 * n_warp) {
    const int col = col0 + block_ * kActBlock + lane % 16 * 16;
    from_ = row + col, left_ = n_in - col;
    j_ = lane / 4 % 4 * kParts * 64 + lane % 4 * 4;
  }
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int i = 0; i < 2; ++i) v_[i] = left_ > 8 * i ? reinterpret_cast<const uint4*>(from_)[i] : uint4{};
  }
  __device__ __forceinline__ void write(uint8_t* image) {
#pragma unroll 1
    for (; block_ - lane_ / 16 < n_block_; block_ += step_) {
      uint4 v[2] = {v_[0], v_[1]};
      from_ += step_ * kActBlock, left_ -= step_ * kActBlock;
      load();
      uint32_t most = __vmaxu2(most_of(v[0]), most_of(v[1]));
      most = max(most << 16, most & 0xFFFF0000);
      most = max(most, __shfl_xor_sync(~0u, most, 1));
      most = max(most, __shfl_xor_sync(~0u, most, 2));
      const Rounding by(most);
      uint32_t q[4], second[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        q[i] = codes_of<kTwo>(i % 2 ? v[i / 2].z : v[i / 2].x, i % 2 ? v[i / 2].w : v[i / 2].y, by.inverse, second[i]);
      int sum = sum_of(q[0], sum_of(q[1], sum_of(q[2], sum_of(q[3], 0))));
      if (kTwo) sum = sum * kSecond + sum_of(second[0], sum_of(second[1], sum_of(second[2], sum_of(second[3], 0))));
      sum += __shfl_xor_sync(~0u, sum, 1);
      if (block_ >= n_block_) continue;
      uint8_t* const block = image + block_ * ActsInt<1, kTwo>::kStride;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<uint32_t*>(block + j_ + 16 * i) = q[i];
        if (kTwo) *reinterpret_cast<uint32_t*>(block + j_ + 64 + 16 * i) = second[i];
      }
      uint8_t* const after = block + ActsInt<1, kTwo>::kCodes;
      if (lane_ % 2 == 0)
        *reinterpret_cast<uint32_t*>(after + lane_ / 2 % 4 * 8 + lane_ / 8 % 2 * 4) = scaled_sum<kTwo>(by.scale, sum);
      if (lane_ % 4 == 0) *reinterpret_cast<float*>(after + 32 + lane_ / 4 % 4 * 4) = by.scale;
    }
  }

 private:
  static constexpr int kParts = ActsInt<1, kTwo>::kParts;
  int lane_, n_block_, block_, step_, left_, j_;
  const __nv_bfloat16* from_;
  uint4 v_[2];
};

// Where a row is not rounded.
struct NoStage {
  __device__ NoStage(const __nv_bfloat16*, int, int, int, int, int, int) {}
};

template <int N, class RowOf>
__device__ __forceinline__ void stage(ActsBf16<N> to, RowOf&& row, int n_rows, int n_in, int col0, int cols, int warp,
                                      int n_warp, int lane) {
  const int n_chunk = cols / 8;
  for (int i = warp * 32 + lane; i < n_chunk * N; i += n_warp * 32) {
    const int n = i / n_chunk, chunk = i % n_chunk, col = col0 + chunk * 8;
    uint4 v = {};
    if (n < n_rows && col < n_in) v = *reinterpret_cast<const uint4*>(row(n) + col);
    *reinterpret_cast<uint4*>(const_cast<uint8_t*>(to.p) + (chunk * N + ActsBf16<N>::place(n, chunk)) * 16) = v;
  }
}

}  // namespace facet::cuda
