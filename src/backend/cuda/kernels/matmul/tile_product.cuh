#pragma once
#include "backend/cuda/kernels/common/mma.cuh"
#include "backend/cuda/kernels/matmul/layout.h"

// One tile of weights (layout.h) in shared memory times up to 16 rows of activations: the inner loop of every matrix
// product with few rows. Codes go to tensor cores as small integers, exactly; scales multiply the f32 sums. An
// activation row's result does not depend on the other rows.
namespace facet::cuda {

// Activations of a range of columns in shared memory, N rows (1, 8 or 16).
//   b    bf16, chunks of 8 columns: 16 bytes at (chunk * N + place(n, chunk)) * 16
//   sum  -128 times the f32 sums of 32 columns: what a bias of 128 on every code comes to. [block][t], the four values
//        that lane t starts its products from: columns 2 t and 2 t + 1, twice; with N = 1 the same one four times
//   hl   the same as two bf16, high and low part, [block][N]
template <int N>
struct Acts {
  static constexpr int kTiles = N == 16 ? 2 : 1;  // of 8 rows
  const uint8_t* b;
  const float* sum;
  const uint32_t* hl;

  __device__ static int place(int n, int chunk) { return N == 1 ? 0 : (n & 8) | ((n + 2 * (chunk & 3)) & 7); }
  __device__ static constexpr int bytes(int cols) { return cols * N * 2; }
  // Columns 8 chunk..8 chunk + 7 of row n; with N = 1 every column of the product is row 0's.
  __device__ uint4 load16(int n, int chunk) const { return *reinterpret_cast<const uint4*>(b + (chunk * N + place(n, chunk)) * 16); }
  __device__ uint2 load8(int n, int chunk, int half) const {
    return *reinterpret_cast<const uint2*>(b + (chunk * N + place(n, chunk)) * 16 + half * 8);
  }
  __device__ float4 sums(int block, int t, int tile) const {
    return *reinterpret_cast<const float4*>(sum + (N == 1 ? block * 4 : (block * (N / 2) + tile * 4 + t) * 4));
  }
  __device__ uint32_t high_low(int block, int g, int tile) const { return hl[N == 1 ? block : block * N + tile * 8 + g]; }
};

__device__ __forceinline__ uint4 shared16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }

constexpr uint32_t kBias = 0x43004300;  // two bf16 of 128: OR a code of at most 7 bits and have 128 + code
// (v & mask) | or, in one instruction: with constants in the source the compiler would make two of it.
__device__ __forceinline__ uint32_t and_or(uint32_t v, uint32_t mask, uint32_t with) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(v), "r"(mask), "r"(with));
  return d;
}
__device__ __forceinline__ uint32_t codes4(uint32_t w, int pair) { return and_or(w >> (4 * pair), 0x000F000F, kBias); }
__device__ __forceinline__ uint32_t shifted(uint32_t w, int left) { return left >= 0 ? w << left : w >> -left; }

// Byte i of w (0..255) as a float, biased by 2^23.
constexpr float kByteBias = 8388608.f;
__device__ __forceinline__ float biased_byte(uint32_t w, int i) { return __uint_as_float(__byte_perm(w, 0x4B000000u, 0x7440u | uint32_t(i))); }

// c = 32 columns (two steps) of 16 rows times tile `tile` of rows, less 128 * bias times the columns' sum.
template <int N>
__device__ __forceinline__ void half_product(float (&c)[4], const uint32_t (&a0)[4], const uint32_t (&a1)[4], const Acts<N>& x, int chunk, int g,
                                             int t, int tile, float bias) {
  const uint4 b = x.load16(g + 8 * tile, chunk + t);
  if (bias != 0.f) {
    float4 s = x.sums(chunk / 4, t, tile);
    if (bias != 1.f) s.x *= bias, s.y *= bias, s.z *= bias, s.w *= bias;
    mma_bf16(c, a0, b.x, b.y, s.x, s.y, s.z, s.w);
  } else {
    mma_bf16(c, a0, b.x, b.y, 0.f, 0.f, 0.f, 0.f);
  }
  mma_bf16(c, a1, b.z, b.w);
}

