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

// d = a strip of each warp times at most kTok rows of activations, 32 n32 of them; stages as rows of 128 bytes
// (rows_operand), in f16 and in the columns' order of expand_tiles.cuh. A strip's codes come from memory into registers
// two groups of 64 columns ahead, become f16 there while tensor cores multiply the groups before, and are their first
// operand. One function for all widths: the registers of products in flight are not shared by others, so that there is
// room for one such loop. Of at most 128 rows two groups at a time, whose instructions hide each other's latency.
template <Tile kTile, int kTok>
struct CodesLoop {
  using From = ExpandTile<kTile>;
  static constexpr int kGroups = tile_cols(kTile) / 64;  // of a tile
  static constexpr int kEach = kTok <= 128 ? 2 : 1, kTurns = 2 * kEach;
  uint64_t *full, *empty;
  RingPosition& state;
  const uint8_t* w;  // the tile that is loaded next
  uint32_t rows;     // rows_operand of the first stage, its lower word
  CodesStages stages;
  int lane, n32;
  int before[kEach] = {}, n_before = 0;  // stages that are being read
  typename From::Raw raw[2];
  uint32_t a[kTurns][4][4];
  float d[kTok / 8][4] = {};

  template <int kTurn>
  static __device__ __forceinline__ int group_of(int kb) {
    return kGroups == 1 ? 0 : kGroups == kTurns ? kTurn % kGroups : kb % kGroups / 2 * 2 + kTurn;
  }
  template <int kTurn>
  __device__ __forceinline__ void load(int kb) {
    const int j = group_of<kTurn>(kb);
    From::load(raw[kTurn % 2], w, j, lane);
    if (j == kGroups - 1) w += tile_bytes(kTile);
  }
  // The stages before have been read.
  __device__ __forceinline__ void release() {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i < n_before && lane == 0) barrier_arrive(empty + before[i]);
  }
  // n32 is kLeast to kMost.
  template <int kTurn, int kLeast = 1, int kMost = kTok / 32>
  __device__ __forceinline__ void multiply(const uint32_t (&b)[kEach], bool add) {
    constexpr int kMiddle = (kLeast + kMost) / 2;
    if constexpr (kLeast == kMost) {
      auto& part = reinterpret_cast<float(&)[4 * kMost][4]>(d);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) wgmma_f16(part, a[kTurn + i][k], rows_operand_of(b[i] + k * 2), add || i + k > 0);
      wgmma_commit();  // here, not where branches meet: the compiler would end a second group there
    } else if (n32 > kMiddle) {
      multiply<kTurn, kMiddle + 1, kMost>(b, add);
    } else {
      multiply<kTurn, kLeast, kMiddle>(b, add);
    }
  }
  // kEach groups from kb on; one that is not there is zeros times what the one before has. Operands take turns: those of
  // the groups before are read meanwhile.
  template <int kTurn>
  __device__ __forceinline__ void groups(int kb, int n_block) {
    constexpr int kNext = kTurns == 2 ? kTurn : (kTurn + 2) % 4;
    const bool two = kEach > 1 && kb + 1 < n_block;
    From::operand(a[kTurn], raw[kTurn % 2], group_of<kTurn>(kb));
    if constexpr (kEach > 1) {
      From::operand(a[kTurn + 1], raw[1], group_of<kTurn + 1>(kb + 1));
      if (!two)
#pragma unroll
        for (int i = 0; i < 16; ++i) a[kTurn + 1][i / 4][i % 4] = 0;
    }
    if (kb + 2 < n_block) load<kNext>(kb + 2);
    if constexpr (kEach > 1)
      if (kb + 3 < n_block) load<kNext + 1>(kb + 3);
    uint32_t b[kEach];
    int now[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      settle(a[kTurn + i]);
      if (i > 0) b[i] = b[0], now[i] = now[0];
      if (i > 0 && !two) break;
      barrier_wait(full + state.stage, state.phase);
      b[i] = rows + uint32_t(state.stage * stages.bytes / 16), now[i] = state.stage;
      state.advance(stages.n);
    }
    multiply<kTurn>(b, kb > 0);
    if (kb > 0) wgmma_wait_older(), release();
#pragma unroll
    for (int i = 0; i < kEach; ++i) before[i] = now[i];
    n_before = two ? 2 : 1;
  }
  __device__ __forceinline__ void run(int n_block) {
    asm volatile("" : "+l"(w), "+r"(lane));  // else each load adds up where they come from
    load<0>(0);
    if (n_block > 1) load<1>(1);
    for (int kb = 0; kb < n_block; kb += kEach) {
      groups<0>(kb, n_block);
      if ((kb += kEach) >= n_block) break;
      groups<kEach>(kb, n_block);
    }
    wgmma_wait(d);
    release();
  }
};

// The sums of rows 64 turn.. of this warpgroup, without bank conflicts.
template <int kTurn, int kBlocks>
__device__ __forceinline__ void put_sums(float* to, const float (&d)[kBlocks][4]) {
  const int thread = int(threadIdx.x) % 128, warp = thread / 32, g = thread % 32 / 4, t = thread % 4;
  to += 2 * t * kSumsPitch + 16 * warp + g;
#pragma unroll
  for (int n = 0; n < 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) to[(8 * n + i % 2) * kSumsPitch + i / 2 * 8] = d[8 * kTurn + n][i];
}
// each(first row, sums of its turn) for rows below n_tok, by all whose barrier `id` is; sums: of this warpgroup, or
// (kGated) of the first, those of the second kSumsBytes behind them.
template <bool kGated, int kBlocks, class Each>
__device__ __forceinline__ void each_sums(const float (&d)[kBlocks][4], char* shared, int n_tok, Each&& each) {
  const int part = int(threadIdx.x) / 128, id = kGated ? 3 : 1 + part;
  float* const own = reinterpret_cast<float*>(shared + part * kSumsBytes);
  const auto turn = [&]<int kTurn>(std::integral_constant<int, kTurn>) {
    if (kSumsTok * kTurn >= n_tok) return;
    if constexpr (8 * kTurn < kBlocks) put_sums<kTurn>(own, d);
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
