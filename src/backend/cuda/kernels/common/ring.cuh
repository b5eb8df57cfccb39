#pragma once
#include "backend/cuda/kernels/common/bulk.cuh"
#include "backend/cuda/kernels/common/mma.cuh"

namespace facet::cuda {

// A pipeline of one warp from global into shared memory: tiles in, tiles out, in order. On sm_90 and later the copy
// engine moves a tile with one instruction and an mbarrier says when it is there; before, every lane copies its pieces.
// All lanes call everything. Sources and sizes are multiples of 16 bytes. Copies are fastest where a tile lies in its
// line of 128 bytes as it does in memory: base is a multiple of kLine, and stage_bytes is stage_bytes_for(the largest
// tile).
class WarpRing {
 public:
  static constexpr int kMaxStages = 8, kLine = 128;
  __host__ __device__ static constexpr int lines(int bytes) { return (bytes + kLine - 1) / kLine * kLine; }
  __host__ __device__ static constexpr int stage_bytes_for(int tile) {
    return tile % kLine == 0 ? tile : lines(tile + kLine - 16);
  }

  // keep_place: tiles lie in their lines as in memory; without, they begin where stages do.
  __device__ WarpRing(uint8_t* base, uint64_t* bars, int n_stage, int stage_bytes, int lane, bool keep_place)
      : base_(hold_shared(base)),
        bars_(hold_shared(bars)),
        n_stage_(n_stage),
        stage_bytes_(stage_bytes),
        lane_(lane),
        place_(keep_place ? kLine - 1 : 0) {
#if __CUDA_ARCH__ >= 900
    if (lane < n_stage) {
      barrier_init(bars + lane, 1);
      barriers_publish();
    }
    __syncwarp();
#endif
  }

  // Starts the copy of a tile: at most n_stage - 1 may be on their way or held.
  __device__ __forceinline__ void push(const uint8_t* from, int bytes) {
    uint8_t* to = base_ + in_ * stage_bytes_ + (uint32_t(reinterpret_cast<uintptr_t>(from)) & place_);
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) {
      barrier_arrive_expecting(bars_ + in_, unsigned(bytes));
      bulk_load_once(to, from, unsigned(bytes), bars_ + in_);
    }
#else
    for (int i = lane_ * 16; i < bytes; i += 512) copy16_async(to + i, from + i);
    copies_commit();
    ++pending_;
#endif
    in_ = in_ + 1 == n_stage_ ? 0 : in_ + 1;
  }

  // The oldest tile that was pushed, from an address with these low bits, once it has arrived. It stays until the
  // push() after the next pop().
  __device__ __forceinline__ const uint8_t* pop(uint32_t from) {
    const uint8_t* tile = base_ + out_ * stage_bytes_ + (from & place_);
#if __CUDA_ARCH__ >= 900
    barrier_wait(bars_ + out_, phase_);
#else
    copies_wait(--pending_);
#endif
    __syncwarp();
    if (++out_ == n_stage_) out_ = 0, phase_ ^= 1;
    return tile;
  }
  // The ring's memory, when no tile is on its way or held. A thread that wrote to it calls release() and then
  // synchronises before the ring is used again.
  __device__ float* memory() const { return reinterpret_cast<float*>(base_); }
  __device__ static void release() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
  }

 private:
  uint8_t* base_;
  uint64_t* bars_;
  int n_stage_, stage_bytes_, lane_;
  int in_ = 0, out_ = 0;
  int pending_ = 0;
  uint32_t phase_ = 0, place_;
};

}  // namespace facet::cuda