// acc[tile] += weights times activations; chunk: the tile's first column / 8 in x.
template <bool kFifth, int N>
__device__ __forceinline__ void product_k45(const uint8_t* w, const Acts<N>& x, int chunk, int lane, float (&acc)[Acts<N>::kTiles][4]) {
  const int g = lane / 4, t = lane % 4;
  constexpr int kRows = kFifth ? 2560 : 2048;
  const uint4 s0 = shared16(w + kRows + g * 16), s1 = shared16(w + kRows + (g + 8) * 16);
  uint4 fifth = {};
  if (kFifth) fifth = shared16(w + 2048 + lane * 16);
  const uint32_t low0 = s0.z & 0x3F3F3F3F, high0 = s0.w & 0x3F3F3F3F, low1 = s1.z & 0x3F3F3F3F, high1 = s1.w & 0x3F3F3F3F;
  float part[Acts<N>::kTiles][4] = {};
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 q = shared16(w + j * 512 + lane * 16);
    const uint32_t f = j == 0 ? fifth.x : j == 1 ? fifth.y : j == 2 ? fifth.z : fifth.w;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t w0 = h ? q.z : q.x, w1 = h ? q.w : q.y;
      uint32_t a[2][4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        a[p / 2][p % 2 * 2] = codes4(w0, p);
        a[p / 2][p % 2 * 2 + 1] = codes4(w1, p);
        if (kFifth) {
          a[p / 2][p % 2 * 2] = and_or(shifted(f, 4 - (8 * h + p)), 0x00100010, a[p / 2][p % 2 * 2]);
          a[p / 2][p % 2 * 2 + 1] = and_or(shifted(f, 4 - (8 * h + 4 + p)), 0x00100010, a[p / 2][p % 2 * 2 + 1]);
        }
      }
      const int sub = 2 * j + h;
      const float f0 = biased_byte(sub < 4 ? low0 : high0, sub % 4) - kByteBias, f1 = biased_byte(sub < 4 ? low1 : high1, sub % 4) - kByteBias;
#pragma unroll
      for (int n = 0; n < Acts<N>::kTiles; ++n) {
        float c[4];
        half_product<N>(c, a[0], a[1], x, chunk + 8 * j + 4 * h, g, t, n, 1.f);
        part[n][0] += f0 * c[0], part[n][1] += f0 * c[1], part[n][2] += f1 * c[2], part[n][3] += f1 * c[3];
      }
    }
  }
  // Minima are integers as well: minimum times the block's sum, a step of tensor cores for the whole tile.
  auto twice = [](uint32_t m) { return as_word(__hsub2(as_bf16x2(m | m << 16 | kBias), as_bf16x2(kBias))); };
  const int s = 8 * t;
  const uint32_t m[4] = {twice(((s0.y >> s) & 15) | ((s0.z >> (s + 6)) & 3) << 4), twice(((s1.y >> s) & 15) | ((s1.z >> (s + 6)) & 3) << 4),
                         twice(((s0.y >> (s + 4)) & 15) | ((s0.w >> (s + 6)) & 3) << 4), twice(((s1.y >> (s + 4)) & 15) | ((s1.w >> (s + 6)) & 3) << 4)};
  const float d0 = half_at(s0.x, 0), m0 = half_at(s0.x, 1), d1 = half_at(s1.x, 0), m1 = half_at(s1.x, 1);
#pragma unroll
  for (int n = 0; n < Acts<N>::kTiles; ++n) {
    float c[4];
    mma_bf16(c, m, x.high_low(chunk / 4 + t, g, n), x.high_low(chunk / 4 + t + 4, g, n), 0.f, 0.f, 0.f, 0.f);
    acc[n][0] += d0 * part[n][0] - m0 * c[0], acc[n][1] += d0 * part[n][1] - m0 * c[1];
    acc[n][2] += d1 * part[n][2] - m1 * c[2], acc[n][3] += d1 * part[n][3] - m1 * c[3];
  }
}

