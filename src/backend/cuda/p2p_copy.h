#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/cuda.h"

namespace facet {

// Copies of rows from one GPU's stage to another's (pipeline_parallel.h): between their memories if each reaches that
// of the others (peer to peer), else through page-locked memory of the host, piece by piece.
//
// The host waits for nothing. The GPU that receives rows waits for the kernel that wrote them, and the GPU that gives
// them waits for the copy before it writes there again; so one GPU may work on the next chunk of a prompt while another
// has this one.
//
// Tests: FACET_CUDA_PEERS=0 in the environment takes the host's memory. Stages may share a GPU.
class P2pCopy {
 public:
  using Rows = Cuda::Rows;

  P2pCopy() = default;
  ~P2pCopy();
  P2pCopy(const P2pCopy&) = delete;

  // Called before anything else. Memory that cannot be allocated is an error of a stage's status.
  void connect(std::span<const std::unique_ptr<Cuda>> stages);
  // y of stage `to` becomes x of stage `from`, all columns of a buffer. The GPU of `to` is current afterwards.
  void move(size_t to, Rows y, size_t from, Rows x);

  bool by_peers() const { return peers_; }
  static constexpr int64_t kPieceBytes = int64_t(4) << 20;

 private:
  static constexpr int kPieces = 2;  // one is filled while the other is read

  struct Stage {
    Cuda* b = nullptr;
    cudaEvent_t done = nullptr;                  // what others wait for
    std::array<cudaEvent_t, kPieces> read = {};  // of a piece, by this stage
    cudaStream_t stream() const { return b->device().stream(); }
  };
  struct Piece {
    std::byte* p = nullptr;
    const Stage* reader = nullptr;  // the last one; null: none
  };
  void directly(Stage& to, float* y, Stage& from, const float* x, int64_t bytes);
  void through_host(Stage& to, float* y, Stage& from, const float* x, int64_t bytes);

  std::vector<Stage> stage_;
  std::array<Piece, kPieces> piece_;
  size_t next_ = 0;  // of those
  bool peers_ = false;
};

}  // namespace facet
