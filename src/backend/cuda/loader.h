#pragma once
#include <cuda_runtime.h>

#include <array>
#include <cstddef>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "formats/dtype.h"

namespace facet::cuda {

// Weights on their way to the device: two pinned buffers in turn.
class Loader {
 public:
  static constexpr size_t kPiece = size_t(32) << 20;
  // stream: in which it copies and reorders; null: the device's.
  explicit Loader(Device& device, cudaStream_t stream = nullptr)
      : device_(device), stream_(stream ? stream : device.stream()) {}
  ~Loader();
  Loader(const Loader&) = delete;

  // The buffers now, for rows of up to kPiece / kTileRows bytes; else load() makes them. False: there was no memory.
  bool reserve();
  // The tensor's bytes, widened to `kept` if that is not its type, reordered into the tiles of `to`, which has memory.
  // False: there was no memory for the buffers.
  bool load(const TiledMatrix& to, const TensorView& t, DType kept);

 private:
  struct Buffer {
    std::byte* host = nullptr;
    uint8_t* device = nullptr;
    cudaEvent_t free = nullptr;
  };
  bool make(Buffer& b, size_t bytes);

  Device& device_;
  const cudaStream_t stream_;
  std::array<Buffer, 2> buffer_;
  int next_ = 0;
};

}  // namespace facet::cuda