template <int N>
__device__ __forceinline__ void product_k6(const uint8_t* w, const Acts<N>& x, int chunk, int lane, float (&acc)[Acts<N>::kTiles][4]) {
  const int g = lane / 4, t = lane % 4;
  const uint4 s0 = shared16(w + 3072 + g * 16), s1 = shared16(w + 3072 + (g + 8) * 16);
  float part[Acts<N>::kTiles][4] = {};
  const uint32_t offset = 0x43204320;  // two bf16 of 160
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint4 q = shared16(w + j * 512 + lane * 16);
    const uint2 top = *reinterpret_cast<const uint2*>(w + 2048 + (j / 2) * 512 + lane * 16 + (j % 2) * 8);
    const uint32_t sc0 = (j == 0 ? s0.x : j == 1 ? s0.y : j == 2 ? s0.z : s0.w) ^ 0x80808080u;
    const uint32_t sc1 = (j == 0 ? s1.x : j == 1 ? s1.y : j == 2 ? s1.z : s1.w) ^ 0x80808080u;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint32_t w0 = h ? q.z : q.x, w1 = h ? q.w : q.y;
#pragma unroll
      for (int k = 0; k < 2; ++k) {  // 16 columns with one scale
        uint32_t a[4];
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const int pair = 2 * k + p, left = 4 - (8 * h + 2 * pair);
          a[2 * p] = as_word(__hsub2(as_bf16x2(and_or(shifted(top.x, left), 0x00300030, codes4(w0, pair))), as_bf16x2(offset)));
          a[2 * p + 1] = as_word(__hsub2(as_bf16x2(and_or(shifted(top.y, left), 0x00300030, codes4(w1, pair))), as_bf16x2(offset)));
        }
        const float f0 = biased_byte(sc0, 2 * h + k) - (kByteBias + 128.f), f1 = biased_byte(sc1, 2 * h + k) - (kByteBias + 128.f);
#pragma unroll
        for (int n = 0; n < Acts<N>::kTiles; ++n) {
          const uint2 b = x.load8(g + 8 * n, chunk + 8 * j + 4 * h + 2 * k + t / 2, t & 1);
          float c[4];
          mma_bf16(c, a, b.x, b.y, 0.f, 0.f, 0.f, 0.f);
          part[n][0] += f0 * c[0], part[n][1] += f0 * c[1], part[n][2] += f1 * c[2], part[n][3] += f1 * c[3];
        }
      }
    }
  }
  const uint16_t* d = reinterpret_cast<const uint16_t*>(w + 3328);
  const float d0 = half_at(d[g], 0), d1 = half_at(d[g + 8], 0);
#pragma unroll
  for (int n = 0; n < Acts<N>::kTiles; ++n) {
    acc[n][0] += d0 * part[n][0], acc[n][1] += d0 * part[n][1];
    acc[n][2] += d1 * part[n][2], acc[n][3] += d1 * part[n][3];
  }
}

// Q4_0 and Q5_0: d (code - 8) and d (code - 16).
template <bool kFifth, int N>
__device__ __forceinline__ void product_45_0(const uint8_t* w, const Acts<N>& x, int chunk, int lane, float (&acc)[Acts<N>::kTiles][4]) {
  const int g = lane / 4, t = lane % 4;
  const uint4 q = shared16(w + lane * 16);
  uint32_t f = 0;
  if (kFifth) f = *reinterpret_cast<const uint32_t*>(w + 512 + lane * 4);
  const uint32_t* d = reinterpret_cast<const uint32_t*>(w + (kFifth ? 640 : 512));
  const uint32_t d0 = d[g], d1 = d[g + 8];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t w0 = h ? q.z : q.x, w1 = h ? q.w : q.y;
    uint32_t a[2][4];
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      a[p / 2][p % 2 * 2] = codes4(w0, p);
      a[p / 2][p % 2 * 2 + 1] = codes4(w1, p);
      if (kFifth) {
        a[p / 2][p % 2 * 2] = and_or(shifted(f, 4 - (8 * h + p)), 0x00100010, a[p / 2][p % 2 * 2]);
        a[p / 2][p % 2 * 2 + 1] = and_or(shifted(f, 4 - (8 * h + 4 + p)), 0x00100010, a[p / 2][p % 2 * 2 + 1]);
      }
    }
    const float f0 = half_at(d0, h), f1 = half_at(d1, h);
