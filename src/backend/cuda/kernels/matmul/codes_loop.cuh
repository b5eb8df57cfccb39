#pragma once
#include "backend/cuda/kernels/common/barrier.cuh"
#include "backend/cuda/kernels/common/tensor_load.cuh"
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"
#include "backend/cuda/kernels/matmul/expand_tiles.cuh"

// The main loop of products of many rows straight from codes, on sm_90a: of two warpgroups of a block, whose warps have
// a strip of 16 rows of weights each.
namespace facet::cuda {

constexpr int kCodesTok = 256, kCodesStage = kCodesTok * 128;  // rows of a stage at most; bytes of one, 64 columns

// The ring of stages: of fewer rows there are more, which hide the way of a copy.
struct CodesStages {
  int bytes, n;
};
constexpr int kCodesStages = 20;  // at most
constexpr CodesStages codes_stages(int ring_bytes, int most_rows) {
  const int bytes = most_rows * 128, n = ring_bytes / bytes;
  return {bytes, n < kCodesStages ? n : kCodesStages};
}

// Sums go out by way of shared memory, kSumsTok rows at a time: [row][64 outputs of a warpgroup]. Loops over what lies
// there are short code: instructions that run once a tile come from far away.
constexpr int kSumsTok = 64, kSumsPitch = 68, kSumsBytes = kSumsTok * kSumsPitch * 4;  // of a warpgroup

#if defined(FACET_WGMMA)
// The compiler has these registers written before what follows.
__device__ __forceinline__ void settle(uint32_t (&a)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])::"memory");
}

// d = a strip of each warp times at most 256 rows of activations, 32 n32 of them; stages as rows of 128 bytes
// (rows_operand), in f16 and in the columns' order of expand_tiles.cuh. A strip's codes come from memory into registers
// two groups of 64 columns ahead, become f16 there while tensor cores multiply the group before, and are their first
// operand. One function for all widths: the registers of products in flight are not shared by others, so that there is
// room for one such loop.
template <Tile kTile>
struct CodesLoop {
  using From = ExpandTile<kTile>;
  static constexpr int kGroups = tile_cols(kTile) / 64;  // of a tile
  uint64_t *full, *empty;
  RingPosition& state;
  const uint8_t* w;  // the tile that is loaded next
  uint32_t rows;     // rows_operand of the first stage, its lower word
  CodesStages stages;
  int lane, n32, before = 0;
  typename From::Raw raw[2];
  uint32_t a[2][4][4];
  float d[kCodesTok / 8][4] = {};

  template <int kTurn>
  static __device__ __forceinline__ int group_of(int kb) {
    return kGroups == 1 ? 0 : kb % kGroups / 2 * 2 + kTurn;
  }
  template <int kTurn>
  __device__ __forceinline__ void load(int kb) {
    const int j = group_of<kTurn>(kb);
    From::load(raw[kTurn], w, j, lane);
    if (j == kGroups - 1) w += tile_bytes(kTile);
  }
  // The stage before has been read.
  __device__ __forceinline__ void release() {
    if (lane == 0) barrier_arrive(empty + before);
  }
  // n32 is kLeast to kMost.
  template <int kTurn, int kLeast = 1, int kMost = kCodesTok / 32>
  __device__ __forceinline__ void multiply(uint32_t b, bool add) {
    constexpr int kMiddle = (kLeast + kMost) / 2;
    if constexpr (kLeast == kMost) {
      auto& part = reinterpret_cast<float(&)[4 * kMost][4]>(d);
      wgmma_begin();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_f16(part, a[kTurn][k], rows_operand_of(b + k * 2), add || k > 0);
      wgmma_commit();  // here, not where branches meet: the compiler would end a second group there
    } else if (n32 > kMiddle) {
      multiply<kTurn, kMiddle + 1, kMost>(b, add);
    } else {
      multiply<kTurn, kLeast, kMiddle>(b, add);
    }
  }
  // Operands take turns: those of the group before are read meanwhile.
  template <int kTurn>
  __device__ __forceinline__ void group(int kb, int n_block) {
    From::operand(a[kTurn], raw[kTurn], group_of<kTurn>(kb));
    if (kb + 2 < n_block) load<kTurn>(kb + 2);
    settle(a[kTurn]);
    barrier_wait(full + state.stage, state.phase);
    multiply<kTurn>(rows + uint32_t(state.stage * stages.bytes / 16), kb > 0);
    if (kb > 0) wgmma_wait_older(), release();
    before = state.stage;
    state.advance(stages.n);
  }
  __device__ __forceinline__ void run(int n_block) {
    asm volatile("" : "+l"(w), "+r"(lane));  // else each load adds up where they come from
    load<0>(0);
    if (n_block > 1) load<1>(1);
    int kb = 0;
    for (; kb + 1 < n_block; kb += 2) group<0>(kb, n_block), group<1>(kb + 1, n_block);
    if (kb < n_block) group<0>(kb, n_block);
    wgmma_wait(d);
    release();
  }
};

// The sums of rows 64 turn.. of this warpgroup, without bank conflicts.
template <int kTurn>
__device__ __forceinline__ void put_sums(float* to, const float (&d)[kCodesTok / 8][4]) {
  const int thread = int(threadIdx.x) % 128, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  to += 2 * t * kSumsPitch + 16 * warp + g;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[(8 * n + i % 2) * kSumsPitch + i / 2 * 8] = d[8 * kTurn + n][i];
}
// each(first row, sums of its turn) for rows below n_tok, by all whose barrier `id` is; sums: of this warpgroup, or
// (kGated) of the first, those of the second kSumsBytes behind them.
template <bool kGated, class Each>
__device__ __forceinline__ void each_sums(const float (&d)[kCodesTok / 8][4], char* shared, int n_tok, Each&& each) {
  const int part = int(threadIdx.x) / 128, id = kGated ? 3 : 1 + part;
  float* const own = reinterpret_cast<float*>(shared + part * kSumsBytes);
  const auto turn = [&]<int kTurn>(std::integral_constant<int, kTurn>) {
    if (kSumsTok * kTurn >= n_tok) return;
    put_sums<kTurn>(own, d);
    sync_some<kGated ? 256 : 128>(id);
    each(kSumsTok * kTurn, kGated ? reinterpret_cast<const float*>(shared) : own);
    sync_some<kGated ? 256 : 128>(id);
  };
  turn(std::integral_constant<int, 0>{}), turn(std::integral_constant<int, 1>{});
  turn(std::integral_constant<int, 2>{}), turn(std::integral_constant<int, 3>{});
}
__device__ __forceinline__ float4 four(const float* at) { return *reinterpret_cast<const float4*>(at); }
#endif

}  // namespace facet::cuda
