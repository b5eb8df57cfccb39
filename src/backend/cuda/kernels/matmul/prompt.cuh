#pragma once
#include "backend/cuda/kernels/common/activate.cuh"
#include "backend/cuda/kernels/common/launch.cuh"
#include "backend/cuda/kernels/common/register_hold.cuh"
#include "backend/cuda/kernels/matmul/acts.cuh"
#include "backend/cuda/kernels/matmul/prompt.h"
#include "backend/cuda/kernels/matmul/prompt_tiles.cuh"
#include "backend/cuda/kernels/matmul/put_results.cuh"

// The kernel of prompt.cu; its instances are compiled apart from each other.
namespace facet::cuda {

// Two strips' operands of 64 columns, and what takes kMagic from their products: of the first part, or of all at once.
// At once is an addition less for each of the others and a rounding of kMagic times a scale: less than one unit of the
// integers, where the activations' own rounding is some ten. In two bytes it is no more than that, and parts are exact.
template <class Type, bool kTwo>
struct PromptWeights {
  typename Type::Operand w;
  float less[2];
  __device__ __forceinline__ explicit PromptWeights(const typename Type::Raw& raw) : w(Type::operand(raw)) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = w.scale[0][i];
#pragma unroll
      for (int s = 1; s < Type::kSub; ++s)
        if (!kTwo) sum = __fadd_rn(sum, w.scale[s][i]);
      less[i] = __fmul_rn(sum, -kMagic);
    }
  }
  // v = scales times codes times codes b, of eight rows.
  __device__ __forceinline__ void multiply(uint4 b, float (&v)[4]) const {
#pragma unroll
    for (int s = 0; s < Type::kSub; ++s) {
      uint32_t c[4];
      Type::mma(c, w.a[s], b, s);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float f = __uint_as_float(c[i]);
        v[i] = __fmaf_rn(w.scale[s][i / 2], kTwo && s > 0 ? __fadd_rn(f, -kMagic) : f, s == 0 ? less[i / 2] : v[i]);
      }
    }
  }
  // sum += 64 columns of 16 rows of weights times eight rows of activations.
  __device__ __forceinline__ void add(uint4 b, uint4 second, float2 scale, float (&sum)[4]) const {
    float v[4];
    multiply(b, v);
    if constexpr (kTwo) {
      float u[4];
      multiply(second, u);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = __fmaf_rn(u[i], 1.f / kSecond, v[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = __fmaf_rn(i % 2 ? scale.y : scale.x, v[i], sum[i]);
  }
};

constexpr int kPromptBeside = 16;  // images of rows that share weights at a time

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
      if (row < a.n_out) put_results(a, tok, row, v);
    }
  }
}

template <class Shape, bool kTwo>
constexpr int kPromptStage = Shape::kRows* ActsInt<1, kTwo>::kStride;

// acc += minima times sums of activations; rows: rows g of the tiles that the strips have in 256 columns.
template <int kTiles>
__device__ __forceinline__ void prompt_minima(const uint8_t* const (&rows)[2], const uint8_t* sums, int lane,
                                              float (&acc)[2][kTiles][4]) {
  uint32_t m[2][4];
  float least[2][2];
#pragma unroll
  for (int s = 0; s < 2; ++s)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 of = load_as<uint4>(rows[s] + 128 * i);
      minima_k45(of, lane % 4, m[s], i);
      least[s][i] = -half_at(of.x, 1);
    }
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

// Long: the pipeline's state and the accumulators are registers of one loop.
template <Tile kTile, bool kTwo, class Shape, int kStages>
__global__ void __launch_bounds__(Shape::kThreads, Shape::kBlocks) prompt_kernel(const __grid_constant__ PromptArgs a) {
  using Type = PromptTile<kTile>;
  constexpr int kTiles = Shape::kTiles, kRows = Shape::kRows, kParts = kTwo ? 2 : 1,
                kCodes = kRows * kActBlock * kParts;
  constexpr int kStage = kPromptStage<Shape, kTwo>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ WorkPlace places;  // for the end: registers are few
  const int lane = int(threadIdx.x) % 32, warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0);
  const WorkPlace place(kPromptBeside, a.n_high, a.n_wide, int(blockIdx.x));
  if (threadIdx.x == 0) places = place;
  const int row0 = warp % Shape::kCols * 8 * kTiles;
  auto pair_at = [&](const WorkPlace& at) { return at.wide * a.block_pairs + warp / Shape::kCols; };
  const bool there = pair_at(place) < a.n_pair;

  // Weights: the group after the one that is multiplied is on its way.
  auto strip = [&](int s) {
    const int pair = pair_at(place), i = there ? a.gated ? pair : min(2 * pair + s, a.n_strip - 1) : 0;
    return a.w[s] + int64_t(i) * a.strip_bytes;
  };
  typename Type::Source from[2] = {{strip(0), lane}, {strip(1), lane}};
  typename Type::Raw raw[2];