#pragma unroll
    for (int n = 0; n < Acts<N>::kTiles; ++n) {
      float c[4];
      half_product<N>(c, a[0], a[1], x, chunk + 4 * h, g, t, n, kFifth ? 1.125f : 1.0625f);
      acc[n][0] += f0 * c[0], acc[n][1] += f0 * c[1], acc[n][2] += f1 * c[2], acc[n][3] += f1 * c[3];
    }
  }
}

template <int N>
__device__ __forceinline__ void product_8_0(const uint8_t* w, const Acts<N>& x, int chunk, int lane, float (&acc)[Acts<N>::kTiles][4]) {
  const int g = lane / 4, t = lane % 4;
  const uint32_t* d = reinterpret_cast<const uint32_t*>(w + 1024);
  const uint32_t d0 = d[g], d1 = d[g + 8];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint4 q = shared16(w + h * 512 + lane * 16);
    q.x ^= 0x80808080u, q.y ^= 0x80808080u, q.z ^= 0x80808080u, q.w ^= 0x80808080u;
    auto two = [](uint32_t v, int i) { return pack_bf16(biased_byte(v, i) - (kByteBias + 128.f), biased_byte(v, i + 1) - (kByteBias + 128.f)); };
    const uint32_t a0[4] = {two(q.x, 0), two(q.z, 0), two(q.x, 2), two(q.z, 2)}, a1[4] = {two(q.y, 0), two(q.w, 0), two(q.y, 2), two(q.w, 2)};
    const float f0 = half_at(d0, h), f1 = half_at(d1, h);
#pragma unroll
    for (int n = 0; n < Acts<N>::kTiles; ++n) {
      float c[4];
      half_product<N>(c, a0, a1, x, chunk + 4 * h, g, t, n, 0.f);
      acc[n][0] += f0 * c[0], acc[n][1] += f0 * c[1], acc[n][2] += f1 * c[2], acc[n][3] += f1 * c[3];
    }
  }
}

template <int N>
__device__ __forceinline__ void product_bf16(const uint8_t* w, const Acts<N>& x, int chunk, int lane, float (&acc)[Acts<N>::kTiles][4]) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 r0 = shared16(w + h * 1024 + lane * 16), r1 = shared16(w + h * 1024 + 512 + lane * 16);
    const uint32_t a0[4] = {r0.x, r1.x, r0.y, r1.y}, a1[4] = {r0.z, r1.z, r0.w, r1.w};
#pragma unroll
    for (int n = 0; n < Acts<N>::kTiles; ++n) {
      const uint4 b = x.load16(g + 8 * n, chunk + 4 * h + t);
      mma_bf16(acc[n], a0, b.x, b.y);
      mma_bf16(acc[n], a1, b.z, b.w);
    }
  }
}

// f16 has three more bits than bf16: a weight is the sum of two bf16.
template <int N>
__device__ __forceinline__ void product_f16(const uint8_t* w, const Acts<N>& x, int chunk, int lane, float (&acc)[Acts<N>::kTiles][4]) {
  const int g = lane / 4, t = lane % 4;
  auto split = [](uint32_t v, uint32_t& hi, uint32_t& lo) {
    const float2 f = __half22float2(*reinterpret_cast<__half2*>(&v));
    hi = pack_bf16(f.x, f.y);
    const float2 r = __bfloat1622float2(as_bf16x2(hi));
    lo = pack_bf16(f.x - r.x, f.y - r.y);
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint4 r0 = shared16(w + h * 1024 + lane * 16), r1 = shared16(w + h * 1024 + 512 + lane * 16);
    uint32_t hi0[4], lo0[4], hi1[4], lo1[4];
    split(r0.x, hi0[0], lo0[0]), split(r1.x, hi0[1], lo0[1]), split(r0.y, hi0[2], lo0[2]), split(r1.y, hi0[3], lo0[3]);
    split(r0.z, hi1[0], lo1[0]), split(r1.z, hi1[1], lo1[1]), split(r0.w, hi1[2], lo1[2]), split(r1.w, hi1[3], lo1[3]);
#pragma unroll
    for (int n = 0; n < Acts<N>::kTiles; ++n) {
      const uint4 b = x.load16(g + 8 * n, chunk + 4 * h + t);
      mma_bf16(acc[n], hi0, b.x, b.y);
      mma_bf16(acc[n], lo0, b.x, b.y);
      mma_bf16(acc[n], hi1, b.z, b.w);
      mma_bf16(acc[n], lo1, b.z, b.w);
    }
  }
}

