#pragma once
#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"
#include "backend/cuda/kernels/matmul/prompt.h"
#include "backend/cuda/kernels/matmul/prompt_tiles.cuh"

// The kernel of prompt.cu; its instances are compiled apart from each other.
namespace facet::cuda {

// v = the group's scales times codes times codes b, of eight rows.
template <class Type>
__device__ __forceinline__ void prompt_scaled(const typename Type::Operand& w, uint4 b, float (&v)[4]) {
#pragma unroll
  for (int s = 0; s < Type::kSub; ++s) {
    uint32_t c[4];
    Type::mma(c, w.a[s], b, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float f = __uint_as_float(c[i]);
      v[i] = s == 0 ? __fmaf_rn(w.scale[0][i / 2], f, w.less[i / 2])
                    : __fmaf_rn(w.scale[s][i / 2], __fadd_rn(f, -kMagic), v[i]);
    }
  }
}
// sum += 64 columns of 16 rows of weights times eight rows of activations.
template <class Type, bool kTwo>
__device__ __forceinline__ void prompt_add(const typename Type::Operand& w, uint4 b, uint4 second, float2 scale,
                                           float (&sum)[4]) {
  float v[4];
  prompt_scaled<Type>(w, b, v);
  if constexpr (kTwo) {
    float u[4];
    prompt_scaled<Type>(w, second, u);
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = __fmaf_rn(u[i], 1.f / kSecond, v[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) sum[i] = __fmaf_rn(i % 2 ? scale.y : scale.x, v[i], sum[i]);
}

// Blocks that run side by side share weights and rows: kPromptBeside images of rows for one place in the weights, then
// for the next one.
constexpr int kPromptBeside = 16;
struct PromptPlace {
  int wide, high;
  __device__ explicit PromptPlace(const PromptArgs& a) {
    const int i = int(blockIdx.x), all = a.n_wide * kPromptBeside, set = i / all;
    const int n = min(kPromptBeside, a.n_high - set * kPromptBeside), rest = i - set * all;
    wide = rest / n, high = set * kPromptBeside + rest - wide * n;
  }
};

// Four rows of y at one token.
__device__ __forceinline__ void prompt_put(const PromptArgs& a, int tok, int r, float4 value) {
  const int n = min(4, a.n_out - r);
  const int64_t at = tok * a.y_stride + r, at_bf = tok * a.y_bf_stride + r;
  float v[4] = {value.x, value.y, value.z, value.w};
  if (a.times)
    for (int i = 0; i < n; ++i) v[i] *= activate(a.y[at + i], a.act);
  if (a.wide && n == 4) {
    value = {v[0], v[1], v[2], v[3]};
    if (a.y) *reinterpret_cast<float4*>(a.y + at) = value;
    if (a.y_also) *reinterpret_cast<float4*>(a.y_also + at) = value;
    if (a.y_bf) *reinterpret_cast<uint2*>(a.y_bf + at_bf) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= n) break;
    if (a.y) a.y[at + i] = v[i];
    if (a.y_also) a.y_also[at + i] = v[i];
    if (a.y_bf) a.y_bf[at_bf + i] = __float2bfloat16_rn(v[i]);
  }
}
// What a warp has of its pair of strips goes where it belongs, by way of its own part of shared memory: whole lines.
constexpr int kPromptLine = 36;                                    // floats of a token's 32 rows there: no conflicts
constexpr int kPromptOwn = 32 * kPromptLine * int(sizeof(float));  // bytes, for 32 tokens
template <int kTiles>
__device__ __forceinline__ void prompt_store(const PromptArgs& a, const float (&acc)[2][kTiles][4], int pair, int tok0,
                                             float* own, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < kTiles; h += 4) {
    __syncwarp();
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          own[(8 * n + 2 * t + i % 2) * kPromptLine + 16 * s + g + i / 2 * 8] = acc[s][h + n][i];
    __syncwarp();
    const int each = a.gated ? 4 : 8;  // lanes of a token
#pragma unroll 1
    for (int i = lane; i < 32 * each; i += 32) {
      const int n = i / each, r = i % each * 4, tok = tok0 + 8 * h + n;
      if (tok >= a.n_tok) break;
      float4 v = *reinterpret_cast<const float4*>(own + n * kPromptLine + r);
      if (a.gated) {
        const float4 u = *reinterpret_cast<const float4*>(own + n * kPromptLine + 16 + r);
        v = {activate(v.x, a.act) * u.x, activate(v.y, a.act) * u.y, activate(v.z, a.act) * u.z,
             activate(v.w, a.act) * u.w};
      }
      const int row = pair * each * 4 + r;
      if (row < a.n_out) prompt_put(a, tok, row, v);
    }
  }
}

template <class Shape, bool kTwo>
constexpr int kPromptStage = Shape::kRows* ActsInt<1, kTwo>::kStride;

// Long: the pipeline's state and the accumulators are registers of one loop.
template <Tile kTile, bool kTwo, class Shape, int kStages>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) prompt_kernel(const __grid_constant__ PromptArgs a) {
  using Type = PromptTile<kTile>;
  constexpr int kTiles = Shape::kTiles, kRows = Shape::kRows, kParts = kTwo ? 2 : 1,
                kCodes = kRows * kActBlock * kParts;
  constexpr int kStage = kPromptStage<Shape, kTwo>, kTileBytes = tile_bytes(kTile);
  constexpr bool kWhole = tile_cols(kTile) == kActBlock;  // a tile is a step
  extern __shared__ __align__(128) uint8_t shared[];
  const int lane = int(threadIdx.x) % 32, warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);
  const int g = lane / 4, t = lane % 4;
  const PromptPlace place(a);
  const int pair = place.wide * Shape::kPairs + warp / Shape::kCols, row0 = warp % Shape::kCols * 8 * kTiles;
  const bool there = pair < a.n_pair;

  // Weights: the group after the one that is multiplied is on its way.
  const uint8_t *strip[2], *ahead[2];
  typename Type::Raw raw[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const int i = there ? a.gated ? pair : min(2 * pair + s, a.n_strip - 1) : 0;
    strip[s] = ahead[s] = a.w[s] + int64_t(i) * a.strip_bytes;
    raw[s] = Type::load(ahead[s], 0, lane);
  }
  int next = 0;  // the group on its way
  auto load_next = [&] {
    if (++next >= a.n_group) return;
    const bool on = !kWhole || next % 4 == 0;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      if (on) ahead[s] += kTileBytes;
      raw[s] = Type::load(ahead[s], kWhole ? next % 4 : 0, lane);
    }
  };

  wait_for_previous();
  let_next_start();
  const uint8_t* const image = a.image + int64_t(place.high) * a.n_block * kStage;
  auto fetch = [&](int step) {
    if (step < a.n_block) {
      uint8_t* const to = shared + step % kStages * kStage;
      const uint8_t* const from = image + int64_t(step) * kStage;
      for (int i = int(threadIdx.x) * 16; i < kStage; i += Shape::kThreads * 16) copy16_async(to + i, from + i);
    }
    copies_commit();
  };
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) fetch(i);

  float acc[2][kTiles][4] = {};
