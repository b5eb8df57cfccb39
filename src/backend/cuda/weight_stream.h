#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/matmul/layout.h"
#include "backend/cuda/loader.h"
#include "backend/layer_turns.h"
#include "formats/dtype.h"

namespace facet::cuda {

// Brings experts that lie in RAM to the GPU for rows of long prompts: layer after layer into one place. The next layer's
// come while attention and what else it has before them is computed; a second place would hide little more, and leave
// one layer fewer on the GPU. A thread of its own reads the file's memory, and a stream of its own copies and reorders.
class WeightStream {
 public:
  explicit WeightStream(Device& device);
  ~WeightStream();  // the device's stream is idle
  WeightStream(const WeightStream&) = delete;

  // A layer's matrices, in any order, before reserve(). `to` has no memory; kept: its type in the file or what that
  // becomes. The number by which acquire() knows it.
  int add(int layer, const TensorView& t, const TiledMatrix& to, DType kept);
  // False: there is no memory for the place; Device::status() says so.
  bool reserve();
  static int64_t bytes(int64_t layer);  // of device memory, for layers of at most so many bytes

  // Begins to bring a layer, if it is not on its way: a hint.
  void prefetch_first();
  // The layer's matrices, for what is launched in the device's stream until release(). Waits until their copies are
  // queued, and begins to bring the layer after it. Layers come in order.
  void acquire(int layer);
  TiledMatrix matrix(int number) const;  // of the layer that is acquired
  void release(int layer);

 private:
  static constexpr int64_t kAlign = 1024;
  struct Matrix {
    TensorView t;
    TiledMatrix to;
    DType kept = DType::kF32;
    int layer = 0;
    int64_t at = 0;  // in the place
  };
  struct Layer {
    std::vector<int> matrices;
    int64_t bytes = 0;
  };
  void bring(int layer);  // on the thread of turns_

  Device& device_;
  std::vector<Matrix> matrices_;
  std::map<int, Layer> layers_;
  cudaStream_t stream_ = nullptr;
  std::optional<Loader> loader_;
  uint8_t* place_ = nullptr;
  cudaEvent_t ready_ = nullptr, used_ = nullptr;
  std::optional<LayerTurns> turns_;  // ends first
};

}  // namespace facet::cuda
