#pragma once
#include "backend/cuda/kernels/common/barrier.cuh"
#include "backend/cuda/kernels/common/tensor_load.cuh"
#include "backend/cuda/kernels/common/wgmma_bf16.cuh"
#include "backend/cuda/kernels/matmul/expand_tiles.cuh"

// The main loop of products of many rows straight from codes, on sm_90a: of two warpgroups of a block, whose warps have
// a strip of 16 rows of weights each.
namespace facet::cuda {

constexpr int kCodesTok = 256, kCodesStage = kCodesTok * 128;  // rows of a stage at most; bytes of one, 64 columns

constexpr int kMeetingBytes = kCodesTok * 64 * 4, kMeetingBarrier = 3;  // half of the sums of both warpgroups

#if defined(FACET_WGMMA)
// The compiler has these registers written before what follows.
__device__ __forceinline__ void settle(uint32_t (&a)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) asm volatile("" : "+r"(a[k][0]), "+r"(a[k][1]), "+r"(a[k][2]), "+r"(a[k][3])::"memory");
}

// d = a strip of each warp times at most 256 rows of activations, 64 n64 of them; stages as rows of 128 bytes
// (rows_operand). A strip's codes come from memory into registers a group of 64 columns ahead, become bf16 there while
// tensor cores multiply the group before, and are their first operand. One function for all widths: the
// registers of products in flight are not shared by others, so that there is room for one such loop.
template <Tile kTile, int kStages>
struct CodesLoop {
  using From = ExpandTile<kTile>;
  static constexpr int kGroups = tile_cols(kTile) / 64;  // of a tile
  const char* rows;
  uint64_t *full, *empty;
  RingPosition& state;
  const uint8_t* w;
  int lane, n64, before = 0;
  typename From::Raw raw;
  uint32_t a[2][4][4];
  float d[kCodesTok / 8][4] = {};

  // The stage before has been read.
  __device__ __forceinline__ void release() {
    if (lane == 0) barrier_arrive(empty + before);
  }
  template <int kSixteens, int kTurn>
  __device__ __forceinline__ void multiply(uint64_t b, bool add) {
    auto& part = reinterpret_cast<float(&)[2 * kSixteens][4]>(d);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_bf16(part, a[kTurn][k], b + k * 2, add || k > 0);
    wgmma_commit();  // here, not where branches meet: the compiler would end a second group there
  }
  // Operands take turns: those of the group before are read meanwhile.
  template <int kTurn>
  __device__ __forceinline__ void group(int kb, int n_block) {
    From::operand(a[kTurn], raw, kb % kGroups, lane);
    if (kb + 1 < n_block) {
      if ((kb + 1) % kGroups == 0) w += tile_bytes(kTile);
      From::load(raw, w, (kb + 1) % kGroups, lane);
    }
    settle(a[kTurn]);
    barrier_wait(full + state.stage, state.phase);
    const uint64_t b = rows_operand(rows + state.stage * kCodesStage);
    if (n64 == 4)
      multiply<16, kTurn>(b, kb > 0);
    else if (n64 == 3)
      multiply<12, kTurn>(b, kb > 0);
    else if (n64 == 2)
      multiply<8, kTurn>(b, kb > 0);
    else
      multiply<4, kTurn>(b, kb > 0);
    if (kb > 0) wgmma_wait_older(), release();
    before = state.stage;
    state.advance(kStages);
  }
  __device__ __forceinline__ void run(int n_block) {
    From::load(raw, w, 0, lane);
    int kb = 0;
    for (; kb + 1 < n_block; kb += 2) group<0>(kb, n_block), group<1>(kb + 1, n_block);
    if (kb < n_block) group<0>(kb, n_block);
    wgmma_wait(d);
    release();
  }
};

// Gate and up, one warpgroup's each, meet in shared memory (kMeetingBytes): of 32 rows in turn each gives the other
// what that one finishes: finish(n, gate, up) for rows 32 n.. below n_tok. Who writes there again waits first.
template <class Finish>
__device__ __forceinline__ void gate_meets_up(const float (&d)[kCodesTok / 8][4], char* shared, int n_tok,
                                              Finish&& finish) {
  constexpr int kTurns = kCodesTok / 32;
  const int part = int(threadIdx.x) / 128, at = int(threadIdx.x) % 128;
  float4* const give = reinterpret_cast<float4*>(shared + part * (kMeetingBytes / 2)) + at;
  const float4* const take = reinterpret_cast<const float4*>(shared + (1 - part) * (kMeetingBytes / 2)) + at;
#pragma unroll
  for (int n = 0; n < kTurns; ++n) {
    if (32 * n >= n_tok) break;
    if (n % 2 == part) continue;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float(&v)[4] = d[4 * n + k];
      give[(n / 2 * 4 + k) * 128] = {v[0], v[1], v[2], v[3]};
    }
  }
  sync_some<256>(kMeetingBarrier);
#pragma unroll
  for (int n = 0; n < kTurns; ++n) {
    if (32 * n >= n_tok) break;
    if (n % 2 != part) continue;
    float gate[4][4], up[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float4 given = take[(n / 2 * 4 + k) * 128];
      const float other[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float own = d[4 * n + k][i];
        gate[k][i] = part == 0 ? own : other[i], up[k][i] = part == 0 ? other[i] : own;
      }
    }
    finish(n, gate, up);
  }
}
#endif

}  // namespace facet::cuda