#pragma unroll 1
  for (int step = 0; step < a.n_block; ++step) {
    copies_wait<kStages - 2>();
    __syncthreads();
    fetch(step + kStages - 1);
    if (!there) continue;
    const uint8_t* const x = shared + step % kStages * kStage;
    const int n_group = min(4, a.n_group - 4 * step);
#pragma unroll 1
    for (int j = 0; j < n_group; ++j) {
      const typename Type::Operand w[2] = {Type::operand(raw[0]), Type::operand(raw[1])};
      load_next();
      const uint8_t* const codes = x + (j * kParts * kRows + row0 + g) * 64 + t * 16;
      const uint8_t* const scales = x + kCodes + kRows * 32 + (j * kRows + row0 + 2 * t) * 4;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = shared16(codes + n * 512);
        uint4 second = {};
        if (kTwo) second = shared16(codes + kRows * 64 + n * 512);
        const float2 scale = *reinterpret_cast<const float2*>(scales + n * 32);
#pragma unroll
        for (int s = 0; s < 2; ++s) prompt_add<Type, kTwo>(w[s], b, second, scale, acc[s][n]);
      }
    }
    if constexpr (Type::kMinima) {
      uint32_t m[2][4];
      float least[2][2];
#pragma unroll
      for (int s = 0; s < 2; ++s)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 of = load_as<uint4>(strip[s] + step * kTileBytes + Type::kRows + (g + 8 * i) * 16);
          minima_k45(of, t, m[s], i);
          least[s][i] = -half_at(of.x, 1);
        }
      const uint8_t* const sums = x + kCodes + ((row0 + g) * 4 + t) * 8;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint2 b = *reinterpret_cast<const uint2*>(sums + n * 256);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          float c[4];
          mma_bf16(c, m[s], b.x, b.y, 0.f, 0.f, 0.f, 0.f);
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[s][n][i] = __fmaf_rn(least[s][i / 2], c[i], acc[s][n][i]);
        }
      }
    }
  }
  __syncthreads();  // all are done with the stages
  if (there)
    prompt_store<kTiles>(a, acc, pair, place.high * kRows + row0, reinterpret_cast<float*>(shared + warp * kPromptOwn),
                         lane);
}

template <Tile kTile, bool kTwo, class Shape, int kStages>
void launch_prompt_as(cudaStream_t stream, PromptArgs& a) {
  constexpr int kShared = std::max(kStages * kPromptStage<Shape, kTwo>, Shape::kWarps * kPromptOwn);
  auto* const kernel = prompt_kernel<kTile, kTwo, Shape, kStages>;
  allow_shared(kernel, size_t(kShared));
  a.n_wide = (a.n_pair + Shape::kPairs - 1) / Shape::kPairs, a.n_high = (a.n_tok + Shape::kRows - 1) / Shape::kRows;
  launch(kernel, dim3(unsigned(a.n_wide) * unsigned(a.n_high)), dim3(Shape::kThreads), size_t(kShared), stream, a);
}

template <bool kTwo>
void launch_prompt(cudaStream_t stream, Tile tile, PromptArgs& a) {
  using Shape = PromptShape<12, 8, 1, 1>;
  static_assert(Shape::kRows == kPromptRows);
  with_code_tile(tile,
                 [&](auto kind) { launch_prompt_as<decltype(kind)::value, kTwo, Shape, kTwo ? 2 : 4>(stream, a); });
}

}  // namespace facet::cuda