#pragma unroll
  for (int s = 0; s < 2; ++s) Type::load(raw[s], from[s], 0, lane);

  pdl_wait();
  pdl_trigger();
  const uint8_t* image = a.image + int64_t(place.high) * a.n_block * kStage + int(threadIdx.x) * 16;
  const uint32_t own = shared_address(shared) + threadIdx.x * 16;
  const int share = int(blockDim.x) * 16;  // of a stage that is copied at once
  int to_step = 0, to_stage = 0, stage = 0;
  auto fetch = [&] {
    if (to_step++ < a.n_block) {
#pragma unroll 4
      for (int i = 0; i < kStage - int(threadIdx.x) * 16; i += share)
        copy16_async_at(own + uint32_t(to_stage * kStage + i), image + i);
      image += kStage;
    }
    to_stage = to_stage + 1 == kStages ? 0 : to_stage + 1;
    copies_commit();
  };
#pragma unroll
  for (int i = 0; i + 1 < kStages; ++i) fetch();

  float acc[2][kTiles][4] = {};
#pragma unroll 1
  for (int step = 0; step < a.n_block; ++step) {
    copies_wait<kStages - 2>();
    __syncthreads();
    fetch();
    const uint8_t* const x = shared + stage * kStage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    if (!there) continue;
    const uint8_t* const codes = x + row0 * 64 + lane * 16;  // of row g = lane / 4, columns 4 t.., t = lane % 4
    const uint8_t* const scales = x + kCodes + kRows * 32 + row0 * 4 + lane % 4 * 8;  // of rows 2 t and 2 t + 1
    const int n_group = min(4, a.n_group - 4 * step);
#pragma unroll 1
    for (int j = 0; j < n_group; ++j) {
      const PromptWeights<Type, kTwo> w[2] = {PromptWeights<Type, kTwo>(raw[0]), PromptWeights<Type, kTwo>(raw[1])};
      if (4 * step + j + 1 < a.n_group) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          from[s].go_on(j == 3);
          Type::load(raw[s], from[s], (j + 1) % 4, lane);
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint4 b = shared16(codes + (j * kParts * kRows + n * 8) * 64);
        uint4 second = {};
        if (kTwo) second = shared16(codes + ((j * kParts + 1) * kRows + n * 8) * 64);
        const float2 scale = *reinterpret_cast<const float2*>(scales + (j * kRows + n * 8) * 4);
#pragma unroll
        for (int s = 0; s < 2; ++s) w[s].add(b, second, scale, acc[s][n]);
      }
    }
    if constexpr (Type::kMinima) {
      const bool on = 4 * step + 4 < a.n_group;
      const uint8_t* const rows[2] = {from[0].row_behind(on), from[1].row_behind(on)};
      prompt_minima<kTiles>(rows, x + kCodes + row0 * 32 + lane * 8, lane, acc);
    }
  }
  __syncthreads();  // all are done with the stages
  if (there)
    prompt_store<kTiles>(a, acc, pair_at(places), places.high * kRows + row0,
                         reinterpret_cast<float*>(shared + warp * kPromptOwn), lane);
}

// Few rows, or few outputs: with fewer warps in a block more multiprocessors have one, though each does less in a time.
// Times of a block with so many warps, of those of one warp for each scheduler.
template <class Shape>
void share_pairs(PromptArgs& a) {
  constexpr int kEach = 4;  // schedulers of a multiprocessor
  constexpr double kTime[] = {0, 1, 1.6, 2.3};
  static_assert(Shape::kWarps <= 3 * kEach || Shape::kWarps % kEach == 0);
  a.n_high = (a.n_tok + Shape::kRows - 1) / Shape::kRows;
  double least = 0;
  for (int each = std::min(3, Shape::kWarps / kEach); each > 0; --each) {
    const int pairs = each * kEach / Shape::kCols, wide = (a.n_pair + pairs - 1) / pairs;
    const int64_t turns = (int64_t(wide) * a.n_high + device().n_sm - 1) / device().n_sm;
    const double time = double(turns) * kTime[each];
    if (least == 0 || time < least) least = time, a.block_pairs = pairs, a.n_wide = wide;
  }
}

template <Tile kTile, bool kTwo, class Shape, int kStages>
void launch_prompt_as(cudaStream_t stream, PromptArgs& a) {
  constexpr int kShared = std::max(kStages * kPromptStage<Shape, kTwo>, Shape::kWarps * kPromptOwn);
  auto* const kernel = prompt_kernel<kTile, kTwo, Shape, kStages>;
  allow_shared(kernel, size_t(kShared));
  if (a.block_pairs == 0) share_pairs<Shape>(a);
  launch(kernel, dim3(unsigned(a.n_wide) * unsigned(a.n_high)), dim3(unsigned(a.block_pairs * Shape::kCols * 32)),
         size_t(kShared), stream, a);
}

template <bool kTwo>
void launch_prompt(cudaStream_t stream, Tile tile, PromptArgs& a) {
  using Shape = PromptShape<12, 8, 1, 1>;
  static_assert(Shape::kRows == kPromptRows);
  with_code_tile(tile,
                 [&](auto kind) { launch_prompt_as<decltype(kind)::value, kTwo, Shape, kTwo ? 2 : 3>(stream, a); });
}

}  // namespace facet::cuda