template <int N>
__device__ __forceinline__ void tile_product(Tile tile, const uint8_t* w, const Acts<N>& x, int chunk, int lane, float (&acc)[Acts<N>::kTiles][4]) {
  switch (tile) {
    case Tile::kQ4_K: return product_k45<false, N>(w, x, chunk, lane, acc);
    case Tile::kQ5_K: return product_k45<true, N>(w, x, chunk, lane, acc);
    case Tile::kQ6_K: return product_k6<N>(w, x, chunk, lane, acc);
    case Tile::kQ4_0: return product_45_0<false, N>(w, x, chunk, lane, acc);
    case Tile::kQ5_0: return product_45_0<true, N>(w, x, chunk, lane, acc);
    case Tile::kQ8_0: return product_8_0<N>(w, x, chunk, lane, acc);
    case Tile::kBF16: return product_bf16<N>(w, x, chunk, lane, acc);
    case Tile::kF16: return product_f16<N>(w, x, chunk, lane, acc);
  }
}

// Fills Acts<N> for columns [col0, col0 + cols) of n_rows rows of x [., n_in]; cols a multiple of 64. row(n) gives the
// n-th row's first element. All threads of the block take part; the caller synchronises.
template <int N, class RowOf>
__device__ __forceinline__ void stage_acts(uint8_t* b, float* sum, uint32_t* hl, RowOf&& row, int n_rows, int n_in, int col0, int cols, int thread,
                                           int n_thread) {
  const int n_chunk = cols / 8;
  for (int i = thread; i < n_chunk * N; i += n_thread) {
    const int n = i / n_chunk, chunk = i % n_chunk, col = col0 + chunk * 8;
    uint4 v = {};
    if (n < n_rows && col < n_in) v = *reinterpret_cast<const uint4*>(row(n) + col);
    *reinterpret_cast<uint4*>(b + (chunk * N + Acts<N>::place(n, chunk)) * 16) = v;
    const float2 p0 = __bfloat1622float2(as_bf16x2(v.x)), p1 = __bfloat1622float2(as_bf16x2(v.y)), p2 = __bfloat1622float2(as_bf16x2(v.z)),
                 p3 = __bfloat1622float2(as_bf16x2(v.w));
    float s = ((p0.x + p0.y) + (p1.x + p1.y)) + ((p2.x + p2.y) + (p3.x + p3.y));
    // The four chunks of a block are four lanes of one warp: chunk counts are multiples of 8.
    s += __shfl_xor_sync(0xFu << (threadIdx.x % 32 / 4 * 4), s, 1);
    s += __shfl_xor_sync(0xFu << (threadIdx.x % 32 / 4 * 4), s, 2);
    if (chunk % 4 == 0) {
      const float biased = -128.f * s;
      if (N == 1) {
        *reinterpret_cast<float4*>(sum + chunk) = {biased, biased, biased, biased};
      } else {
        float* to = sum + (chunk / 4 * (N / 2) + n / 2) * 4 + n % 2;
        to[0] = to[2] = biased;
      }
      const float hi = __bfloat162float(__float2bfloat16_rn(s));
      hl[chunk / 4 * N + n] = pack_bf16(hi, s - hi);
    }
  }
}
// Bytes of shared memory behind an Acts<N> of that many columns, all three parts.
FACET_HD constexpr int acts_sums(int n, int cols) { return cols / 32 * (n == 1 ? 4 : 2 * n); }
FACET_HD constexpr int acts_bytes(int n, int cols) { return n * (cols * 2 + cols / 32 * 4) + acts_sums(n, cols) * 4; }

}  // namespace facet::cuda
